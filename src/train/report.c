#include "train/internal.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double per_second(const Reporter *r, const StepReport *s) {
    return (double)r->options->global_batch_size * r->options->seq_length / s->elapsed_s;
}

static double tflops_per_rank(const Reporter *r, const StepReport *s) {
    return model_flops(&r->shape, r->options->global_batch_size) / s->elapsed_s /
           r->options->shape.world_size / 1e12;
}

static void eta(const Reporter *r, const StepReport *s, char text[32]) {
    int64_t left = (int64_t)((double)(r->options->shape.train_iters - s->iteration) * s->elapsed_s + 0.5);
    snprintf(text, 32, "%02" PRId64 ":%02" PRId64 ":%02" PRId64, left / 3600, left / 60 % 60, left % 60);
}

Status reporter_open(Reporter *r, const Options *options, const ModelShape *shape) {
    *r = (Reporter){.options = options, .shape = *shape};
    r->first_loss = r->last_loss = r->last_validation = NAN;
    const char *term = getenv("TERM");
    r->live = isatty(STDERR_FILENO) && !options->plain && term && strcmp(term, "dumb");
    if (!options->metrics || options->dry_run) return OK;
    r->metrics = fopen(options->metrics, "w");
    if (!r->metrics)
        return fail(create_status(), "--metrics %s: cannot create the file: %s", options->metrics,
                    strerror(errno));
    return OK;
}

Status reporter_close(Reporter *r) {
    bool failed = r->metrics && ferror(r->metrics);
    if (r->metrics) failed = fclose(r->metrics) != 0 || failed;
    r->metrics = NULL;
    return failed ? fail(ERR_IO, "--metrics %s: not everything could be written", r->options->metrics) : OK;
}

static void clear_progress(Reporter *r) {
    if (r->line_open) fputs("\r\033[K", stderr);
    r->line_open = false;
}

static double mib(size_t bytes) { return (double)bytes / 1048576.0; }

void reporter_start(Reporter *r, const EngineSpec *spec, const EngineMemory *memory) {
    const RunShape *shape = &r->options->shape;
    const ModelShape *m = &r->shape;
    printf(
        "using world size: %d, data-parallel size: %d, tensor-model-parallel size: %d, pipeline-model-parallel size: %d\n",
        shape->world_size, shape->dp, shape->tp, shape->pp);
    printf(
        "model: %d layers, hidden %d, %d heads, sequence %d, vocabulary %d padded to %d: %.1f M parameters\n",
        m->layers, m->hidden, m->heads, m->sequence, m->vocabulary, m->padded_vocabulary,
        (double)model_parameters(m) / 1e6);
    printf("schedule: %s, %d microbatches of %d, %d chunk%s per rank; device %s, %d thread%s per rank\n",
           spec->schedule, spec->num_microbatches, m->microbatch, spec->num_chunks,
           spec->num_chunks == 1 ? "" : "s", spec->device, spec->threads, spec->threads == 1 ? "" : "s");
    printf(
        "memory of rank 0 (MiB): parameters, gradients, moments, batches %.1f, %d slot%s of %.1f, scratch %.1f, "
        "workspace %.1f, total %.1f\n",
        mib(memory->run), memory->num_slots, memory->num_slots == 1 ? "" : "s", mib(memory->slot),
        mib(memory->scratch), mib(memory->workspace), mib(memory->total));
    fflush(stdout);
}

void reporter_progress(Reporter *r, const StepReport *s) {
    if (!r->live) return;
    char left[32];
    eta(r, s, left);
    fprintf(stderr, "\r\033[K %" PRId64 "/%" PRId64 "  loss %.4f  grad norm %.3f  %.0f tokens/s  eta %s",
            s->iteration, r->options->shape.train_iters, s->loss, s->grad_norm, per_second(r, s), left);
    fflush(stderr);
    r->line_open = true;
}

// The fields and widths of Megatron-LM's line, so that its parsers work; then what else people ask for.
void reporter_line(Reporter *r, const StepReport *s) {
    char when[32], left[32];
    time_t now = time(NULL);
    struct tm local;
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
    eta(r, s, left);
    clear_progress(r);
    printf(
        " [%s] iteration %8" PRId64 "/%8" PRId64 " | consumed samples: %12" PRId64
        " | elapsed time per iteration (ms): %.1f | throughput per GPU (TFLOP/s/GPU): %.3f | learning rate: %.6E | "
        "global batch size: %5d | lm loss: %.6E | loss scale: 1.0 | grad norm: %.3f | number of skipped iterations: %3d | "
        "number of nan iterations: %3d | tokens/s: %.0f | eta: %s |\n",
        when, s->iteration, r->options->shape.train_iters, s->consumed, 1e3 * s->elapsed_s,
        tflops_per_rank(r, s), s->lr, r->options->global_batch_size, s->loss, s->grad_norm, s->skipped,
        s->nan, per_second(r, s), left);
    fflush(stdout);
}

// JSON has no NaN and no infinity: they are written as the strings "NaN", "Infinity", "-Infinity".
static void json_number(FILE *file, const char *name, double value) {
    if (isfinite(value))
        fprintf(file, ", \"%s\": %.9g", name, value);
    else
        fprintf(file, ", \"%s\": \"%s\"", name, isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}

void reporter_metrics(Reporter *r, const StepReport *s) {
    if (isnan(r->first_loss)) r->first_loss = s->loss;
    r->last_loss = s->loss;
    if (!r->metrics) return;
    fprintf(r->metrics, "{\"iteration\": %" PRId64 ", \"consumed_samples\": %" PRId64, s->iteration,
            s->consumed);
    json_number(r->metrics, "lm_loss", s->loss);
    json_number(r->metrics, "grad_norm", s->grad_norm);
    json_number(r->metrics, "learning_rate", s->lr);
    json_number(r->metrics, "elapsed_ms", 1e3 * s->elapsed_s);
    json_number(r->metrics, "tokens_per_s", per_second(r, s));
    json_number(r->metrics, "tflops_per_rank", tflops_per_rank(r, s));
    fprintf(r->metrics, "}\n");
    fflush(r->metrics);
}

void reporter_validation(Reporter *r, int64_t iteration, int64_t consumed, double loss, bool last) {
    char text[256], dashes[256];
    r->last_validation = loss;
    int length =
        snprintf(text, sizeof text,
                 " validation loss at iteration %" PRId64 "%s | lm loss value: %.6E | lm loss PPL: %.6E | ",
                 iteration, last ? " on validation set" : "", loss, exp(loss < 20 ? loss : 20));
    memset(dashes, '-', sizeof dashes);
    clear_progress(r);
    printf("%.*s\n%s\n%.*s\n", length + 1, dashes, text, length + 1, dashes);
    fflush(stdout);
    if (!r->metrics) return;
    fprintf(r->metrics, "{\"iteration\": %" PRId64 ", \"consumed_samples\": %" PRId64, iteration, consumed);
    json_number(r->metrics, "validation_loss", loss);
    fprintf(r->metrics, "}\n");
    fflush(r->metrics);
}

void reporter_summary(Reporter *r, const RunSummary *s) {
    const RunShape *shape = &r->options->shape;
    double tokens = (double)s->iterations * r->options->global_batch_size * r->options->seq_length;
    clear_progress(r);
    if (!s->iterations) {
        printf("nothing was trained: 0 iterations\n");
        return;
    }
    printf("trained %" PRId64 " iterations in %.1f s: lm loss %.4f -> %.4f", s->iterations, s->seconds,
           r->first_loss, r->last_loss);
    if (!isnan(r->last_validation)) printf(", validation %.4f", r->last_validation);
    printf("; %.0f tokens/s\n", s->seconds > 0 ? tokens / s->seconds : 0);
    if (shape->pp == 1) return;
    printf("pipeline bubble: %.1f %% of the ideal time by the formula for equal stages, (p-1)/(v m) = %d/%d; "
           "%.1f %% when the schedule is replayed with each stage's measured times\n",
           100 * s->formula, shape->pp - 1, shape->vp * shape->num_microbatches, 100 * s->replay);
    printf("waiting for other stages: %.1f %% of the pipeline's time", 100 * s->waited);
    if (s->busy_threads > s->cores)
        printf(" (%d threads share %d processors: most of it is other ranks' turns)", s->busy_threads,
               s->cores);
    printf("\n");
    fflush(stdout);
}
