// The rules of the global batch: the samples of a step, and how their number grows.
#include "config/rules.h"
#include <string.h>

// A step is a multiple of this: one microbatch for each data-parallel rank, or for each leaf.
static int num_shares(const Options *o) {
    return o->shape.virtual_data ? o->shape.virtual_data : o->shape.dp;
}
static int64_t one_microbatch_each(const Options *o) { return (int64_t)o->micro_batch_size * num_shares(o); }

static const char *shares(const Options *o) {
    return o->shape.virtual_data ? "virtual data parallel size" : "data parallel size";
}

static Status resolve_global_batch(Options *o) {
    int64_t unit = one_microbatch_each(o);
    if (unit > INT32_MAX)
        return fail(ERR_CONFIG, "micro batch size (%d) times %s (%d) exceeds %d samples: use less",
                    o->micro_batch_size, shares(o), num_shares(o), INT32_MAX);
    derive_int(o, OPT_global_batch_size, &o->global_batch_size, (int)unit);
    return OK;
}

static void note_rounding(Options *o) {
    char note[128];
    snprintf(note, sizeof note,
             "--global-batch-size %d is rounded down to %d (--decrease-batch-size-if-needed)",
             o->global_batch_size, o->shape.global_batch);
    options_note(o, note);
}

static Status resolve_microbatches(Options *o) {
    int64_t unit = one_microbatch_each(o), batch = o->global_batch_size;
    o->shape.global_batch = (int)(batch - batch % unit);
    o->shape.num_microbatches = (int)(batch / unit) * (num_shares(o) / o->shape.dp);
    if (batch % unit == 0) return OK;
    if (o->decrease_batch_size_if_needed && batch > unit) return note_rounding(o), OK;
    return fail(ERR_CONFIG,
                "global batch size (%lld) is not divisible by micro batch size (%d) times %s (%d): use "
                "--global-batch-size %lld",
                (long long)batch, o->micro_batch_size, shares(o), num_shares(o),
                (long long)((batch / unit + 1) * unit));
}

// ---- a batch that grows -----------------------------------------------------------------------------------

enum { MAX_RAMPUP_STAGES = 100000 };

// Splits the items of the list at blanks, since quotes or a file may have joined several words. Sets at most `most`
// words and returns how many there are.
static int split_words(Options *o, const StringList *list, const char **words, int most) {
    int count = 0;
    for (int i = 0; i < list->count; i++) {
        char *copy = options_block(o, strlen(list->items[i]) + 1), *rest = NULL;
        strcpy(copy, list->items[i]);
        for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest), count++)
            if (count < most) words[count] = word;
    }
    return count;
}

static Status read_rampup(Options *o, int64_t numbers[3]) {
    const char *words[3];
    int count = split_words(o, &o->rampup_batch_size, words, 3);
    if (count != 3)
        return fail(
            ERR_CONFIG,
            "--rampup-batch-size has %d word%s: START INCREMENT SAMPLES are needed, such as 16 16 5859375",
            count, count == 1 ? "" : "s");
    for (int i = 0; i < 3; i++) {
        int64_t most = i < 2 ? INT32_MAX : (int64_t)1e15;
        if (!parse_int(words[i], &numbers[i]) || numbers[i] < 1 || numbers[i] > most)
            return fail(ERR_CONFIG, "--rampup-batch-size: '%s' is not a whole number from 1 to %lld",
                        words[i], (long long)most);
    }
    return OK;
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

static int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

static Status check_rampup_end(const Options *o, int64_t start, int64_t increment) {
    int64_t way = o->global_batch_size - start;
    if (way < 0)
        return fail(
            ERR_CONFIG,
            "--rampup-batch-size starts at %lld, above --global-batch-size %d: start at %d or less, or use a "
            "larger global batch",
            (long long)start, o->global_batch_size, o->global_batch_size);
    if (way % increment)
        return fail(
            ERR_CONFIG,
            "--rampup-batch-size: steps of %lld do not lead from %lld to --global-batch-size %d: use an "
            "increment of %lld, or --global-batch-size %lld",
            (long long)increment, (long long)start, o->global_batch_size,
            (long long)common_divisor(way, increment), (long long)(start + round_up(way, increment)));
    if (way / increment > MAX_RAMPUP_STAGES)
        return fail(ERR_CONFIG,
                    "--rampup-batch-size has %lld stages, more than %d: use a larger increment than %lld",
                    (long long)(way / increment), MAX_RAMPUP_STAGES, (long long)increment);
    return OK;
}

static Status check_rampup_divides(const Options *o, int64_t start, int64_t increment) {
    int64_t unit = one_microbatch_each(o);
    if (o->decrease_batch_size_if_needed && start >= unit) return OK;
    if (start % unit == 0 && increment % unit == 0) return OK;
    return fail(
        ERR_CONFIG,
        "--rampup-batch-size: %lld and its increment %lld are not divisible by micro batch size (%d) times "
        "%s (%d): use %lld and %lld, or --decrease-batch-size-if-needed with %lld or more",
        (long long)start, (long long)increment, o->micro_batch_size, shares(o), num_shares(o),
        (long long)round_up(start, unit), (long long)round_up(increment, unit), (long long)unit);
}

static Status resolve_rampup(Options *o) {
    if (o->rampup_batch_size.count == 0) return OK;
    int64_t numbers[3];
    TRY(read_rampup(o, numbers));
    if (numbers[0] == o->global_batch_size) return OK; // full from the start
    TRY(check_rampup_end(o, numbers[0], numbers[1]));
    TRY(check_rampup_divides(o, numbers[0], numbers[1]));
    o->shape.rampup_start = (int)numbers[0];
    o->shape.rampup_increment = (int)numbers[1];
    o->shape.rampup_samples = numbers[2];
    return OK;
}

Rule *const batch_rules[] = {resolve_global_batch, resolve_microbatches, resolve_rampup, NULL};

// ---- how long it grows ------------------------------------------------------------------------------------

// Returns the first number of samples that is beyond a stage of `per` samples.
static int64_t end_of_stage(int64_t stage, double per) {
    int64_t end = (int64_t)((double)(stage + 1) * per);
    while ((int64_t)((double)end / per) <= stage) end++;
    return end;
}

// Source: Megatron-LM, RampupBatchsizeNumMicroBatchesCalculator.
int64_t rampup_steps(const Options *o, int64_t *consumed) {
    const RunShape *s = &o->shape;
    int64_t steps = 0, unit = one_microbatch_each(o);
    *consumed = 0;
    if (!s->rampup_increment) return 0;
    int stages = (o->global_batch_size - s->rampup_start) / s->rampup_increment;
    double per = (double)s->rampup_samples / stages;
    while (*consumed <= s->rampup_samples) {
        int64_t stage = (int64_t)((double)*consumed / per), end = end_of_stage(stage, per);
        int64_t batch = s->rampup_start + s->rampup_increment * stage, left = o->train_samples - *consumed;
        batch -= batch % unit;
        int64_t here = (end - *consumed + batch - 1) / batch;
        if (here > left / batch) here = left / batch;
        if (here == 0) break;
        steps += here;
        *consumed += here * batch;
    }
    return steps;
}
