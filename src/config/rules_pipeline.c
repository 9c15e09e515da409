// The rules of pipelines: the layers of each rank, and whether the schedule takes the shape that results.
#include "config/rules.h"
#include "layout/kinds.h"
#include <stdlib.h>
#include <string.h>

static int or_zero(int value) { return value == INT_UNSET ? 0 : value; }

// Returns the kind of --schedule; NULL while it is unset.
static const ScheduleKind *kind_of(const Options *o) {
    return o->schedule ? schedule_kind(o->schedule) : NULL;
}

// Returns the number of chunks that the kind of --schedule requires; 0: it is unset, or takes several numbers.
static int required_chunks(const Options *o) { return o->schedule ? schedule_kind_chunks(kind_of(o)) : 0; }

static bool layers_per_chunk_given(const Options *o) {
    return o->num_layers_per_virtual_pipeline_stage != INT_UNSET;
}

// ---- one way to cut the layers ----------------------------------------------------------------------------

static bool accounts(const Options *o) {
    return o->account_for_embedding_in_pipeline_split || o->account_for_loss_in_pipeline_split;
}

static Status check_one_cut(Options *o) {
    const struct {
        bool given;
        const char *name;
    } cuts[] = {
        {o->pipeline_model_parallel_layout != NULL, "--pipeline-model-parallel-layout"},
        {o->balance_stages, "--balance-stages"},
        {accounts(o), o->account_for_loss_in_pipeline_split ? "--account-for-loss-in-pipeline-split"
                                                            : "--account-for-embedding-in-pipeline-split"},
        {o->decoder_first_pipeline_num_layers != INT_UNSET, "--decoder-first-pipeline-num-layers"},
        {o->decoder_last_pipeline_num_layers != INT_UNSET, "--decoder-last-pipeline-num-layers"},
    };
    enum { FIRST = 3, NUM_CUTS = 5 }; // the first and last rank go together
    for (int i = 0; i < FIRST; i++)
        for (int j = i + 1; j < NUM_CUTS; j++)
            if (cuts[i].given && cuts[j].given)
                return fail(ERR_CONFIG, "%s and %s both say where the layers are: keep one", cuts[i].name,
                            cuts[j].name);
    if (layers_per_chunk_given(o) && o->balance_stages)
        return fail(
            ERR_CONFIG,
            "--num-layers-per-virtual-pipeline-stage needs stages of one size, and --balance-stages makes "
            "others: use --num-virtual-stages-per-pipeline-rank");
    return OK;
}

// Both options count the layers of ranks that hold one end of the model each.
static Status check_ends_are_apart(const Options *o) {
    const ScheduleKind *kind = kind_of(o);
    if (!kind || !kind->stage) return OK;
    return fail(
        ERR_CONFIG,
        "--schedule %s does not place the first stage on the first pipeline rank and the last stage "
        "on the last one, so that --decoder-%s-pipeline-num-layers cannot be used: list the layers of "
        "the %d stages with --pipeline-model-parallel-layout",
        kind->name, o->shape.first_layers ? "first" : "last", kind->max_chunks * o->shape.pp);
}

// Checks --decoder-first-... and --decoder-last-...: the other ranks must share the remaining layers evenly.
static Status check_uneven_layers(Options *o, int first, int last) {
    int others = o->shape.pp - (first > 0) - (last > 0), rest = o->num_layers - first - last;
    if (o->shape.pp == 1)
        return fail(ERR_CONFIG,
                    "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers need "
                    "--pipeline-model-parallel-size 2 or more, not 1: leave them out");
    if (layers_per_chunk_given(o))
        return fail(ERR_CONFIG, "--num-layers-per-virtual-pipeline-stage needs equal pipeline ranks: use "
                                "--num-virtual-stages-per-pipeline-rank");
    TRY(check_ends_are_apart(o));
    if (others == 0 ? rest == 0 : rest > 0 && rest % others == 0) return OK;
    return fail(
        ERR_CONFIG,
        "of --num-layers %d the first and last pipeline rank take %d and %d, which leaves %d for %d other "
        "rank%s: they must share them evenly, such as %d in all",
        o->num_layers, first, last, rest, others, others == 1 ? "" : "s",
        first + last + (others && rest > others ? rest / others : others > 0) * others);
}

// Checks that the layers divide when embedding or loss count as a layer each (Megatron-LM's rule).
static Status check_accounted_layers(Options *o) {
    int extra = o->account_for_embedding_in_pipeline_split + o->account_for_loss_in_pipeline_split;
    int p = o->shape.pp, all = o->num_layers + extra, fewer = all - all % p;
    if (all % p == 0) return OK;
    return fail(ERR_CONFIG,
                "--num-layers %d and %d more for embedding and loss are not divisible by "
                "--pipeline-model-parallel-size %d: use %d or %d layers, or --balance-stages",
                o->num_layers, extra, p, fewer > extra ? fewer - extra : fewer + p - extra,
                fewer > extra ? fewer + p - extra : fewer + 2 * p - extra);
}

static Status resolve_layers(Options *o) {
    int layers = o->num_layers, p = o->shape.pp;
    o->shape.first_layers = or_zero(o->decoder_first_pipeline_num_layers);
    o->shape.last_layers = or_zero(o->decoder_last_pipeline_num_layers);
    if (o->pipeline_model_parallel_layout || o->balance_stages) return OK;
    if (accounts(o)) return check_accounted_layers(o);
    if (o->shape.first_layers || o->shape.last_layers)
        return check_uneven_layers(o, o->shape.first_layers, o->shape.last_layers);
    if (layers % p == 0) return OK;
    return fail(
        ERR_CONFIG,
        "--num-layers %d is not divisible by --pipeline-model-parallel-size %d: use %d or %d layers, or "
        "another pipeline size",
        layers, p, layers < p ? p : layers - layers % p, layers < p ? 2 * p : layers - layers % p + p);
}

// ---- chunks -----------------------------------------------------------------------------------------------

// Sets the different numbers of layers that pipeline ranks cut into chunks, and returns how many there are; 0 where
// the stages are listed or balanced.
static int rank_counts(const Options *o, int counts[3]) {
    int n = 0, first = o->shape.first_layers, last = o->shape.last_layers;
    int others = o->shape.pp - (first > 0) - (last > 0);
    int extra = o->account_for_embedding_in_pipeline_split + o->account_for_loss_in_pipeline_split;
    if (o->pipeline_model_parallel_layout || o->balance_stages) return 0;
    if (first) counts[n++] = first;
    if (last) counts[n++] = last;
    if (others) counts[n++] = (o->num_layers + extra - first - last) / others;
    return n;
}

enum { MAX_BARS = 1 << 20, MAX_DEPTH = 16 };

// Returns the number that follows the '*' at *text, and moves past it; 0: there is no number from 1 to 999999999.
static int read_times(const char **text) {
    const char *digits = *text + 1;
    size_t length = strspn(digits, "0123456789");
    *text = digits + length;
    return length <= 9 ? atoi(digits) : 0;
}

// Counts the '|' of a layout with its repeats written out, from *text to the end of its group. Returns MAX_BARS when
// there are more, -1 when groups or repeats are wrong. layer_parse finds all other mistakes.
static int64_t count_bars(const char **text, int depth) {
    int64_t bars = 0, before = 0; // those of the letter or group just before
    while (**text && **text != ')') {
        int64_t more;
        if (**text == '*') {
            int times = read_times(text);
            if (!times) return -1;
            more = before * (times - 1);
        } else if (*(*text)++ == '(') {
            more = before = depth < MAX_DEPTH ? count_bars(text, depth + 1) : -1;
            if (before < 0 || *(*text)++ != ')') return -1;
        } else {
            more = before = (*text)[-1] == '|';
        }
        bars = bars + more < MAX_BARS ? bars + more : MAX_BARS;
    }
    return bars;
}

// Source: Megatron-LM, validate_args: the layout alone gives the number of chunks.
static Status resolve_layout(Options *o) {
    const char *layout = o->pipeline_model_parallel_layout, *end = layout;
    const char *extra = layers_per_chunk_given(o) ? "--num-layers-per-virtual-pipeline-stage"
                        : o->num_virtual_stages_per_pipeline_rank != INT_UNSET
                            ? "--num-virtual-stages-per-pipeline-rank"
                            : NULL;
    int p = o->shape.pp;
    if (extra)
        return fail(
            ERR_CONFIG,
            "--pipeline-model-parallel-layout already says how many virtual stages there are: leave out %s",
            extra);
    int64_t bars = count_bars(&end, 0), stages = bars + 1;
    if (bars < 0 || *end)
        return fail(
            ERR_CONFIG,
            "--pipeline-model-parallel-layout %.200s: a group, or the number after '*', is wrong: write "
            "such as Et*3|(tt|)*6tL",
            layout);
    if (stages % p || stages / p > SCHEDULE_MAX_CHUNKS)
        return fail(
            ERR_CONFIG,
            "--pipeline-model-parallel-layout %.200s has %lld%s stages, separated by '|': use a multiple of "
            "--pipeline-model-parallel-size %d, up to %d",
            layout, (long long)stages, bars == MAX_BARS ? " or more" : "", p, SCHEDULE_MAX_CHUNKS * p);
    o->shape.vp = (int)(stages / p);
    return OK;
}

static Status resolve_chunk_count(Options *o) {
    int chunks = o->num_virtual_stages_per_pipeline_rank;
    if (o->pipeline_model_parallel_layout) return OK;
    if (layers_per_chunk_given(o) && chunks != INT_UNSET)
        return fail(
            ERR_CONFIG,
            "--num-layers-per-virtual-pipeline-stage %d and --num-virtual-stages-per-pipeline-rank %d "
            "cannot be set at the same time: keep one",
            o->num_layers_per_virtual_pipeline_stage, chunks);
    if (required_chunks(o) > 1 && !layers_per_chunk_given(o))
        derive_int(o, OPT_num_virtual_stages_per_pipeline_rank, &o->num_virtual_stages_per_pipeline_rank,
                   required_chunks(o));
    return OK;
}

static Status refuse_several_chunks(const Options *o) {
    int v = o->shape.vp;
    return fail(
        ERR_CONFIG,
        "--schedule %s has one chunk per pipeline rank, but there are %d: use --schedule %s, or leave "
        "out the virtual stages",
        o->schedule, v, schedule_kind_default(v)->name);
}

static Status refuse_other_chunks(const Options *o) {
    int v = o->shape.vp, required = required_chunks(o);
    if (o->pipeline_model_parallel_layout)
        return fail(ERR_CONFIG,
                    "--schedule %s has %d chunks per pipeline rank, not %d: list %d stages in "
                    "--pipeline-model-parallel-layout",
                    o->schedule, required, v, required * o->shape.pp);
    return fail(ERR_CONFIG,
                "--schedule %s has %d chunks per pipeline rank, not %d: use "
                "--num-virtual-stages-per-pipeline-rank %d, or leave it out",
                o->schedule, required, v, required);
}

// Checks that the schedule that is named takes this number of chunks.
static Status check_chunks(const Options *o) {
    int required = required_chunks(o);
    if (required == 1 && o->shape.vp > 1) return refuse_several_chunks(o);
    if (required && o->shape.vp != required) return refuse_other_chunks(o);
    return OK;
}

static Status resolve_layers_per_chunk(Options *o, int layers) {
    int per_chunk = o->num_layers_per_virtual_pipeline_stage;
    o->shape.vp = layers / per_chunk;
    if (layers % per_chunk == 0) return OK;
    return fail(ERR_CONFIG,
                "--num-layers-per-virtual-pipeline-stage %d does not divide the %d layers of a pipeline "
                "rank (%d / %d): use a divisor of %d, such as 1",
                per_chunk, layers, layers * o->shape.pp, o->shape.pp, layers);
}

static Status resolve_chunks(Options *o) {
    int counts[3], n = rank_counts(o, counts), chunks = o->num_virtual_stages_per_pipeline_rank;
    if (o->pipeline_model_parallel_layout) return resolve_layout(o);
    if (layers_per_chunk_given(o)) return resolve_layers_per_chunk(o, counts[0]);
    o->shape.vp = chunks == INT_UNSET ? 1 : chunks;
    TRY(check_chunks(o));
    for (int i = 0; i < n; i++) {
        if (counts[i] % o->shape.vp == 0) continue;
        if (required_chunks(o) > 1)
            return fail(
                ERR_CONFIG,
                "--schedule %s has %d chunks per pipeline rank, which do not divide its %d layers: use "
                "--num-layers %d, or --pipeline-model-parallel-layout",
                o->schedule, o->shape.vp, counts[i],
                (counts[i] / o->shape.vp + 1) * o->shape.vp * o->shape.pp);
        return fail(ERR_CONFIG,
                    "--num-virtual-stages-per-pipeline-rank %d does not divide the %d layers of a pipeline "
                    "rank: use a divisor of %d, such as %d",
                    chunks, counts[i], counts[i], counts[i]);
    }
    return OK;
}

// ---- the schedule -----------------------------------------------------------------------------------------

// Chooses a schedule where none is named, and checks that it takes the chunks and the pipeline ranks.
static Status resolve_schedule(Options *o) {
    int p = o->shape.pp, v = o->shape.vp;
    if (!o->schedule) {
        o->schedule = schedule_kind_default(v)->name;
        derived(o, OPT_schedule);
    }
    o->shape.schedule = o->schedule;
    const ScheduleKind *kind = kind_of(o);
    TRY(check_chunks(o));
    if (p < kind->min_ranks)
        return fail(ERR_CONFIG, "--schedule %s needs --pipeline-model-parallel-size %d or more, not %d",
                    kind->name, kind->min_ranks, p);
    if (v < kind->min_chunks)
        return fail(ERR_CONFIG,
                    "--schedule %s needs --num-virtual-stages-per-pipeline-rank %d or more (a divisor of %d "
                    "layers), not %d",
                    kind->name, kind->min_chunks, o->num_layers / p, v);
    if (v > kind->max_chunks)
        return fail(ERR_CONFIG,
                    "--schedule %s takes up to %d chunks per pipeline rank, not %d: use a larger "
                    "--num-layers-per-virtual-pipeline-stage",
                    kind->name, kind->max_chunks, v);
    return OK;
}

// Returns how many different batches the run has. The last one is full.
static int num_batches(const Options *o) {
    const RunShape *s = &o->shape;
    return s->rampup_increment ? (o->global_batch_size - s->rampup_start) / s->rampup_increment + 1 : 1;
}

static int microbatches_of(const Options *o, int i) {
    const RunShape *s = &o->shape;
    int64_t batch = o->global_batch_size - (int64_t)(num_batches(o) - 1 - i) * s->rampup_increment;
    return (int)(batch / ((int64_t)o->micro_batch_size * s->dp));
}

static ScheduleSpec schedule_spec(const Options *o, int batch) {
    return (ScheduleSpec){.kind = o->schedule,
                          .ranks = o->shape.pp,
                          .chunks = o->shape.vp,
                          .microbatches = microbatches_of(o, batch),
                          .group = o->shape.microbatch_group,
                          .stash_limit = or_zero(o->schedule_stash_limit)};
}

// Returns the first of the run's batches that the kind refuses with such groups, or -1.
static int batch_without_groups(const Options *o, int group) {
    char why[256];
    for (int i = 0; i < num_batches(o); i++) {
        ScheduleSpec spec = schedule_spec(o, i);
        spec.group = group;
        if (schedule_kind_refuse(kind_of(o), &spec, why, sizeof why)) return i;
    }
    return -1;
}

// Returns the smallest group that suits all batches; p, where none does.
static int smallest_group(const Options *o) {
    enum { TRIES = 1000 };
    int p = o->shape.pp, most = microbatches_of(o, 0);
    if (num_batches(o) > 1 && most > p + TRIES) most = p + TRIES;
    for (int group = p; group <= most; group++)
        if (batch_without_groups(o, group) < 0) return group;
    return p;
}

// Chooses the size of a group of microbatches where none is given, and checks that it suits every batch.
static Status resolve_groups(Options *o) {
    if (!(kind_of(o)->settings & SETTING_GROUP)) return OK;
    int p = o->shape.pp, fewest = microbatches_of(o, 0);
    long long unit = (long long)o->micro_batch_size * o->shape.dp;
    const char *batch = num_batches(o) > 1 ? "--rampup-batch-size" : "--global-batch-size";
    if (fewest < p)
        return fail(ERR_CONFIG,
                    "--schedule %s needs at least as many microbatches as the pipeline size (%d), not "
                    "%d: use %s %lld",
                    o->schedule, p, fewest, batch, p * unit);
    derive_int(o, OPT_microbatch_group_size_per_virtual_pipeline_stage,
               &o->microbatch_group_size_per_virtual_pipeline_stage, smallest_group(o));
    int group = o->shape.microbatch_group = o->microbatch_group_size_per_virtual_pipeline_stage;
    int odd = batch_without_groups(o, group);
    if (odd < 0) return OK;
    return fail(
        ERR_CONFIG,
        "--microbatch-group-size-per-virtual-pipeline-stage %d does not suit %d microbatches on %d pipeline "
        "ranks: groups have %d to %d, the last one %d or more; use %d, or multiples of %lld in %s",
        group, microbatches_of(o, odd), p, p, fewest, p, smallest_group(o), p * unit, batch);
}

// Checks the size of the schedule, and for every batch whatever else its kind refuses.
static Status check_schedule(Options *o) {
    int p = o->shape.pp, v = o->shape.vp, m = o->shape.num_microbatches;
    if (m > SCHEDULE_MAX_MICROBATCHES || (long long)p * v * m > SCHEDULE_MAX_FORWARDS)
        return fail(
            ERR_CONFIG,
            "%d microbatches on %d pipeline ranks of %d chunks are more than a schedule holds (%d, and "
            "%d forwards in all): use a smaller --global-batch-size or a larger --micro-batch-size",
            m, p, v, SCHEDULE_MAX_MICROBATCHES, SCHEDULE_MAX_FORWARDS);
    char why[256];
    for (int i = 0; i < num_batches(o); i++) {
        ScheduleSpec spec = schedule_spec(o, i);
        if (schedule_kind_refuse(kind_of(o), &spec, why, sizeof why))
            return fail(ERR_CONFIG, "--schedule %s %s", o->schedule, why);
    }
    return OK;
}

Status options_schedule_times(const Options *o, double times[4]) {
    char words[96], *rest = NULL;
    int count = 0;
    bool fits = snprintf(words, sizeof words, "%s", o->schedule_times) < (int)sizeof words;
    for (char *word = strtok_r(words, ",", &rest); word && fits; word = strtok_r(NULL, ",", &rest)) {
        double time;
        fits = count < 4 && parse_double(word, &time) && (time > 0 || (count == 3 && time == 0));
        if (fits) times[count++] = time;
    }
    if (fits && count == 4) return OK;
    return fail(
        ERR_CONFIG,
        "--schedule-times %s: four numbers F,I,W,HOP are needed, the first three above 0, such as 1,1,1,0",
        o->schedule_times);
}

static Status resolve_schedule_times(Options *o) {
    o->shape.receive_ahead = o->overlap_p2p_communication && o->shape.pp > 1;
    o->shape.schedule_stash_limit = or_zero(o->schedule_stash_limit);
    return options_schedule_times(o, o->shape.schedule_times);
}

Rule *const pipeline_rules[] = {
    resolve_pairs,    check_one_cut,  resolve_layers, resolve_chunk_count,    resolve_chunks,
    resolve_schedule, resolve_groups, check_schedule, resolve_schedule_times, NULL};
