// A batch that grows, groups of the interleaved schedule, cuts of the layers, and what changes along a run.
#include "config/table.h"
#include "config_words.h"

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

static int below(uint32_t *state, int n) { return (int)((next_random(state) >> 8) % (uint32_t)n); }

typedef struct {
    int start, increment, full, unit;
    int64_t samples, train;
} Ramp;

// The rule step by step (Megatron-LM, RampupBatchsizeNumMicroBatchesCalculator), as long as whole batches are
// left.
static int64_t count_steps(Ramp r, int64_t *consumed, int until_batch) {
    int stages = (r.full - r.start) / r.increment;
    double per = (double)r.samples / stages;
    int64_t steps = 0;
    for (*consumed = 0;; steps++) {
        int64_t batch = r.full;
        if (*consumed <= r.samples) batch = r.start + r.increment * (int64_t)((double)*consumed / per);
        batch -= batch % r.unit; // of what the ramp says, last
        if (batch == until_batch || *consumed + batch > r.train) return steps;
        *consumed += batch;
    }
}

static void resolve_ramp(Ramp r, const char *more, Options *o) {
    char line[512];
    snprintf(line, sizeof line,
             "--data-path c --layers 8 --hidden 64 --heads 8 --seq 32 --lr 1 --mbs 2 --gbs %d "
             "--train-samples %lld --rampup-batch-size %d %d %lld --ranks %d %s",
             r.full, (long long)r.train, r.start, r.increment, (long long)r.samples, r.unit / 2, more);
    EXPECT_OK(parse_line(o, FOR_TRAIN, line));
    EXPECT_OK(options_resolve(o, r.unit / 2));
}

// The test counts right itself: a golden of Megatron-LM's calculator.
static void golden_ramp(void) {
    static const struct {
        int batch, steps, consumed;
    } rows[] = {{32, 63, 1008}, {48, 94, 2000}, {64, 115, 3008}};
    Ramp ramp = {16, 16, 64, 8, 3000, 100000};
    int64_t consumed;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t steps = count_steps(ramp, &consumed, rows[i].batch);
        EXPECT(steps == rows[i].steps && consumed == rows[i].consumed,
               "batch %d after %lld steps, %lld samples", rows[i].batch, (long long)steps,
               (long long)consumed);
    }
}

// Law: the steps of a run are those one would count.
static void steps_of_ramps(void) {
    uint32_t state = 7;
    for (int round = 0; round < 400; round++) {
        Ramp r = {.unit = 2 * (1 + below(&state, 4))};
        bool rounded = round % 2;
        r.start = rounded ? r.unit + below(&state, 20) : r.unit * (1 + below(&state, 5));
        r.increment = rounded ? 1 + below(&state, 9) : r.unit * (1 + below(&state, 3));
        r.full = r.start + r.increment * (1 + below(&state, 12));
        r.samples = 1 + below(&state, 5000);
        r.train = 1 + below(&state, 20000);
        int64_t consumed, want = count_steps(r, &consumed, -1);
        Options o = {0};
        resolve_ramp(r, rounded ? "--decrease-batch-size-if-needed" : "", &o);
        EXPECT(o.shape.train_iters == want, "%d %d %lld to %d, unit %d, of %lld: %lld steps, not %lld",
               r.start, r.increment, (long long)r.samples, r.full, r.unit, (long long)r.train,
               (long long)o.shape.train_iters, (long long)want);
        EXPECT(o.shape.train_samples == r.train && o.shape.rampup_start == r.start, "as given");
        EXPECT(o.global_batch_size == r.full && o.shape.global_batch == r.full - r.full % r.unit, "%d of %d",
               o.shape.global_batch, r.full);
        options_destroy(&o);
    }
}

static void long_ramp_is_quick(void) {
    Options o = {0};
    resolve_ramp((Ramp){2, 2, 200002, 2, 1000000000000000, 4000000000000000000}, "", &o);
    EXPECT(o.shape.train_iters > 0 && o.shape.rampup_increment == 2, "%lld", (long long)o.shape.train_iters);
    options_destroy(&o);
    resolve_ramp((Ramp){64, 5, 64, 2, 10, 1000}, "", &o);
    EXPECT(o.shape.rampup_increment == 0 && o.shape.train_iters == 15, "full from the start");
    options_destroy(&o);
}

// What is asked for stays as it is written; what a step has is the run's.
static void batches_rounded_down(void) {
    Options o = {0};
    EXPECT_OK(resolve_run(&o,
                          "--gbs 7 --decrease-batch-size-if-needed --lr-decay-iters 10 --lr-warmup-iters 2 "
                          "--lr-decay-style WSD --lr-wsd-decay-iters 5"));
    EXPECT(o.global_batch_size == 7 && options_origin(&o, "global_batch_size") == FROM_COMMAND_LINE, "%d",
           o.global_batch_size);
    EXPECT(o.shape.global_batch == 6 && o.shape.num_microbatches == 3, "%d", o.shape.global_batch);
    EXPECT(o.shape.train_samples == 600 && o.shape.lr_decay_samples == 60 && o.shape.lr_wsd_samples == 30 &&
               o.shape.lr_warmup_samples == 12,
           "lengths in samples");
    static const char note[] =
        "--global-batch-size 7 is rounded down to 6 (--decrease-batch-size-if-needed)\n";
    EXPECT(!strcmp(options_notes(&o), note), "%s", options_notes(&o));
    options_destroy(&o);
    EXPECT_OK(resolve_run(&o, "--gbs 6 --decrease-batch-size-if-needed"));
    EXPECT(o.shape.global_batch == 6 && !*options_notes(&o), "%s", options_notes(&o));
    options_destroy(&o);
    expect_failure(resolve_run(&o, "--gbs 1 --decrease-batch-size-if-needed"), ERR_CONFIG,
                   "use --global-batch-size 2", "nothing is left");
}

// A launch script's quotes, or a scalar of a file, make one word of three.
static void ramp_in_one_word(void) {
    static const char *const words[] = {"4 2 100", "4~2~100", "4~2 100", "~4~~2~100~"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char line[256];
        snprintf(line, sizeof line,
                 "--data-path c --layers 8 --hidden 64 --heads 8 --seq 32 --lr 1 --mbs 2 --gbs 8 "
                 "--train-samples 1000 --rampup-batch-size %s",
                 words[i]);
        Options o = {0};
        EXPECT_OK(parse_line(&o, FOR_TRAIN, line));
        EXPECT_OK(options_resolve(&o, 1));
        EXPECT(o.shape.rampup_start == 4 && o.shape.rampup_increment == 2 && o.shape.rampup_samples == 100,
               "'%s'", words[i]);
        options_destroy(&o);
    }
}

// Law: as many microbatches as ranks are enough; the group is the smallest whose last one is full or has p.
static void groups(void) {
    for (int p = 2; p <= 8; p *= 2)
        for (int m = 1; m <= 24; m++) {
            char line[128];
            snprintf(line, sizeof line, "--ranks %d --pp %d --vp 2 --layers 16 --gbs %d", p, p, 2 * m);
            Options o = {0};
            Status status = resolve_run(&o, line);
            EXPECT(status == (m >= p ? OK : ERR_CONFIG), "%s: %s", line, fail_message());
            if (status != OK) continue;
            int group = o.shape.microbatch_group;
            EXPECT(group >= p && (m % group == 0 || m % group >= p), "%s: %d", line, group);
            for (int g = p; g < group; g++) EXPECT(m % g && m % g < p, "%s: %d would do", line, g);
            options_destroy(&o);
        }
}

static void schedules(void) {
    static const struct {
        const char *line, *schedule;
        int vp, group, ahead, limit;
    } rows[] = {
        {"", "1f1b", 1, 0, 0, 0},
        {"--ranks 4 --pp 4", "1f1b", 1, 0, 1, 0},
        {"--ranks 4 --pp 4 --no-overlap-p2p-communication", "1f1b", 1, 0, 0, 0},
        {"--ranks 4 --pp 4 --schedule zb-h2", "zb-h2", 1, 0, 1, 0},
        {"--ranks 4 --pp 4 --schedule zb-v", "zb-v", 2, 0, 1, 0},
        {"--ranks 4 --pp 4 --zero-bubble-v-schedule", "zb-v", 2, 0, 1, 0},
        {"--ranks 4 --pp 4 --schedule zb-v --vp 2", "zb-v", 2, 0, 1, 0},
        {"--ranks 4 --pp 4 --schedule zb-v --num-layers-per-virtual-pipeline-stage 1", "zb-v", 2, 0, 1, 0},
        {"--ranks 3 --pp 3 --schedule zb-v --pipeline-model-parallel-layout Et|t|tt|tt|t|tL", "zb-v", 2, 0, 1,
         0},
        {"--ranks 2 --pp 2 --pipeline-model-parallel-layout Et*4|t*4L", "1f1b", 1, 0, 1, 0},
        {"--ranks 2 --pp 2 --gbs 4 --pipeline-model-parallel-layout Et|(t,t|)*2tttL", "interleaved", 2, 2, 1,
         0},
        {"--ranks 2 --pp 2 --gbs 4 --pipeline-model-parallel-layout E(t|)*3((t||)*2t||)*1ttL", "interleaved",
         5, 2, 1, 0}, // 3 + 2 * 2 + 2 bars
        {"--ranks 2 --pp 2 --gbs 4 --pipeline-model-parallel-layout Et|*3t*7L", "interleaved", 2, 2, 1, 0},
        {"--pipeline-model-parallel-layout Et*8L", "1f1b", 1, 0, 0, 0},
        {"--ranks 4 --pp 4 --enable-zero-bubble --schedule-stash-limit 3", "auto", 1, 0, 1, 3},
        {"--ranks 3 --pp 3 --balance-stages", "1f1b", 1, 0, 1, 0},
        {"--ranks 2 --pp 2 --balance-stages --vp 3 --gbs 4", "interleaved", 3, 2, 1, 0},
        {"--ranks 2 --pp 2 --vp 2 --gbs 20 --microbatch-group-size-per-virtual-pipeline-stage 8",
         "interleaved", 2, 8, 1, 0},
        {"--ranks 5 --pp 5 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
         "1f1b", 1, 0, 1, 0},
        {"--ranks 3 --pp 3 --layers 16 --account-for-embedding-in-pipeline-split "
         "--account-for-loss-in-pipeline-split --num-layers-per-virtual-pipeline-stage 3 --gbs 6",
         "interleaved", 2, 3, 1, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Options o = {0};
        EXPECT_OK(resolve_run(&o, rows[i].line));
        RunShape s = o.shape;
        EXPECT(!strcmp(s.schedule, rows[i].schedule) && s.vp == rows[i].vp, "%s: %s %d", rows[i].line,
               s.schedule, s.vp);
        EXPECT(s.microbatch_group == rows[i].group && s.receive_ahead == rows[i].ahead, "%s: %d %d",
               rows[i].line, s.microbatch_group, s.receive_ahead);
        EXPECT(s.schedule_stash_limit == rows[i].limit, "%s", rows[i].line);
        options_destroy(&o);
    }
}

static void schedule_times(void) {
    Options o;
    double times[4];
    EXPECT_OK(parse_line(&o, FOR_SCHEDULE, "--schedule-times 1,.9765,0.5,3e-2"));
    EXPECT_OK(options_schedule_times(&o, times));
    EXPECT(times[0] == 1 && times[1] == 0.9765 && times[2] == 0.5 && times[3] == 0.03, "%g", times[1]);
    options_destroy(&o);
    EXPECT_OK(resolve_run(&o, "--ranks 2 --pp 2 --schedule auto"));
    EXPECT(o.shape.schedule_times[2] == 1 && o.shape.schedule_times[3] == 0, "default");
    options_destroy(&o);
}

static void rates_along_the_run(void) {
    Options o;
    EXPECT_OK(resolve_run(&o, "--gbs 4 --lr-decay-style WSD --lr-wsd-decay-iters 10"));
    EXPECT(o.shape.lr_wsd_samples == 40 && !strcmp(o.lr_wsd_decay_style, "exponential"), "WSD");
    EXPECT(o.start_weight_decay == 0.01 && o.end_weight_decay == 0.01, "constant");
    EXPECT(options_origin(&o, "start_weight_decay") == DERIVED, "origin");
    options_destroy(&o);
    EXPECT_OK(
        resolve_run(&o, "--weight-decay-incr-style cosine --start-weight-decay 0 --end-weight-decay 0.1"));
    EXPECT(o.start_weight_decay == 0 && o.end_weight_decay == 0.1, "cosine");
    options_destroy(&o);
    EXPECT_OK(resolve_run(&o, "--weight-decay 0.1 --lr-decay-style inverse-square-root"));
    EXPECT(o.start_weight_decay == 0.1, "%g", o.start_weight_decay);
    options_destroy(&o);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"golden ramp", golden_ramp},
                                      {"steps of ramps", steps_of_ramps},
                                      {"long ramp is quick", long_ramp_is_quick},
                                      {"batches rounded down", batches_rounded_down},
                                      {"ramp in one word", ramp_in_one_word},
                                      {"groups", groups},
                                      {"schedules", schedules},
                                      {"schedule times", schedule_times},
                                      {"rates along the run", rates_along_the_run},
                                      {0}},
                       argc, argv);
}
