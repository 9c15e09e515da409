// Calls the C++ library SentencePiece and catches its exceptions.
#include "tokenizer/sentencepiece.h"
#include <cstdio>
#include <exception>
#include <sentencepiece_processor.h>
#include <string>
#include <vector>

struct SentencePiece {
    sentencepiece::SentencePieceProcessor processor;
};

static bool succeeded(const sentencepiece::util::Status &status, char *message) {
    if (status.ok()) return true;
    snprintf(message, SENTENCEPIECE_MESSAGE, "%s", status.ToString().c_str());
    return false;
}

// Runs what may throw, above all for lack of memory.
template <typename Call> static bool guarded(char *message, Call call) {
    try {
        return succeeded(call(), message);
    } catch (const std::exception &problem) {
        snprintf(message, SENTENCEPIECE_MESSAGE, "%s", problem.what());
    } catch (...) {
        snprintf(message, SENTENCEPIECE_MESSAGE, "an unknown exception");
    }
    return false;
}

SentencePiece *sentencepiece_open(const char *model, size_t bytes, char message[SENTENCEPIECE_MESSAGE]) {
    SentencePiece *opened = nullptr;
    bool fine = guarded(message, [&] {
        opened = new SentencePiece;
        return opened->processor.LoadFromSerializedProto(absl::string_view(model, bytes));
    });
    if (fine) return opened;
    delete opened;
    return nullptr;
}

void sentencepiece_close(SentencePiece *model) { delete model; }

int sentencepiece_size(const SentencePiece *model) { return model->processor.GetPieceSize(); }
int sentencepiece_bos(const SentencePiece *model) { return model->processor.bos_id(); }
int sentencepiece_eos(const SentencePiece *model) { return model->processor.eos_id(); }
int sentencepiece_unknown(const SentencePiece *model) { return model->processor.unk_id(); }

const char *sentencepiece_piece(const SentencePiece *model, int id) {
    return model->processor.IdToPiece(id).c_str();
}

float sentencepiece_score(const SentencePiece *model, int id) { return model->processor.GetScore(id); }
bool sentencepiece_is_control(const SentencePiece *model, int id) { return model->processor.IsControl(id); }
bool sentencepiece_is_unused(const SentencePiece *model, int id) { return model->processor.IsUnused(id); }
bool sentencepiece_is_byte(const SentencePiece *model, int id) { return model->processor.IsByte(id); }

bool sentencepiece_encode(const SentencePiece *model, const char *text, size_t bytes,
                          void (*take)(void *self, const int *ids, size_t count), void *self,
                          char message[SENTENCEPIECE_MESSAGE]) {
    return guarded(message, [&] {
        std::vector<int> ids;
        auto status = model->processor.Encode(absl::string_view(text, bytes), &ids);
        if (status.ok()) take(self, ids.data(), ids.size());
        return status;
    });
}

bool sentencepiece_decode(const SentencePiece *model, const int *ids, size_t count,
                          void (*take)(void *self, const char *text, size_t bytes), void *self,
                          char message[SENTENCEPIECE_MESSAGE]) {
    return guarded(message, [&] {
        std::string text;
        auto status = model->processor.Decode(std::vector<int>(ids, ids + count), &text);
        if (status.ok()) take(self, text.data(), text.size());
        return status;
    });
}
