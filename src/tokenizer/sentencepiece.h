// The SentencePiece library, which is C++, for C. Nothing here throws; a failure leaves the library's words
// in `message`.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SENTENCEPIECE_MESSAGE = 200 };

typedef struct SentencePiece SentencePiece;

// From the bytes of a model file. NULL: they are none.
SentencePiece *sentencepiece_open(const char *model, size_t bytes, char message[SENTENCEPIECE_MESSAGE]);
void sentencepiece_close(SentencePiece *model); // takes NULL
int sentencepiece_size(const SentencePiece *model);
int sentencepiece_bos(const SentencePiece *model); // -1: none, and so the next two
int sentencepiece_eos(const SentencePiece *model);
int sentencepiece_unknown(const SentencePiece *model);
const char *sentencepiece_piece(const SentencePiece *model, int id);
float sentencepiece_score(const SentencePiece *model, int id);
bool sentencepiece_is_control(const SentencePiece *model, int id);
bool sentencepiece_is_unused(const SentencePiece *model, int id);
bool sentencepiece_is_byte(const SentencePiece *model, int id);

// Hands ids or bytes over once; they are the library's until `take` returns.
bool sentencepiece_encode(const SentencePiece *model, const char *text, size_t bytes,
                          void (*take)(void *self, const int *ids, size_t count), void *self,
                          char message[SENTENCEPIECE_MESSAGE]);
bool sentencepiece_decode(const SentencePiece *model, const int *ids, size_t count,
                          void (*take)(void *self, const char *text, size_t bytes), void *self,
                          char message[SENTENCEPIECE_MESSAGE]);

#ifdef __cplusplus
}
#endif
