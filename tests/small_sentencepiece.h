// A SentencePiece model of six pieces, as the bytes of its file.
#pragma once
#include "base/text.h"
#include <string.h>

static inline void add_piece(Text *out, const char *piece, char type) {
    size_t size = strlen(piece);
    text_add(out, "\n%c\n%c%s\x15", (int)(size + 9), (int)size, piece);
    text_add_bytes(out, "\0\0\x80\xbf\x18", 5); // score -1.0, type
    text_add_bytes(out, &type, 1);
}

// A model of its own format: pieces, unigram, no normalisation but the blank in front.
static inline Text sentencepiece_model(void) {
    Text text = {0};
    add_piece(&text, "<unk>", 2);
    add_piece(&text, "<s>", 3);
    add_piece(&text, "</s>", 3);
    add_piece(&text, "\xe2\x96\x81\x61", 1);
    add_piece(&text, "b", 1);
    add_piece(&text, "ab", 1);
    text_add_bytes(&text, "\x12\x02\x18\x01", 4);
    text_add_bytes(&text, "\x1a\x0a\n\x08identity", 12);
    return text;
}
