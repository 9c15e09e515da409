// Packs conversations into samples and writes them to two indexed data sets, tokens and mask.
#include "corpus/chat_pack.h"
#include "base/array.h"
#include "base/text.h"
#include <stdlib.h>

Status chat_packer_open(ChatPacker *p, const char *prefix, int vocab_size, size_t room, Packing packing) {
    *p = (ChatPacker){.room = room, .pack = packing == PACK};
    Text mask = {0};
    text_add(&mask, "%s%s", prefix, packing == PACK_PAIRS ? PREFERENCE_MASK : LOSS_MASK);
    Status status = indexed_writer_open(&p->tokens, prefix, vocab_size);
    if (status == OK) status = indexed_writer_open(&p->mask, mask.data, 2);
    text_free(&mask);
    return status;
}

static void sample_free(OpenSample *s) {
    token_list_free(&s->tokens);
    token_list_free(&s->mask);
    free(s->lengths);
}

void chat_packer_close(ChatPacker *p) {
    for (int i = 0; i < p->num_open; i++) sample_free(&p->open[i]);
    indexed_writer_close(p->tokens);
    indexed_writer_close(p->mask);
    *p = (ChatPacker){0};
}

static Status write_list(IndexedWriter *writer, const OpenSample *s, const int32_t *ids) {
    for (size_t i = 0; i < s->count; ids += s->lengths[i++]) {
        if (i) TRY(indexed_writer_end_sequence(writer));
        TRY(indexed_writer_extend(writer, ids, s->lengths[i]));
    }
    return indexed_writer_end_document(writer, -1);
}

// Writes an open sample; those behind it move up, so that they stay in the order in which they were opened.
static Status write_sample(ChatPacker *p, int at) {
    OpenSample sample = p->open[at];
    for (p->num_open--; at < p->num_open; at++) p->open[at] = p->open[at + 1];
    Status status = write_list(p->tokens, &sample, sample.tokens.ids);
    if (status == OK) status = write_list(p->mask, &sample, sample.mask.ids);
    sample_free(&sample);
    p->samples++;
    return status;
}

// The fullest open sample with room for so many tokens; -1: there is none.
static int fullest(const ChatPacker *p, size_t tokens) {
    int best = -1;
    for (int i = 0; i < p->num_open; i++) {
        size_t used = p->open[i].tokens.count;
        if (p->room - used >= tokens && (best < 0 || used > p->open[best].tokens.count)) best = i;
    }
    return best;
}

static void append(OpenSample *s, const int32_t *tokens, const int32_t *mask, size_t count) {
    token_list_add(&s->tokens, tokens, count);
    token_list_add(&s->mask, mask, count);
    array_grow(&s->lengths, sizeof *s->lengths, s->count + 1, &s->capacity);
    s->lengths[s->count++] = count;
}

Status chat_packer_add_pair(ChatPacker *p, const int32_t *tokens, const int32_t *mask, size_t chosen,
                            size_t rejected) {
    OpenSample *s = &p->open[p->num_open];
    *s = (OpenSample){0};
    append(s, tokens, mask, chosen);
    append(s, tokens + chosen, mask + chosen, rejected);
    return write_sample(p, p->num_open++);
}

Status chat_packer_add(ChatPacker *p, const int32_t *tokens, const int32_t *mask, size_t count) {
    int at = p->pack ? fullest(p, count) : -1;
    if (at < 0) {
        if (p->num_open == CHAT_OPEN_SAMPLES) TRY(write_sample(p, fullest(p, 0)));
        at = p->num_open++;
        p->open[at] = (OpenSample){0};
    }
    OpenSample *s = &p->open[at];
    append(s, tokens, mask, count);
    // Below two tokens nothing can be trained.
    return !p->pack || p->room - s->tokens.count < 2 ? write_sample(p, at) : OK;
}

Status chat_packer_flush(ChatPacker *p) {
    while (p->num_open) TRY(write_sample(p, 0));
    return OK;
}
