// Stacked bars of the times of a step and of the memory of a device, as HTML.
#include "report/page/parts.h"
#include <math.h>

const Ink step_inks[NUM_STEP_PARTS] = {
    {"computing", "compute"},
    {"computing again", "again"},
    {"messages over t and c", "tensor"},
    {"tokens to their experts", "tensor"},
    {"messages between stages", "stages"},
    {"waiting for other stages", "bubble"},
    {"reducing gradients", "data"},
    {"optimizer", "optimizer"},
    {"host", "other"},
};

const Ink memory_inks[NUM_MEMORY_PARTS] = {
    {"parameters", "compute"}, {"gradients", "again"},          {"optimizer", "optimizer"},
    {"activations", "data"},   {"ends of the model", "tensor"}, {"buffers", "stages"},
    {"reserve", "bubble"},
};

void step_parts(const Breakdown *p, double seconds[NUM_STEP_PARTS]) {
    const double all[NUM_STEP_PARTS] = {p->compute - p->recompute,
                                        p->recompute,
                                        p->tensor,
                                        p->experts,
                                        p->stages,
                                        p->bubble,
                                        p->data,
                                        p->optimizer,
                                        p->other};
    for (int i = 0; i < NUM_STEP_PARTS; i++) seconds[i] = fmax(0, all[i]);
}

void memory_parts(const MemoryNeed *n, double bytes[NUM_MEMORY_PARTS]) {
    const double all[NUM_MEMORY_PARTS] = {n->parameters, n->gradients, n->optimizer, n->activations,
                                          n->ends,       n->buffers,   n->reserve};
    for (int i = 0; i < NUM_MEMORY_PARTS; i++) bytes[i] = fmax(0, all[i]);
}

// ---- bars -----------------------------------------------------------------------------------------------

static void add_label(Text *out, const Bar *bar) {
    for (int i = 0, num_printed = 0; i < bar->count; i++)
        if (bar->values[i] > 0.0005 * bar->full)
            text_add(out, "%s%s %s", num_printed++ ? ", " : "", bar->inks[i].name,
                     bar->word(bar->values[i]).text);
}

void html_bar(Text *out, Bar bar) {
    double scale = 1000 / bar.full, x = 0;
    text_add(out, "<svg class=\"bar\" viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\" role=\"img\" "
                  "aria-label=\"");
    add_label(out, &bar);
    text_add(out, "\">");
    for (int i = 0; i < bar.count; i++) {
        double width = scale * bar.values[i];
        if (width >= 0.05)
            text_add(out,
                     "<rect class=\"%s\" x=\"%.1f\" width=\"%.1f\" height=\"10\"><title>%s %s</title></rect>",
                     bar.inks[i].class, x, width, bar.inks[i].name, bar.word(bar.values[i]).text);
        x += width;
    }
    if (bar.mark > 0) text_add(out, "<path class=\"mark\" d=\"M%.1f 0v10\"/>", scale * bar.mark);
    text_add(out, "</svg>");
}

void html_step_bar(Text *out, const Breakdown *parts, double full_s) {
    double seconds[NUM_STEP_PARTS];
    step_parts(parts, seconds);
    html_bar(out, (Bar){step_inks, seconds, NUM_STEP_PARTS, full_s, 0, word_seconds});
}

void html_memory_bar(Text *out, const MemoryNeed *need, double full_bytes) {
    double bytes[NUM_MEMORY_PARTS];
    memory_parts(need, bytes);
    html_bar(out, (Bar){memory_inks, bytes, NUM_MEMORY_PARTS, full_bytes, need->capacity, word_gb});
}

void html_legend(Text *out, const Ink *inks, int count) {
    text_add(out, "<ul class=\"legend\">");
    for (int i = 0; i < count; i++)
        text_add(out,
                 "<li><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"%s\" width=\"10\" "
                 "height=\"10\"/></svg>%s</li>",
                 inks[i].class, inks[i].name);
    text_add(out, "</ul>\n");
}
