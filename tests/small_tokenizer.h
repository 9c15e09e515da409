// A small tokenizer.json, made of parts that a test changes, and what it makes of a text.
#pragma once
#include "base/file.h"
#include "harness.h"
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"
#include <stdlib.h>
#include <string.h>

static inline Tokenizer *opened(const char *name) {
    Tokenizer *t = NULL;
    EXPECT_OK(tokenizer_open_path(&t, harness_path(name)));
    return t;
}

static inline Tokenizer *opened_text(const char *name, const Text *text) {
    EXPECT_OK(file_write(harness_path(name), text_string(text), text->size));
    return opened(name);
}

static inline void expect_ids(const Tokenizer *t, const char *text, const char *want) {
    TokenList ids = {0};
    Text got = {0};
    if (!t) return;
    EXPECT_OK(tokenizer_encode(t, text, strlen(text), &ids));
    for (size_t i = 0; i < ids.count; i++) text_add(&got, i ? " %d" : "%d", ids.ids[i]);
    EXPECT(strcmp(text_string(&got), want) == 0, "\"%s\" gives %s, not %s", text, text_string(&got), want);
    text_free(&got);
    token_list_free(&ids);
}

// ---- A tokenizer.json by hand -------------------------------------------------------------------------

// Bytes have their own number; 256 is "ab", 257 "abc", 258 " a", 259 "bc", 260 "abca"; added tokens follow.
typedef struct {
    const char *normalizer, *pre_tokenizer, *model, *merges, *added;
} Parts;

static const Parts plain = {
    .normalizer = "null",
    .pre_tokenizer = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}",
    .model = "\"type\": \"BPE\"",
    .merges = "\"a b\", \"ab c\", \"\xc4\xa0 a\", \"b c\"",
    .added = "{\"id\": 261, \"content\": \"<|endoftext|>\", \"special\": true}",
};

static inline void add_vocabulary(Text *out) {
    static const char *const others[] = {"ab", "abc", "\xc4\xa0\x61", "bc", "abca"};
    for (int b = 0; b < 256; b++) {
        char spelling[2];
        json_add_string(out, spelling, bpe_spell_byte((unsigned char)b, spelling));
        text_add(out, ": %d, ", b);
    }
    for (int i = 0; i < 5; i++) text_add(out, "\"%s\": %d%s", others[i], 256 + i, i < 4 ? ", " : "");
}

static inline Text json_of(Parts p) {
    Text text = {0};
    text_add(
        &text,
        "{\"added_tokens\": [%s], \"normalizer\": %s, \"pre_tokenizer\": %s, \"model\": {%s, \"vocab\": {",
        p.added, p.normalizer, p.pre_tokenizer, p.model);
    add_vocabulary(&text);
    text_add(&text, "}, \"merges\": [%s]}}", p.merges);
    return text;
}

static inline Tokenizer *handmade(Parts parts) {
    Text text = json_of(parts);
    Tokenizer *t = opened_text("hand.tokenizer.json", &text);
    text_free(&text);
    return t;
}
