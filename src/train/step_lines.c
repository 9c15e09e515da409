// Shows the steps of a run: Megatron-LM's log line, a short one, and the block that is kept up to date on a terminal.
#include "train/internal.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double reporter_tokens_per_s(const Reporter *r, const StepReport *s) {
    return s->samples_per_step * r->options->seq_length / s->elapsed_s;
}

double reporter_tflops_per_rank(const Reporter *r, const StepReport *s) {
    return model_flops(&r->shape, r->table_rows, s->samples_per_step) / s->elapsed_s /
           r->options->shape.world_size / 1e12;
}

// By the mean of all steps of this run: single steps differ much where samples or the machine's load do.
static int64_t seconds_left(const Reporter *r, const StepReport *s) {
    double step_s = r->steps ? r->steps_s / (double)r->steps : s->elapsed_s;
    return (int64_t)((double)(s->end - s->iteration) * step_s + 0.5);
}

static void eta(const Reporter *r, const StepReport *s, char text[32]) {
    int64_t left = seconds_left(r, s);
    snprintf(text, 32, "%02" PRId64 ":%02" PRId64 ":%02" PRId64, left / 3600, left / 60 % 60, left % 60);
}

// ---- the styles of the log -------------------------------------------------------------------------------

// Where people see the block, lines would say the same again.
static LogStyle style_of(const Reporter *r, const TrainJob *job) {
    static const char *const names[] = {
        [LOG_MEGATRON] = "megatron", [LOG_SHORT] = "short", [LOG_NONE] = "none"};
    if (job->options->quiet) return LOG_NONE;
    for (LogStyle i = 0; i < NUM_LOG_STYLES; i++)
        if (!strcmp(job->options->log_style, names[i])) return i;
    if (r->screen.file && isatty(STDOUT_FILENO)) return LOG_NONE;
    return job->brief ? LOG_SHORT : LOG_MEGATRON;
}

void reporter_open_lines(Reporter *r, const TrainJob *job) {
    r->screen = screen_open(stderr, STDERR_FILENO, job->options->plain || job->options->quiet);
    r->style = style_of(r, job);
    r->brief = job->brief || job->options->quiet;
}

void reporter_close_lines(Reporter *r) {
    screen_clear(&r->screen);
    text_free(&r->block);
}

void reporter_clear_progress(Reporter *r) { screen_clear(&r->screen); }

void reporter_show(Reporter *r) {
    if (r->screen.file && !r->screen.num_lines && r->block.size) screen_draw(&r->screen, r->block.data);
}

// ---- the curve of losses ---------------------------------------------------------------------------------

// When all points are used, two become one.
static void halve(LossCurve *c) {
    for (int i = 0; i < CURVE_POINTS / 2; i++) {
        c->sum[i] = c->sum[2 * i] + c->sum[2 * i + 1];
        c->count[i] = c->count[2 * i] + c->count[2 * i + 1];
    }
    for (int i = CURVE_POINTS / 2; i < CURVE_POINTS; i++) c->sum[i] = 0, c->count[i] = 0;
    c->steps_per_point *= 2;
}

void loss_curve_add(LossCurve *c, double loss) {
    if (!c->steps_per_point) c->steps_per_point = 1;
    if (!isfinite(loss)) return;
    if (c->steps == CURVE_POINTS * c->steps_per_point) halve(c);
    int64_t point = c->steps++ / c->steps_per_point;
    c->sum[point] += loss;
    c->count[point]++;
}

// The means of the points, at most `most` of them: neighbours are joined.
static int curve_values(const LossCurve *c, int most, double values[CURVE_POINTS]) {
    int points = 0, join = 1, num = 0;
    while (points < CURVE_POINTS && c->count[points]) points++;
    while ((points + join - 1) / join > most) join++;
    for (int i = 0; i < points; i += join) {
        double sum = 0;
        int64_t count = 0;
        for (int k = i; k < i + join && k < points; k++) sum += c->sum[k], count += c->count[k];
        values[num++] = sum / (double)count;
    }
    return num;
}

// ---- the block --------------------------------------------------------------------------------------------

enum { FIELD_BYTES = 160, NARROW = 60 };

typedef struct {
    char text[12][FIELD_BYTES];
    int count;
} Fields;

static __attribute__((format(printf, 2, 3))) void add_field(Fields *f, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(f->text[f->count++], FIELD_BYTES, format, args);
    va_end(args);
}

static void add_curve(Fields *f, const LossCurve *c, int columns) {
    double values[CURVE_POINTS];
    Text curve = {0};
    int most = columns < NARROW ? 6 : columns < 120 ? 16 : CURVE_POINTS;
    int count = curve_values(c, most, values);
    if (count > 1) screen_curve(values, count, screen_knows_unicode(), &curve);
    add_field(f, "%s", text_string(&curve));
    text_free(&curve);
}

static void add_left(Fields *f, int64_t s, double done) {
    if (s >= 86400)
        add_field(f, "%" PRId64 "d %02" PRId64 "h left (%.0f %%)", s / 86400, s / 3600 % 24, 100 * done);
    else
        add_field(f, "%" PRId64 ":%02" PRId64 ":%02" PRId64 " left (%.0f %%)", s / 3600, s / 60 % 60, s % 60,
                  100 * done);
}

static void add_tokens(Fields *f, double rate) {
    if (rate >= 1e6)
        add_field(f, "%.2fM tokens/s", rate / 1e6);
    else if (rate >= 1e4)
        add_field(f, "%.1fk tokens/s", rate / 1e3);
    else
        add_field(f, "%.0f tokens/s", rate);
}

// What is wanted most comes first: a narrow terminal has no room for the last ones.
static void add_fields(const Reporter *r, const StepReport *s, int columns, Fields *f) {
    add_field(f, "step %" PRId64 "/%" PRId64, s->iteration, s->end);
    add_field(f, "loss %.4f", unsigned_nan(s->loss));
    add_curve(f, &r->curve, columns);
    add_tokens(f, reporter_tokens_per_s(r, s));
    add_left(f, seconds_left(r, s), (double)s->iteration / (double)s->end);
    if (r->slow.rank >= 0)
        add_field(f, "SLOW: rank %d on %s, %.1f times as long", r->slow.rank, r->slow_host,
                  r->slow.own_s / r->slow.usual_s);
    if (s->preferences) add_field(f, "accuracy %.3f", s->pairs.accuracy);
    if (!isnan(r->last_validation)) add_field(f, "validation %.4f", r->last_validation);
    double memory = (double)r->memory_bytes;
    add_field(f, memory < 1e9 ? "memory %.0f MiB%s" : "memory %.1f GiB%s",
              memory / (memory < 1e9 ? 1048576.0 : 1073741824.0),
              r->options->shape.world_size > 1 ? " a rank" : "");
    add_field(f, "grad norm %.3f", unsigned_nan(s->grad_norm));
    add_field(f, "lr %.3g", s->lr);
}

static void draw(Reporter *r, const StepReport *s) {
    if (!r->screen.file) return;
    Fields fields = {.count = 0};
    const char *list[12];
    int columns = screen_columns(r->screen.descriptor) - 1;
    add_fields(r, s, columns, &fields);
    for (int i = 0; i < fields.count; i++) list[i] = fields.text[i];
    r->block.size = 0;
    screen_flow(list, fields.count, columns, columns < NARROW ? 5 : 3, &r->block);
    screen_draw(&r->screen, text_string(&r->block));
}

void reporter_progress(Reporter *r, const StepReport *s) {
    const double most_often_s = 0.1;
    if (clock_s() - r->screen.drawn_s >= most_often_s) draw(r, s);
}

// ---- lines --------------------------------------------------------------------------------------------------

// TRL's numbers of preferences, in the form of the log line's fields.
void describe_pairs(const PairMeans *p, char text[192]) {
    snprintf(
        text, 192,
        "rewards chosen: %.4f | rewards rejected: %.4f | rewards margin: %.4f | rewards accuracy: %.3f | ",
        p->reward[CHOSEN], p->reward[REJECTED], p->reward[CHOSEN] - p->reward[REJECTED], p->accuracy);
}

static void print_short_line(const Reporter *r, const StepReport *s) {
    char left[32];
    eta(r, s, left);
    printf("  step %" PRId64 "/%" PRId64 "  loss %.4f  %.0f tokens/s  eta %s\n", s->iteration, s->end,
           unsigned_nan(s->loss), reporter_tokens_per_s(r, s), left);
}

// Megatron-LM's line with its fields and widths, so that its parsers work, except that "per rank" replaces "per GPU";
// more fields follow. As there, a line of skipped steps has no loss, and one with an overflow has no norm.
static void print_megatron_line(const Reporter *r, const StepReport *s) {
    char when[32], left[32], loss[48] = "", norm[48] = "", pairs[192] = "";
    time_t now = time(NULL);
    struct tm local;
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
    eta(r, s, left);
    if (!isnan(s->loss)) snprintf(loss, sizeof loss, "lm loss: %.6E | ", s->loss);
    if (isfinite(s->grad_norm)) snprintf(norm, sizeof norm, "grad norm: %.3f | ", s->grad_norm);
    if (s->preferences) describe_pairs(&s->pairs, pairs);
    printf(
        " [%s] iteration %8" PRId64 "/%8" PRId64 " | consumed samples: %12" PRId64
        " | elapsed time per iteration (ms): %.1f | throughput per rank (TFLOP/s/rank): %.3f | "
        "learning rate: %.6E | global batch size: %5d | %sloss scale: %.1f | "
        "%snumber of skipped iterations: %3d | number of nan iterations: %3d | %stokens/s: %.0f | eta: %s |\n",
        when, s->iteration, s->end, s->consumed, 1e3 * s->elapsed_s, reporter_tflops_per_rank(r, s), s->lr,
        s->batch, loss, s->loss_scale, norm, s->skipped, s->nan, pairs, reporter_tokens_per_s(r, s), left);
}

void reporter_line(Reporter *r, const StepReport *s) {
    if (r->style != LOG_NONE) {
        reporter_clear_progress(r);
        (r->style == LOG_MEGATRON ? print_megatron_line : print_short_line)(r, s);
        fflush(stdout);
    }
    draw(r, s);
}
