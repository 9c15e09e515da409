// Reads from the file of a SentencePiece model what its library has no function for: types of pieces and normalisation.
// Source: sentencepiece_model.proto, and the encoding of protocol buffers.
#include "tokenizer/internal.h"
#include <stdlib.h>
#include <string.h>

// A message that is being read field by field.
typedef struct {
    const unsigned char *at, *end;
} Message;

typedef struct {
    unsigned number;
    uint64_t value; // of a whole number
    Message bytes;  // of a string or message
} Field;

static bool read_varint(Message *m, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && m->at < m->end; shift += 7) {
        unsigned char byte = *m->at++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

static bool take_bytes(Message *m, uint64_t size, Message *bytes) {
    if (size > (uint64_t)(m->end - m->at)) return false;
    *bytes = (Message){m->at, m->at + size};
    m->at += size;
    return true;
}

static bool next_field(Message *m, Field *field) {
    enum { VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 5 };
    uint64_t tag, size;
    *field = (Field){0};
    if (m->at >= m->end || !read_varint(m, &tag)) return false;
    field->number = (unsigned)(tag >> 3);
    switch (tag & 7) {
    case VARINT: return read_varint(m, &field->value);
    case EIGHT_BYTES: return take_bytes(m, 8, &field->bytes);
    case FOUR_BYTES: return take_bytes(m, 4, &field->bytes);
    case BYTES: return read_varint(m, &size) && take_bytes(m, size, &field->bytes);
    default: return false;
    }
}

// A piece without a type is a normal one.
static TokenType piece_type(Message piece) {
    enum { TYPE = 3 };
    TokenType type = TOKEN_NORMAL;
    for (Field f; next_field(&piece, &f);)
        if (f.number == TYPE && f.value >= TOKEN_NORMAL && f.value <= TOKEN_BYTE) type = (TokenType)f.value;
    return type;
}

static void read_trainer(Message spec, SentencePieceRules *rules) {
    enum { MODEL_TYPE = 3, UNIGRAM = 1 };
    for (Field f; next_field(&spec, &f);)
        if (f.number == MODEL_TYPE) rules->unigram = f.value == UNIGRAM;
}

static void read_normalizer(Message spec, SentencePieceRules *rules) {
    enum { CHARSMAP = 2, ADD_DUMMY_PREFIX = 3, REMOVE_EXTRA_WHITESPACES = 4 };
    for (Field f; next_field(&spec, &f);) {
        if (f.number == ADD_DUMMY_PREFIX) rules->adds_blank = f.value;
        if (f.number == REMOVE_EXTRA_WHITESPACES) rules->removes_blanks = f.value;
        if (f.number != CHARSMAP) continue;
        rules->charsmap = (const char *)f.bytes.at;
        rules->charsmap_bytes = (size_t)(f.bytes.end - f.bytes.at);
    }
}

static void add_controls(Tokenizer *t, int size) {
    for (int id = 0; id < size; id++) {
        const char *piece = sentencepiece_piece(t->sentencepiece, id);
        bool control = *piece && t->types[id] == TOKEN_CONTROL;
        if (control) added_set_add(&t->added[0], piece, strlen(piece), (AddedToken){.id = id});
    }
    added_set_ready(&t->added[0]);
}

void sentencepiece_read_file(Tokenizer *t) {
    enum { PIECES = 1, TRAINER = 2, NORMALIZER = 3 };
    int size = sentencepiece_size(t->sentencepiece), count = 0;
    const unsigned char *start = (const unsigned char *)t->file.data;
    Message model = {start, start + t->file.size};
    t->rules = (SentencePieceRules){.unigram = true, .adds_blank = true, .removes_blanks = true}; // defaults
    t->types = calloc((size_t)size + 1, sizeof *t->types);
    CHECK(t->types, "no memory for %d types", size);
    for (Field f; next_field(&model, &f);) {
        if (f.number == PIECES && count < size) t->types[count++] = piece_type(f.bytes);
        if (f.number == TRAINER) read_trainer(f.bytes, &t->rules);
        if (f.number == NORMALIZER) read_normalizer(f.bytes, &t->rules);
    }
    if (count == size) {
        add_controls(t, size);
        return;
    }
    free(t->types);
    t->types = NULL;
}
