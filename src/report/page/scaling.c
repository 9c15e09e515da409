// Two small charts over the number of devices: the time of a step beside the ideal one, and the throughput of a
// device.
#include "report/page/parts.h"
#include <math.h>

enum { WIDTH = 480, HEIGHT = 270, LEFT = 58, RIGHT = 16, TOP = 34, BOTTOM = 40 };

typedef struct {
    const char *title;
    const ScalePoint *points;
    int count, chosen; // chosen: devices of the plan
    bool log_y;
    double least, most; // of y
    Text *out;
} Chart;

static double x_of(const Chart *c, double devices) {
    double first = log(c->points[0].devices), last = log(c->points[c->count - 1].devices);
    double share = last > first ? (log(devices) - first) / (last - first) : 0.5;
    return LEFT + 10 + share * (WIDTH - LEFT - RIGHT - 20);
}

static double y_of(const Chart *c, double value) {
    double share = c->log_y ? log(value / c->least) / log(c->most / c->least)
                            : (value - c->least) / (c->most - c->least);
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

// ---- axes -----------------------------------------------------------------------------------------------

static void add_y_tick(const Chart *c, double value) {
    double y = y_of(c, value);
    text_add(c->out,
             "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" class=\"end\">%g</text>\n",
             LEFT, y, WIDTH - RIGHT, LEFT - 8, y + 4, value);
}

static void add_y_ticks(const Chart *c) {
    static const double factors[] = {1, 2, 5};
    if (!c->log_y) {
        double step = tick_step(c->most);
        for (double value = 0; value <= c->most; value += step) add_y_tick(c, value);
        return;
    }
    for (double power = pow(10, floor(log10(c->least))); power <= c->most; power *= 10)
        for (int i = 0; i < 3; i++)
            if (power * factors[i] >= c->least && power * factors[i] <= c->most)
                add_y_tick(c, power * factors[i]);
}

// Labels that would overlap the previous one are left out; the last one is always there.
static void add_x_ticks(const Chart *c) {
    double free_from = 0, last = x_of(c, c->points[c->count - 1].devices);
    for (int i = 0; i < c->count; i++) {
        double x = x_of(c, c->points[i].devices);
        bool fits = x >= free_from && (i == c->count - 1 || x <= last - 44);
        text_add(c->out, "<path class=\"axis\" d=\"M%.1f %dv%d\"/>", x, HEIGHT - BOTTOM, fits ? 5 : 3);
        if (!fits) continue;
        text_add(c->out, "<text x=\"%.1f\" y=\"%d\" class=\"middle\">%s</text>\n", x, HEIGHT - BOTTOM + 19,
                 word_count(c->points[i].devices).text);
        free_from = x + 44;
    }
    text_add(c->out, "<text x=\"%d\" y=\"%d\" class=\"end muted\">devices</text>\n", WIDTH - RIGHT,
             HEIGHT - 4);
}

// ---- what is drawn --------------------------------------------------------------------------------------

static double step_of(const ScalePoint *p) { return p->prediction.step_s; }
static double rate_of(const ScalePoint *p) { return p->prediction.tflops; }

static void add_line(const Chart *c, double (*value)(const ScalePoint *), const char *class) {
    text_add(c->out, "<path class=\"%s\" d=\"", class);
    for (int i = 0; i < c->count; i++)
        text_add(c->out, "%c%.1f %.1f", i ? 'L' : 'M', x_of(c, c->points[i].devices),
                 y_of(c, value(&c->points[i])));
    text_add(c->out, "\"/>\n");
}

static void add_points(const Chart *c, double (*value)(const ScalePoint *), Word (*word)(double)) {
    for (int i = 0; i < c->count; i++) {
        const ScalePoint *p = &c->points[i];
        bool chosen = p->devices == c->chosen;
        double x = x_of(c, p->devices), y = y_of(c, value(p));
        text_add(c->out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"><title>%s devices as ",
                 chosen ? "chosen" : "point", x, y, chosen ? "4.5" : "3", word_count(p->devices).text);
        html_grid(c->out, &p->prediction.config);
        text_add(c->out, ": %s</title></circle>\n", word(value(p)).text);
        if (!chosen) continue;
        bool end = x > WIDTH - RIGHT - 70;
        text_add(c->out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s strong\">%s</text>\n", x + (end ? -9 : 9),
                 y - 9, end ? "end" : "start", word(value(p)).text);
    }
}

static void add_intervals(const Chart *c) {
    for (int i = 0; i < c->count; i++) {
        const Prediction *p = &c->points[i].prediction;
        text_add(c->out, "<path class=\"interval\" d=\"M%.1f %.1fV%.1f\"/>", x_of(c, c->points[i].devices),
                 y_of(c, p->low_s), y_of(c, p->high_s));
    }
    text_add(c->out, "\n");
}

static void open_chart(const Chart *c) {
    text_add(c->out,
             "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s over the number of "
             "devices\">\n<text x=\"0\" y=\"14\" class=\"strong\">%s</text>\n",
             WIDTH, HEIGHT, c->title, c->title);
    add_y_ticks(c);
    add_x_ticks(c);
}

static double ideal_s(const Chart *c, int i) {
    return step_of(&c->points[0]) * c->points[0].devices / c->points[i].devices;
}

static void draw_step_chart(Chart *c) {
    c->title = "Step time, seconds", c->log_y = true;
    c->least = ideal_s(c, c->count - 1), c->most = 0;
    for (int i = 0; i < c->count; i++) {
        c->least = fmin(c->least, c->points[i].prediction.low_s);
        c->most = fmax(c->most, c->points[i].prediction.high_s);
    }
    c->least /= 1.1, c->most *= 1.25;
    open_chart(c);
    text_add(c->out, "<path class=\"ideal\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", x_of(c, c->points[0].devices),
             y_of(c, ideal_s(c, 0)), x_of(c, c->points[c->count - 1].devices),
             y_of(c, ideal_s(c, c->count - 1)));
    add_intervals(c);
    add_line(c, step_of, "line");
    add_points(c, step_of, word_seconds);
    text_add(c->out, "</svg>\n");
}

static void draw_rate_chart(Chart *c) {
    c->title = "TFLOP/s of a device", c->log_y = false;
    c->least = 0, c->most = 0;
    for (int i = 0; i < c->count; i++) c->most = fmax(c->most, rate_of(&c->points[i]));
    double first = rate_of(&c->points[0]);
    c->most *= 1.2;
    open_chart(c);
    text_add(c->out, "<path class=\"ideal\" d=\"M%.1f %.1fH%.1f\"/>\n", x_of(c, c->points[0].devices),
             y_of(c, first), x_of(c, c->points[c->count - 1].devices));
    add_line(c, rate_of, "line");
    add_points(c, rate_of, word_number);
    text_add(c->out, "</svg>\n");
}

void page_scaling(const PlanPage *page, Text *out) {
    const ParallelConfig *best = &page->report->chosen->config;
    Chart chart = {.points = page->scaling,
                   .count = page->num_scaling,
                   .chosen = parallel_config_devices(best),
                   .out = out};
    if (chart.count < 2) return;
    text_add(
        out,
        "<section>\n<h2>On more or fewer devices</h2>\n<p>The same batch of %s sample%s, at its best on each "
        "number of devices. Dashed: as if nothing were lost beyond %s device%s.</p>\n<div "
        "class=\"charts\">\n",
        word_count(best->batch).text, best->batch > 1 ? "s" : "", word_count(chart.points[0].devices).text,
        chart.points[0].devices > 1 ? "s" : "");
    draw_step_chart(&chart);
    draw_rate_chart(&chart);
    text_add(out, "</div>\n</section>\n");
}
