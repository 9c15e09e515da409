// Megatron's data order: random state, splits, indices, samples, batches.
#include "dataset/gpt_index.h"
#include "dataset/random_state.h"
#include "dataset_sets.h"
#include <stdlib.h>

enum { S = 8, SEED = 1234, NUM_DOCUMENTS = 8 };
static const int lengths[NUM_DOCUMENTS] = {5, 9, 3, 7, 6, 4, 8, 10};

static IndexedDataset *make_dataset(int vocab_size) {
    IndexedDataset *data = NULL;
    EXPECT_OK(indexed_dataset_open(&data, write_set("order", 0, lengths, NUM_DOCUMENTS), vocab_size));
    return data;
}

static void mersenne_twister_is_numpys(void) {
    static const uint32_t want[] = {822569775U, 2137449171U, 2671936806U, 3512589365U, 1880026316U};
    RandomState state;
    random_state_seed(&state, SEED);
    for (int i = 0; i < 5; i++) {
        uint32_t got = random_state_draw(&state);
        EXPECT(got == want[i], "draw %d is %u, not %u", i, got, want[i]);
    }
}

static void shuffles_are_numpys(void) {
    static const int32_t want[2][10] = {{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}, {7, 3, 5, 1, 4, 8, 0, 2, 6, 9}};
    RandomState state;
    random_state_seed(&state, SEED);
    for (int round = 0; round < 2; round++) {
        int32_t x[10];
        for (int i = 0; i < 10; i++) x[i] = i;
        random_state_shuffle(&state, x, 10);
        for (int i = 0; i < 10; i++)
            EXPECT(x[i] == want[round][i], "shuffle %d, element %d: %d", round, i, x[i]);
    }
}

// RandomState.randint of 64 bits: the way that shuffles above 2^32 entries draw.
static void wide_intervals_are_numpys(void) {
    static const uint64_t large[] = {878802328948, 656147994617, 617876871857,
                                     662277595166, 737940505758, 1014294388604};
    static const uint64_t around[] = {327741615, 976413892, 3349725721, 1882953283, 1152936666, 2146978983};
    RandomState state;
    random_state_seed(&state, SEED);
    for (int i = 0; i < 6; i++) {
        uint64_t got = random_state_interval(&state, (UINT64_C(1) << 40) + 4);
        EXPECT(got == large[i], "number %d is %llu", i, (unsigned long long)got);
    }
    random_state_seed(&state, 7);
    for (int i = 0; i < 6; i++) {
        uint64_t got = random_state_interval(&state, UINT32_MAX + (uint64_t)(i >= 3));
        EXPECT(got == around[i], "number %d is %llu", i, (unsigned long long)got);
    }
}

typedef struct {
    int wanted, epochs;
    bool separate;
    const char *documents, *starts, *shuffle;
} Case;

static const Case cases[] = {
    {5, 1, false, "2 1 6 0 4 5 3 7", "0,0 1,5 2,4 3,4 5,1 6,5 7,6", "0 4 3 2 5 1"},
    {10, 2, false, "5 3 0 4 6 2 2 7 1 1 0 4 5 6 3 7",
     "0,0 1,4 3,0 4,2 5,2 7,4 8,2 9,1 10,0 11,3 13,1 14,1 15,2", "7 11 2 3 1 9 5 4 0 8 6 10"},
    {13, 3, true, "5 3 0 4 6 2 2 7 1 1 0 4 5 6 3 7 5 1 3 4 0 7 6 2",
     "0,0 1,4 3,0 4,2 5,2 7,4 8,2 9,1 10,0 11,3 13,1 14,1 15,2 16,0 17,4 18,3 19,4 21,1 21,9 22,7",
     "7 1 10 5 8 4 3 11 2 6 9 0 14 16 17 18 13 12 15"},
    {16, 3, false, "7 0 2 3 1 2 5 4 0 0 5 5 2 6 4 6 3 1 1 7 4 6 3 7",
     "0,0 0,8 2,1 3,6 4,7 6,3 8,1 9,4 11,3 13,4 14,4 15,6 16,6 17,7 18,6 19,5 20,3 21,5 22,5 23,6",
     "8 18 13 1 4 17 14 11 9 0 7 3 10 6 2 5 12 16 15"},
};

static void expect_text(Text *got, const char *want, const char *what, int wanted) {
    EXPECT(strcmp(text_string(got), want) == 0, "%s for %d samples: %s", what, wanted, text_string(got));
    text_free(got);
}

static Status open_index(GptIndex *index, const IndexedDataset *data, SplitRange range, int wanted, int s,
                         int seed, bool wide) {
    GptIndexSpec spec = {
        .data = data, .range = range, .num_samples = wanted, .seq_length = s, .seed = seed, .wide = wide};
    return gpt_index_open(index, &spec);
}

static void compare_indices(bool wide) {
    IndexedDataset *data = make_dataset(1000);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        GptIndex index;
        EXPECT_OK(open_index(&index, data, (SplitRange){0, NUM_DOCUMENTS}, cases[c].wanted, S, SEED, wide));
        EXPECT(index.num_epochs == cases[c].epochs && index.separate == cases[c].separate, "%d samples",
               cases[c].wanted);
        Text documents = {0}, starts = {0}, shuffle = {0};
        for (int64_t i = 0; i < index.num_documents; i++)
            text_add(&documents, i ? " %d" : "%d", index.documents[i]);
        for (int64_t i = 0; i <= index.num_samples; i++) {
            SampleStart start = gpt_index_start(&index, i);
            text_add(&starts, "%s%d,%d", i ? " " : "", (int)start.position, (int)start.offset);
        }
        for (int64_t i = 0; i < index.num_samples; i++)
            text_add(&shuffle, i ? " %d" : "%d", (int)gpt_index_drawn(&index, i));
        expect_text(&documents, cases[c].documents, "documents", cases[c].wanted);
        expect_text(&starts, cases[c].starts, "starts", cases[c].wanted);
        expect_text(&shuffle, cases[c].shuffle, "shuffle", cases[c].wanted);
        gpt_index_close(&index);
    }
    indexed_dataset_close(data);
}

static void indices_are_megatrons(void) { compare_indices(false); }

static void indices_of_64_bits_are_the_same(void) { compare_indices(true); }

static void samples_are_megatrons(void) {
    static const int32_t want[6][S + 1] = {
        {200, 201, 202, 100, 101, 102, 103, 104, 105}, {501, 502, 503, 300, 301, 302, 303, 304, 305},
        {4, 400, 401, 402, 403, 404, 405, 500, 501},   {604, 605, 606, 607, 0, 1, 2, 3, 4},
        {305, 306, 700, 701, 702, 703, 704, 705, 706}, {105, 106, 107, 108, 600, 601, 602, 603, 604},
    };
    IndexedDataset *data = make_dataset(1000);
    GptDataset *set;
    EXPECT_OK(gpt_dataset_open(&set, data, (SplitRange){0, NUM_DOCUMENTS}, 5, S, SEED));
    EXPECT(gpt_dataset_num_samples(set) == 6, "%lld samples", (long long)gpt_dataset_num_samples(set));
    for (int i = 0; i < 6; i++) {
        int32_t got[S + 1];
        EXPECT_OK(gpt_dataset_sample(set, i, got));
        EXPECT(memcmp(got, want[i], sizeof got) == 0, "sample %d begins %d %d", i, got[0], got[1]);
    }
    gpt_dataset_close(set);
    indexed_dataset_close(data);
}

// For many wishes: enough samples, each epoch holds each document once, each drawn once, neighbours share one
// token.
static void laws_of_the_indices(void) {
    IndexedDataset *data = make_dataset(1000);
    for (int s = 1; s < 70; s += 3)
        for (int wanted = 1; wanted < 60; wanted += 2) {
            GptIndex index;
            EXPECT_OK(open_index(&index, data, (SplitRange){2, 7}, wanted, s, wanted, wanted % 4 == 1));
            EXPECT(index.num_samples >= wanted, "%lld of %d", (long long)index.num_samples, wanted);
            int64_t seen[NUM_DOCUMENTS] = {0}, drawn = 0, apart = 0;
            for (int64_t i = 0; i < index.num_documents; i++) seen[index.documents[i]]++;
            for (int i = 0; i < NUM_DOCUMENTS; i++)
                EXPECT(seen[i] == (i >= 2 && i < 7 ? index.num_epochs : 0), "document %d", i);
            for (int64_t i = 0; i < index.num_samples; i++) drawn += gpt_index_drawn(&index, i);
            EXPECT(drawn == index.num_samples * (index.num_samples - 1) / 2,
                   "not a permutation: %d samples of %d", wanted, s);
            SampleStart at = {0, 0};
            for (int64_t i = 0; i <= index.num_samples; i++) {
                SampleStart start = gpt_index_start(&index, i);
                for (; at.position < start.position; at.position++, at.offset = 0)
                    apart += indexed_dataset_length(data, index.documents[at.position]) - at.offset;
                apart += start.offset - at.offset;
                at = start;
                EXPECT(apart == i * s, "sample %lld starts at token %lld", (long long)i, (long long)apart);
            }
            gpt_index_close(&index);
        }
    indexed_dataset_close(data);
}

// 52 tokens, s = 5: an epoch gives 10 samples, the first epoch of two 10. Separate below int(0.8 * 10) more.
static void the_last_epoch_is_separate_below_80_percent(void) {
    IndexedDataset *data = make_dataset(1000);
    for (int wanted = 11; wanted <= 20; wanted++) {
        GptIndex index;
        EXPECT_OK(open_index(&index, data, (SplitRange){0, NUM_DOCUMENTS}, wanted, 5, SEED, false));
        EXPECT(index.num_epochs == 2 && index.separate == (wanted < 18), "%d samples", wanted);
        gpt_index_close(&index);
    }
    indexed_dataset_close(data);
}

static void impossible_wishes_are_refused(void) {
    IndexedDataset *data = make_dataset(1000);
    GptDataset *set = NULL;
    EXPECT(gpt_dataset_open(&set, data, (SplitRange){3, 3}, 5, S, SEED) == ERR_DATA, "no tokens");
    EXPECT(gpt_dataset_open(&set, data, (SplitRange){0, 1}, 0, 5, SEED) == ERR_DATA,
           "5 tokens in one epoch, 6 needed");
    EXPECT(gpt_dataset_open(&set, data, (SplitRange){0, 8}, INT64_MAX, S, SEED) == ERR_UNAVAILABLE, "%s",
           fail_message());
    EXPECT(gpt_dataset_open(&set, data, (SplitRange){0, 8}, INT32_MAX, 1 << 20, SEED) == ERR_UNAVAILABLE,
           "%s", fail_message());
    EXPECT(set == NULL, "a refused set is NULL");
    EXPECT_OK(gpt_dataset_open(&set, data, (SplitRange){0, 1}, 0, 4, SEED));
    EXPECT(gpt_dataset_num_samples(set) == 1 && gpt_dataset_num_epochs(set) == 1,
           "5 tokens are one sample of 4 + 1");
    gpt_dataset_close(set);
    indexed_dataset_close(data);
}

static void batches_are_samples_in_order(void) {
    enum { GLOBAL = 12, MAX_TOKENS = GLOBAL * S };
    IndexedDataset *data = make_dataset(1000);
    GptDataset *set;
    EXPECT_OK(gpt_dataset_open(&set, data, (SplitRange){0, NUM_DOCUMENTS}, 3 + GLOBAL, S, SEED));
    static const int grids[][2] = {{1, 1}, {2, 3}, {3, 2}, {12, 1}, {1, 12}, {4, 3}, {2, 1}};
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        int b = grids[g][0], d = grids[g][1], seen = 0;
        for (int k = 0; k < GLOBAL / (b * d); k++)
            for (int r = 0; r < d; r++) {
                int32_t tokens[MAX_TOKENS], labels[MAX_TOKENS], sample[S + 1];
                EXPECT_OK(batch_fill(set, (BatchPlace){3, b, d, r, k}, tokens, labels));
                for (int j = 0; j < b; j++) {
                    EXPECT_OK(gpt_dataset_sample(set, 3 + seen++, sample));
                    for (int s = 0; s < S; s++)
                        EXPECT(tokens[s * b + j] == sample[s] && labels[s * b + j] == sample[s + 1],
                               "b %d d %d k %d r %d j %d s %d", b, d, k, r, j, s);
                }
            }
        EXPECT(seen == GLOBAL, "%d", seen);
    }
    int32_t labels[S];
    EXPECT_OK(batch_fill(set, (BatchPlace){0, 1, 1, 0, 0}, NULL, labels));
    gpt_dataset_close(set);
    indexed_dataset_close(data);
}

// On every grid, also where a range begins or ends within a microbatch. At the end of the data they start again.
static void batches_leave_samples_out(void) {
    enum { GLOBAL = 12, CONSUMED = 3 };
    IndexedDataset *data = make_dataset(1000);
    GptDataset *set;
    Ranges skipped;
    EXPECT_OK(gpt_dataset_open(&set, data, (SplitRange){0, NUM_DOCUMENTS}, CONSUMED + GLOBAL, S, SEED));
    EXPECT_OK(ranges_parse(&skipped, "1,4-5,9-10", "test"));
    gpt_dataset_skip(set, &skipped);
    int64_t all = gpt_dataset_num_samples(set), order[GLOBAL], left = 0;
    for (int64_t i = 0; left < CONSUMED + GLOBAL; i++) {
        if (i == 1 || i == 4 || i == 5 || i == 9 || i == 10) continue;
        if (left >= CONSUMED) order[left - CONSUMED] = i % all;
        left++;
    }
    EXPECT(order[GLOBAL - 1] < order[0], "the data do not end: %d of %d", (int)order[GLOBAL - 1], (int)all);
    static const int grids[][2] = {{1, 1}, {2, 3}, {3, 2}, {12, 1}, {1, 12}, {4, 3}};
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        int b = grids[g][0], d = grids[g][1], seen = 0;
        for (int k = 0; k < GLOBAL / (b * d); k++)
            for (int r = 0; r < d; r++) {
                int32_t tokens[GLOBAL * S], labels[GLOBAL * S], sample[S + 1];
                EXPECT_OK(batch_fill(set, (BatchPlace){CONSUMED, b, d, r, k}, tokens, labels));
                for (int j = 0; j < b; j++, seen++) {
                    EXPECT_OK(gpt_dataset_sample(set, order[seen], sample));
                    for (int s = 0; s < S; s++)
                        EXPECT(tokens[s * b + j] == sample[s] && labels[s * b + j] == sample[s + 1],
                               "b %d d %d: row %d is not sample %d", b, d, seen, (int)order[seen]);
                }
            }
    }
    gpt_dataset_close(set);
    indexed_dataset_close(data);
}

static void foreign_tokens_are_noticed(void) {
    IndexedDataset *data = make_dataset(705);
    int32_t tokens[16];
    EXPECT_OK(indexed_dataset_read(data, 7, 0, 5, tokens, 1));
    EXPECT(indexed_dataset_read(data, 7, 0, 6, tokens, 1) == ERR_DATA, "token 705 of 705");
    EXPECT(strstr(fail_message(), "sequence 7, position 5: token 705"), "%s", fail_message());
    indexed_dataset_close(data);
}

static void splits_are_megatrons(void) {
    static const struct {
        const char *split;
        int64_t n, bounds[4];
    } rows[] = {
        {"969, 30, 1", 1000, {0, 969, 999, 1000}},
        {"949,50,1", 8, {0, 8, 8, 8}},
        {"99,1,0", 10, {0, 10, 10, 10}},
        {"1", 7, {0, 7, 7, 7}},
        {".5/.5", 5, {0, 2, 5, 5}},
        {"1 1", 7, {0, 4, 7, 7}},
        {"[0, 1, 1]", 10, {0, 0, 5, 10}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t got[4];
        EXPECT_OK(split_bounds(rows[i].split, rows[i].n, got));
        for (int k = 0; k < 4; k++)
            EXPECT(got[k] == rows[i].bounds[k], "%s of %lld: bound %d is %lld", rows[i].split,
                   (long long)rows[i].n, k, (long long)got[k]);
    }
}

static void empty_splits_are_refused_unless_meant(void) {
    SplitRange range;
    EXPECT_OK(split_range("969,30,1", 1000, SPLIT_VALID, &range));
    EXPECT(range.first == 969 && range.end == 999, "%lld", (long long)range.first);
    EXPECT(split_range("949,50,1", 8, SPLIT_VALID, &range) == ERR_CONFIG, "0.05 of 8 is none");
    EXPECT(strstr(fail_message(), "validation split, fraction 0.05 of 8 sequences"), "%s", fail_message());
    EXPECT_OK(split_range("99,1,0", 10, SPLIT_TEST, &range));
    EXPECT(range.first == range.end, "zero means none");
    int64_t bounds[4];
    const char *bad[] = {"", "none", "0,0,0", "1,2,3,4", "1.2.3", ".", "1,."};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT(split_bounds(bad[i], 10, bounds) == ERR_CONFIG, "--split \"%s\"", bad[i]);
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"mersenne_twister_is_numpys", mersenne_twister_is_numpys},
        {"shuffles_are_numpys", shuffles_are_numpys},
        {"wide_intervals_are_numpys", wide_intervals_are_numpys},
        {"indices_are_megatrons", indices_are_megatrons},
        {"indices_of_64_bits_are_the_same", indices_of_64_bits_are_the_same},
        {"samples_are_megatrons", samples_are_megatrons},
        {"laws_of_the_indices", laws_of_the_indices},
        {"the_last_epoch_is_separate_below_80_percent", the_last_epoch_is_separate_below_80_percent},
        {"impossible_wishes_are_refused", impossible_wishes_are_refused},
        {"batches_are_samples_in_order", batches_are_samples_in_order},
        {"batches_leave_samples_out", batches_leave_samples_out},
        {"foreign_tokens_are_noticed", foreign_tokens_are_noticed},
        {"splits_are_megatrons", splits_are_megatrons},
        {"empty_splits_are_refused_unless_meant", empty_splits_are_refused_unless_meant},
        {0},
    };
    return harness_run(tests, argc, argv);
}
