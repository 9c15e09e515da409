// Prints the log lines, progress and summary of a run, and writes its metrics.
#include "base/cores.h"
#include "device/algorithms.h"
#include "formats/formats.h"
#include "nn/recipes.h"
#include "train/internal.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

Status reporter_open(Reporter *r, const TrainJob *job, const EngineSpec *spec) {
    const Options *options = job->options;
    *r = (Reporter){.options = options, .shape = spec->shape, .table_rows = spec->mode.padded_vocabulary};
    r->first_loss = r->last_loss = r->last_validation = NAN;
    r->slow.rank = -1;
    reporter_open_lines(r, job);
    return metrics_open(&r->metrics, options, job->stopped);
}

Status reporter_close(Reporter *r, Status status) {
    char why[sizeof rank_current()->message];
    snprintf(why, sizeof why, "%s", fail_message());
    reporter_close_lines(r);
    Status closed = metrics_close(&r->metrics);
    return status == OK ? closed : fail(status, "%s", why);
}

// Says at once that numbers are lost.
static void tell_trouble(Reporter *r) {
    if (!r->metrics.trouble.size || r->metrics.told) return;
    r->metrics.told = true;
    reporter_clear_progress(r);
    fprintf(stderr, "WARNING: %s\n", r->metrics.trouble.data);
}

double mib(size_t bytes) { return (double)bytes / 1048576.0; }

double unsigned_nan(double value) { return isnan(value) ? NAN : value; }

static const char *plural(int count) { return count == 1 ? "" : "s"; }

static void print_model(const EngineSpec *spec) {
    const ModelShape *m = &spec->shape;
    char products[96] = "";
    if (spec->mode.float8)
        snprintf(products, sizeof products, ", products of layers in %d bits (%s)",
                 spec->mode.float8 == FLOAT4_E2M1 ? 4 : 8, recipe_describe(&spec->mode, ", ").text);
    printf("model: %d layers, hidden %d, %d heads, sequence %d, vocabulary %d padded to %d: %.1f M "
           "parameters, %s%s\n",
           m->layers, m->hidden, m->heads, m->sequence, m->vocabulary, spec->mode.padded_vocabulary,
           (double)model_parameters(m) / 1e6, dtype_name(spec->mode.dtype), products);
}

static void print_adapters(const ModelShape *m) {
    Text targets = {0};
    if (!m->lora_rank) return;
    lora_targets_print(m->lora_targets, &targets);
    printf("adapters: rank %d, times %.4g, on %s: %.2f M parameters are trained, the model stays as it is\n",
           m->lora_rank, (double)model_lora_scale(m), text_string(&targets),
           (double)model_adapter_parameters(m) / 1e6);
    text_free(&targets);
}

static void print_memory(const EngineMemory *memory) {
    printf("memory of rank 0 (MiB): parameters, gradients, moments, batches %.1f, %d stash%s of %.1f, %d of "
           "%.1f recomputed ahead of weight gradients, scratch %.1f, workspace %.1f, total %.1f\n",
           mib(memory->run), memory->num_stashes, memory->num_stashes == 1 ? "" : "es", mib(memory->stash),
           memory->num_recomputed, mib(memory->recomputed), mib(memory->scratch + memory->beside),
           mib(memory->workspace), mib(memory->total));
    if (memory->host)
        printf("rank 0 keeps %.1f MiB of optimizer state in the host's memory, and the host steps it\n",
               mib(memory->host));
}

// Prints the cores of rank 0. Open MPI binds each rank to one core by default.
static void print_cores(const EngineSpec *spec) {
    const int threads = spec->threads;
    Cores cores;
    Text text = {0};
    cores_allowed(&cores);
    cores_print(&cores, &text);
    if (!strcmp(spec->device, "cpu")) cores_print_domains(&cores, threads, SYSFS, &text);
    printf("; rank 0 on core%s %s%s\n", plural(cores.count), text_string(&text),
           cores.count >= threads ? ""
           : launcher_ranks()     ? ", fewer than its threads: is it mpirun's --bind-to none that is missing?"
                                  : ", fewer than its threads");
    text_free(&text);
}

// Says who computes attention where there is a choice.
static void print_attention(const EngineSpec *spec) {
    Text text = {0};
    device_attention(&(DeviceOptions){.kind = spec->device, .attention = spec->mode.attention}, &text);
    if (text.size) printf("attention: %s\n", text_string(&text));
    text_free(&text);
}

// ---- steps between two log lines -------------------------------------------------------------------

void pair_means_add(PairMeans *sum, const PairMeans *more, double factor) {
    sum->accuracy += factor * more->accuracy;
    for (int i = 0; i < NUM_ANSWERS; i++) {
        sum->reward[i] += factor * more->reward[i];
        sum->log_probability[i] += factor * more->log_probability[i];
    }
}

void interval_add(Interval *interval, const StepReport *step) {
    interval->loss_sum += step->skipped ? 0 : step->loss;
    if (!step->skipped) pair_means_add(&interval->pairs_sum, &step->pairs, 1);
    interval->elapsed_s += step->elapsed_s;
    interval->samples += step->batch;
    interval->iterations++;
    interval->skipped += step->skipped;
    interval->nan += step->nan;
    interval->last = *step;
}

StepReport interval_mean(const Interval *interval) {
    StepReport mean = interval->last;
    int counted = interval->iterations - interval->skipped;
    mean.loss = counted ? interval->loss_sum / counted : NAN;
    mean.preferences = interval->last.preferences && counted;
    mean.pairs = (PairMeans){0};
    if (counted) pair_means_add(&mean.pairs, &interval->pairs_sum, 1.0 / counted);
    mean.elapsed_s = interval->elapsed_s / interval->iterations;
    mean.samples_per_step = (double)interval->samples / interval->iterations;
    mean.skipped = interval->skipped;
    mean.nan = interval->nan;
    return mean;
}

// ---- lines -----------------------------------------------------------------------------------------

static void print_algorithms(const char *file) {
    Text table = {0};
    if (!file) return;
    algorithms_describe(file, &table);
    printf("matrix products: by the algorithms of %s, %s\n", file, text_string(&table));
    text_free(&table);
}

void reporter_start(Reporter *r, const EngineSpec *spec, const EngineMemory *memory, const char *transport) {
    const RunShape *shape = &r->options->shape;
    r->memory_bytes = memory->total;
    if (r->brief) return;
    printf("using world size: %d, data-parallel size: %d, tensor-model-parallel size: %d, "
           "pipeline-model-parallel size: %d\n",
           shape->world_size, shape->dp, shape->tp, shape->pp);
    print_model(spec);
    print_adapters(&spec->shape);
    const char *kernels = device_kernels(spec->device);
    printf("schedule: %s, %d microbatches of %d, %d chunk%s per rank; device %s%s%s, %d thread%s per rank",
           spec->schedule, spec->num_microbatches, spec->mode.microbatch, spec->num_chunks,
           plural(spec->num_chunks), spec->device, *kernels ? " with kernels for " : "", kernels,
           spec->threads, plural(spec->threads));
    if (transport) printf(", tensors between ranks by %s", transport);
    print_cores(spec);
    print_attention(spec);
    print_algorithms(spec->algorithms);
    if (shape->rampup_increment)
        printf("global batch size: from %d by %d to %d over %" PRId64 " samples\n", shape->rampup_start,
               shape->rampup_increment, shape->global_batch, shape->rampup_samples);
    print_memory(memory);
    fflush(stdout);
}

void reporter_save_interval(Reporter *r, const SavePlan *plan) {
    if (r->brief) return;
    reporter_clear_progress(r);
    printf("saving every %" PRId64 " iterations from here on (%s auto): a save takes %.3g s%s, a failure "
           "is expected every %.3g h (%" PRId64 " so far)\n",
           plan->interval, plan->option, save_plan_cost_s(plan), plan->saves ? "" : " by its size",
           save_plan_mtbf_s(plan, clock_s()) / 3600, plan->failures);
    fflush(stdout);
}

// Megatron-LM's message, with the time.
void reporter_saving(Reporter *r, int64_t iteration) {
    if (r->brief) return;
    reporter_clear_progress(r);
    printf("saving checkpoint at iteration %7" PRId64 " to %s\n", iteration, r->options->save);
    fflush(stdout);
}

void reporter_saved(Reporter *r, int64_t iteration, double bytes, double seconds) {
    if (r->brief) return;
    reporter_clear_progress(r);
    printf("  successfully saved checkpoint from iteration %7" PRId64 " to %s (%.1f MB in %.2f s)\n",
           iteration, r->options->save, bytes / 1e6, seconds);
    fflush(stdout);
}

void reporter_not_saved(Reporter *r, int64_t iteration, const char *why) {
    reporter_clear_progress(r);
    fprintf(stderr, "WARNING: iteration %" PRId64 " was not saved, training goes on: %s\n", iteration, why);
}

void reporter_saved_in_memory(Reporter *r, int64_t iteration, const char *folder, double bytes) {
    reporter_clear_progress(r);
    int64_t interval = r->options->memory_save_interval;
    char every[32] = "some";
    if (interval != INT_AUTO) snprintf(every, sizeof every, "every %" PRId64, interval);
    printf("the state of %s iterations is in memory, the first one that of iteration %" PRId64
           ": %.1f MB in %s\n",
           every, iteration, bytes / 1e6, folder);
    fflush(stdout);
}

void reporter_not_saved_in_memory(Reporter *r, int64_t iteration, const char *why, bool gives_up) {
    reporter_clear_progress(r);
    fprintf(stderr, "WARNING: iteration %" PRId64 " was not saved in memory, training goes on%s: %s\n",
            iteration, gives_up ? " and saves to disk alone" : "", why);
}

void reporter_no_memory(Reporter *r, const char *why) {
    reporter_clear_progress(r);
    fprintf(stderr, "WARNING: no checkpoint is saved in memory, the run saves to disk alone: %s\n", why);
}

void reporter_not_loaded(Reporter *r, const char *why) {
    reporter_clear_progress(r);
    fprintf(stderr, "WARNING: %s\n", why);
}

void reporter_changed(Reporter *r, const char *changes) {
    (void)r;
    fprintf(stderr, "not the same as before the checkpoint: %s\n", changes);
}

// `format` makes a line of JSON.
static __attribute__((format(printf, 3, 4))) void go_on(Reporter *r, int64_t iteration, const char *format,
                                                        ...) {
    char json[256];
    va_list args;
    va_start(args, format);
    vsnprintf(json, sizeof json, format, args);
    va_end(args);
    metrics_go_on(&r->metrics, iteration, json);
    tell_trouble(r);
}

void reporter_loaded(Reporter *r, const char *from, const RunState *state) {
    if (!r->brief)
        printf("  successfully loaded checkpoint from %s at iteration %" PRId64 "\n", from, state->iteration);
    fflush(stdout);
    r->metrics.went_on_from = state->iteration;
    go_on(r, state->iteration, "{\"event\": \"resume\", \"from\": %" PRId64 "}", state->iteration);
}

void reporter_evaluation_cost(Reporter *r, int64_t batches, double seconds, double share) {
    reporter_clear_progress(r);
    printf("evaluation: %" PRId64
           " batches in all will take about %.3g s, %.0f %% of this run; --eval-iters %d is the "
           "default, --eval-iters 0 leaves evaluation out\n",
           batches, seconds, 100 * share, r->options->eval_iters);
    fflush(stdout);
}

void reporter_nothing_to_train(Reporter *r, int64_t iteration, int64_t consumed, int64_t end) {
    bool samples = r->options->train_samples != INT_UNSET;
    fprintf(stderr, "nothing to train: iteration %" PRId64 " of %s %" PRId64 "%s\n", iteration,
            samples ? "the" : "--train-iters", end, samples ? " that --train-samples makes" : "");
    if (iteration > end)
        fprintf(
            stderr,
            "the checkpoint is beyond this end: --ckpt-step N takes an older one, a --train-%s of more than %" PRId64
            " goes on from it, --finetune begins anew with its weights\n",
            samples ? "samples" : "iters", samples ? consumed : iteration);
    else if (iteration > 0)
        fprintf(
            stderr,
            "the checkpoint's run has ended: a larger --train-%s goes on with it, --finetune begins anew with its "
            "weights\n",
            samples ? "samples" : "iters");
}

void reporter_references(Reporter *r, int64_t pairs, const char *model, double seconds, const char *file) {
    reporter_clear_progress(r);
    printf("reference model %s: log-probabilities of %" PRId64 " pairs", model, pairs);
    if (seconds > 0) printf(", computed in %.1f s", seconds);
    printf("%s%s\n", seconds > 0 ? file ? ", kept in " : ", kept in memory alone" : ", from ",
           file ? file : "");
    fflush(stdout);
}

void reporter_references_progress(Reporter *r, int64_t done, int64_t pairs, double seconds) {
    char line[128];
    snprintf(line, sizeof line, "reference model: %" PRId64 " of %" PRId64 " pairs, %.1f pairs/s", done,
             pairs, (double)done / seconds);
    screen_draw(&r->screen, line);
}

void reporter_spike(Reporter *r, const StepReport *s, double usual) {
    reporter_clear_progress(r);
    fprintf(stderr,
            "iteration %" PRId64 ": lm loss %.6g, %.1f times the usual %.6g (--check-for-spiky-loss)\n",
            s->iteration, s->loss, s->loss / usual, usual);
}

void reporter_skipped(Reporter *r, const Ranges *skipped, bool again) {
    Text text = {0};
    reporter_clear_progress(r);
    ranges_print(skipped, &text);
    printf("samples that are left out: %s, %" PRId64 " in all%s\n", text_string(&text), ranges_size(skipped),
           again ? "; the data end before the run does, which then reads them from the start again" : "");
    fflush(stdout);
    text_free(&text);
}

void reporter_rewound(Reporter *r, const char *spike, const RunState *state, int64_t rewinds, Range skipped) {
    reporter_clear_progress(r);
    fprintf(stderr,
            "%s; the run goes back to iteration %" PRId64 " and leaves out samples %" PRId64 " to %" PRId64
            " (--rewind-on-spike, %" PRId64 " of at most %d)\n",
            spike, state->iteration, skipped.first, skipped.end - 1, rewinds, r->options->max_rewinds);
    go_on(r, state->iteration,
          "{\"event\": \"rewind\", \"to\": %" PRId64 ", \"skipped\": [%" PRId64 ", %" PRId64
          "], \"rewinds\": %" PRId64 "}",
          state->iteration, skipped.first, skipped.end - 1, rewinds);
}

void reporter_lost_events(Reporter *r, uint64_t lost) {
    reporter_clear_progress(r);
    fprintf(stderr,
            "--trace %s: a rank had no room for its first %" PRIu64 " events; --trace-events %" PRIu64
            " keeps all\n",
            r->options->trace, lost, lost + (uint64_t)r->options->trace_events);
}

void reporter_metrics(Reporter *r, const StepReport *s) {
    r->steps_s += s->elapsed_s;
    r->steps++;
    loss_curve_add(&r->curve, s->loss);
    if (!s->skipped && isnan(r->first_loss)) r->first_loss = s->loss;
    if (!s->skipped) r->last_loss = s->loss;
    StepNumbers numbers = {.iteration = s->iteration,
                           .consumed = s->consumed,
                           .end = s->end,
                           .pairs = s->preferences,
                           .experts = s->loads != NULL,
                           .loads = s->loads,
                           .summed = s->summed,
                           .checksum = s->sum,
                           .value = {[NUMBER_LOSS] = s->loss,
                                     [NUMBER_GRAD_NORM] = s->grad_norm,
                                     [NUMBER_LEARNING_RATE] = s->lr,
                                     [NUMBER_STEP_TIME] = s->elapsed_s,
                                     [NUMBER_TOKENS] = reporter_tokens_per_s(r, s),
                                     [NUMBER_TFLOPS] = reporter_tflops_per_rank(r, s),
                                     [NUMBER_LOSS_SCALE] = s->loss_scale,
                                     [NUMBER_BATCH] = s->batch,
                                     [NUMBER_SKIPPED] = s->skipped}};
    pair_numbers(&s->pairs, &numbers.value[NUM_STEP_NUMBERS]);
    expert_numbers(s->loads, r->options, numbers.value);
    metrics_step(&r->metrics, &numbers);
    tell_trouble(r);
}

void reporter_parameters(Reporter *r, int64_t iteration, uint64_t sum) {
    char json[128];
    snprintf(json, sizeof json,
             "{\"event\": \"parameters\", \"iteration\": %" PRId64 ", \"parameters_checksum\": \"%016" PRIx64
             "\"}",
             iteration, sum);
    metrics_event(&r->metrics, json);
    tell_trouble(r);
}

// A line of the metrics: "rank" is null when no rank is slow any more.
void reporter_slow_event(Reporter *r, int64_t iteration, const SlowRank *slow, const char *host) {
    Text json = {0};
    text_add(&json, "{\"event\": \"slow_rank\", \"iteration\": %" PRId64, iteration);
    if (slow->rank < 0) {
        text_add(&json, ", \"rank\": null}");
    } else {
        text_add(&json, ", \"rank\": %d, \"host\": ", slow->rank);
        json_add_string(&json, host, strlen(host));
        text_add(&json, ", \"seconds\": %.6g, \"usual_s\": %.6g, \"most_in\": \"%s\"}", slow->own_s,
                 slow->usual_s, work_parts[slow->most]);
    }
    metrics_event(&r->metrics, text_string(&json));
    text_free(&json);
    tell_trouble(r);
}

static void print_validation(double loss, const PairMeans *pairs, int64_t iteration, bool last) {
    char text[448], dashes[448], rest[192] = "";
    if (pairs)
        describe_pairs(pairs, rest);
    else
        snprintf(rest, sizeof rest, "lm loss PPL: %.6E | ", exp(loss < 20 ? loss : 20));
    int length =
        snprintf(text, sizeof text, " validation loss at iteration %" PRId64 "%s | lm loss value: %.6E | %s",
                 iteration, last ? " on validation set" : "", loss, rest);
    memset(dashes, '-', sizeof dashes);
    printf("%.*s\n%s\n%.*s\n", length + 1, dashes, text, length + 1, dashes);
}

void reporter_validation(Reporter *r, int64_t iteration, int64_t consumed, double loss,
                         const PairMeans *pairs, bool last) {
    r->last_validation = loss = unsigned_nan(loss);
    reporter_clear_progress(r);
    if (r->style == LOG_MEGATRON && !r->brief)
        print_validation(loss, pairs, iteration, last);
    else if (!r->options->quiet)
        printf("  step %" PRId64 ": loss %.4f on the held-out share\n", iteration, loss);
    fflush(stdout);
    metrics_validation(&r->metrics, iteration, consumed, loss, pairs);
    tell_trouble(r);
}
