// The C++ library SentencePiece, callable from C. No function throws: it returns NULL or false and copies the
// library's message to `message`.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SENTENCEPIECE_MESSAGE = 200 };

typedef struct SentencePiece SentencePiece;

// Opens a model from the bytes of its file. Returns NULL when they are not a model.
SentencePiece *sentencepiece_open(const char *model, size_t bytes, char message[SENTENCEPIECE_MESSAGE]);
void sentencepiece_close(SentencePiece *model); // takes NULL
int sentencepiece_size(const SentencePiece *model);
int sentencepiece_bos(const SentencePiece *model); // -1: none; also of the next two
int sentencepiece_eos(const SentencePiece *model);
int sentencepiece_unknown(const SentencePiece *model);
const char *sentencepiece_piece(const SentencePiece *model, int id);
float sentencepiece_score(const SentencePiece *model, int id);
bool sentencepiece_is_control(const SentencePiece *model, int id);
bool sentencepiece_is_unused(const SentencePiece *model, int id);
bool sentencepiece_is_byte(const SentencePiece *model, int id);

// Each calls `take` once. The ids or bytes belong to the library and are valid until `take` returns.
bool sentencepiece_encode(const SentencePiece *model, const char *text, size_t bytes,
                          void (*take)(void *self, const int *ids, size_t count), void *self,
                          char message[SENTENCEPIECE_MESSAGE]);
bool sentencepiece_decode(const SentencePiece *model, const int *ids, size_t count,
                          void (*take)(void *self, const char *text, size_t bytes), void *self,
                          char message[SENTENCEPIECE_MESSAGE]);

#ifdef __cplusplus
}
#endif
