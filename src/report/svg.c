// Draws schedules as SVG.
#include "report/internal.h"
#include <math.h>
#include <stdio.h>

enum {
    LEFT = 72,
    RIGHT = 28,
    TOP = 70,
    AXIS = 44,
    LEGEND = 40,
    CAPTION = 30,
    NARROWEST = 620,
    WIDEST = 2400
}; // in pixels

typedef struct {
    int red, green, blue;
} Colour;

// Colours of the first and the last chunk; those of other chunks are between them.
typedef struct {
    const char *name, *class;
    Colour dark, light;
} Ink;

static const Ink forward_ink = {"forward", "f", {52, 104, 168}, {176, 207, 238}};
static const Ink backward_ink = {"backward", "b", {62, 137, 88}, {183, 222, 184}};
static const Ink weight_ink = {"weight gradient", "w", {196, 132, 28}, {246, 216, 150}};

typedef struct {
    const Schedule *schedule;
    const Panel *panels; // one below the other
    int num_panels;
    PanelTimes times;
    double pixels_per_us, plot_width, row_height, row_gap, font_size;
    bool numbered; // every cell has room for its number
    Text *out;
} Drawing;

static const Ink *ink_of(Instr in) {
    return in.op == OP_FORWARD ? &forward_ink : in.op == OP_BACKWARD_WEIGHT ? &weight_ink : &backward_ink;
}

static bool is_split(const Schedule *schedule) {
    for (int i = 0; i < schedule->programs[0].count; i++)
        if (schedule->programs[0].instrs[i].op == OP_BACKWARD_WEIGHT) return true;
    return false;
}

// ---- layout -------------------------------------------------------------------------------------------

// Makes cells wide enough for their numbers, within the limits of a page.
static Drawing plan(const Schedule *schedule, const Panel *panels, int num_panels, Text *out) {
    PanelTimes times = panel_times(schedule, panels, num_panels);
    if (times.total_us <= 0) times = (PanelTimes){1, 1};
    double total = times.total_us, shortest = times.shortest_us;
    double digits = floor(log10(fmax(1, schedule->num_microbatches - 1))) + 1;
    double width = fmin(fmax((10 + 7 * digits) * total / shortest, NARROWEST), WIDEST);
    double height = fmin(28, fmax(5, 640.0 / schedule->num_ranks));
    return (Drawing){.schedule = schedule,
                     .panels = panels,
                     .num_panels = num_panels,
                     .times = times,
                     .pixels_per_us = width / total,
                     .plot_width = width,
                     .row_height = height,
                     .row_gap = height > 10 ? 4 : 1,
                     .font_size = fmin(12, 0.62 * height),
                     .numbered = height > 10 && shortest * width / total >= 3 + 7 * digits,
                     .out = out};
}

// The name of a panel is printed above its rows.
static double panel_top(const Drawing *d, int panel) {
    double caption = d->panels[0].name ? CAPTION : 0;
    double rows = d->schedule->num_ranks * (d->row_height + d->row_gap);
    return TOP + caption + panel * (rows + caption);
}

static double row_top(const Drawing *d, int panel, int rank) {
    return panel_top(d, panel) + rank * (d->row_height + d->row_gap);
}

static double rows_end(const Drawing *d) { return row_top(d, d->num_panels - 1, d->schedule->num_ranks); }

// ---- pieces -------------------------------------------------------------------------------------------

static void add_escaped(Text *out, const char *string) {
    for (; *string; string++) {
        unsigned char c = (unsigned char)*string;
        if (c == '&' || c == '<' || c == '>' || c == '"')
            text_add(out, "&#%d;", c);
        else
            text_add(out, "%c", c < ' ' ? ' ' : c);
    }
}

static Colour mix(const Ink *ink, double t) {
    return (Colour){(int)lround(ink->dark.red + t * (ink->light.red - ink->dark.red)),
                    (int)lround(ink->dark.green + t * (ink->light.green - ink->dark.green)),
                    (int)lround(ink->dark.blue + t * (ink->light.blue - ink->dark.blue))};
}

// Two classes for each chunk: its cells, and the numbers in them, white on dark and black on light.
static void draw_styles(const Drawing *d, const Ink *ink) {
    int chunks = d->schedule->num_chunks;
    for (int c = 0; c < chunks; c++) {
        double t = chunks > 1 ? (double)c / (chunks - 1) : 0;
        Colour colour = mix(ink, t);
        text_add(d->out, ".%s%d{fill:#%02x%02x%02x}.cell .%s%d+text{fill:%s}\n", ink->class, c, colour.red,
                 colour.green, colour.blue, ink->class, c, t < 0.5 ? "#fff" : "#111");
    }
}

static void draw_bubble(const Drawing *d, const Simulation *sim) {
    text_add(d->out, "%.6g µs, bubble %.4g %% of the ideal time (idle %.4g %% of the total)</text>\n",
             sim->total_us, 100 * sim->bubble, 100 * sim->bubble / (1 + sim->bubble));
}

static void draw_caption(const Drawing *d, int panel) {
    bool named = d->panels[panel].name;
    text_add(d->out, "<text x=\"%d\" y=\"%.0f\" style=\"fill:#555\">", LEFT,
             named ? panel_top(d, panel) - 10 : 50);
    if (named) text_add(d->out, "%s: ", d->panels[panel].name);
    draw_bubble(d, d->panels[panel].simulation);
}

static void draw_head(const Drawing *d, const char *title) {
    double width = LEFT + d->plot_width + RIGHT, height = rows_end(d) + AXIS + LEGEND;
    text_add(
        d->out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n<style>\n",
        width, height, width, height);
    text_add(d->out, "text{fill:#222}.cell text{text-anchor:middle;font-size:%.1fpx}\n", d->font_size);
    draw_styles(d, &forward_ink);
    draw_styles(d, &backward_ink);
    if (is_split(d->schedule)) draw_styles(d, &weight_ink);
    text_add(d->out, "</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    text_add(d->out, "<text x=\"%d\" y=\"28\" font-size=\"16\" font-weight=\"bold\">", LEFT);
    add_escaped(d->out, title);
    text_add(d->out, "</text>\n");
}

static void draw_cell(const Drawing *d, double y, Instr in, Span span) {
    double x = LEFT + span.start_us * d->pixels_per_us,
           width = (span.end_us - span.start_us) * d->pixels_per_us;
    double gap = width > 4 ? 1 : 0;
    text_add(d->out, "<rect class=\"%s%d\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>",
             ink_of(in)->class, in.chunk, x + gap / 2, y, width - gap, d->row_height);
    if (d->numbered)
        text_add(d->out, "<text x=\"%.2f\" y=\"%.2f\">%d</text>", x + width / 2,
                 y + d->row_height / 2 + 0.36 * d->font_size, in.microbatch);
    text_add(d->out, "\n");
}

static void draw_row(const Drawing *d, int panel, int rank) {
    const Program *program = &d->schedule->programs[rank];
    const Span *spans = d->panels[panel].simulation->spans[rank];
    double y = row_top(d, panel, rank);
    text_add(d->out, "<rect x=\"%d\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"#e9e9ec\"/>\n", LEFT, y,
             d->plot_width, d->row_height);
    if (d->font_size >= 6)
        text_add(d->out, "<text x=\"%d\" y=\"%.2f\" text-anchor=\"end\" font-size=\"%.1f\">rank %d</text>\n",
                 LEFT - 10, y + d->row_height / 2 + 0.36 * d->font_size, d->font_size, rank);
    text_add(d->out, "<g class=\"cell\">\n");
    for (int i = 0; i < program->count; i++)
        if (is_compute(program->instrs[i])) draw_cell(d, y, program->instrs[i], spans[i]);
    text_add(d->out, "</g>\n");
}

// Returns the smallest 1, 2 or 5 times a power of ten that leaves 60 pixels between ticks.
static double tick_us(const Drawing *d) {
    double least = 60 / d->pixels_per_us, power = pow(10, floor(log10(least)));
    double factor = least / power;
    return power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
}

static void draw_axis(const Drawing *d) {
    double y = rows_end(d) + 2, step = tick_us(d);
    text_add(d->out, "<path d=\"M%d %.2fh%.2f", LEFT, y, d->plot_width);
    for (double us = 0; us <= d->times.total_us * (1 + 1e-9); us += step)
        text_add(d->out, "M%.2f %.2fv5", LEFT + us * d->pixels_per_us, y);
    text_add(d->out, "\" stroke=\"#555\" fill=\"none\"/>\n<g font-size=\"11\" text-anchor=\"middle\">\n");
    for (double us = 0; us <= d->times.total_us * (1 + 1e-9); us += step)
        text_add(d->out, "<text x=\"%.2f\" y=\"%.2f\">%.6g</text>\n", LEFT + us * d->pixels_per_us, y + 18,
                 us);
    text_add(d->out, "</g>\n<text x=\"%d\" y=\"%.2f\" text-anchor=\"end\" font-size=\"11\">time, µs</text>\n",
             LEFT - 10, y + 18);
}

static double draw_key(const Drawing *d, double x, const Ink *ink) {
    enum { SWATCH = 14 };
    int chunks = d->schedule->num_chunks;
    double y = rows_end(d) + AXIS;
    for (int c = 0; c < chunks; c++, x += SWATCH)
        text_add(d->out, "<rect class=\"%s%d\" x=\"%.2f\" y=\"%.2f\" width=\"%d\" height=\"%d\"/>",
                 ink->class, c, x, y, SWATCH - 1, SWATCH);
    char label[64];
    int length =
        snprintf(label, sizeof label, chunks > 1 ? "%s, chunk 0 to %d" : "%s", ink->name, chunks - 1);
    text_add(d->out, "<text x=\"%.2f\" y=\"%.2f\">%s</text>\n", x + 5, y + 11.5, label);
    return x + 6.6 * length + 24;
}

static void draw_legend(const Drawing *d) {
    double x = draw_key(d, LEFT, &forward_ink), y = rows_end(d) + AXIS;
    x = draw_key(d, x, &backward_ink);
    if (is_split(d->schedule)) x = draw_key(d, x, &weight_ink);
    text_add(d->out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"13\" height=\"14\" fill=\"#e9e9ec\"/>", x, y);
    text_add(d->out, "<text x=\"%.2f\" y=\"%.2f\">idle</text>\n", x + 19, y + 11.5);
}

void svg_panels(const Schedule *schedule, const Panel *panels, int num_panels, const char *title, Text *out) {
    Drawing drawing = plan(schedule, panels, num_panels, out);
    draw_head(&drawing, title);
    for (int p = 0; p < num_panels; p++) {
        draw_caption(&drawing, p);
        for (int r = 0; r < schedule->num_ranks; r++) draw_row(&drawing, p, r);
    }
    draw_axis(&drawing);
    draw_legend(&drawing);
    text_add(out, "</svg>\n");
}

void timeline_svg(const Schedule *schedule, const Simulation *simulation, const char *title, Text *out) {
    svg_panels(schedule, &(Panel){NULL, simulation}, 1, title, out);
}
