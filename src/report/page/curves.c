// Draws charts of numbers over the iterations of runs.
#include "report/page/curves.h"
#include <inttypes.h>
#include <math.h>

enum { WIDTH = 480, HEIGHT = 250, LEFT = 58, RIGHT = 12, TOP = 30, BOTTOM = 36, BUCKETS = 400 };

typedef struct {
    CurveChart chart;
    const RunRecord *runs;
    int count;
    bool log_y;
    double least, most, last; // of y; of x
    Text *out;
} Plot;

static double x_of(const Plot *p, double iteration) {
    return LEFT + (p->last > 0 ? iteration / p->last : 0) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const Plot *p, double value) {
    double share = p->log_y ? log(value / p->least) / log(p->most / p->least)
                            : (value - p->least) / (p->most - p->least);
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

// ---- ranges -----------------------------------------------------------------------------------------------

static void widen(Plot *p, double value) {
    if (!isfinite(value)) return;
    p->least = fmin(p->least, value);
    p->most = fmax(p->most, value);
}

static bool find_range(Plot *p) {
    p->least = INFINITY, p->most = -INFINITY;
    for (int i = 0; i < p->count; i++) {
        const RunRecord *r = &p->runs[i];
        for (size_t k = 0; k < r->num_steps; k++) widen(p, p->chart.number(&r->steps[k]));
        if (r->num_steps) p->last = fmax(p->last, (double)r->steps[r->num_steps - 1].iteration);
        for (size_t k = 0; p->chart.validations && k < r->num_validations; k++) {
            widen(p, r->validations[k].loss);
            p->last = fmax(p->last, (double)r->validations[k].iteration);
        }
    }
    if (!(p->most >= p->least)) return false;
    p->log_y = p->chart.logarithmic && p->least > 0 && p->most > 4 * p->least;
    double margin = 0.05 * (p->most - p->least) + 1e-12 * fabs(p->most) + (p->most == p->least ? 1e-9 : 0);
    if (p->log_y) {
        p->least /= 1.05, p->most *= 1.05;
    } else {
        p->least = p->least >= 0 && p->least < 0.5 * p->most ? 0 : p->least - margin;
        p->most += margin;
    }
    return true;
}

// ---- axes -------------------------------------------------------------------------------------------------

static void add_y_tick(const Plot *p, double value) {
    double y = y_of(p, value), unit = value >= 1e6 ? 1e6 : value >= 1e4 ? 1e3 : 1;
    text_add(
        p->out,
        "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" class=\"end\">%.4g%s</text>\n",
        LEFT, y, WIDTH - RIGHT, LEFT - 7, y + 4, value / unit,
        unit > 1e3 ? "M"
        : unit > 1 ? "k"
                   : "");
}

static void add_y_ticks(const Plot *p) {
    static const double factors[] = {1, 2, 5};
    if (!p->log_y) {
        double step = tick_step(p->most - p->least);
        for (double value = ceil(p->least / step) * step; value <= p->most; value += step)
            add_y_tick(p, fabs(value) < 1e-9 * step ? 0 : value);
        return;
    }
    double decades = log10(p->most / p->least);
    for (double power = pow(10, floor(log10(p->least))); power <= p->most; power *= 10)
        for (int i = 0; i < (decades > 3 ? 1 : 3); i++)
            if (power * factors[i] >= p->least && power * factors[i] <= p->most)
                add_y_tick(p, power * factors[i]);
}

static void add_x_ticks(const Plot *p) {
    double step = fmax(1, tick_step(p->last)), edge = WIDTH - 20; // a label beyond it would leave the chart
    for (double value = 0; value <= p->last && p->last > 0; value += step)
        text_add(p->out, "<text x=\"%.1f\" y=\"%d\" class=\"%s\">%s</text>\n", x_of(p, value),
                 HEIGHT - BOTTOM + 17, x_of(p, value) > edge ? "end" : "middle", word_count(value).text);
    text_add(p->out, "<path class=\"axis\" d=\"M%d %dH%d\"/>\n", LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT);
}

// ---- lines ------------------------------------------------------------------------------------------------

static void add_point(const Plot *p, const StepRow *row, bool *pen) {
    double value = p->chart.number(row);
    if (isfinite(value))
        text_add(p->out, "%c%.1f %.1f", *pen ? 'L' : 'M', x_of(p, (double)row->iteration), y_of(p, value));
    *pen = isfinite(value);
}

// Of many steps the smallest and the largest of each part are drawn, in their order.
static void add_part(const Plot *p, const StepRow *rows, size_t count, bool *pen) {
    size_t low = 0, high = 0;
    for (size_t i = 1; i < count; i++) {
        if (!(p->chart.number(&rows[i]) >= p->chart.number(&rows[low]))) low = i;
        if (!(p->chart.number(&rows[i]) <= p->chart.number(&rows[high]))) high = i;
    }
    add_point(p, &rows[low < high ? low : high], pen);
    if (low != high) add_point(p, &rows[low < high ? high : low], pen);
}

static void add_line(const Plot *p, int number) {
    const RunRecord *r = &p->runs[number];
    size_t parts = r->num_steps < 2 * BUCKETS ? r->num_steps : BUCKETS;
    bool pen = false;
    if (!parts) return;
    text_add(p->out, "<path class=\"line run%d\" d=\"", number);
    for (size_t i = 0; i < parts; i++) {
        size_t from = i * r->num_steps / parts, to = (i + 1) * r->num_steps / parts;
        add_part(p, r->steps + from, to - from, &pen);
    }
    text_add(p->out, "\"/>\n");
}

static void add_validations(const Plot *p, int number) {
    const RunRecord *r = &p->runs[number];
    size_t every = r->num_validations / 200 + 1;
    for (size_t i = 0; i < r->num_validations; i += every)
        if (isfinite(r->validations[i].loss))
            text_add(
                p->out,
                "<circle class=\"point run%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\"><title>validation loss %.4f at "
                "iteration %" PRId64 "</title></circle>\n",
                number, x_of(p, (double)r->validations[i].iteration), y_of(p, r->validations[i].loss),
                r->validations[i].loss, r->validations[i].iteration);
}

void html_curves(Text *out, CurveChart chart, const RunRecord *runs, int count) {
    Plot p = {.chart = chart, .runs = runs, .count = count, .out = out};
    if (!find_range(&p)) return;
    text_add(
        out,
        "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s over the iterations: %.4g to "
        "%.4g\">\n<text x=\"0\" y=\"14\" class=\"strong\">%s</text>\n",
        WIDTH, HEIGHT, chart.title, p.least, p.most, chart.title);
    add_y_ticks(&p);
    add_x_ticks(&p);
    for (int i = 0; i < count; i++) add_line(&p, i);
    for (int i = 0; chart.validations && i < count; i++) add_validations(&p, i);
    text_add(out, "</svg>\n");
}
