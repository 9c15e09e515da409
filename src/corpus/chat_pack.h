// Packs conversations into samples of a window, as they come, and writes them with their masks.
//
// A conversation goes to the open sample in which it leaves the least room, or else to a new one. At most
// CHAT_OPEN_SAMPLES are open, so that memory does not grow with the data; the fullest is written when another is
// needed, and a full one at once. The result depends on the order of the conversations alone.
// A pair is a sample by itself: two sequences, the chosen answer's first.
#pragma once
#include "dataset/dataset.h"
#include "tokenizer/token_list.h"

typedef enum { PACK_NOTHING, PACK, PACK_PAIRS } Packing;

enum { CHAT_OPEN_SAMPLES = 256 };

typedef struct {
    TokenList tokens, mask;
    size_t *lengths; // of its conversations
    size_t count, capacity;
} OpenSample;

typedef struct {
    size_t room; // tokens of a sample
    bool pack;
    OpenSample open[CHAT_OPEN_SAMPLES];
    int num_open;
    IndexedWriter *tokens, *mask;
    int64_t samples; // written
} ChatPacker;

Status chat_packer_open(ChatPacker *packer, const char *prefix, int vocab_size, size_t room, Packing packing);
// Adds a pair, of PACK_PAIRS, whose conversations have at most `room` tokens together.
Status chat_packer_add_pair(ChatPacker *packer, const int32_t *tokens, const int32_t *mask, size_t chosen,
                            size_t rejected);
// Adds a conversation of at most `room` tokens.
Status chat_packer_add(ChatPacker *packer, const int32_t *tokens, const int32_t *mask, size_t count);
// Writes the open samples.
Status chat_packer_flush(ChatPacker *packer);
void chat_packer_close(ChatPacker *packer);
