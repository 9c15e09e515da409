// The tokenizer of a model as metadata of a GGUF file, written and read.
#pragma once
#include "checkpoint/checkpoint.h"
#include "formats/gguf.h"

// A way to cut text into pieces, with llama.cpp's name of it.
typedef struct {
    const char *name;
    bool whole;                  // a piece that is a token is taken whole
    const char *const *patterns; // one after another, NULL behind the last
} GgufCut;
const GgufCut *gguf_cut(int i); // NULL behind the last

// Adds tokens, merges or scores, what begins and ends a text, and the chat template. Fails with ERR_UNAVAILABLE where
// llama.cpp has no name for how the tokenizer cuts text, and with ERR_DATA where it has more tokens than the model.
Status gguf_describe_tokenizer(GgufMetadata *metadata, const ModelSource *source, const Tokenizer *tokenizer);
// Opens the tokenizer inside a file: byte-level BPE ("gpt2") or SentencePiece ("llama", "t5"), with its chat template
// (gguf_tokenizer_read.c). Fails with ERR_NO_INPUT where there is none, with ERR_UNAVAILABLE for another kind and for a
// way to cut text that is not known, and with ERR_DATA for lists that do not fit each other.
Status gguf_read_tokenizer(const Gguf *file, Tokenizer **tokenizer);
