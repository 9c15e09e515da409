// The memory of every pipeline rank as a column, below a line for the device's capacity; the fullest rank in
// numbers.
#include "report/page/parts.h"
#include <math.h>
#include <stdlib.h>

enum { WIDTH = 480, HEIGHT = 270, LEFT = 44, RIGHT = 8, TOP = 34, BOTTOM = 40 };

typedef struct {
    const MemoryNeed *needs;
    int count, first_rank;
    double pixels_per_byte, pitch;
    Text *out;
} Columns;

static double y_of(const Columns *c, double bytes) { return HEIGHT - BOTTOM - bytes * c->pixels_per_byte; }

static void add_column(const Columns *c, int i) {
    double bytes[NUM_MEMORY_PARTS], sum = 0, x = LEFT + i * c->pitch;
    memory_parts(&c->needs[i], bytes);
    text_add(c->out, "<g><title>rank %d: %s, %s of what it has</title>", c->first_rank + i,
             word_gb(c->needs[i].total).text, word_percent(c->needs[i].total / c->needs[i].capacity).text);
    for (int part = 0; part < NUM_MEMORY_PARTS; part++) {
        sum += bytes[part];
        double height = bytes[part] * c->pixels_per_byte;
        if (height < 0.05) continue;
        text_add(c->out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
                 memory_inks[part].class, x, y_of(c, sum), 0.8 * c->pitch, height);
    }
    text_add(c->out, "</g>\n");
}

static void add_scale(const Columns *c, double most_gb) {
    double step = tick_step(most_gb);
    for (double gb = 0; gb <= most_gb; gb += step)
        text_add(
            c->out,
            "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" class=\"end\">%g</text>\n",
            LEFT, y_of(c, 1e9 * gb), WIDTH - RIGHT, LEFT - 8, y_of(c, 1e9 * gb) + 4, gb);
    int every = (int)ceil(22 / c->pitch);
    for (int i = 0; i < c->count; i += every)
        text_add(c->out, "<text x=\"%.1f\" y=\"%d\" class=\"middle\">%d</text>\n",
                 LEFT + (i + 0.4) * c->pitch, HEIGHT - BOTTOM + 17, c->first_rank + i);
    text_add(c->out, "<text x=\"%d\" y=\"%d\" class=\"end\">pipeline rank</text>\n", WIDTH - RIGHT,
             HEIGHT - 4);
}

// Memory of all pipeline ranks; NULL for trireme itself, of which only the fullest rank is known to the byte.
static MemoryNeed *needs_of(const PlanReport *report) {
    const ParallelConfig *c = &report->chosen->config;
    if (report->costs->stack->is_trireme) return NULL;
    MemoryNeed *needs = calloc((size_t)grid_along(c->grid, AXIS_PP), sizeof *needs);
    Status status = needs ? OK : ERR_OS;
    for (int rank = 0; rank < grid_along(c->grid, AXIS_PP) && status == OK; rank++)
        status = memory_of_rank(report->costs, report->model, c, rank, &needs[rank]);
    if (status == OK) return needs;
    free(needs);
    return NULL;
}

static void add_columns(const PlanReport *report, Text *out) {
    const Prediction *chosen = report->chosen;
    const MemoryNeed *fullest = &chosen->memory;
    MemoryNeed *needs = needs_of(report);
    double most = fmax(fullest->capacity, fullest->total) * 1.05;
    Columns c = {.needs = needs ? needs : fullest,
                 .count = needs ? grid_along(chosen->config.grid, AXIS_PP) : 1,
                 .first_rank = needs ? 0 : fullest->rank,
                 .pixels_per_byte = (HEIGHT - TOP - BOTTOM) / most,
                 .out = out};
    c.pitch = fmin(60, (WIDTH - LEFT - RIGHT) / (double)c.count);
    text_add(
        out,
        "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"Memory of %d pipeline ranks\">\n"
        "<text x=\"0\" y=\"14\" class=\"strong\">GB of a %s</text>\n",
        WIDTH, HEIGHT, c.count, device_word(report->costs->machine));
    add_scale(&c, most / 1e9);
    for (int i = 0; i < c.count; i++) add_column(&c, i);
    double y = y_of(&c, fullest->capacity);
    text_add(
        out,
        "<path class=\"mark\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" class=\"end\">has %s</text>\n</svg>\n",
        LEFT, y, WIDTH - RIGHT, WIDTH - RIGHT, y - 5, word_gb(fullest->capacity).text);
    free(needs);
}

static void add_fullest(const MemoryNeed *need, Text *out) {
    double bytes[NUM_MEMORY_PARTS];
    memory_parts(need, bytes);
    text_add(out,
             "<table class=\"parts\"><thead><tr><th scope=\"col\">pipeline rank %d, the fullest</th><th "
             "scope=\"col\" class=\"n\">holds</th></tr></thead><tbody>\n",
             need->rank);
    for (int i = 0; i < NUM_MEMORY_PARTS; i++)
        text_add(out,
                 "<tr><th scope=\"row\"><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"%s\" "
                 "width=\"10\" height=\"10\"/></svg>%s</th><td class=\"n\">%s</td></tr>\n",
                 memory_inks[i].class, memory_inks[i].name, word_gb(bytes[i]).text);
    text_add(
        out,
        "</tbody><tfoot><tr><th scope=\"row\">total, ± %s</th><td class=\"n\">%s</td></tr></tfoot></table>\n",
        word_percent(need->margin).text, word_gb(need->total).text);
}

void page_memory(const PlanPage *page, Text *out) {
    text_add(out, "<section>\n<h2>Memory</h2>\n<div class=\"charts\">\n");
    add_columns(page->report, out);
    add_fullest(&page->report->chosen->memory, out);
    text_add(out, "</div>\n</section>\n");
}
