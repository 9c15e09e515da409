// Tokenizers in the files of others: tokenizer.json, tiktoken, SentencePiece; what is written is read.
#include "base/file.h"
#include "base/rng.h"
#include "harness.h"
#include "small_sentencepiece.h"
#include "small_tokenizer.h"
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"
#include <stdlib.h>
#include <string.h>

static void expect_parts(Parts parts, const char *text, const char *want) {
    Tokenizer *t = handmade(parts);
    expect_ids(t, text, want);
    tokenizer_close(t);
}

static void both_forms_of_merges(void) {
    Parts pairs = plain;
    pairs.merges = "[\"a\", \"b\"], [\"ab\", \"c\"], [\"\xc4\xa0\", \"a\"], [\"b\", \"c\"]";
    expect_parts(plain, "abc bc ab", "257 32 259 32 256");
    expect_parts(pairs, "abc bc ab", "257 32 259 32 256");
}

static void whole_pieces_before_merges(void) {
    Parts parts = plain;
    parts.merges = "\"b c\"";
    expect_parts(parts, "abc ab", "97 259 32 97 98");
    parts.model = "\"type\": \"BPE\", \"ignore_merges\": true";
    expect_parts(parts, "abc a ab", "257 258 32 97 98");
}

// A pair born with a lower rank is taken up at once: GPT-2's own files finish the present rank first.
static void pairs_born_of_a_merge_come_at_once(void) {
    Parts parts = plain;
    parts.merges = "\"b c\", \"abc a\", \"a bc\"";
    expect_parts(parts, "abcabc", "260 259");
}

static void patterns_cut(void) {
    static const struct {
        const char *before, *prefix, *regex, *text, *want;
    } cases[] = {
        {"", "true", "true", "abc", "258 259"},
        {"", "true", "true", " abc", "258 259"},
        {"", "false", "false", "x a", "120 258"},
        {"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"b\"}, \"behavior\": \"Isolated\"},", "false",
         "false", "abc", "97 98 99"},
        {"{\"type\": \"Split\", \"pattern\": {\"String\": \".b\"}, \"behavior\": \"Isolated\"},", "false",
         "false", "abc.bc", "97 259 46 98 99"},
        {"{\"type\": \"Digits\", \"individual_digits\": true},", "false", "true", "1 abc", "49 258 259"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Text pre = {0};
        text_add(&pre,
                 "{\"type\": \"Sequence\", \"pretokenizers\": [%s {\"type\": \"ByteLevel\", "
                 "\"add_prefix_space\": %s, \"use_regex\": %s}]}",
                 cases[i].before, cases[i].prefix, cases[i].regex);
        Parts parts = plain;
        parts.merges = "\"\xc4\xa0 a\", \"b c\"";
        parts.pre_tokenizer = pre.data;
        expect_parts(parts, cases[i].text, cases[i].want);
        text_free(&pre);
    }
}

static void added_tokens_split_text(void) {
    Parts parts = plain;
    parts.added = "{\"id\": 261, \"content\": \"<|endoftext|>\", \"special\": true}, "
                  "{\"id\": 262, \"content\": \"<x>\", \"normalized\": true}, "
                  "{\"id\": 263, \"content\": \"<x>y\", \"normalized\": true}, "
                  "{\"id\": 264, \"content\": \"<l>\", \"lstrip\": true, \"normalized\": false}, "
                  "{\"id\": 265, \"content\": \"<r>\", \"rstrip\": true, \"normalized\": false}, "
                  "{\"id\": 266, \"content\": \"y!\", \"normalized\": false}, "
                  "{\"id\": 259, \"content\": \"bc\", \"normalized\": false}";
    Tokenizer *t = handmade(parts);
    expect_ids(t, "abc", "97 259");
    expect_ids(t, "a<|endoftext|>b", "97 261 98");
    expect_ids(t, "<x><x>", "262 262");
    expect_ids(t, "<x>y", "263");
    expect_ids(t, "<x>y!", "262 266"); // "y!" is looked for first
    expect_ids(t, "a \xe3\x80\x80 <l> a", "97 264 258");
    expect_ids(t, "a <r> \xe3\x80\x80 a", "97 32 265 97");
    expect_ids(t, "<r>  <l>", "265 264");
    expect_ids(t, "<", "60");
    if (t) {
        EXPECT(tokenizer_token_type(t, 261) == TOKEN_CONTROL, "special");
        EXPECT(tokenizer_token_type(t, 262) == TOKEN_USER_DEFINED, "added");
        EXPECT(tokenizer_token_type(t, 258) == TOKEN_NORMAL, "normal");
        EXPECT(strcmp(tokenizer_spelling(t, 258), "\xc4\xa0\x61") == 0, "%s", tokenizer_spelling(t, 258));
    }
    tokenizer_close(t);
}

static void ends_are_found(void) {
    static const char config[] = "{\"eos_token\": {\"content\": \"bc\"}, \"bos_token\": \"ab\"}";
    Parts parts = plain;
    parts.added = "{\"id\": 261, \"content\": \"</s>\"}, {\"id\": 262, \"content\": \"<s>\"}";
    Tokenizer *t = handmade(parts);
    EXPECT(t && tokenizer_eod(t) == 261 && tokenizer_bos(t) == 262, "by name");
    tokenizer_close(t);
    EXPECT_OK(file_write(harness_path("hand.tokenizer_config.json"), config, strlen(config)));
    t = handmade(parts);
    EXPECT(t && tokenizer_eod(t) == 259 && tokenizer_bos(t) == 256, "by configuration");
    if (t) EXPECT_OK(tokenizer_save(t, harness_path("moved")));
    tokenizer_close(t);
    EXPECT_OK(tokenizer_open_beside(&t, harness_path("moved")));
    EXPECT(t && tokenizer_eod(t) == 259 && tokenizer_bos(t) == 256, "the configuration moves along");
    tokenizer_close(t);
    EXPECT(remove(harness_path("hand.tokenizer_config.json")) == 0, "configuration");
}

// ---- Refusals -----------------------------------------------------------------------------------------

static void expect_refusal(Parts parts, Status want, const char *word) {
    Text text = json_of(parts);
    Tokenizer *t;
    EXPECT_OK(file_write(harness_path("bad.tokenizer.json"), text.data, text.size));
    Status status = tokenizer_open_path(&t, harness_path("bad.tokenizer.json"));
    EXPECT(status == want && !t, "%s: status %d, not %d", word, status, want);
    EXPECT(strstr(fail_message(), word), "\"%s\" does not name %s", fail_message(), word);
    tokenizer_close(t);
    text_free(&text);
}

static void what_is_not_supported_is_named(void) {
    static const char *const pre[][2] = {
        {"null", "ByteLevel"},
        {"{\"type\": \"Metaspace\"}", "Metaspace"},
        {"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Removed\"}", "Removed"},
        {"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Isolated\"}", "ByteLevel"},
    };
    for (size_t i = 0; i < sizeof pre / sizeof *pre; i++) {
        Parts parts = plain;
        parts.pre_tokenizer = pre[i][0];
        expect_refusal(parts, ERR_UNAVAILABLE, pre[i][1]);
    }
    static const char *const models[][2] = {
        {"\"type\": \"WordPiece\"", "WordPiece"},
        {"\"type\": \"Unigram\"", "Unigram"},
        {"\"type\": \"BPE\", \"byte_fallback\": true", "byte_fallback"},
        {"\"type\": \"BPE\", \"dropout\": 0.1", "dropout"},
        {"\"type\": \"BPE\", \"end_of_word_suffix\": \"</w>\"", "end_of_word_suffix </w>"},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        Parts parts = plain;
        parts.model = models[i][0];
        expect_refusal(parts, ERR_UNAVAILABLE, models[i][1]);
    }
    Parts parts = plain;
    parts.normalizer = "{\"type\": \"Lowercase\"}";
    expect_refusal(parts, ERR_UNAVAILABLE, "Lowercase");
    parts.normalizer = "null";
    parts.added = "{\"id\": 261, \"content\": \"</s>\", \"single_word\": true}";
    expect_refusal(parts, ERR_UNAVAILABLE, "single_word");
}

static void what_is_wrong_is_named(void) {
    static const char *const merges[][2] = {
        {"\"a\"", "one blank"},
        {"[\"a\"]", "two tokens"},
        {"7", "two tokens"},
        {"\"a b\", \"a b\"", "before"},
        {"\"a c\"", "not in the vocabulary"},
    };
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++) {
        Parts parts = plain;
        parts.merges = merges[i][0];
        expect_refusal(parts, ERR_DATA, merges[i][1]);
    }
    static const char *const added[][2] = {
        {"{\"id\": 261, \"content\": \"x y\"}", "ends a text"},
        {"{\"id\": 262, \"content\": \"</s>\"}", "0 to 261"},
        {"{\"id\": 261, \"content\": \"\"}", "empty"},
        {"{\"id\": 5, \"content\": \"</s>\"}", "same id 5"},
        {"{\"id\": 261, \"content\": \"ab\"}", "second id"},
        {"{\"content\": \"</s>\"}", "\"id\""},
        {"{\"id\": 1e3, \"content\": \"</s>\"}", "\"id\""},
        {"{\"id\": 261, \"content\": \"<\\u0000>\"}", "\"content\""},
    };
    for (size_t i = 0; i < sizeof added / sizeof *added; i++) {
        Parts parts = plain;
        parts.added = added[i][0];
        expect_refusal(parts, ERR_DATA, added[i][1]);
    }
    Parts parts = plain;
    parts.pre_tokenizer =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
        "\"(\"}, \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false}]}";
    expect_refusal(parts, ERR_DATA, "the pattern \"(\"");
}

// Backtracking without end is cut short by PCRE2's limit: an error, not a hang.
static void a_hostile_pattern_ends(void) {
    Parts parts = plain;
    parts.pre_tokenizer =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
        "\"(a+)+$\"}, \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false}]}";
    Tokenizer *t = handmade(parts);
    TokenList ids = {0};
    static const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";
    EXPECT(t && tokenizer_encode(t, text, strlen(text), &ids) == ERR_DATA, "it matched");
    token_list_free(&ids);
    tokenizer_close(t);
}

static void damaged_files_are_refused(void) {
    Text text = json_of(plain);
    Tokenizer *t;
    for (size_t cut = 0; cut < text.size; cut += 1 + cut / 30) {
        EXPECT_OK(file_write(harness_path("cut.json"), text.data, cut));
        EXPECT(tokenizer_open_path(&t, harness_path("cut.json")) == ERR_DATA && !t, "cut to %zu bytes", cut);
    }
    RngKey key = rng_key(5, "damage", 0);
    for (uint64_t i = 0; i < (harness_short() ? 50U : 400U); i++) {
        size_t at = rng_word(key, i, 0) % text.size;
        char was = text.data[at];
        text.data[at] = (char)rng_word(key, i, 1);
        EXPECT_OK(file_write(harness_path("cut.json"), text.data, text.size));
        if (tokenizer_open_path(&t, harness_path("cut.json")) == OK) expect_ids(t, "", "");
        tokenizer_close(t);
        text.data[at] = was;
    }
    text_free(&text);
    EXPECT(tokenizer_open_path(&t, harness_path("nowhere")) == ERR_NO_INPUT, "%s", fail_message());
    EXPECT_OK(folder_make(harness_path("empty")));
    EXPECT(tokenizer_open_path(&t, harness_path("empty")) == ERR_NO_INPUT, "%s", fail_message());
    EXPECT_OK(file_write(harness_path("prose"), "Once upon a time", 16));
    EXPECT(tokenizer_open_path(&t, harness_path("prose")) == ERR_DATA, "%s", fail_message());
}

// ---- tiktoken -----------------------------------------------------------------------------------------

static void add_base64(Text *out, const char *bytes, size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t at = 0; at < size; at += 3) {
        unsigned word = 0;
        for (size_t i = 0; i < 3; i++) word = word << 8 | (at + i < size ? (unsigned char)bytes[at + i] : 0U);
        for (size_t i = 0; i < 4; i++)
            text_add(out, "%c", at + i <= size ? digits[word >> (18 - 6 * i) & 63] : '=');
    }
}

// Bytes as their numbers, then "bc", "abc" and "abcd": their merges are a+bc and abc+d.
static Text ranks(void) {
    static const char *const others[] = {"bc", "abc", "abcd"};
    Text text = {0};
    for (int i = 0; i < 259; i++) {
        if (i < 256)
            add_base64(&text, &(char){(char)i}, 1);
        else
            add_base64(&text, others[i - 256], strlen(others[i - 256]));
        text_add(&text, " %d\n", i);
    }
    return text;
}

static void tiktoken_ranks(void) {
    Text text = ranks(), merge = {0};
    Tokenizer *t = opened_text("ranks", &text);
    expect_ids(t, "xabcd aabc", "120 258 32 97 257");
    expect_ids(t, "1234", "49 50 51 52");
    if (t) {
        EXPECT(tokenizer_vocab_size(t) == 260 && tokenizer_eod(t) == 259, "%d tokens",
               tokenizer_vocab_size(t));
        EXPECT(tokenizer_num_merges(t) == 3, "%d merges", tokenizer_num_merges(t));
        tokenizer_merge(t, 2, &merge);
        EXPECT(strcmp(text_string(&merge), "abc d") == 0, "%s", text_string(&merge));
    }
    tokenizer_close(t);
    static const char *const bad[] = {"QQ== 0\nQQ== 1\n", "QQ== 1\n",         "QQ== 0\n!!!! 1\n",
                                      "QQ== 0\nQUI 1\n",  "QQ== 0\nQUI= x\n", "QQ== 0\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        EXPECT_OK(file_write(harness_path("bad"), bad[i], strlen(bad[i])));
        EXPECT(tokenizer_open_path(&t, harness_path("bad")) == ERR_DATA, "\"%s\"", bad[i]);
    }
    text_free(&text);
    text_free(&merge);
}

// ---- SentencePiece ------------------------------------------------------------------------------------

static void sentencepiece_models(void) {
    Text text = sentencepiece_model(), back = {0};
    Tokenizer *t = opened_text("tokenizer.model", &text);
    if (t) {
        EXPECT(tokenizer_kind(t) == TOKENIZER_SENTENCEPIECE && tokenizer_vocab_size(t) == 6, "kind");
        EXPECT(tokenizer_eod(t) == 2 && tokenizer_bos(t) == 1 && tokenizer_unknown(t) == 0, "ends");
        EXPECT(tokenizer_token_type(t, 2) == TOKEN_CONTROL && tokenizer_score(t, 4) == -1.0F, "</s>, b");
        expect_ids(t, "abab", "3 4 5");
        EXPECT_OK(tokenizer_decode(t, (const int32_t[]){3, 4, 5}, 3, &back));
        EXPECT(strcmp(text_string(&back), "abab") == 0, "\"%s\"", text_string(&back));
        EXPECT(tokenizer_decode(t, (const int32_t[]){6}, 1, &back) == ERR_DATA, "6 of 6");
    }
    tokenizer_close(t);
    for (size_t cut = 1; cut < text.size; cut += 3) {
        EXPECT_OK(file_write(harness_path("cut.model"), text.data, cut));
        if (tokenizer_open_path(&t, harness_path("cut.model")) == OK) tokenizer_close(t);
    }
    text_free(&text);
    text_free(&back);
}

// ---- Round trips --------------------------------------------------------------------------------------

static void expect_same_tokenizer(const Tokenizer *a, const Tokenizer *b) {
    static const char text[] = "abcabc bc 12 12 don't 5 7\n\n <|endoftext|> \xc3\xa9\xff";
    TokenList left = {0}, right = {0};
    EXPECT(tokenizer_vocab_size(a) == tokenizer_vocab_size(b) && tokenizer_eod(a) == tokenizer_eod(b) &&
               tokenizer_bos(a) == tokenizer_bos(b) && tokenizer_kind(a) == tokenizer_kind(b),
           "sizes and ends");
    const char *numbers = tokenizer_kind(a) == TOKENIZER_NULL ? "5 7 100" : text;
    EXPECT_OK(tokenizer_encode(a, numbers, strlen(numbers), &left));
    EXPECT_OK(tokenizer_encode(b, numbers, strlen(numbers), &right));
    EXPECT(left.count == right.count && memcmp(left.ids, right.ids, left.count * sizeof *left.ids) == 0,
           "ids");
    token_list_free(&left);
    token_list_free(&right);
}

// In a folder and beside a data set; a second time byte for byte. Takes the tokenizer over.
static void expect_round_trip(Tokenizer *t, const char *file) {
    Tokenizer *again = NULL;
    char first[600], second[600];
    snprintf(first, sizeof first, "%s/first.%s", harness_folder(), file);
    snprintf(second, sizeof second, "%s/second.%s", harness_folder(), file);
    EXPECT_OK(tokenizer_save(t, harness_path("first")));
    EXPECT_OK(tokenizer_open_beside(&again, harness_path("first")));
    expect_same_tokenizer(t, again);
    EXPECT_OK(tokenizer_save(again, harness_path("second")));
    expect_same_file(first, second);
    tokenizer_close(again);
    EXPECT_OK(folder_remove(harness_path("folder")));
    EXPECT_OK(folder_make(harness_path("folder")));
    EXPECT_OK(tokenizer_save_folder(t, harness_path("folder")));
    again = opened("folder");
    if (again) expect_same_tokenizer(t, again);
    tokenizer_close(again);
    tokenizer_close(t);
}

static Tokenizer *trained(void) {
    static const char text[] = "abc abc abc bc bc 12 12 don't don't";
    PieceCounter *counter;
    Tokenizer *t = NULL;
    EXPECT_OK(piece_counter_open(&counter));
    EXPECT_OK(piece_counter_add(counter, text, strlen(text)));
    EXPECT_OK(tokenizer_train(&t, counter, 300, NULL, NULL));
    piece_counter_close(counter);
    return t;
}

static void what_is_written_is_read(void) {
    Tokenizer *t;
    expect_round_trip(trained(), "tokenizer.json");
    expect_round_trip(handmade(plain), "tokenizer.json");
    Text text = ranks();
    expect_round_trip(opened_text("ranks", &text), "tokenizer.json");
    text_free(&text);
    EXPECT_OK(tokenizer_open_null(&t, 100));
    expect_round_trip(t, "tokenizer.json");
    text = sentencepiece_model();
    expect_round_trip(opened_text("any.model", &text), "tokenizer.model");
    text_free(&text);
    EXPECT(!file_exists(harness_path("first.tokenizer.json")), "an earlier tokenizer is left");
    EXPECT_OK(tokenizer_save_folder(t = trained(), harness_folder()));
    tokenizer_close(t);
    EXPECT_OK(tokenizer_open(&t, harness_path("vocab.json"), harness_path("merges.txt")));
    expect_round_trip(t, "tokenizer.json");
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"both_forms_of_merges", both_forms_of_merges},
        {"whole_pieces_before_merges", whole_pieces_before_merges},
        {"pairs_born_of_a_merge_come_at_once", pairs_born_of_a_merge_come_at_once},
        {"patterns_cut", patterns_cut},
        {"added_tokens_split_text", added_tokens_split_text},
        {"ends_are_found", ends_are_found},
        {"what_is_not_supported_is_named", what_is_not_supported_is_named},
        {"what_is_wrong_is_named", what_is_wrong_is_named},
        {"a_hostile_pattern_ends", a_hostile_pattern_ends},
        {"damaged_files_are_refused", damaged_files_are_refused},
        {"tiktoken_ranks", tiktoken_ranks},
        {"sentencepiece_models", sentencepiece_models},
        {"what_is_written_is_read", what_is_written_is_read},
        {0},
    };
    return harness_run(tests, argc, argv);
}
