// Chooses how a model is fine-tuned on this machine: sequence, batch, ranks, precision, memory, learning rate and
// length.
#include "base/cores.h"
#include "base/file.h"
#include "base/room.h"
#include "cli/finetune.h"
#include "device/device.h"
#include "train/train.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUND_LENGTH = 64,        // sequences are multiples of this, where the model's window allows it
    LEAST_LENGTH = 128,       //   and at least so long
    USUAL_TEXT_LENGTH = 1024, // of texts, which may be cut anywhere
    STEP_TOKENS = 32768,      // of a step at most,
    STEPS_PER_EPOCH = 16,     //   and at least so many steps in an epoch
    MICROBATCH_TOKENS = 4096, // more make a step no faster
    MAX_RANKS = 8,            // chosen for data parallelism
    MAX_WARMUP = 100,         // steps
    USUAL_LORA_RANK = 16,     // with twice as much as alpha
    COLUMNS = 110,            // of a printed command
};

static double gib(double bytes) { return bytes / 1073741824.0; }

static int64_t at_most(int64_t value, int64_t most) { return value < most ? value : most; }

static int64_t power_of_two(int64_t most) {
    int64_t power = 1;
    while (2 * power <= most) power *= 2;
    return power;
}

// ---- sizes of the data ------------------------------------------------------------------------------

int finetune_window(const Finetune *f) {
    return f->shape.position == POSITION_LEARNED ? f->shape.positions : f->shape.sequence;
}

int finetune_seq_length(const Finetune *f) {
    int window = finetune_window(f);
    if (f->options->seq_length != INT_UNSET) return f->options->seq_length;
    if (!f->conversations) return (int)at_most(USUAL_TEXT_LENGTH, window);
    int64_t length = (f->longest - 1 + ROUND_LENGTH - 1) / ROUND_LENGTH * ROUND_LENGTH;
    return (int)at_most(length > LEAST_LENGTH ? length : LEAST_LENGTH, window);
}

// ---- the choices ------------------------------------------------------------------------------------

// What the choices come to.
typedef struct {
    int seq_length, global_batch, epochs;
    int64_t steps;
    double parameters;
    bool bf16;
} Choice;

// One way to fit into memory. The rows are tried in this order, those that the user's options allow.
typedef struct {
    const char *what;
    bool adapters, recomputes;
} Rung;

static const Rung rungs[] = {
    {"full fine-tuning", false, false},
    {"full fine-tuning, activations recomputed", false, true},
    {"adapters (LoRA)", true, false},
    {"adapters (LoRA), activations recomputed", true, true},
};
enum { NUM_RUNGS = sizeof rungs / sizeof *rungs };

// Of a model with adapters these are trained.
static bool is_allowed(const Rung *rung, const Finetune *f) {
    const Options *o = f->options;
    if (f->shape.lora_rank && !rung->adapters) return false;
    if (options_given(o, "lora_rank") && rung->adapters != (o->lora_rank > 0)) return false;
    return !(rung->recomputes && o->recompute_granularity);
}

// Returns the first rung that is allowed from `from` on; NUM_RUNGS: there is none.
static int next_rung(int from, const Finetune *f) {
    while (from < NUM_RUNGS && !is_allowed(&rungs[from], f)) from++;
    return from;
}

typedef struct {
    int rung, ranks, micro_batch;
    double bytes; // of all ranks
} Setting;

// Smaller models learn with larger steps. The rates are those of published fine-tunings of about these sizes. Adapters
// want ten times as much (Schulman 2025, "LoRA without regret").
static double usual_rate(double parameters, bool adapters) {
    static const struct {
        double most, lr;
    } rates[] = {{2e7, 1e-3}, {2e8, 1e-4}, {8e8, 5e-5}, {4e9, 2e-5}, {INFINITY, 1e-5}};
    int i = 0;
    while (parameters > rates[i].most) i++;
    return adapters ? fmin(10 * rates[i].lr, 2e-3) : rates[i].lr;
}

static int usual_epochs(const Finetune *f) {
    if (!f->conversations) return 1;
    return f->tokens <= 5000000 ? 3 : f->tokens <= 50000000 ? 2 : 1;
}

// Data-parallel replicas among so many ranks.
static int replicas_of(const Options *o, int ranks) {
    int replicas = ranks / (o->tensor_model_parallel_size * o->pipeline_model_parallel_size);
    return replicas > 1 ? replicas : 1;
}

static int given_micro_batch(const Options *o) {
    return o->micro_batch_size != INT_UNSET ? o->micro_batch_size : 1;
}

// A power of two, times what the user's ranks and microbatches need.
static int usual_batch(const Finetune *f, int seq_length) {
    const Options *o = f->options;
    int64_t unit = (int64_t)given_micro_batch(o) * replicas_of(o, o->ranks != INT_UNSET ? o->ranks : 1);
    int64_t by_tokens = STEP_TOKENS / seq_length, by_steps = f->samples / STEPS_PER_EPOCH;
    int64_t units = at_most(by_tokens, by_steps) / unit;
    return (int)(unit * power_of_two(units > 1 ? units : 1));
}

// Whether this processor multiplies numbers of bf16: without that, fp32 is faster.
static bool has_bf16_units(const char *device) {
    const char *kernels = device_kernels(device);
    return strcmp(device, "cpu") != 0 || strstr(kernels, "bf16") || strstr(kernels, "amx");
}

static Choice choose(const Finetune *f) {
    const Options *o = f->options;
    Choice c = {.seq_length = finetune_seq_length(f), .parameters = (double)model_parameters(&f->shape)};
    c.epochs = o->epochs != INT_UNSET ? o->epochs : usual_epochs(f);
    c.global_batch = o->global_batch_size != INT_UNSET ? o->global_batch_size : usual_batch(f, c.seq_length);
    c.bf16 = options_given(o, "bf16") ? o->bf16 : !o->fp16 && has_bf16_units(o->device);
    c.steps = (c.epochs * f->samples + c.global_batch - 1) / c.global_batch;
    if (o->train_iters != INT_UNSET) c.steps = o->train_iters;
    if (o->train_samples != INT_UNSET) c.steps = o->train_samples / c.global_batch;
    return c;
}

// Those of the model, of the options, or the usual ones.
static int adapter_rank(const Finetune *f) {
    if (f->shape.lora_rank) return f->shape.lora_rank;
    return options_given(f->options, "lora_rank") ? f->options->lora_rank : USUAL_LORA_RANK;
}

static double adapter_alpha(const Finetune *f) {
    if (f->shape.lora_rank) return (double)f->shape.lora_alpha;
    return options_given(f->options, "lora_alpha") ? f->options->lora_alpha : 2.0 * adapter_rank(f);
}

// ---- the command --------------------------------------------------------------------------------------

// Adds an option, unless the user has given it.
static void decide(CommandWords *words, const Options *o, const char *field, const char *text) {
    if (!options_given(o, field)) words_split(words, text);
}

__attribute__((format(printf, 4, 5))) static void decide_value(CommandWords *words, const Options *o,
                                                               const char *field, const char *fmt, ...) {
    char text[200];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    decide(words, o, field, text);
}

static void add_data(const Finetune *f, const Choice *c, CommandWords *words) {
    const Options *o = f->options;
    words_split(words, "--data-path");
    words_add(words, "%s/data", f->folder);
    if (f->conversations) words_add(words, "--sft");
    decide_value(words, o, "split", "--split %" PRId64 ",%" PRId64 ",0", f->units - f->held_out, f->held_out);
    decide_value(words, o, "seq_length", "--seq-length %d", c->seq_length);
}

static double rate_of(const Finetune *f, const Choice *c, const Setting *s) {
    return isnan(f->options->lr) ? usual_rate(c->parameters, rungs[s->rung].adapters) : f->options->lr;
}

static void add_length(const Finetune *f, const Choice *c, const Setting *s, CommandWords *words) {
    const Options *o = f->options;
    double lr = rate_of(f, c, s);
    int64_t warmup = at_most(c->steps / 20 + 1, MAX_WARMUP), per_epoch = f->samples / c->global_batch;
    if (o->train_samples == INT_UNSET)
        decide_value(words, o, "train_iters", "--train-iters %" PRId64, c->steps);
    decide_value(words, o, "lr", "--lr %g", lr);
    decide(words, o, "lr_decay_style", "--lr-decay-style cosine");
    decide_value(words, o, "min_lr", "--min-lr %g", lr / 10);
    if (!options_given(o, "lr_warmup_fraction") && !options_given(o, "lr_warmup_samples") &&
        o->train_samples == INT_UNSET)
        decide_value(words, o, "lr_warmup_iters", "--lr-warmup-iters %" PRId64, warmup);
    bool evaluates = f->conversations && f->held_out && per_epoch > 0 && c->steps > per_epoch;
    decide_value(words, o, "eval_iters", "--eval-iters %" PRId64,
                 evaluates ? (f->held_out + c->global_batch - 1) / c->global_batch : 0);
    if (evaluates) decide_value(words, o, "eval_interval", "--eval-interval %" PRId64, per_epoch);
}

static void add_setting(const Finetune *f, const Choice *c, const Setting *s, CommandWords *words) {
    const Options *o = f->options;
    decide_value(words, o, "micro_batch_size", "--micro-batch-size %d", s->micro_batch);
    decide_value(words, o, "global_batch_size", "--global-batch-size %d", c->global_batch);
    if (c->bf16) decide(words, o, "bf16", "--bf16");
    if (s->ranks > 1) {
        decide_value(words, o, "ranks", "--ranks %d", s->ranks);
        decide(words, o, "use_distributed_optimizer", "--use-distributed-optimizer");
    }
    if (rungs[s->rung].adapters && !f->shape.lora_rank) {
        decide_value(words, o, "lora_rank", "--lora-rank %d", adapter_rank(f));
        decide_value(words, o, "lora_alpha", "--lora-alpha %g", adapter_alpha(f));
    }
    if (rungs[s->rung].recomputes)
        words_split(words, "--recompute-granularity full --recompute-method uniform");
}

// The command without --load.
static void command(const Finetune *f, const Choice *c, const Setting *s, CommandWords *words) {
    static const char *const own[] = {"save", "tokenizer_model", NULL}; // the data have the tokenizer
    const Options *o = f->options;
    words_add(words, "train");
    add_data(f, c, words);
    add_setting(f, c, s, words);
    add_length(f, c, s, words);
    words_add(words, "--save");
    words_add(words, "%s/checkpoints", f->folder);
    decide(words, o, "save_interval", "--save-interval auto");
    decide(words, o, "keep_last", "--keep-last 1");
    options_words(o, FOR_TRAIN, own, words);
}

// ---- memory -------------------------------------------------------------------------------------------

// Every rank of a stage takes the same.
static Status measure_stages(const EngineSpec *spec, double *bytes) {
    *bytes = 0;
    for (int stage = 0; stage < grid_along(spec->grid, AXIS_PP); stage++) {
        EngineMemory memory;
        TRY(engine_measure(spec, grid_rank(spec->grid, (Place){.at[AXIS_PP] = stage}), &memory, NULL));
        *bytes += (double)memory.total * grid_size(spec->grid) / grid_along(spec->grid, AXIS_PP);
    }
    return OK;
}

static Status measure_options(Options *o, double *bytes) {
    int ranks = o->ranks != INT_UNSET ? o->ranks : 1, *room;
    EngineSpec spec;
    TRY(train_resolve(o, ranks));
    TRY(engine_spec_of_run(o, threads_per_rank(o, ranks), &spec, &room));
    const EngineSpec here = engine_spec_here(&spec, 0);
    Status status = measure_stages(&here, bytes);
    free(room);
    return status;
}

// The memory of all ranks of this machine, measured as `trireme memory` does.
static Status measure(const Finetune *f, const Choice *c, Setting *s) {
    CommandWords words = {0};
    Options options;
    command(f, c, s, &words);
    words_add(&words, "--load");
    words_add(&words, "%s", f->model_path);
    words_add(&words, "--finetune");
    Status status = options_parse(&options, FOR_TRAIN, (int)words.count - 1, words.items + 1);
    if (status == OK) {
        status = measure_options(&options, &s->bytes);
        options_destroy(&options);
    }
    words_free(&words);
    return status;
}

// What a run takes beside its arenas: the program, its libraries, buffers of files.
static double with_reserve(double bytes) { return bytes * 1.02 + 160e6; }

static int first_ranks(const Finetune *f, const Choice *c) {
    const Options *o = f->options;
    int t = o->tensor_model_parallel_size, p = o->pipeline_model_parallel_size;
    if (o->ranks != INT_UNSET) return o->ranks;
    if (t > 1 || p > 1) return t * p;
    int cores = cores_limit(MAX_USUAL_WORKERS) / (o->threads != INT_UNSET ? o->threads : 1);
    int64_t ranks = power_of_two(at_most(cores > 1 ? cores : 1, MAX_RANKS));
    while (ranks > 1 && c->global_batch % (ranks * given_micro_batch(o))) ranks /= 2;
    return strcmp(o->device, "cpu") ? 1 : (int)ranks;
}

static bool may_choose_ranks(const Options *o) {
    return o->ranks == INT_UNSET && o->tensor_model_parallel_size == 1 &&
           o->pipeline_model_parallel_size == 1;
}

static int first_micro_batch(const Finetune *f, const Choice *c, int ranks) {
    const Options *o = f->options;
    if (o->micro_batch_size != INT_UNSET) return o->micro_batch_size;
    int64_t most = MICROBATCH_TOKENS / c->seq_length, share = c->global_batch / replicas_of(o, ranks);
    int64_t micro = power_of_two(at_most(most > 1 ? most : 1, share > 1 ? share : 1));
    while (micro > 1 && share % micro) micro /= 2;
    return (int)micro;
}

// The next smaller setting: microbatch, then ranks, then the next rung. False: there is none.
static bool lower(const Finetune *f, const Choice *c, Setting *s) {
    const Options *o = f->options;
    if (o->micro_batch_size == INT_UNSET && s->micro_batch > 1) {
        s->micro_batch /= 2;
        return true;
    }
    if (may_choose_ranks(o) && s->ranks > 1) {
        s->ranks /= 2;
    } else if (next_rung(s->rung + 1, f) < NUM_RUNGS) {
        s->rung = next_rung(s->rung + 1, f);
        s->ranks = first_ranks(f, c);
    } else {
        return false;
    }
    s->micro_batch = first_micro_batch(f, c, s->ranks);
    return true;
}

// Finds the first setting that fits; `least` is the one of all that takes least.
static Status find_setting(const Finetune *f, const Choice *c, double room, Setting *s, Setting *least) {
    *s = (Setting){.rung = next_rung(0, f), .ranks = first_ranks(f, c)};
    s->micro_batch = first_micro_batch(f, c, s->ranks);
    least->bytes = INFINITY;
    do {
        TRY(measure(f, c, s));
        if (s->bytes < least->bytes) *least = *s;
        if (with_reserve(s->bytes) <= room) return OK;
    } while (lower(f, c, s));
    return ERR_UNAVAILABLE;
}

// The longest sequence that would fit, by halving; 0: none does.
static int length_that_fits(const Finetune *f, const Choice *c, const Setting *least, double room) {
    Choice choice = *c;
    Setting setting = *least;
    for (int length = c->seq_length / 2; length >= LEAST_LENGTH / 2; length /= 2) {
        choice.seq_length = length;
        if (measure(f, &choice, &setting) != OK) return 0;
        if (with_reserve(setting.bytes) <= room) return length;
    }
    return 0;
}

static Status no_room(const Finetune *f, const Choice *c, const Setting *least, double room) {
    char advice[300];
    bool given = options_given(f->options, "seq_length");
    int length = given ? 0 : length_that_fits(f, c, least, room);
    if (length)
        snprintf(advice, sizeof advice, "--seq-length %d%s would fit", length,
                 f->conversations ? " with --too-long truncate (or drop)" : "");
    else
        snprintf(advice, sizeof advice, "a model of about %.2g parameters would fit; this one has %.2g%s",
                 c->parameters * room / with_reserve(least->bytes), c->parameters,
                 given ? ", or try a smaller --seq-length" : "");
    return fail(
        ERR_UNAVAILABLE,
        "not enough memory: %s of %s in sequences of %d takes %.2f GiB at the least, and %.2f GiB are "
        "%s: %s",
        rungs[least->rung].what, f->model, c->seq_length, gib(with_reserve(least->bytes)), gib(room),
        isnan(f->options->memory_gb) ? "available" : "allowed by --memory-gb", advice);
}

// ---- the disk -------------------------------------------------------------------------------------------

// Two checkpoints with moments, one of which is being written, and both exports. Those of adapters are small.
static Status check_disk(const Finetune *f, const Choice *c, const Setting *s) {
    int64_t room;
    int checkpoints = rungs[s->rung].adapters ? 2 : 2 * 12;
    double need = c->parameters * (checkpoints + 4 + 4) * 1.1 + 1e6;
    TRY(folder_room(f->folder, &room));
    if ((double)room >= need) return OK;
    return fail(
        ERR_CREATE,
        "%s: no space: %.2f GB are needed for two checkpoints and the exported model, and %.2f GB are "
        "left: free some, or name a folder on a larger disk by --save",
        f->folder, need / 1e9, (double)room / 1e9);
}

// ---- what is said ---------------------------------------------------------------------------------------

static const char *plural(int64_t count) { return count == 1 ? "" : "s"; }

static void explain(Finetune *f, const Choice *c, const Setting *s, double room) {
    const Options *o = f->options;
    Text *out = &f->why;
    const char *type = c->bf16 ? "bf16" : o->fp16 ? "fp16" : "fp32";
    text_add(out, "  %s in %s%s: %.2f GiB of the %.2f GiB that are %s\n", rungs[s->rung].what, type,
             options_given(o, "bf16") || options_given(o, "fp16") ? ""
             : c->bf16                                            ? ", which this processor multiplies"
                       : ", as this processor has no units for bf16",
             gib(with_reserve(s->bytes)), gib(room), isnan(o->memory_gb) ? "available" : "allowed");
    if (rungs[s->rung].adapters)
        text_add(out, "  adapters of rank %d with alpha %g\n", adapter_rank(f), adapter_alpha(f));
    text_add(out, "  sequences of %d tokens", c->seq_length);
    if (f->conversations)
        text_add(out, ": the longest conversation has %" PRId64 "%s\n", f->longest,
                 f->longest > c->seq_length + 1 ? ", longer ones are treated as --too-long says" : "");
    else
        text_add(out, " of text (the model's window: %d)\n", finetune_window(f));
    text_add(out, "  %d sequence%s a step in microbatches of %d, on %d rank%s of %d thread%s\n",
             c->global_batch, plural(c->global_batch), s->micro_batch, s->ranks, plural(s->ranks),
             threads_per_rank(o, s->ranks), plural(threads_per_rank(o, s->ranks)));
    text_add(out, "  %" PRId64 " step%s", c->steps, plural(c->steps));
    if (o->train_iters == INT_UNSET && o->train_samples == INT_UNSET)
        text_add(out, ": %d epoch%s of %" PRId64 " sequences", c->epochs, plural(c->epochs), f->samples);
    text_add(out, ", learning rate %g%s\n", rate_of(f, c, s),
             isnan(o->lr) ? " by the model's size, falling to a tenth (--lr)" : "");
}

static void warn_of_window(const Finetune *f) {
    int window = finetune_window(f), length = f->options->seq_length;
    if (length != INT_UNSET && length > window)
        fprintf(stderr,
                "WARNING: --seq-length %d is beyond the window of the model, %d tokens: it has not learned "
                "positions after that\n",
                length, window);
}

Status finetune_plan(Finetune *f) {
    Choice c = choose(f);
    Setting setting, least;
    double room = isnan(f->options->memory_gb) ? (double)memory_room("") : 1e9 * f->options->memory_gb;
    Status status = find_setting(f, &c, room, &setting, &least);
    if (status == ERR_UNAVAILABLE && least.bytes < INFINITY) return no_room(f, &c, &least, room);
    TRY(status);
    TRY(check_disk(f, &c, &setting));
    warn_of_window(f);
    command(f, &c, &setting, &f->train);
    explain(f, &c, &setting, room);
    return OK;
}
