// SentencePiece where a build has none: no model is opened, so that nothing else of it is ever called.
#include "base/error.h"
#include "tokenizer/sentencepiece.h"
#include <stdio.h>

SentencePiece *sentencepiece_open(const char *model, size_t bytes, char message[SENTENCEPIECE_MESSAGE]) {
    (void)model, (void)bytes;
    snprintf(message, SENTENCEPIECE_MESSAGE, "this build has no such library");
    return NULL;
}

static int never(const SentencePiece *model) {
    CHECK(!model, "a model that could not be opened");
    return -1;
}

void sentencepiece_close(SentencePiece *model) { never(model); }
int sentencepiece_size(const SentencePiece *model) { return never(model); }
int sentencepiece_bos(const SentencePiece *model) { return never(model); }
int sentencepiece_eos(const SentencePiece *model) { return never(model); }
int sentencepiece_unknown(const SentencePiece *model) { return never(model); }

const char *sentencepiece_piece(const SentencePiece *model, int id) {
    (void)id, never(model);
    return "";
}

float sentencepiece_score(const SentencePiece *model, int id) { return (void)id, (float)never(model); }
bool sentencepiece_is_control(const SentencePiece *model, int id) { return (void)id, never(model) >= 0; }
bool sentencepiece_is_unused(const SentencePiece *model, int id) { return (void)id, never(model) >= 0; }
bool sentencepiece_is_byte(const SentencePiece *model, int id) { return (void)id, never(model) >= 0; }

bool sentencepiece_encode(const SentencePiece *model, const char *text, size_t bytes,
                          void (*take)(void *self, const int *ids, size_t count), void *self,
                          char message[SENTENCEPIECE_MESSAGE]) {
    (void)text, (void)bytes, (void)take, (void)self, (void)message;
    return never(model) >= 0;
}

bool sentencepiece_decode(const SentencePiece *model, const int *ids, size_t count,
                          void (*take)(void *self, const char *text, size_t bytes), void *self,
                          char message[SENTENCEPIECE_MESSAGE]) {
    (void)ids, (void)count, (void)take, (void)self, (void)message;
    return never(model) >= 0;
}
