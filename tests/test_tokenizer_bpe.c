// The tokenizer: pieces, merging, training, files, round trips.
#include "base/file.h"
#include "base/rng.h"
#include "harness.h"
#include "tokenizer/bpe.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/pieces.h"
#include "tokenizer/tokenizer.h"
#include <stdlib.h>
#include <string.h>

static Tokenizer *trained_on(const char *text, int vocab_size) {
    PieceCounter *counter;
    Tokenizer *tokenizer = NULL;
    EXPECT_OK(piece_counter_open(&counter));
    EXPECT_OK(piece_counter_add(counter, text, strlen(text)));
    EXPECT_OK(tokenizer_train(&tokenizer, counter, vocab_size, NULL, NULL));
    piece_counter_close(counter);
    return tokenizer;
}

static void expect_ids(const Tokenizer *tokenizer, const char *text, const int32_t *want, size_t count) {
    TokenList got = {0};
    EXPECT_OK(tokenizer_encode(tokenizer, text, strlen(text), &got));
    EXPECT(got.count == count, "\"%s\" gives %zu tokens, not %zu", text, got.count, count);
    for (size_t i = 0; i < count && i < got.count; i++)
        EXPECT(got.ids[i] == want[i], "\"%s\": token %zu is %d, not %d", text, i, got.ids[i], want[i]);
    token_list_free(&got);
}

static void expect_round_trip(const Tokenizer *tokenizer, const char *text, size_t bytes) {
    TokenList ids = {0};
    Text back = {0};
    EXPECT_OK(tokenizer_encode(tokenizer, text, bytes, &ids));
    EXPECT_OK(tokenizer_decode(tokenizer, ids.ids, ids.count, &back));
    EXPECT(back.size == bytes && (!bytes || memcmp(back.data, text, bytes) == 0),
           "%zu bytes come back as %zu", bytes, back.size);
    token_list_free(&ids);
    text_free(&back);
}

static const char sample[] =
    "the quick brown fox can't jump over the lazy dog; the dogs' 12 bones aren't the fox's 1234 stones.\n"
    "static int sum(int a, int b) { return a + b; }\n\tna\xc3\xafve \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e "
    "aaaaa aaaaaaa aaaaaaaaaaa\n\n";

// ---- Pieces -------------------------------------------------------------------------------------------

static void pieces_are_gpt2s(void) {
    static const char *const cases[] = {
        "Hello| world|'s| | end",
        "I|'ll|'ve| 12|abc|!?",
        "'|S|'t|'re|'d|'m",
        "a|\n\n| b",
        "tabs|\t|\t|x",
        "trailing|   ",
        "   \n",
        "na\xc3\xafve| \xe2\x85\xa7\xc2\xbd| \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e|\xe2\x80\xa6", // VIII, 1/2
        "a|\xc2\xa0|b",                 // no-break space is a blank
        "ab|\xff|\xfe| cd",             // invalid bytes stand alone
        "x|\xc3",                       // a character cut short
        "\xc0|\xaf",                    // overlong
        "\xe0|\x9f|\xbf| \xe0\xa0\x80", // overlong, and the first of three bytes
        "\xf0|\x8f|\xbf|\xbf",
        "\xed|\xa0|\x80",      // a surrogate
        "\xf4|\x90|\x80|\x80", // above 10FFFF
        "\xf4\x8f\xbf\xbf",    // 10FFFF itself
    };
    PieceScanner *scanner;
    EXPECT_OK(piece_scanner_open(&scanner, &(const char *){gpt2_pattern}, 1));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Text text = {0}, got = {0};
        for (const char *c = cases[i]; *c; c++)
            if (*c != '|') text_add_bytes(&text, c, 1);
        piece_scanner_start(scanner, text.data, text.size);
        const char *piece;
        for (size_t size; piece_scanner_next(scanner, &piece, &size);) {
            if (got.size) text_add(&got, "|");
            text_add_bytes(&got, piece, size);
        }
        EXPECT(strcmp(text_string(&got), cases[i]) == 0, "\"%s\" is cut \"%s\"", cases[i], text_string(&got));
        text_free(&text);
        text_free(&got);
    }
    piece_scanner_close(scanner);
}

// A group around the pattern changes nothing but that it is not recognised as the one that is done by hand.
static void by_hand_as_by_pcre2(void) {
    static const char *const parts[] = {
        "a",  "Z",    "x",    "'",        "'s",           "'re",          "'l",
        "0",  "9",    " ",    " ",        "\n",           "\t",           "\r",
        "\v", "\x1c", "\x7f", "\xc3\xa9", "\xe2\x80\x83", "\xe1\xa0\x8e", "\xff",
        "!"};
    enum { NUM_PARTS = sizeof parts / sizeof *parts };
    PieceScanner *hand, *pcre2;
    Text pattern = {0}, text = {0};
    text_add(&pattern, "(?:%s)", gpt2_pattern);
    EXPECT_OK(piece_scanner_open(&hand, &(const char *){gpt2_pattern}, 1));
    EXPECT_OK(piece_scanner_open(&pcre2, &(const char *){pattern.data}, 1));
    RngKey key = rng_key(11, "pieces by hand", 0);
    for (uint64_t round = 0; round < (harness_short() ? 2000U : 20000U); round++) {
        text.size = 0;
        for (uint64_t i = 0; i < 1 + round % 40; i++)
            text_add(&text, "%s", parts[rng_word(key, round, i) % NUM_PARTS]);
        piece_scanner_start(hand, text.data, text.size);
        piece_scanner_start(pcre2, text.data, text.size);
        const char *piece, *want;
        size_t size, want_size;
        while (piece_scanner_next(pcre2, &want, &want_size))
            EXPECT(piece_scanner_next(hand, &piece, &size) && piece == want && size == want_size,
                   "\"%s\" at byte %td: not %zu bytes", text.data, want - text.data, want_size);
        EXPECT(!piece_scanner_next(hand, &piece, &size), "\"%s\": more pieces", text.data);
    }
    piece_scanner_close(hand);
    piece_scanner_close(pcre2);
    text_free(&pattern);
    text_free(&text);
}

static void long_runs_scan(void) {
    enum { BYTES = 1 << 20 };
    char *run = malloc(BYTES);
    static const char kinds[] = "a 1!\n'\xff";
    PieceScanner *scanner;
    EXPECT_OK(piece_scanner_open(&scanner, &(const char *){gpt2_pattern}, 1));
    for (const char *kind = kinds; *kind; kind++) {
        memset(run, *kind, BYTES);
        size_t total = 0, size;
        const char *piece;
        piece_scanner_start(scanner, run, BYTES);
        while (piece_scanner_next(scanner, &piece, &size)) total += size;
        EXPECT(total == BYTES, "a run of byte %d: %zu bytes", *kind, total);
    }
    piece_scanner_close(scanner);
    free(run);
}

// ---- Training -----------------------------------------------------------------------------------------

// Ids by hand: 'a' is 97 - 33 = 64, the blank 188 + 32 = 220. "ab" occurs 4 times, then blank + "ab" 3 times,
// then nothing twice.
static void trains_as_by_hand(void) {
    Tokenizer *t = trained_on("ab ab ab abc", 1000);
    EXPECT(tokenizer_vocab_size(t) == 259 && tokenizer_eod(t) == 258, "%d tokens, EOD %d",
           tokenizer_vocab_size(t), tokenizer_eod(t));
    expect_ids(t, "ab abc cab", (const int32_t[]){256, 257, 66, 220, 66, 256}, 6);
    tokenizer_close(t);
}

// All of (x,y), (z,w) and (blank,z) occur twice: smaller left ids first.
static void ties_go_to_smaller_ids(void) {
    Tokenizer *t = trained_on("xy xy zw zw", 1000);
    EXPECT(tokenizer_vocab_size(t) == 260, "%d tokens", tokenizer_vocab_size(t));
    expect_ids(t, "zw xy", (const int32_t[]){257, 220, 256}, 3);
    expect_ids(t, " zw", (const int32_t[]){258}, 1);
    tokenizer_close(t);
    t = trained_on("xy xy zw zw", 258);
    expect_ids(t, "xyzw", (const int32_t[]){256, 89, 86}, 3);
    tokenizer_close(t);
}

static void counting_is_order_free(void) {
    PieceCounter *one, *two, *all;
    EXPECT_OK(piece_counter_open(&one));
    EXPECT_OK(piece_counter_open(&two));
    EXPECT_OK(piece_counter_open(&all));
    const char *texts[] = {"red green blue green", "blue blue green\n", sample};
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(piece_counter_add(i == 1 ? one : two, texts[2 - i], strlen(texts[2 - i])));
        EXPECT_OK(piece_counter_add(all, texts[i], strlen(texts[i])));
    }
    piece_counter_merge(one, two);
    Tokenizer *merged, *whole;
    EXPECT_OK(tokenizer_train(&merged, one, 300, NULL, NULL));
    EXPECT_OK(tokenizer_train(&whole, all, 300, NULL, NULL));
    TokenList a = {0}, b = {0};
    EXPECT_OK(tokenizer_encode(merged, sample, strlen(sample), &a));
    EXPECT_OK(tokenizer_encode(whole, sample, strlen(sample), &b));
    EXPECT(a.count == b.count && memcmp(a.ids, b.ids, a.count * sizeof *a.ids) == 0,
           "the tokens depend on the order of counting");
    token_list_free(&a);
    token_list_free(&b);
    tokenizer_close(merged);
    tokenizer_close(whole);
    piece_counter_close(one);
    piece_counter_close(two);
    piece_counter_close(all);
}

// Ever new pieces come to an end; those that were there count on.
static void distinct_pieces_are_bounded(void) {
    PieceCounts counts = {0};
    char piece[16];
    for (int i = 0; i < MAX_DISTINCT_PIECES + 1000; i++) {
        snprintf(piece, sizeof piece, "%x", i);
        piece_counts_add(&counts, piece, strlen(piece), 1);
    }
    EXPECT(counts.pieces.count == MAX_DISTINCT_PIECES, "%u pieces", counts.pieces.count);
    piece_counts_add(&counts, "2a", 2, 5);
    EXPECT(counts.counts[42] == 6, "%lld", (long long)counts.counts[42]);
    bytes_map_free(&counts.pieces);
    free(counts.counts);
    counts = (PieceCounts){0};
    char large[MAX_TRAINED_PIECE_BYTES];
    memset(large, 'x', sizeof large);
    for (int i = 0; i < MAX_DISTINCT_BYTES / MAX_TRAINED_PIECE_BYTES + 9; i++) {
        memcpy(large, &i, sizeof i);
        piece_counts_add(&counts, large, sizeof large, 1);
    }
    EXPECT(counts.pieces.pool_bytes <= MAX_DISTINCT_BYTES, "%zu bytes", counts.pieces.pool_bytes);
    bytes_map_free(&counts.pieces);
    free(counts.counts);
}

static void vocabulary_sizes_are_checked(void) {
    PieceCounter *counter;
    Tokenizer *t;
    EXPECT_OK(piece_counter_open(&counter));
    EXPECT(tokenizer_train(&t, counter, 256, NULL, NULL) == ERR_CONFIG, "256 bytes leave no room for EOD");
    EXPECT_OK(tokenizer_train(&t, counter, 257, NULL, NULL));
    EXPECT(tokenizer_vocab_size(t) == 257, "%d", tokenizer_vocab_size(t));
    expect_round_trip(t, sample, strlen(sample));
    tokenizer_close(t);
    piece_counter_close(counter);
}

// ---- Encoding -----------------------------------------------------------------------------------------

static void random_bytes_come_back(void) {
    Tokenizer *t = trained_on(sample, 330);
    RngKey key = rng_key(7, "random bytes", 0);
    char text[300];
    for (uint64_t round = 0; round < 300; round++) {
        for (size_t i = 0; i < round; i++) text[i] = (char)rng_word(key, round, i);
        expect_round_trip(t, text, round);
        for (size_t i = 0; i < round; i++) text[i] = "ab '\n1\xc3\xa9!"[rng_word(key, round, 1000 + i) % 9];
        expect_round_trip(t, text, round);
    }
    expect_round_trip(t, "a\0b", 3);
    tokenizer_close(t);
}

static size_t put_utf8(char *at, uint32_t c) {
    if (c < 0x80) return (void)(at[0] = (char)c), 1;
    if (c < 0x800) return at[0] = (char)(0xc0 | c >> 6), at[1] = (char)(0x80 | (c & 63)), 2;
    size_t rest = c < 0x10000 ? 2 : 3;
    at[0] = (char)((rest == 2 ? 0xe0 : 0xf0) | c >> 6 * rest);
    for (size_t i = 1; i <= rest; i++) at[i] = (char)(0x80 | (c >> 6 * (rest - i) & 63));
    return rest + 1;
}

static void every_character_is_valid_and_comes_back(void) {
    Tokenizer *t = trained_on(sample, 300);
    Text text = {0};
    for (uint32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 61) {
        if (c >= 0xd800 && c < 0xe000) continue;
        char utf8[4];
        size_t size = put_utf8(utf8, c);
        EXPECT(utf8_valid_prefix(utf8, size) == size, "U+%04X", c);
        EXPECT(utf8_valid_prefix(utf8, size - 1) == 0, "U+%04X cut short", c);
        text_add_bytes(&text, utf8, size);
    }
    expect_round_trip(t, text.data, text.size);
    text_free(&text);
    tokenizer_close(t);
}

// GPT-2's own loop: the pair of lowest rank is merged in one pass over the piece, then the next.
static void encode_slowly(const Bpe *bpe, const char *piece, size_t bytes, TokenList *out) {
    int32_t ids[64];
    size_t n = bytes;
    for (size_t i = 0; i < n; i++) ids[i] = bpe->byte_ids[(unsigned char)piece[i]];
    for (;;) {
        uint32_t best = NOT_FOUND;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t rank = pair_map_find(&bpe->pairs, ids[i], ids[i + 1]);
            if (rank < best) best = rank;
        }
        if (best == NOT_FOUND) break;
        size_t to = 0;
        for (size_t from = 0; from < n; to++) {
            bool here = from + 1 < n && pair_map_find(&bpe->pairs, ids[from], ids[from + 1]) == best;
            ids[to] = here ? bpe->merges[best].result : ids[from];
            from += here ? 2 : 1;
        }
        n = to;
    }
    token_list_add(out, ids, n);
}

static void merging_equals_the_slow_way(void) {
    Tokenizer *t = trained_on(sample, 400);
    Bpe bpe = {0};
    BpeScratch scratch = {0};
    EXPECT_OK(tokenizer_save_folder(t, harness_folder()));
    EXPECT_OK(bpe_load(&bpe, harness_path("vocab.json"), harness_path("merges.txt")));
    RngKey key = rng_key(3, "pieces", 0);
    for (uint64_t round = 0; round < 3000; round++) {
        char piece[64];
        size_t bytes = 1 + rng_word(key, round, 99) % 60, alphabet = 1 + rng_word(key, round, 98) % 12;
        for (size_t i = 0; i < bytes; i++) piece[i] = "aothe qnsfx1"[rng_word(key, round, i) % alphabet];
        TokenList fast = {0}, slow = {0};
        bpe_encode_piece(&bpe, &scratch, piece, bytes, &fast);
        encode_slowly(&bpe, piece, bytes, &slow);
        EXPECT(fast.count == slow.count && memcmp(fast.ids, slow.ids, slow.count * sizeof *slow.ids) == 0,
               "\"%.*s\"", (int)bytes, piece);
        token_list_free(&fast);
        token_list_free(&slow);
    }
    bpe_scratch_free(&scratch);
    bpe_free(&bpe);
    tokenizer_close(t);
}

// Word i is i written with 26 digits, so that each is a piece of its own.
static void add_words(Text *text, int count) {
    for (int i = 0; i < count; i++)
        text_add(text, " %c%c%c%c", 'a' + i / 17576, 'a' + i / 676 % 26, 'a' + i / 26 % 26, 'a' + i % 26);
}

static void a_full_cache_starts_anew(void) {
    Tokenizer *t = trained_on(sample, 300);
    Text text = {0};
    add_words(&text, 140000);
    add_words(&text, 1000);
    expect_round_trip(t, text.data, text.size);
    text_free(&text);
    tokenizer_close(t);
}

static void a_long_piece_is_no_problem(void) {
    enum { BYTES = 1 << 20 };
    Tokenizer *t = trained_on("aaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaa bbbb abab", 300);
    char *text = malloc(BYTES);
    for (int i = 0; i < BYTES; i++) text[i] = i % 7 == 3 ? 'b' : 'a';
    expect_round_trip(t, text, BYTES);
    free(text);
    tokenizer_close(t);
}

static void null_tokenizer(void) {
    Tokenizer *t;
    TokenList ids = {0};
    EXPECT(tokenizer_open_null(&t, 0) == ERR_CONFIG, "size 0");
    EXPECT_OK(tokenizer_open_null(&t, 100));
    EXPECT(tokenizer_vocab_size(t) == 101 && tokenizer_eod(t) == 100, "%d", tokenizer_vocab_size(t));
    expect_ids(t, " 5\n 100 007 ", (const int32_t[]){5, 100, 7}, 3);
    const char *bad[] = {"101", "-1", "5x", "1.0", "99999999999999999999999999"};
    for (int i = 0; i < 5; i++)
        EXPECT(tokenizer_encode(t, bad[i], strlen(bad[i]), &ids) == ERR_DATA, "\"%s\"", bad[i]);
    Text text = {0};
    EXPECT_OK(tokenizer_decode(t, (const int32_t[]){5, 7}, 2, &text));
    EXPECT(strcmp(text_string(&text), "5 7") == 0, "\"%s\"", text_string(&text));
    EXPECT(tokenizer_decode(t, (const int32_t[]){101}, 1, &text) == ERR_DATA, "101 of 101");
    EXPECT(tokenizer_decode(t, (const int32_t[]){-1}, 1, &text) == ERR_DATA, "-1");
    text_free(&text);
    token_list_free(&ids);
    tokenizer_close(t);
}

// ---- Files --------------------------------------------------------------------------------------------

static void saved_and_opened_gives_the_same_ids(void) {
    Tokenizer *t = trained_on(sample, 400), *opened = NULL;
    EXPECT_OK(tokenizer_save(t, harness_path("same")));
    EXPECT_OK(tokenizer_open_beside(&opened, harness_path("same")));
    EXPECT(tokenizer_vocab_size(t) == tokenizer_vocab_size(opened) &&
               tokenizer_eod(t) == tokenizer_eod(opened),
           "sizes differ");
    TokenList ids = {0};
    EXPECT_OK(tokenizer_encode(t, sample, strlen(sample), &ids));
    expect_ids(opened, sample, ids.ids, ids.count);
    EXPECT(ids.count < strlen(sample) * 2 / 3, "%zu tokens for %zu bytes: nothing was merged", ids.count,
           strlen(sample));
    token_list_free(&ids);
    tokenizer_close(t);
    tokenizer_close(opened);
}

// A vocabulary with the 256 bytes in byte order, the given tokens, EOD.
static void add_bytes(Bpe *bpe) {
    for (int b = 0; b < 256; b++) {
        char spelling[2];
        bpe_add_token(bpe, spelling, bpe_spell_byte((unsigned char)b, spelling));
    }
}

static Tokenizer *handmade(const char *const *tokens, const char *merges) {
    Bpe bpe = {0};
    Tokenizer *t = NULL;
    add_bytes(&bpe);
    for (; *tokens; tokens++) bpe_add_token(&bpe, *tokens, strlen(*tokens));
    EXPECT_OK(bpe_save(&bpe, harness_path("hand.vocab.json"), harness_path("hand.merges.txt")));
    EXPECT_OK(file_write(harness_path("hand.merges.txt"), merges, strlen(merges)));
    EXPECT_OK(tokenizer_open_beside(&t, harness_path("hand")));
    bpe_free(&bpe);
    return t;
}

// A pass belongs to one pair: "abc a" has a lower rank than "a bc", but is born within its pass.
static void a_rank_is_finished_before_a_lower_one_born_meanwhile(void) {
    const char *tokens[] = {"bc", "abc", "abca", EOD_SPELLING, NULL};
    Tokenizer *t = handmade(tokens, "#version: 0.2\r\nb c\r\nabc a\r\na bc\r\n");
    expect_ids(t, "abcabc", (const int32_t[]){257, 257}, 2);
    expect_ids(t, "abca", (const int32_t[]){258}, 1);
    tokenizer_close(t);
}

static void special_tokens_decode_to_their_text(void) {
    const char *tokens[] = {EOD_SPELLING, "<|im start|>", NULL};
    Tokenizer *t = handmade(tokens, "");
    Text text = {0};
    EXPECT_OK(tokenizer_decode(t, (const int32_t[]){257, 'a', 0xff, 256}, 4, &text));
    EXPECT(strcmp(text_string(&text), "<|im start|>a\xff<|endoftext|>") == 0, "\"%s\"", text_string(&text));
    text_free(&text);
    tokenizer_close(t);
}

static Status open_texts(const char *vocab, size_t vocab_bytes, const char *merges) {
    Tokenizer *t = NULL;
    EXPECT_OK(file_write(harness_path("v.json"), vocab, vocab_bytes));
    EXPECT_OK(file_write(harness_path("m.txt"), merges, strlen(merges)));
    Status status = tokenizer_open(&t, harness_path("v.json"), harness_path("m.txt"));
    EXPECT((status == OK) == (t != NULL), "status %d", status);
    tokenizer_close(t);
    return status;
}

static void bad_files_are_refused(void) {
    const char *tokens[] = {"ab", EOD_SPELLING, NULL};
    tokenizer_close(handmade(tokens, ""));
    char *good;
    size_t bytes;
    EXPECT_OK(file_read(harness_path("hand.vocab.json"), 1 << 20, &good, &bytes));
    EXPECT(open_texts(good, bytes, "a b\n") == OK, "%s", fail_message());
    const char *bad_merges[] = {"ab\n",       "a\n",   "a b c\n", " b\n",   "a \n",
                                "a b\na b\n", "b a\n", "a q!\n",  "a\xff b"};
    for (size_t i = 0; i < sizeof bad_merges / sizeof *bad_merges; i++)
        EXPECT(open_texts(good, bytes, bad_merges[i]) == ERR_DATA, "merges \"%s\"", bad_merges[i]);
    const char *bad_vocab[] = {"",
                               "[]",
                               "7",
                               "{}",
                               "{\"a\": 0}",
                               "{\"a\": \"0\"}",
                               "{\"a\": 1}",
                               "{\"a\": -1}",
                               "{\"a\": 0, \"b\": 0}",
                               "{\"\": 0}",
                               "{\"a\": 0.0}",
                               "{\"a\": 99999999999999999999}",
                               "{\"a\": [[[[[[0]]]]]]}"};
    for (size_t i = 0; i < sizeof bad_vocab / sizeof *bad_vocab; i++)
        EXPECT(open_texts(bad_vocab[i], strlen(bad_vocab[i]), "") == ERR_DATA, "vocabulary %s", bad_vocab[i]);
    for (size_t cut = 0; cut + 2 < bytes; cut += 1 + cut / 40)
        EXPECT(open_texts(good, cut, "") == ERR_DATA, "a vocabulary cut to %zu of %zu bytes", cut, bytes);
    for (size_t at = 0; at < bytes; at += 7) {
        good[at] ^= 4;
        open_texts(good, bytes, "a b\n");
        good[at] ^= 4;
    }
    EXPECT(tokenizer_open_beside(&(Tokenizer *){NULL}, harness_path("missing")) == ERR_NO_INPUT, "%s",
           fail_message());
    free(good);
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"pieces_are_gpt2s", pieces_are_gpt2s},
        {"by_hand_as_by_pcre2", by_hand_as_by_pcre2},
        {"long_runs_scan", long_runs_scan},
        {"trains_as_by_hand", trains_as_by_hand},
        {"ties_go_to_smaller_ids", ties_go_to_smaller_ids},
        {"counting_is_order_free", counting_is_order_free},
        {"distinct_pieces_are_bounded", distinct_pieces_are_bounded},
        {"vocabulary_sizes_are_checked", vocabulary_sizes_are_checked},
        {"random_bytes_come_back", random_bytes_come_back},
        {"every_character_is_valid_and_comes_back", every_character_is_valid_and_comes_back},
        {"merging_equals_the_slow_way", merging_equals_the_slow_way},
        {"a_full_cache_starts_anew", a_full_cache_starts_anew},
        {"a_long_piece_is_no_problem", a_long_piece_is_no_problem},
        {"null_tokenizer", null_tokenizer},
        {"saved_and_opened_gives_the_same_ids", saved_and_opened_gives_the_same_ids},
        {"a_rank_is_finished_before_a_lower_one_born_meanwhile",
         a_rank_is_finished_before_a_lower_one_born_meanwhile},
        {"special_tokens_decode_to_their_text", special_tokens_decode_to_their_text},
        {"bad_files_are_refused", bad_files_are_refused},
        {0},
    };
    return harness_run(tests, argc, argv);
}
