// vocab.json, a NUL, and merges.txt. Law: what opens encodes any bytes, and decodes to them.
#include "fuzz.h"
#include "tokenizer/tokenizer.h"
#include <string.h>

enum { LONGEST_TEXT = 400 };

static void check_round_trip(const Tokenizer *tokenizer, const char *text, size_t bytes) {
    TokenList tokens = {0};
    Text decoded = {0};
    CHECK(tokenizer_encode(tokenizer, text, bytes, &tokens) == OK, "%s", fail_message());
    CHECK(tokenizer_decode(tokenizer, tokens.ids, tokens.count, &decoded) == OK, "%s", fail_message());
    CHECK(decoded.size == bytes && memcmp(text_string(&decoded), text, bytes) == 0, "%zu bytes became %zu",
          bytes, decoded.size);
    token_list_free(&tokens);
    text_free(&decoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t vocab = end ? (size_t)(end - data) : size, behind = end ? vocab + 1 : size;
    const char *vocab_file = fuzz_file("vocab.json", data, vocab);
    const char *merge_file = fuzz_file("merges.txt", data + behind, size - behind);
    Tokenizer *tokenizer;
    Status status = tokenizer_open(&tokenizer, vocab_file, merge_file);
    CHECK(status == OK || status == ERR_DATA, "status %d: %s", (int)status, fail_message());
    if (status != OK) return 0;
    check_round_trip(tokenizer, (const char *)data, size < LONGEST_TEXT ? size : LONGEST_TEXT);
    size_t merges = size - behind < LONGEST_TEXT ? size - behind : LONGEST_TEXT;
    check_round_trip(tokenizer, (const char *)data + behind, merges);
    tokenizer_close(tokenizer);
    return 0;
}
