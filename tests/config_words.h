// Command lines written as one string, for the tests of config/.
#pragma once
#include "config/config.h"
#include "harness.h"
#include <stdio.h>
#include <string.h>

enum { MAX_WORDS = 512 };

// What a training run needs at least; words after it override.
#define GOOD_RUN                                                                                             \
    "--data-path corpus --num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 32 "            \
    "--micro-batch-size 2 --train-iters 100 --lr 1e-3 "

// options_parse of the words of `line`, which blanks separate; '~' within a word stands for a blank.
static inline Status parse_line(Options *options, Verb verb, const char *line) {
    char copy[16384], *words[MAX_WORDS], *rest = NULL;
    int count = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        for (char *c = word; *c; c++) *c = *c == '~' ? ' ' : *c;
        CHECK(count < MAX_WORDS, "too many words in %s", line);
        words[count++] = word;
    }
    return options_parse(options, verb, count, words);
}

// The same on top of GOOD_RUN.
static inline Status parse_run(Options *options, const char *line) {
    char whole[4096];
    snprintf(whole, sizeof whole, "%s%s", GOOD_RUN, line);
    return parse_line(options, FOR_TRAIN, whole);
}

// Parses, and resolves for as many ranks as --ranks says. The options are the caller's only when it is OK.
static inline Status resolve_run(Options *options, const char *line) {
    TRY(parse_run(options, line));
    Status status = options_resolve(options, options->ranks == INT_UNSET ? 1 : options->ranks);
    if (status != OK) options_destroy(options);
    return status;
}

// That a call fails with `want`, and that its message contains `text`.
static inline void expect_failure(Status status, Status want, const char *text, const char *line) {
    EXPECT(status == want, "%s: status %d, expected %d: %s", line, (int)status, (int)want, fail_message());
    EXPECT(status == OK || strstr(fail_message(), text), "%s: message lacks '%s': %s", line, text,
           fail_message());
}
