// A Hugging Face tokenizer.json. What opens encodes any text into tokens that it has, and decodes those.
#include "fuzz.h"
#include "tokenizer/tokenizer.h"

enum { LONGEST_TEXT = 400 };

static void encode(const Tokenizer *tokenizer, const char *text, size_t bytes) {
    TokenList tokens = {0};
    Text decoded = {0};
    if (tokenizer_encode(tokenizer, text, bytes, &tokens) == OK) {
        for (size_t i = 0; i < tokens.count; i++)
            CHECK(tokens.ids[i] >= 0 && tokens.ids[i] < tokenizer_vocab_size(tokenizer), "token %d",
                  tokens.ids[i]);
        CHECK(tokenizer_decode(tokenizer, tokens.ids, tokens.count, &decoded) == OK, "%s", fail_message());
    }
    token_list_free(&tokens);
    text_free(&decoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char TEXT[] = "It's  12345 caf\xc3\xa9s,\n\tisn't it?\xff <|endoftext|>";
    Tokenizer *tokenizer;
    Status status = tokenizer_open_path(&tokenizer, fuzz_file("tokenizer.json", data, size));
    CHECK(status == OK || status == ERR_DATA || status == ERR_UNAVAILABLE || status == ERR_NO_INPUT,
          "status %d: %s", (int)status, fail_message());
    if (status != OK) return 0;
    encode(tokenizer, TEXT, sizeof TEXT - 1);
    encode(tokenizer, (const char *)data, size < LONGEST_TEXT ? size : LONGEST_TEXT);
    tokenizer_close(tokenizer);
    return 0;
}
