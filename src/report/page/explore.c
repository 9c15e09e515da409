// Other questions: answers computed when the page is written, among which its reader chooses. What the script computes
// itself is time, money and energy of a run, as plan_run.c does, and the front.
#include "formats/formats.h"
#include "report/page/parts.h"
#include <string.h>

static void add_string(const char *key, const char *value, Text *out) {
    text_add(out, ", \"%s\": ", key);
    json_add_string(out, value, strlen(value));
}

static void add_number(const char *key, double value, Text *out) {
    text_add(out, ", \"%s\": ", key);
    json_add_double(out, value);
}

// Adds HTML that `add` writes about a report.
static void add_html(const char *key, void (*write)(const PlanReport *report, Text *html),
                     const PlanReport *report, Text *out) {
    Text html = {0};
    write(report, &html);
    add_string(key, text_string(&html), out);
    text_free(&html);
}

static void add_question(const PlanReport *a, const char *machine, Text *out) {
    text_add(out, "{\"gpus\": %d, \"batch\": %d, \"seq\": %d", a->space->devices, a->space->batch,
             a->model->sequence);
    add_string("machine", machine, out);
}

static void add_answer(const PlanReport *a, Text *out) {
    const Prediction *p = a->chosen;
    add_number("step_s", p->step_s, out);
    add_number("low_s", p->low_s, out);
    add_number("high_s", p->high_s, out);
    add_string("step", word_seconds(p->step_s).text, out);
    add_string("mfu", word_percent(p->mfu).text, out);
    add_string("memory", word_gb(p->memory.total).text, out);
    add_string("fits", verdict_word(memory_verdict(&p->memory)), out);
    text_add(out, ", \"extrapolates\": %s", plan_report_extrapolates(a, p) ? "true" : "false");
    add_html("advice", html_advice, a, out);
    add_html("figures", html_step_figures, a, out);
}

static void add_cell(const SweepCell *cell, Text *out) {
    const PlanReport *a = &cell->report;
    Text power = {0};
    add_question(a, cell->machine, out);
    add_number("price", a->price, out);
    add_number("watts", machine_watts(a->costs->machine), out);
    add_power(a->costs->machine, 1, &power); // the script adds the PUE
    add_string("power", text_string(&power), out);
    text_free(&power);
    add_string("device", device_word(a->costs->machine), out);
    if (a->chosen)
        add_answer(a, out);
    else
        add_string("why", cell->why, out);
    text_add(out, "}");
}

static void add_data(const PlanPage *page, Text *out) {
    const PlanReport *a = page->report;
    text_add(out, "{\"asked\": ");
    add_question(a, page->machine, out);
    text_add(out, "}");
    add_number("tokens", a->tokens, out);
    add_number("goodput", a->goodput, out);
    add_number("pue", a->pue, out);
    text_add(out, ",\n\"cells\": [");
    for (int i = 0; i < page->sweep->count; i++) {
        text_add(out, i ? ",\n" : "\n");
        add_cell(&page->sweep->cells[i], out);
    }
    text_add(out, "]}\n");
}

void page_explore(const PlanPage *page, Text *out) {
    Text data = {0};
    if (!page->sweep || page->sweep->count < 2) return;
    add_data(page, &data);
    text_add(
        out,
        "<section id=\"explore\">\n<h2>Other questions</h2>\n<p>The planner answered each of these when "
        "the page was written; <code>--vary</code> says which. Price, tokens and what follows from them are "
        "free.</p>\n<noscript><p class=\"caution\">To choose here needs JavaScript; <code>trireme plan "
        "--vary</code> prints the same answers.</p></noscript>\n<script type=\"application/json\" "
        "id=\"answers\">\n");
    // No text of a string may end the script.
    for (const char *c = text_string(&data); *c; c++) text_add(out, *c == '<' ? "\\u003c" : "%c", *c);
    text_add(out, "</script>\n<script>\n%s</script>\n</section>\n", page_part("explore"));
    text_free(&data);
}
