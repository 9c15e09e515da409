// The tables of a page: ranking, times of the step, reasons, rejected configurations, accuracy.
#include "report/page/parts.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- ranking ------------------------------------------------------------------------------------------

// The columns of the table, in order. Numbers are aligned to the right, and can be sorted by.
static const struct {
    const char *name, *meaning;
    bool numeric, sorted;
} columns[] = {
    {"#", "rank", true, true},
    {"t·p·d", "tensor, pipeline, data parallel; c: ranks of a sequence; ep: ranks of a layer's experts",
     false, false},
    {"v", "chunks of the model on a rank", true, true},
    {"b", "samples in a microbatch", true, true},
    {"again", "what the backward computes again", false, false},
    {"step", "seconds", true, true},
    {"interval", "seconds; what it rests on is said below", false, false},
    {"TFLOP/s", "of a device, what is computed again counted", true, true},
    {"bubble", "idle time of the pipeline, over the ideal time", true, true},
    {"memory", "of the fullest device; the line is what it has", false, true},
    {"where the time goes", "of one step, on one scale", false, false},
};

enum { NUM_COLUMNS = sizeof columns / sizeof *columns };

static void add_heads(Text *out) {
    text_add(out, "<thead><tr>");
    for (int i = 0; i < NUM_COLUMNS; i++)
        text_add(out, "<th scope=\"col\"%s%s title=\"%s\">%s</th>", columns[i].numeric ? " class=\"n\"" : "",
                 columns[i].sorted ? " data-sort=\"\"" : "", columns[i].meaning, columns[i].name);
    text_add(out, "</tr></thead>\n");
}

static void add_number(Text *out, double value, Word word) {
    text_add(out, "<td class=\"n\" data-value=\"%.6g\">%s</td>", value, word.text);
}

static void add_grid(Text *out, const ParallelConfig *c) {
    text_add(out, "<th scope=\"row\">");
    html_grid(out, c);
    if (c->sequence_parallel) text_add(out, " <abbr title=\"sequence parallel\">sp</abbr>");
    if (c->zero_stage)
        text_add(out, " <abbr title=\"cut over replicas: %s\">z%d</abbr>", sharding_names[c->zero_stage],
                 c->zero_stage);
    text_add(out, "</th>");
}

static void add_row(Text *out, const Prediction *p, int position, double slowest, double fullest) {
    const ParallelConfig *c = &p->config;
    text_add(out, position ? "<tr>" : "<tr class=\"asked\">");
    add_number(out, position, position ? word_count(position) : (Word){"asked"});
    add_grid(out, c);
    add_number(out, c->chunks, word_count(c->chunks));
    add_number(out, c->microbatch, word_count(c->microbatch));
    text_add(out, "<td>%s</td>", recompute_word(c->recompute));
    add_number(out, p->step_s, word_seconds(p->step_s));
    text_add(out, "<td class=\"range\">%s–%s%s</td>", word_number(p->low_s).text, word_number(p->high_s).text,
             p->extrapolates ? "<abbr title=\"extrapolated\">*</abbr>" : "");
    add_number(out, p->tflops, word_number(p->tflops));
    add_number(out, p->bubble, word_percent(p->bubble));
    text_add(out, "<td data-value=\"%.6g\"><span class=\"memory\">%s", p->memory.total,
             word_gb(p->memory.total).text);
    html_memory_bar(out, &p->memory, fullest);
    text_add(out, "</span></td><td class=\"time\">");
    html_step_bar(out, &p->parts, slowest);
    text_add(out, "</td></tr>\n");
}

static void add_rows(const PlanReport *a, Text *out) {
    double slowest = a->chosen->step_s, fullest = fmax(a->chosen->memory.total, a->chosen->memory.capacity);
    for (int i = 0; i < a->result->count; i++) {
        slowest = fmax(slowest, a->result->best[i].step_s);
        fullest = fmax(fullest, a->result->best[i].memory.total);
    }
    fullest *= 1.02; // the line of the device's capacity stays visible
    if (a->given) add_row(out, a->chosen, 0, slowest, fullest);
    for (int i = 0; i < a->result->count; i++) add_row(out, &a->result->best[i], i + 1, slowest, fullest);
}

static void add_comparison(const PlanReport *a, Text *out) {
    Text why = {0};
    plan_compare(&a->result->best[0], a->chosen, &why);
    text_add(out, "<p>Of all, the first is the best; what was asked is ");
    html_text(out, text_string(&why));
    text_add(out, ".</p>\n");
    text_free(&why);
}

void page_ranking(const PlanPage *page, Text *out) {
    const PlanReport *a = page->report;
    if (!a->result || !a->result->count) return;
    text_add(out, "<section>\n<h2>Ranking</h2>\n");
    if (a->given) add_comparison(a, out);
    html_legend(out, step_inks, NUM_STEP_PARTS);
    text_add(out, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Ranking\">"
                  "<table class=\"ranking\">\n");
    add_heads(out);
    text_add(out, "<tbody>\n");
    add_rows(a, out);
    text_add(out, "</tbody></table></div>\n</section>\n");
}

// ---- the winner's step ----------------------------------------------------------------------------------

static void add_step_rows(const Prediction *p, Text *out) {
    double seconds[NUM_STEP_PARTS], most = 0;
    step_parts(&p->parts, seconds);
    for (int i = 0; i < NUM_STEP_PARTS; i++) most = fmax(most, seconds[i]);
    for (int i = 0; i < NUM_STEP_PARTS; i++) {
        if (seconds[i] < 5e-5 * p->step_s) continue;
        Ink ink = step_inks[i];
        if (i == STEP_MESSAGES) ink.name = messages_word(&p->config, &p->config);
        text_add(out, "<tr><th scope=\"row\">%s</th><td class=\"wide\">", ink.name);
        html_bar(out, (Bar){&ink, &seconds[i], 1, most, 0, word_seconds});
        text_add(out, "</td><td class=\"n\">%s</td><td class=\"n\">%s</td></tr>\n",
                 word_seconds(seconds[i]).text, word_percent(seconds[i] / p->step_s).text);
    }
}

static void add_traffic(const Prediction *p, Text *out) {
    if (p->edge_bandwidth <= 0 && p->data_bandwidth <= 0) return;
    text_add(out, "<p>Through the middle of the machine go");
    if (p->edge_bandwidth > 0)
        text_add(out, " %s&#160;GB/s while stages exchange their messages of %s&#160;MB",
                 word_number(p->edge_bandwidth / 1e9).text, word_number(p->edge_bytes / 1e6).text);
    if (p->data_bandwidth > 0)
        text_add(out, "%s %s&#160;GB/s while gradients are reduced", p->edge_bandwidth > 0 ? "," : "",
                 word_number(p->data_bandwidth / 1e9).text);
    text_add(out, ".</p>\n");
}

void page_step(const PlanPage *page, Text *out) {
    const Prediction *p = page->report->chosen;
    text_add(out, "<section>\n<h2>Where the time goes</h2>\n<p>One step, on the busiest "
                  "pipeline rank.</p>\n<div class=\"scroll\"><table class=\"bars\"><tbody>\n");
    add_step_rows(p, out);
    text_add(out,
             "</tbody><tfoot><tr><th scope=\"row\">step</th><td></td><td class=\"n\">%s</td><td></td></tr>"
             "</tfoot></table></div>\n",
             word_seconds(p->step_s).text);
    add_traffic(p, out);
    text_add(out, "</section>\n");
}

// ---- why it wins ------------------------------------------------------------------------------------------

enum { MAX_SHOWN = 8 }; // alternatives that are shown; the others unfold with a click

// Alternatives of equal time keep their order.
static int by_step(const void *a, const void *b) {
    const Alternative *x = *(const Alternative *const *)a, *y = *(const Alternative *const *)b;
    if (x->prediction.step_s == y->prediction.step_s) return (x > y) - (x < y);
    return x->prediction.step_s < y->prediction.step_s ? -1 : 1;
}

// Returns whether two choices led to the same configuration.
static bool same_run(const Prediction *a, const Prediction *b) {
    const ParallelConfig *x = &a->config, *y = &b->config;
    return a->step_s == b->step_s && grid_along(x->grid, AXIS_TP) == grid_along(y->grid, AXIS_TP) &&
           grid_along(x->grid, AXIS_PP) == grid_along(y->grid, AXIS_PP) &&
           grid_along(x->grid, AXIS_CP) == grid_along(y->grid, AXIS_CP) &&
           grid_along(x->grid, AXIS_EP) == grid_along(y->grid, AXIS_EP) && x->chunks == y->chunks &&
           x->microbatch == y->microbatch && x->recompute == y->recompute;
}

// Returns the end of the equal alternatives that begin at `first`.
static int end_of_equals(const Alternative **all, int count, int first) {
    int end = first + 1;
    while (end < count && same_run(&all[first]->prediction, &all[end]->prediction)) end++;
    return end;
}

// Returns the text after the colon: how much slower the alternative is has a column of its own.
static void add_differences(const Prediction *best, const Prediction *other, Text *out) {
    Text text = {0};
    plan_compare(best, other, &text);
    const char *colon = strchr(text_string(&text), ':');
    html_text(out, colon ? colon + 1 : text_string(&text));
    text_free(&text);
}

static void add_alternative(const Prediction *best, const Alternative **equals, int count, double slowest,
                            Text *out) {
    const Prediction *other = &equals[0]->prediction;
    const ParallelConfig *c = &other->config;
    text_add(out, "<tr><th scope=\"row\">");
    for (int i = 0; i < count; i++) {
        text_add(out, "%s", i ? ", " : "");
        html_text(out, equals[i]->choice);
    }
    text_add(out, "<small>");
    html_grid(out, c);
    text_add(out, ", v %d, b %d</small></th><td class=\"n\">%s</td><td class=\"n\">%s</td>", c->chunks,
             c->microbatch, word_seconds(other->step_s).text,
             word_change(other->step_s / best->step_s - 1).text);
    text_add(out, "<td class=\"time\">");
    html_step_bar(out, &other->parts, slowest);
    text_add(out, "<small>");
    add_differences(best, other, out);
    text_add(out, "</small></td></tr>\n");
}

static void add_alternatives(const Prediction *best, const Alternative **all, int count, Text *out) {
    text_add(out,
             "<div class=\"scroll\"><table class=\"reasons\"><thead><tr><th scope=\"col\">choice</th><th "
             "scope=\"col\" class=\"n\">step</th><th scope=\"col\" class=\"n\">change</th><th "
             "scope=\"col\">where the time goes, and what differs</th></tr></thead><tbody>\n");
    for (int i = 0, end; i < count; i = end) {
        end = end_of_equals(all, count, i);
        add_alternative(best, all + i, end - i, all[count - 1]->prediction.step_s, out);
    }
    text_add(out, "</tbody></table></div>\n");
}

void page_reasons(const PlanPage *page, Text *out) {
    const PlanResult *r = page->report->result;
    const Alternative *all[MAX_ALTERNATIVES];
    if (!r || !r->num_alternatives || page->report->given) return;
    int count = r->num_alternatives, shown = 0;
    for (int i = 0; i < count; i++) all[i] = &r->alternatives[i];
    qsort(all, (size_t)count, sizeof *all, by_step);
    for (int row = 0; row < MAX_SHOWN && shown < count; row++) shown = end_of_equals(all, count, shown);
    text_add(out, "<section>\n<h2>Why it wins</h2>\n<p>The best that is left when one choice is made "
                  "otherwise; differences in percent of the step.</p>\n");
    html_legend(out, step_inks, NUM_STEP_PARTS);
    add_alternatives(&r->best[0], all, shown, out);
    if (count > shown) {
        text_add(out, "<details><summary>%d slower ones</summary>\n", count - shown);
        add_alternatives(&r->best[0], all + shown, count - shown, out);
        text_add(out, "</details>\n");
    }
    text_add(out, "</section>\n");
}

// ---- what was left out ------------------------------------------------------------------------------------

static void add_rejects(const PlanResult *r, Reject reject, const char *what, Text *out) {
    if (!r->rejected[reject]) return;
    text_add(out, "<tr><td class=\"n\">%s</td><th scope=\"row\">%s</th><td>",
             word_count((double)r->rejected[reject]).text, what);
    html_text(out, r->examples[reject]);
    text_add(out, "</td></tr>\n");
}

void page_rejected(const PlanPage *page, Text *out) {
    const PlanResult *r = page->report->result;
    if (!r) return;
    text_add(out,
             "<section>\n<h2>What was left out</h2>\n<p>%s configurations were tried, %s of them "
             "replayed.</p>\n<div class=\"scroll\"><table class=\"rejected\"><thead><tr><th scope=\"col\" "
             "class=\"n\">left out</th><th scope=\"col\">because they</th><th scope=\"col\">one of "
             "them</th></tr></thead><tbody>\n",
             word_count((double)r->tried).text, word_count((double)r->replayed).text);
    add_rejects(r, REJECT_RULE, "break a rule", out);
    add_rejects(r, REJECT_MEMORY, "do not fit into the memory", out);
    add_rejects(r, REJECT_BOUND, "cannot be faster than what was found", out);
    text_add(out, "</tbody></table></div>\n</section>\n");
}

// ---- how far to trust it ------------------------------------------------------------------------------------

static void add_hull(const Accuracy *a, bool outside, Text *out) {
    text_add(out, "<p%s>%s %s to %s devices, hidden sizes %s to %s, t %s to %s, sequences of %s to %s.</p>\n",
             outside ? " class=\"caution\"" : "",
             outside ? "This plan is an extrapolation; those runs had" : "Those runs had",
             word_count(a->least_gpus).text, word_count(a->most_gpus).text, word_count(a->least_hidden).text,
             word_count(a->most_hidden).text, word_count(a->least_tp).text, word_count(a->most_tp).text,
             word_count(a->least_sequence).text, word_count(a->most_sequence).text);
}

void page_accuracy(const PlanPage *page, Text *out) {
    const PlanReport *report = page->report;
    const Stack *stack = report->costs->stack;
    Text sentence = {0};
    accuracy_sentence(report, &sentence);
    text_add(out, "<section>\n<h2>How far to trust it</h2>\n<p>");
    html_text(out, text_string(&sentence));
    text_add(out, "</p>\n");
    text_free(&sentence);
    if (stack->accuracy.count && stack->accuracy.most_gpus > 0)
        add_hull(&stack->accuracy, report->chosen->extrapolates, out);
    text_add(
        out,
        "<p>TFLOP/s count what is computed, also what is computed again; HFU is their share of the peak. "
        "MFU counts the model alone: 6 FLOPs for every weight and token, and attention in full, which for "
        "a GPT is 72BLSH²(1 + S/6H + V/12LH) (Korthikanti 2022, equation 7). The bubble is idle time over "
        "ideal time (Narayanan 2021).</p>\n</section>\n");
}
