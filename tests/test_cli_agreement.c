// Ranks that were started differently are refused before anything is computed, and the message names the first
// option that differs, both ranks and both values.
#include "base/file.h"
#include "cli/cli.h"
#include "comm/comm.h"
#include "config_words.h"
#include "device/algorithms.h"
#include "train/train.h"
#include <stdlib.h>

enum { RANKS = 3 };

// ---- ranks as threads ------------------------------------------------------------------------------------

typedef struct {
    const char *common[RANKS];
    Status status[RANKS];
    char message[RANKS][1024];
} Ranks;

static Status compare_rank(Comm *world, void *arg) {
    Ranks *ranks = arg;
    int rank = comm_rank(world);
    Status status = ranks->status[rank] = comm_compare(world, ranks->common[rank]);
    snprintf(ranks->message[rank], sizeof ranks->message[rank], "%s", status == OK ? "" : fail_message());
    return status;
}

static Status compare(Ranks *ranks) {
    return comm_launch((CommOptions){.transport = "threads", .ranks = RANKS, .timeout_s = 60}, compare_rank,
                       ranks);
}

// The last rank has `last`, all others `first`; every rank fails with the same words.
static void expect_named(const char *first, const char *last, const char *words) {
    Ranks ranks = {.common = {first, first, last}};
    EXPECT(compare(&ranks) == ERR_CONFIG, "not refused: %s", words);
    for (int r = 0; r < RANKS; r++) {
        EXPECT(ranks.status[r] == ERR_CONFIG, "rank %d: status %d for %s", r, (int)ranks.status[r], words);
        EXPECT(strstr(ranks.message[r], words), "rank %d: '%s' is not in: %s", r, words, ranks.message[r]);
    }
}

static void expect_alike(const char *first, const char *last) {
    Ranks ranks = {.common = {first, first, last}};
    EXPECT(compare(&ranks) == OK, "%s", fail_message());
}

// ---- texts -----------------------------------------------------------------------------------------------

static void texts(void) {
    expect_alike("", "");
    expect_alike("a\t1\nb\t2\n", "a\t1\nb\t2\n");
    expect_named("a\t1\nb\t2\n", "a\t1\nb\t3\n", "b is 2 on rank 0 and 3 on rank 2:");
    expect_named("a\t1\nb\t2\n", "a\t3\nb\t4\n", "a is 1 on rank 0 and 3 on rank 2:");
    expect_named("a\t1\nb\t2\n", "a\t1\n", "b is 2 on rank 0 and missing on rank 2:");
    expect_named("a\t1\n", "a\t1\nb\t2\n", "b is  on rank 0 and missing on rank 2:");
    expect_named("a\t12\n", "a\t1\n", "a is 12 on rank 0 and 1 on rank 2:");
}

// Of long values what surrounds the difference is shown.
static void long_texts(void) {
    char first[4096], last[4096];
    memset(first, 'x', sizeof first), memset(last, 'x', sizeof last);
    memcpy(first, "a\t", 2), memcpy(last, "a\t", 2);
    memcpy(first + 3000, "here\n", 6), memcpy(last + 3000, "elsewhere\n", 11);
    expect_named(first, last, "xxhere on rank 0 and ...xx");
    expect_named(first, last, "xxelsewhere on rank 2:");
}

// ---- options ---------------------------------------------------------------------------------------------

// What two ranks with these arguments must have in common.
static void list(const char *arguments, Text *out) {
    char line[1024];
    Options options;
    snprintf(line, sizeof line, "%s--global-batch-size 8 --micro-batch-size 1 %s", GOOD_RUN, arguments);
    EXPECT(parse_line(&options, FOR_TRAIN, line) == OK, "%s: %s", arguments, fail_message());
    list_common(&options, out);
    options_destroy(&options);
}

static void check_row(char *line) {
    char *fields[5], *rest = line, words[512];
    for (int i = 0; i < 5; i++) {
        char *end = strstr(rest, " | ");
        CHECK(end || i == 4, "a line of mismatches.txt needs five fields: %s", line);
        fields[i] = rest;
        if (end) *end = 0, rest = end + 3;
    }
    Text first = {0}, last = {0};
    list(fields[3], &first);
    list(fields[4], &last);
    snprintf(words, sizeof words, "%s is %s on rank 0 and %s on rank 2:", fields[0], fields[1], fields[2]);
    expect_named(text_string(&first), text_string(&last), words);
    text_free(&first), text_free(&last);
}

static void mismatches(void) {
    char *data = NULL, *rest = NULL;
    size_t size = 0;
    int count = 0;
    EXPECT_OK(file_read(TEST_FOLDER "/mismatches.txt", 1 << 20, &data, &size));
    for (char *line = strtok_r(data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (*line == '#') continue;
        check_row(line);
        count++;
    }
    EXPECT(count >= 40, "only %d lines", count);
    free(data);
}

// The bits of products depend on the table, wherever a rank has it.
static void tables_of_algorithms(void) {
    static const char *const names[] = {"one.txt", "two.txt", "three.txt"};
    Text lists[3] = {{0}};
    for (int i = 0; i < 3; i++) {
        Text table = {0}, arguments = {0};
        text_add(&table, "%s\n# %s\n", ALGORITHMS_TITLE, i < 2 ? "same" : "other");
        algorithms_end(&table);
        EXPECT_OK(file_write(harness_path(names[i]), text_string(&table), table.size));
        text_add(&arguments, "--product-algorithms %s", harness_path(names[i]));
        list(text_string(&arguments), &lists[i]);
        text_free(&table), text_free(&arguments);
    }
    expect_alike(text_string(&lists[0]), text_string(&lists[1]));
    expect_named(text_string(&lists[0]), text_string(&lists[2]), "the algorithms of products is checksum ");
    for (int i = 0; i < 3; i++) text_free(&lists[i]);
}

// Where a rank runs and what rank 0 alone does with its files is its own affair.
static void may_differ(void) {
    static const char *const arguments[] = {"--threads 2",       "--no-bind-cores", "--data-cache-path here",
                                            "--metrics a.jsonl", "--plain",         "--save-config a.yaml"};
    Text first = {0};
    list("", &first);
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
        Text last = {0};
        list(arguments[i], &last);
        expect_alike(text_string(&first), text_string(&last));
        text_free(&last);
    }
    text_free(&first);
}

// ---- resolved options ------------------------------------------------------------------------------------

typedef struct {
    Options options[2];
    Status status[2];
    char message[1024];
} Runs;

static Status run_rank(Comm *world, void *arg) {
    Runs *runs = arg;
    int rank = comm_rank(world);
    TrainJob job = {.options = &runs->options[rank], .threads = 1, .ranks_here = 2};
    runs->status[rank] = train_run(world, &job);
    if (rank == 0) snprintf(runs->message, sizeof runs->message, "%s", fail_message());
    return runs->status[rank];
}

// As given the options are the same, but the model of --load replaces the default alone.
static void resolved_options(void) {
    static const char *const given[] = {"--hidden-dropout 0.1", ""};
    Text lists[2] = {0};
    Runs runs = {0};
    for (int r = 0; r < 2; r++) {
        char line[1024];
        Options *o = &runs.options[r];
        snprintf(line, sizeof line,
                 "%s--mock-data --vocab-size 64 --hidden-size 32 --num-layers 2 --micro-batch-size 1 "
                 "--train-iters 1 --eval-iters 0 --ranks 2 --threads 1 --plain %s",
                 strstr(GOOD_RUN, "--num-layers"), given[r]);
        EXPECT_OK(parse_line(o, FOR_TRAIN, line));
        options_list(o, &lists[r]);
        EXPECT_OK(options_take(o, "hidden_dropout", "0.0", false, "a model", NULL));
        EXPECT_OK(options_resolve(o, 2));
    }
    EXPECT(!strcmp(text_string(&lists[0]), text_string(&lists[1])), "they differ as given");
    CommOptions comm = {.transport = "threads", .ranks = 2, .timeout_s = 60, .deterministic = true};
    EXPECT(comm_launch(comm, run_rank, &runs) == ERR_CONFIG, "they train together");
    EXPECT(strstr(runs.message, "--hidden-dropout is 0.1 on rank 0 and 0.0 on rank 1:"), "%s", runs.message);
    for (int r = 0; r < 2; r++) options_destroy(&runs.options[r]), text_free(&lists[r]);
}

// ---- environment, program --------------------------------------------------------------------------------

static void environment(void) {
    static const char *const names[] = {"DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "GLIBC_TUNABLES"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        Text first = {0}, last = {0};
        char words[256];
        unsetenv(names[i]);
        list("", &first);
        setenv(names[i], "another", 1);
        list("", &last);
        unsetenv(names[i]);
        snprintf(words, sizeof words,
                 "the environment's %s is unset on rank 0 and another on rank 2:", names[i]);
        expect_named(text_string(&first), text_string(&last), words);
        text_free(&first), text_free(&last);
    }
}

// Another program, or another machine's arithmetic, is found whatever else is the same.
static void program(void) {
    static const char *const parts[] = {", build ", "kernels for ", "oneDNN ", "C library "};
    Text first = {0};
    list("", &first);
    EXPECT(!strstr(text_string(&first), "build unknown"), "no build id: %s", text_string(&first));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        Text last = {0};
        text_add(&last, "%s", text_string(&first));
        char *at = strstr(last.data, parts[i]);
        EXPECT(at, "no %s", parts[i]);
        if (at) {
            at[strlen(parts[i])] ^= 1;
            expect_named(text_string(&first), text_string(&last),
                         i ? "the arithmetic is " : "the program is ");
        }
        text_free(&last);
    }
    text_free(&first);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"texts", texts},
                                      {"long texts", long_texts},
                                      {"mismatches", mismatches},
                                      {"tables of algorithms", tables_of_algorithms},
                                      {"may differ", may_differ},
                                      {"resolved options", resolved_options},
                                      {"environment", environment},
                                      {"program", program},
                                      {0}},
                       argc, argv);
}
