// The tokenizer of a model as metadata of a GGUF file.
#pragma once
#include "checkpoint/checkpoint.h"
#include "formats/gguf.h"

// Adds tokens, merges or scores, what begins and ends a text, and the chat template. Fails with ERR_UNAVAILABLE where
// llama.cpp has no name for how the tokenizer cuts text, and with ERR_DATA where it has more tokens than the model.
Status gguf_describe_tokenizer(GgufMetadata *metadata, const ModelSource *source, const Tokenizer *tokenizer);
