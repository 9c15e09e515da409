// Blends: their words, the order in which members are drawn, and their samples.
#include "base/file.h"
#include "dataset/blend.h"
#include "dataset_sets.h"
#include <stdlib.h>

enum { S = 8, SEED = 1234 };

// ---- words ------------------------------------------------------------------------------------------------

static void words_are_pairs_or_prefixes(void) {
    static const struct {
        const char *words[8];
        int num_words, members; // -1: refused
        double first;           // weight
    } rows[] = {
        {{"a"}, 1, 1, 0},
        {{"5"}, 1, 1, 0}, // a prefix may look like a number
        {{"0.3", "a"}, 2, 1, 0.3},
        {{"a", "b"}, 2, 2, 0},
        {{"a", "b", "c"}, 3, 3, 0},
        {{"3", "a", "1e-1", "b"}, 4, 2, 3},
        {{"1", "2", "3", "4"}, 4, 2, 1},
        {{"0.3", "a", "b", "c"}, 4, -1, 0},
        {{"a", "b", "0.3", "c"}, 4, -1, 0},
        {{"0.3", "a", "0.7"}, 3, -1, 0},
        {{"0", "a", "1", "b"}, 4, -1, 0},
        {{"-1", "a", "1", "b"}, 4, -1, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *prefixes[8];
        double weights[8];
        int members = blend_parse(rows[i].words, rows[i].num_words, "--data-path", prefixes, weights);
        EXPECT(members == rows[i].members, "row %zu: %d members", i, members);
        if (members < 0) EXPECT(strstr(fail_message(), "--data-path"), "%s", fail_message());
        if (members > 0) EXPECT(weights[0] == rows[i].first, "row %zu: weight %g", i, weights[0]);
    }
}

static void words_come_from_files(void) {
    BlendWords words = {0};
    EXPECT_OK(file_write(harness_path("words"), " 0.3 a\n0.7\tb c \n", 16));
    EXPECT_OK(blend_words_read(&words, harness_path("words")));
    EXPECT(words.count == 5 && !strcmp(words.words[3], "b") && !strcmp(words.words[4], "c"), "%d",
           words.count);
    blend_words_free(&words);
    static const char json[] =
        "{\"train\": [0.25, \"my set\", \"3\", \"b\"], \"valid\": \"c  d\", \"test\": null}";
    EXPECT_OK(file_write(harness_path("json"), json, sizeof json - 1));
    EXPECT_OK(blend_words_read_split(&words, harness_path("json"), SPLIT_TRAIN));
    EXPECT(words.count == 4 && !strcmp(words.words[0], "0.25") && !strcmp(words.words[1], "my set") &&
               !strcmp(words.words[3], "b"),
           "%d words", words.count);
    blend_words_free(&words);
    EXPECT_OK(blend_words_read_split(&words, harness_path("json"), SPLIT_VALID));
    EXPECT(words.count == 2 && !strcmp(words.words[1], "d"), "%d words", words.count);
    blend_words_free(&words);
    EXPECT_OK(blend_words_read_split(&words, harness_path("json"), SPLIT_TEST));
    EXPECT(words.count == 0, "null is none");
    blend_words_free(&words);
    static const char *const bad[] = {"", "[]", "{\"train\": 1}", "{\"train\": [null]}",
                                      "{\"train\": [\"a\\u0000\"]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        EXPECT_OK(file_write(harness_path("json"), bad[i], strlen(bad[i])));
        EXPECT(blend_words_read_split(&words, harness_path("json"), SPLIT_TRAIN) == ERR_DATA, "%s", bad[i]);
        EXPECT(strstr(fail_message(), "json: byte"), "%s", fail_message());
        blend_words_free(&words);
    }
    EXPECT(blend_words_read(&words, harness_path("nowhere")) == ERR_NO_INPUT, "%s", fail_message());
}

// ---- order ------------------------------------------------------------------------------------------------

static void order_is_megatrons(void) {
    static const int members[] = {1, 0, 2, 1, 0, 1, 2, 1, 0, 1, 0, 1};
    static const int samples[] = {0, 0, 0, 1, 1, 2, 1, 3, 2, 4, 3, 5};
    BlendOrder order;
    EXPECT_OK(blend_order_open(&order, (const double[]){.3, .5, .2}, NULL, 3, 12, SPLIT_TRAIN, NULL));
    for (int i = 0; i < 12; i++)
        EXPECT(order.member[i] == members[i] && order.sample[i] == samples[i], "%d: %d %d", i,
               order.member[i], (int)order.sample[i]);
    blend_order_close(&order);
}

// Weights whose plain sum would give another order. Made with NumPy.
static void shares_are_numpys(void) {
    static const struct {
        int count;
        int64_t size, hash;
    } rows[] = {{19, 3009, 46316}, {300, 3148, 437178}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        double shares[300];
        int64_t size = 0, hash = 0;
        for (int k = 0; k < rows[r].count; k++) shares[k] = (2 * k % 101 + 1) / 10.0;
        blend_normalize(shares, rows[r].count);
        for (int k = 0; k < rows[r].count; k++) size += blend_target(3000, shares[k]);
        blend_normalize(shares, rows[r].count);
        BlendOrder order;
        EXPECT_OK(blend_order_open(&order, shares, NULL, rows[r].count, size, SPLIT_TRAIN, NULL));
        for (int64_t i = 0; i < size; i++) hash = (hash + (i + 1) * order.member[i]) % 1000003;
        EXPECT(size == rows[r].size && hash == rows[r].hash, "%d members: %lld samples, %lld", rows[r].count,
               (long long)size, (long long)hash);
        blend_order_close(&order);
    }
}

// Whoever is drawn does not run ahead of its share, so nobody stays behind by more than the others together.
static void laws_of_the_order(void) {
    for (int count = 1; count <= 12; count++)
        for (int round = 0; round < 20; round++) {
            double shares[12];
            int64_t drawn[12] = {0};
            for (int k = 0; k < count; k++) shares[k] = 1 + (k * 31 + round * 17) % 23;
            blend_normalize(shares, count);
            BlendOrder order;
            EXPECT_OK(blend_order_open(&order, shares, NULL, count, 500, SPLIT_TRAIN, NULL));
            for (int i = 0; i < 500; i++) {
                int k = order.member[i];
                EXPECT(order.sample[i] == drawn[k], "samples of a member follow each other");
                EXPECT((double)drawn[k]++ <= shares[k] * (i ? i : 1) + 1e-9, "member %d of %d is ahead", k,
                       count);
            }
            for (int k = 0; k < count; k++)
                EXPECT((double)drawn[k] > shares[k] * 500 - count, "member %d of %d is left behind", k,
                       count);
            blend_order_close(&order);
        }
}

static void a_member_gives_no_more_than_it_has(void) {
    static const int64_t sizes[] = {2, 9, 1};
    BlendOrder order;
    int64_t drawn[3] = {0};
    EXPECT_OK(blend_order_open(&order, (const double[]){.5, .25, .25}, sizes, 3, 12, SPLIT_TRAIN, NULL));
    for (int i = 0; i < 12; i++) drawn[order.member[i]]++;
    for (int k = 0; k < 3; k++) EXPECT(drawn[k] == sizes[k], "member %d gives %d", k, (int)drawn[k]);
    blend_order_close(&order);
}

// ---- samples ----------------------------------------------------------------------------------------------

static const int lengths_a[] = {5, 9, 3, 7, 6, 4, 8, 10}, lengths_b[] = {40, 2, 30, 11},
                 lengths_c[] = {12, 9};

static void write_three(char prefixes[3][512]) {
    snprintf(prefixes[0], 512, "%s", write_set("a", 0, lengths_a, 8));
    snprintf(prefixes[1], 512, "%s", write_set("b", 10000, lengths_b, 4));
    snprintf(prefixes[2], 512, "%s", write_set("c", 20000, lengths_c, 2));
}

static GptSource source_of(const char *const *words, int num_words, int64_t num_samples) {
    return (GptSource){.words = words,
                       .num_words = num_words,
                       .named = "--data-path",
                       .split = "100",
                       .num_samples = num_samples,
                       .seq_length = S,
                       .seed = SEED,
                       .vocab_size = 70000};
}

// Each member's samples are its own, in its own order, built for ceil(1.005 * ceil(share * n)).
static void members_keep_their_order(void) {
    char prefixes[3][512];
    write_three(prefixes);
    const char *const words[] = {"3", prefixes[0], "5", prefixes[1], "2", prefixes[2]};
    enum { N = 1000 };
    static const int built[] = {302, 503, 201};
    GptSource source = source_of(words, 6, N);
    GptDataset *blend = NULL, *alone[3];
    int next[3] = {0};
    EXPECT_OK(gpt_dataset_open_source(&blend, &source));
    EXPECT(gpt_dataset_num_samples(blend) == N, "%d", (int)gpt_dataset_num_samples(blend));
    for (int k = 0; k < 3; k++) {
        GptSource single = source_of((const char *const *)&words[2 * k + 1], 1, built[k]);
        EXPECT_OK(gpt_dataset_open_source(&alone[k], &single));
    }
    for (int i = 0; i < N; i++) {
        int32_t got[S + 1], want[S + 1];
        EXPECT_OK(gpt_dataset_sample(blend, i, got));
        int k = got[0] / 10000;
        EXPECT_OK(gpt_dataset_sample(alone[k], next[k]++, want));
        EXPECT(memcmp(got, want, sizeof got) == 0, "sample %d, number %d of member %d", i, next[k] - 1, k);
    }
    EXPECT(next[0] == 300 && next[1] == 500 && next[2] == 200, "%d %d %d", next[0], next[1], next[2]);
    for (int k = 0; k < 3; k++) gpt_dataset_close(alone[k]);
    gpt_dataset_close(blend);
}

// Many members and few samples: rounding up gives more than half a percent can hold.
static void no_member_runs_dry(void) {
    char prefixes[3][512];
    write_three(prefixes);
    const char *words[400];
    for (int i = 0; i < 200; i++) {
        words[2 * i] = i ? "1" : "100";
        words[2 * i + 1] = prefixes[i % 3];
    }
    for (int n = 1; n < 40; n += 6) {
        GptSource source = source_of(words, 400, n);
        GptDataset *set = NULL;
        EXPECT_OK(gpt_dataset_open_source(&set, &source));
        for (int64_t i = 0; i < gpt_dataset_num_samples(set); i++) {
            int32_t tokens[S + 1];
            EXPECT_OK(gpt_dataset_sample(set, i, tokens));
        }
        gpt_dataset_close(set);
    }
}

// 52, 83 and 21 tokens: 6, 10 and 2 samples of an epoch.
static void without_weights_each_is_read_once(void) {
    char prefixes[3][512];
    write_three(prefixes);
    const char *const words[] = {prefixes[0], prefixes[1], prefixes[2]};
    GptDataset *set = NULL;
    int counts[3] = {0};
    GptSource source = source_of(words, 3, 0);
    EXPECT_OK(gpt_dataset_open_source(&set, &source));
    EXPECT(gpt_dataset_num_samples(set) == 18, "%d samples", (int)gpt_dataset_num_samples(set));
    for (int i = 0; i < 18; i++) {
        int32_t tokens[S + 1];
        EXPECT_OK(gpt_dataset_sample(set, i, tokens));
        counts[tokens[0] / 10000]++;
    }
    EXPECT(counts[0] == 6 && counts[1] == 10 && counts[2] == 2, "%d %d %d", counts[0], counts[1], counts[2]);
    gpt_dataset_close(set);
    source.num_samples = 7;
    EXPECT_OK(gpt_dataset_open_source(&set, &source));
    EXPECT(gpt_dataset_num_samples(set) == 7, "as many as are wanted");
    gpt_dataset_close(set);
}

// As Megatron-LM, whose order ends where the samples do; here they then begin again.
static void without_weights_more_than_there_is(void) {
    enum { N = 18, MORE = 41 };
    char prefixes[3][512];
    write_three(prefixes);
    const char *const words[] = {prefixes[0], prefixes[1], prefixes[2]};
    GptDataset *once = NULL, *set = NULL;
    GptSource source = source_of(words, 3, 0);
    EXPECT_OK(gpt_dataset_open_source(&once, &source));
    EXPECT(gpt_dataset_num_distinct(once) == N, "%d", (int)gpt_dataset_num_distinct(once));
    source.num_samples = MORE;
    EXPECT_OK(gpt_dataset_open_source(&set, &source));
    EXPECT(gpt_dataset_num_samples(set) == MORE && gpt_dataset_num_distinct(set) == N,
           "%d samples, %d distinct", (int)gpt_dataset_num_samples(set), (int)gpt_dataset_num_distinct(set));
    for (int i = 0; i < MORE; i++) {
        int32_t got[S + 1], want[S + 1];
        EXPECT_OK(gpt_dataset_sample(set, i, got));
        EXPECT_OK(gpt_dataset_sample(once, i % N, want));
        EXPECT(memcmp(got, want, sizeof got) == 0, "sample %d", i);
    }
    gpt_dataset_close(set);
    gpt_dataset_close(once);
}

// Law: what a batch holds does not depend on how many ranks share it.
static void ranks_change_nothing(void) {
    enum { GLOBAL = 12 };
    char prefixes[3][512];
    write_three(prefixes);
    const char *const words[] = {".4", prefixes[2], ".6", prefixes[0]};
    GptSource source = source_of(words, 4, 3 + GLOBAL);
    static const int grids[][2] = {{1, 1}, {2, 3}, {3, 2}, {12, 1}, {1, 12}, {4, 3}};
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        int b = grids[g][0], d = grids[g][1], seen = 0;
        for (int k = 0; k < GLOBAL / (b * d); k++)
            for (int r = 0; r < d; r++) {
                GptDataset *set = NULL; // each rank opens its own
                int32_t tokens[GLOBAL * S], labels[GLOBAL * S], sample[S + 1];
                EXPECT_OK(gpt_dataset_open_source(&set, &source));
                EXPECT_OK(batch_fill(set, (BatchPlace){3, b, d, r, k}, tokens, labels));
                for (int j = 0; j < b; j++) {
                    EXPECT_OK(gpt_dataset_sample(set, 3 + seen++, sample));
                    for (int s = 0; s < S; s++)
                        EXPECT(tokens[s * b + j] == sample[s] && labels[s * b + j] == sample[s + 1],
                               "b %d d %d k %d r %d", b, d, k, r);
                }
                gpt_dataset_close(set);
            }
    }
}

// The pieces say where the tokens of a sample are.
static void pieces_make_the_sample(void) {
    char prefixes[3][512];
    write_three(prefixes);
    const char *const words[] = {"1", prefixes[0], "1", prefixes[1]};
    GptSource source = source_of(words, 4, 40);
    GptDataset *set = NULL;
    EXPECT_OK(gpt_dataset_open_source(&set, &source));
    for (int i = 0; i < 40; i++) {
        int32_t tokens[S + 1];
        SamplePiece pieces[S + 1];
        EXPECT_OK(gpt_dataset_sample(set, i, tokens));
        int at = 0, count = gpt_dataset_pieces(set, i, pieces, S + 1);
        for (int p = 0; p < count; p++)
            for (int k = 0; k < pieces[p].count; k++, at++)
                EXPECT(tokens[at] ==
                           10000 * pieces[p].member + 100 * pieces[p].sequence + pieces[p].offset + k,
                       "sample %d, token %d", i, at);
        EXPECT(at == S + 1, "%d tokens", at);
        EXPECT(gpt_dataset_pieces(set, i, NULL, 0) == count, "counting alone");
    }
    gpt_dataset_close(set);
}

static void messages_name_the_data_set(void) {
    char prefixes[3][512];
    write_three(prefixes);
    const char *words[] = {"1", prefixes[0], "1", "nowhere", "1", prefixes[2]};
    GptDataset *set = NULL;
    GptSource source = source_of(words, 6, 5);
    EXPECT(gpt_dataset_open_source(&set, &source) == ERR_NO_INPUT && !set, "%s", fail_message());
    EXPECT(strstr(fail_message(), "--data-path, data set 2 of 3: nowhere.idx"), "%s", fail_message());
    words[3] = prefixes[1];
    source.split = "99,1";
    source.which = SPLIT_VALID;
    EXPECT(gpt_dataset_open_source(&set, &source) == ERR_CONFIG, "%s", fail_message());
    EXPECT(strstr(fail_message(), "data set 1 of 3: --split 99,1"), "%s", fail_message());
    source.split = NULL; // of validation as a whole
    EXPECT_OK(gpt_dataset_open_source(&set, &source));
    gpt_dataset_close(set);
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"words_are_pairs_or_prefixes", words_are_pairs_or_prefixes},
        {"words_come_from_files", words_come_from_files},
        {"order_is_megatrons", order_is_megatrons},
        {"shares_are_numpys", shares_are_numpys},
        {"laws_of_the_order", laws_of_the_order},
        {"a_member_gives_no_more_than_it_has", a_member_gives_no_more_than_it_has},
        {"members_keep_their_order", members_keep_their_order},
        {"no_member_runs_dry", no_member_runs_dry},
        {"without_weights_each_is_read_once", without_weights_each_is_read_once},
        {"without_weights_more_than_there_is", without_weights_more_than_there_is},
        {"ranks_change_nothing", ranks_change_nothing},
        {"pieces_make_the_sample", pieces_make_the_sample},
        {"messages_name_the_data_set", messages_name_the_data_set},
        {0},
    };
    return harness_run(tests, argc, argv);
}
