// The winner's pipeline, twice: as SVG, which can be printed and shown without a script, and as numbers, from which
// the page's script draws it on a canvas that can be zoomed.
#include "report/internal.h"
#include "report/page/parts.h"
#include <math.h>
#include <stdlib.h>

typedef enum { KIND_FORWARD, KIND_BACKWARD, KIND_INPUT, KIND_WEIGHT, NUM_KINDS } Kind;

// Classes of the style for the first chunk, and for later ones.
static const char *const kind_classes[NUM_KINDS] = {"forward", "backward", "backward", "weight"};

static Kind kind_of(Instr in) {
    return in.op == OP_FORWARD          ? KIND_FORWARD
           : in.op == OP_BACKWARD       ? KIND_BACKWARD
           : in.op == OP_BACKWARD_INPUT ? KIND_INPUT
                                        : KIND_WEIGHT;
}

typedef struct {
    const Schedule *schedule;
    const Simulation *simulation;
    const Breakdown *parts;
    double total_us, tail_us; // of the pipeline and the end of the step; of the latter alone
    double again;             // fraction of each backward that is recomputation
    Text *out;
} Timeline;

static int64_t num_computes(const Schedule *schedule) {
    int64_t count = 0;
    for (int r = 0; r < schedule->num_ranks; r++)
        for (int i = 0; i < schedule->programs[r].count; i++)
            count += is_compute(schedule->programs[r].instrs[i]);
    return count;
}

// The replay has only whole backwards; the fraction of recomputation is that of the busiest rank.
static double share_again(const Schedule *schedule, const Simulation *simulation, double recompute_us) {
    int rank = 0;
    double us = 0;
    for (int r = 1; r < schedule->num_ranks; r++)
        if (simulation->busy_us[r] > simulation->busy_us[rank]) rank = r;
    const Program *program = &schedule->programs[rank];
    for (int i = 0; i < program->count; i++) {
        const Span *span = &simulation->spans[rank][i];
        Instr in = program->instrs[i];
        if (in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT) us += span->end_us - span->start_us;
    }
    return us > 0 ? fmin(1, recompute_us / us) : 0;
}

static Timeline timeline_of(const PlanPage *page, Text *out) {
    const Breakdown *parts = &page->report->chosen->parts;
    double tail_us = 1e6 * (parts->data + parts->optimizer + parts->other);
    return (Timeline){.schedule = page->schedule,
                      .simulation = page->simulation,
                      .parts = parts,
                      .total_us = page->simulation->total_us + tail_us,
                      .tail_us = tail_us,
                      .again = share_again(page->schedule, page->simulation, 1e6 * parts->recompute),
                      .out = out};
}

// ---- numbers ----------------------------------------------------------------------------------------------

// For each compute: 4 chunk + kind, microbatch, ticks since the previous one, ticks that it takes.
static void add_rank_numbers(const Timeline *t, int rank, double tick_us) {
    const Program *program = &t->schedule->programs[rank];
    long long last = 0;
    const char *comma = "";
    text_add(t->out, "[");
    for (int i = 0; i < program->count; i++) {
        Instr in = program->instrs[i];
        if (!is_compute(in)) continue;
        const Span *span = &t->simulation->spans[rank][i];
        long long start = llround(span->start_us / tick_us), end = llround(span->end_us / tick_us);
        text_add(t->out, "%s%d,%d,%lld,%lld", comma, NUM_KINDS * in.chunk + (int)kind_of(in), in.microbatch,
                 start - last, end - start);
        last = end, comma = ",";
    }
    text_add(t->out, "]");
}

static void add_numbers(const Timeline *t) {
    double tick_us = t->total_us / 1e6;
    const double tail[] = {t->parts->data, t->parts->optimizer, t->parts->other};
    text_add(t->out,
             "<script type=\"application/json\" id=\"spans\">{\"chunks\":%d,\"tick\":%.9g,\"again\":%.4g,",
             t->schedule->num_chunks, tick_us / 1e6, t->again);
    text_add(t->out, "\"tail\":[");
    for (int i = 0; i < 3; i++) text_add(t->out, "%s%lld", i ? "," : "", llround(1e6 * tail[i] / tick_us));
    text_add(t->out, "],\"ranks\":[\n");
    for (int r = 0; r < t->schedule->num_ranks; r++) {
        add_rank_numbers(t, r, tick_us);
        text_add(t->out, r + 1 < t->schedule->num_ranks ? ",\n" : "\n");
    }
    text_add(t->out, "]}</script>\n");
}

// ---- the drawing ------------------------------------------------------------------------------------------

enum { WIDTH = 1000, LEFT = 44, MAX_COLUMNS = 24000 }; // for all ranks together

typedef struct {
    const Timeline *t;
    double pixels_per_us, row, gap;
    int columns; // per rank, when cells are too narrow to draw; 0: cells are drawn
} Drawing;

static Drawing drawing_of(const Timeline *t) {
    Schedule const *s = t->schedule;
    double shortest = panel_times(s, &(Panel){NULL, t->simulation}, 1).shortest_us;
    double pixels_per_us = (WIDTH - LEFT) / t->total_us, row = fmin(24, fmax(3, 560.0 / s->num_ranks));
    int columns = (int)fmin(WIDTH - LEFT, fmax(100, MAX_COLUMNS / s->num_ranks));
    return (Drawing){.t = t,
                     .pixels_per_us = pixels_per_us,
                     .row = row,
                     .gap = row > 8 ? 3 : 1,
                     .columns = shortest * pixels_per_us < 4 ? columns : 0};
}

static double drawing_height(const Drawing *d) { return d->t->schedule->num_ranks * (d->row + d->gap); }

static void draw_cells(const Drawing *d, int rank, Kind kind, bool later) {
    const Timeline *t = d->t;
    const Program *program = &t->schedule->programs[rank];
    double y = rank * (d->row + d->gap) + d->row / 2;
    for (int i = 0; i < program->count; i++) {
        Instr in = program->instrs[i];
        if (!is_compute(in) || kind_of(in) != kind || (in.chunk > 0) != later) continue;
        const Span *span = &t->simulation->spans[rank][i];
        text_add(t->out, "M%.1f %.1fh%.1f", LEFT + span->start_us * d->pixels_per_us, y,
                 (span->end_us - span->start_us) * d->pixels_per_us - 0.7);
    }
}

static void draw_cell_numbers(const Drawing *d, int rank) {
    const Timeline *t = d->t;
    const Program *program = &t->schedule->programs[rank];
    for (int i = 0; i < program->count; i++) {
        Instr in = program->instrs[i];
        const Span *span = &t->simulation->spans[rank][i];
        double width = (span->end_us - span->start_us) * d->pixels_per_us;
        if (!is_compute(in) || width < (in.microbatch > 9 ? 15 : 9) || d->row < 12) continue;
        text_add(t->out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">%d</text>", in.chunk ? "late" : "early",
                 LEFT + (span->start_us + span->end_us) / 2 * d->pixels_per_us,
                 rank * (d->row + d->gap) + d->row / 2 + 3.5, in.microbatch);
    }
}

// The kind that takes most of each column; -1: none.
static void dominant_kinds(const Drawing *d, int rank, double *shares, int *kinds) {
    const Timeline *t = d->t;
    const Program *program = &t->schedule->programs[rank];
    double per_us = d->columns / t->total_us;
    for (int i = 0; i < d->columns * 2 * NUM_KINDS; i++) shares[i] = 0;
    for (int i = 0; i < program->count; i++) {
        Instr in = program->instrs[i];
        if (!is_compute(in)) continue;
        double from = t->simulation->spans[rank][i].start_us * per_us;
        double to = fmin(d->columns, t->simulation->spans[rank][i].end_us * per_us);
        int ink = 2 * (int)kind_of(in) + (in.chunk > 0);
        for (int column = (int)from; column < to; column++)
            shares[column * 2 * NUM_KINDS + ink] += fmin(to, column + 1) - fmax(from, column);
    }
    for (int column = 0; column < d->columns; column++) {
        const double *share = &shares[column * 2 * NUM_KINDS];
        double sum = 0;
        kinds[column] = 0;
        for (int k = 0; k < 2 * NUM_KINDS; k++) {
            sum += share[k];
            if (share[k] > share[kinds[column]]) kinds[column] = k;
        }
        if (sum < 0.5) kinds[column] = -1;
    }
}

static void draw_runs(const Drawing *d, const int *kinds, int rank, int ink) {
    double width = (double)(WIDTH - LEFT) / d->columns, y = rank * (d->row + d->gap) + d->row / 2;
    for (int i = 0, end; i < d->columns; i = end) {
        for (end = i + 1; end < d->columns && kinds[end] == kinds[i]; end++) continue;
        if (kinds[i] == ink) text_add(d->t->out, "M%.4g %.4gh%.3g", LEFT + i * width, y, (end - i) * width);
    }
}

// One path for each kind and all ranks, which keeps the file small.
static void draw_columns(const Drawing *d) {
    int ranks = d->t->schedule->num_ranks;
    int *kinds = malloc((size_t)ranks * (size_t)d->columns * sizeof *kinds);
    double *shares = malloc((size_t)d->columns * 2 * NUM_KINDS * sizeof *shares);
    CHECK(kinds && shares, "no memory for a drawing of %d columns", d->columns);
    for (int r = 0; r < ranks; r++) dominant_kinds(d, r, shares, kinds + r * d->columns);
    for (int ink = 0; ink < 2 * NUM_KINDS; ink++) {
        text_add(d->t->out, "<path class=\"%s%s\" stroke-width=\"%.1f\" d=\"M0 0", kind_classes[ink / 2],
                 ink % 2 ? " later" : "", d->row);
        for (int r = 0; r < ranks; r++) draw_runs(d, kinds + r * d->columns, r, ink);
        text_add(d->t->out, "\"/>\n");
    }
    free(kinds);
    free(shares);
}

static void draw_each(const Drawing *d) {
    int ranks = d->t->schedule->num_ranks;
    for (int ink = 0; ink < 2 * NUM_KINDS; ink++) {
        text_add(d->t->out, "<path class=\"%s%s\" stroke-width=\"%.1f\" d=\"M0 0", kind_classes[ink / 2],
                 ink % 2 ? " later" : "", d->row);
        for (int r = 0; r < ranks; r++) draw_cells(d, r, (Kind)(ink / 2), ink % 2);
        text_add(d->t->out, "\"/>\n");
    }
    for (int r = 0; r < ranks; r++) draw_cell_numbers(d, r);
}

static void draw_rank_names(const Drawing *d) {
    int ranks = d->t->schedule->num_ranks, every = 1 + (int)(11 / (d->row + d->gap));
    for (int r = 0; r < ranks; r += every)
        text_add(d->t->out, "<text class=\"name\" x=\"%d\" y=\"%.1f\">%d</text>", LEFT - 8,
                 r * (d->row + d->gap) + d->row / 2 + 3.5, r);
}

static void draw_svg(const Timeline *t) {
    Drawing d = drawing_of(t);
    double height = drawing_height(&d), end = LEFT + t->simulation->total_us * d.pixels_per_us;
    text_add(
        t->out,
        "<svg class=\"timeline\" viewBox=\"0 0 %d %.0f\" role=\"img\" aria-label=\"Timeline of %d pipeline "
        "ranks over %s\">\n<rect class=\"idle\" x=\"%d\" width=\"%.1f\" height=\"%.1f\"/>\n",
        WIDTH, height + 22, t->schedule->num_ranks, word_seconds(t->total_us / 1e6).text, LEFT, end - LEFT,
        height - d.gap);
    text_add(t->out, "<rect class=\"data\" x=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", end, WIDTH - end,
             height - d.gap);
    if (d.columns)
        draw_columns(&d);
    else
        draw_each(&d);
    draw_rank_names(&d);
    text_add(t->out,
             "\n<text x=\"%d\" y=\"%.0f\">0</text><text x=\"%d\" y=\"%.0f\" class=\"name\">%s</text></svg>\n",
             LEFT, height + 16, WIDTH, height + 16, word_seconds(t->total_us / 1e6).text);
}

// ---- the section ------------------------------------------------------------------------------------------

static void add_legend(const Timeline *t) {
    Ink inks[8];
    int count = 0;
    bool halves = false, later = t->schedule->num_chunks > 1;
    for (int i = 0; i < t->schedule->programs[0].count; i++)
        halves |= t->schedule->programs[0].instrs[i].op == OP_BACKWARD_WEIGHT;
    inks[count++] = (Ink){later ? "forward, first chunk" : "forward", "forward"};
    if (later) inks[count++] = (Ink){"forward, last chunk", "forward later"};
    if (t->again > 0) inks[count++] = (Ink){"forward again", "redo"};
    inks[count++] = (Ink){halves ? "gradient of the input" : "backward", "backward"};
    if (later) inks[count++] = (Ink){"the same, last chunk", "backward later"};
    if (halves) inks[count++] = (Ink){"gradient of the weights", "weight"};
    inks[count++] = (Ink){"idle", "idle"};
    if (t->tail_us > 0.002 * t->total_us) inks[count++] = (Ink){"gradients and optimizer", "data"};
    html_legend(t->out, inks, count);
}

void page_timeline(const PlanPage *page, Text *out) {
    const ParallelConfig *c = &page->report->chosen->config;
    int microbatches = parallel_config_microbatches(c);
    bool drawn = page->schedule && num_computes(page->schedule) <= PAGE_MAX_COMPUTES;
    text_add(out,
             "<section>\n<h2>The step, simulated</h2>\n<p>The %s schedule of one pipeline, %d rank%s and %s "
             "microbatch%s; all others do the same at the same time.%s</p>\n",
             c->schedule, grid_along(c->grid, AXIS_PP), grid_along(c->grid, AXIS_PP) > 1 ? "s" : "",
             word_count(microbatches).text, microbatches > 1 ? "es" : "",
             drawn ? "" : " It is not drawn: it is too large.");
    if (drawn) {
        Timeline timeline = timeline_of(page, out);
        add_legend(&timeline);
        text_add(out, "<div id=\"timeline\">\n");
        draw_svg(&timeline);
        text_add(out, "</div>\n");
        add_numbers(&timeline);
    }
    text_add(out, "</section>\n");
}
