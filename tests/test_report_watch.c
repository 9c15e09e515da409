// The picture of a run: its step is the ranks', what is not known is said, and the columns of the ranks are in line
// whatever a rank does.
#include "base/rank.h"
#include "harness.h"
#include "report/watch.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Of a run whose run.json says step 40 of 400.
static RunRecord running(int ranks) {
    RunRecord r = {.name = "run", .has_state = true, .state = "running", .host = "here", .ranks = ranks};
    r.end = 400;
    r.iteration = r.saved = 40;
    r.blamed = r.slow = -1;
    return r;
}

// Ranks that take the steps `steps`: each waits for the one before it in `wait` of the embedding; rank 0 computes.
static BeatPage page_of(Rank *ranks, const int64_t *steps, int size, const char *wait) {
    BeatPage page;
    EXPECT_OK(beat_page_open(&page, size));
    beat_page_start(&page, 1);
    setenv(BEAT_VARIABLE, page.path, 1);
    for (int i = 0; i < size; i++) {
        char before[16];
        ranks[i].beat = beat_join(i, size);
        EXPECT(ranks[i].beat, "rank %d joins", i);
        if (steps[i]) beat_phase(ranks[i].beat, BEAT_TRAINING, steps[i]);
        snprintf(before, sizeof before, " %d", i - 1);
        if (i) beat_wait(ranks[i].beat, wait, "embedding", before);
    }
    return page;
}

static void close_page(BeatPage *page, Rank *ranks, int size) {
    for (int i = 0; i < size; i++) beat_leave(ranks[i].beat, 0);
    beat_page_close(page);
    unsetenv(BEAT_VARIABLE);
}

static Text picture_of(const RunRecord *r, const BeatPage *page, int columns) {
    Text text = {0};
    watch_print(r, page, columns, 64, &text);
    return text;
}

static void expect_lines(const RunRecord *r, const BeatPage *page, const char *lines) {
    Text text = picture_of(r, page, 80);
    EXPECT(strstr(text_string(&text), lines), "no '%s' in: %s", lines, text_string(&text));
    text_free(&text);
}

static void the_step_is_that_of_the_foremost_rank(void) {
    Rank ranks[3] = {{0}};
    RunRecord r = running(3);
    BeatPage page = page_of(ranks, (int64_t[]){75, 76, 74}, 3, "recv");
    expect_lines(&r, &page, "\nstep 76/400  saved at 40\n");
    StepRow step = {.iteration = 75, .loss = 1.5, .step_s = 1, .tokens_per_s = 10};
    snprintf(r.metrics, sizeof r.metrics, "metrics.jsonl");
    r.steps = &step;
    r.num_steps = 1;
    r.iteration = 75;
    expect_lines(&r, &page, "\nstep 76/400  loss 1.5000  ");
    close_page(&page, ranks, 3);
}

// As after a start from a checkpoint.
static void ranks_that_have_begun_no_step_say_none(void) {
    Rank ranks[2] = {{0}};
    RunRecord r = running(2);
    BeatPage page = page_of(ranks, (int64_t[]){0, 0}, 2, "recv");
    expect_lines(&r, &page, "\nstep 40/400  saved at 40\n");
    close_page(&page, ranks, 2);
}

static void what_needs_metrics_is_said(void) {
    Rank ranks[1] = {{0}};
    RunRecord r = running(1);
    BeatPage page = page_of(ranks, (int64_t[]){76}, 1, NULL), none = {0};
    expect_lines(&r, &page, "\nloss and speed are not known without --metrics FILE\n");
    expect_lines(&r, &none,
                 "\nloss, speed and the step between saves are not known without --metrics FILE\n");
    snprintf(r.metrics, sizeof r.metrics, "metrics.jsonl");
    Text text = picture_of(&r, &page, 80);
    EXPECT(!strstr(text_string(&text), "not known"), "%s", text_string(&text));
    text_free(&text);
    *r.metrics = 0;
    snprintf(r.state, sizeof r.state, "done");
    expect_lines(&r, &none, "\nloss and speed are not known without --metrics FILE\n");
    close_page(&page, ranks, 1);
}

// Each row's text from the column on where the title begins.
static void the_columns_are_in_line(void) {
    Rank ranks[3] = {{0}};
    RunRecord r = running(3);
    BeatPage page = page_of(ranks, (int64_t[]){75, 76, 74}, 3, "all_reduce");
    for (int columns = 79; columns < 200; columns += 120) {
        Text text = picture_of(&r, &page, columns);
        const char *title = strstr(text_string(&text), "\n rank ");
        EXPECT(title, "%s", text_string(&text));
        size_t width = strcspn(title + 1, "\n"), since = (size_t)(strstr(title, "since") - title) - 1;
        size_t does = width - strlen("does");
        EXPECT(!strncmp(title + 1 + does, "does", 4), "%s", title);
        const char *line = title + 1 + width + 1;
        for (int i = 0; i < 3; i++, line += strcspn(line, "\n") + 1) {
            bool waits = strstr(line, "waits for rank ") == line + does;
            EXPECT(waits || !strncmp(line + does, "training\n", 9), "what rank %.5s does: %s", line, line);
            EXPECT(line[since + 4] == 's' && !strncmp(line + since + 5, "  ", 2), "since: %s", line);
        }
        EXPECT(!*line, "%s", line);
        text_free(&text);
    }
    close_page(&page, ranks, 3);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"the_step_is_that_of_the_foremost_rank", the_step_is_that_of_the_foremost_rank},
                       {"ranks_that_have_begun_no_step_say_none", ranks_that_have_begun_no_step_say_none},
                       {"what_needs_metrics_is_said", what_needs_metrics_is_said},
                       {"the_columns_are_in_line", the_columns_are_in_line},
                       {0}},
        argc, argv);
}
