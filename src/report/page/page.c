// Puts the page of a plan together: style, headline, recommendation, sections, script.
#include "report/page/parts.h"
#include <math.h>
#include <string.h>

// The style and the script: the files in this folder (cmake/ship.cmake).
extern const ShippedFile shipped_page[];
extern const int num_shipped_page;

const char *page_part(const char *name) {
    for (int i = 0; i < num_shipped_page; i++)
        if (!strcmp(shipped_page[i].name, name)) return shipped_page[i].text;
    CHECK(false, "no part of the page is named %s", name);
    return "";
}

// A model without a name is described by its sizes below.
static void add_name(const PlanReport *report, Text *out) {
    html_text(out, report->model_name ? report->model_name : "A model");
}

// ---- the head ---------------------------------------------------------------------------------------------

// The policy forbids the browser to load anything.
void html_head(Text *out, const char *title) {
    text_add(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                  "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                  "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                  "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
                  "<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n"
                  "<title>");
    html_text(out, title);
    text_add(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n", page_part("style"));
}

void html_end(Text *out) {
    text_add(out, "</main>\n<script>\n%s</script>\n</body>\n</html>\n", page_part("script"));
}

static void add_head(const PlanReport *report, Text *out) {
    Text title = {0};
    text_add(&title, "%s on %s %s", report->model_name ? report->model_name : "A model",
             word_count(parallel_config_devices(&report->chosen->config)).text, report->costs->machine->gpu);
    html_head(out, text_string(&title));
    text_free(&title);
}

static void add_model(const ModelShape *m, Text *out) {
    double parameters = (double)model_parameters(m);
    bool large = parameters >= 1e9;
    text_add(out,
             "<p class=\"question\">%s&#160;%s parameters: %d layers, hidden size %s, %d heads, sequences of "
             "%s. ",
             word_number(parameters / (large ? 1e9 : 1e6)).text, large ? "billion" : "million", m->layers,
             word_count(m->hidden).text, m->heads, word_count(m->sequence).text);
}

static void add_question(const PlanReport *report, Text *out) {
    const ParallelConfig *c = &report->chosen->config;
    const Machine *machine = report->costs->machine;
    text_add(out, "<header>\n<p class=\"kicker\">trireme plan</p>\n<h1>");
    add_name(report, out);
    text_add(out, " <span>on %s × ", word_count(parallel_config_devices(c)).text);
    html_text(out, machine->gpu);
    text_add(out, "</span></h1>\n");
    add_model(report->model, out);
    text_add(out, "A step takes %s of them, in %s. Machine: ", word_count(c->batch).text, products_word(c));
    html_text(out, machine->description[0] ? machine->description : machine->name);
    text_add(out, ".</p>\n</header>\n");
}

// ---- the recommendation --------------------------------------------------------------------------------

static void add_way(Text *out, int size, const char *axis, int *num_axes) {
    if (size > 1) text_add(out, "%s<b>%d-way %s</b>", (*num_axes)++ ? ", " : "", size, axis);
}

static void add_grid_words(const ParallelConfig *c, Text *out) {
    int num_axes = 0;
    add_way(out, grid_along(c->grid, AXIS_TP), "tensor", &num_axes);
    add_way(out, grid_along(c->grid, AXIS_PP), "pipeline", &num_axes);
    add_way(out, grid_along(c->grid, AXIS_CP), "context", &num_axes);
    add_way(out, grid_along(c->grid, AXIS_DP), "data", &num_axes);
    text_add(out, num_axes ? " parallel" : "on <b>one device</b>");
    int ep = grid_along(c->grid, AXIS_EP);
    if (ep > 1) text_add(out, ", experts over <b>%d ranks</b>", ep);
}

void html_advice(const PlanReport *report, Text *out) {
    const ParallelConfig *c = &report->chosen->config;
    text_add(out, report->given ? "Asked about: " : "Run it ");
    add_grid_words(c, out);
    text_add(out, ", with microbatches of <b>%d</b>", c->microbatch);
    if (grid_along(c->grid, AXIS_PP) > 1) text_add(out, " in the <b>%s</b> schedule", c->schedule);
    if (c->chunks > 1) text_add(out, " of <b>%d chunks</b> on each rank", c->chunks);
    if (c->recompute == RECOMPUTE_NOTHING)
        text_add(out, "; nothing is computed again");
    else
        text_add(out, "; in the backward <b>%s</b> %s computed again", recompute_word(c->recompute),
                 c->recompute == RECOMPUTE_SELECTIVE ? "is" : "are");
    if (c->sequence_parallel) text_add(out, "; sequence parallel");
    if (c->zero_stage == 1) text_add(out, "; distributed optimizer");
    if (c->zero_stage > 1) text_add(out, "; %s cut over replicas", cut_what(c->zero_stage));
    text_add(out, ".");
}

void html_figure(Text *out, const char *name, Word value, const char *note, ...) {
    char text[160];
    va_list args;
    va_start(args, note);
    vsnprintf(text, sizeof text, note, args);
    va_end(args);
    text_add(out, "<div><dt>%s</dt><dd>%s<small>%s</small></dd></div>\n", name, value.text, text);
}

static void add_energy_figure(const PlanReport *report, Text *out) {
    double kwh = plan_report_kwh(report, report->chosen->step_s);
    Text power = {0};
    add_power(report->costs->machine, report->pue, &power);
    if (kwh > 0) html_figure(out, "Energy, at most", word_energy(kwh), "%s", text_string(&power));
    text_free(&power);
}

static void add_run_figures(const PlanReport *report, Text *out) {
    const Prediction *p = report->chosen;
    if (report->tokens <= 0) return;
    html_figure(out, "Training", word_days(plan_report_seconds(report, p->step_s)), "%s tokens; %s to %s",
                word_tokens(report->tokens).text, word_days(plan_report_seconds(report, p->low_s)).text,
                word_days(plan_report_seconds(report, p->high_s)).text);
    if (report->price > 0)
        html_figure(out, "Cost", word_dollars(plan_report_dollars(report, p->step_s)), "$%.2f per %s hour",
                    report->price, device_word(report->costs->machine));
    add_energy_figure(report, out);
}

static void add_memory_figure(const MemoryNeed *need, Text *out) {
    static const char *const verdicts[] = {"", "; perhaps too much", "; does not fit"};
    html_figure(out, "Memory", word_gb(need->total), "of %s%s", word_gb(need->capacity).text,
                verdicts[memory_verdict(need)]);
}

void html_step_figures(const PlanReport *report, Text *out) {
    const Prediction *p = report->chosen;
    const Machine *machine = report->costs->machine;
    char rate[80];
    snprintf(rate, sizeof rate, "TFLOP/s per %s", device_word(machine));
    html_figure(out, "Step", word_seconds(p->step_s), "%s to %s%s", word_seconds(p->low_s).text,
                word_seconds(p->high_s).text, plan_report_extrapolates(report, p) ? ", extrapolated" : "");
    html_figure(out, rate, word_number(p->tflops), "%s PFLOP/s together",
                word_number(p->tflops * parallel_config_devices(&p->config) / 1e3).text);
    html_figure(out, "MFU", word_percent(p->mfu), "HFU %s of %s TFLOP/s", word_percent(p->hfu).text,
                word_number(parallel_config_peak(machine, &p->config)).text);
    int microbatches = parallel_config_microbatches(&p->config);
    html_figure(out, "Bubble", word_percent(p->bubble), "%s microbatch%s", word_count(microbatches).text,
                microbatches > 1 ? "es" : "");
    add_memory_figure(&p->memory, out);
}

static void add_flags(const char *title, const char *id, const Text *flags, Text *out) {
    text_add(
        out,
        "<div class=\"flags\"><h3>%s</h3><button type=\"button\" data-copy=\"%s\" hidden>copy</button><pre "
        "id=\"%s\" tabindex=\"0\">",
        title, id, id);
    html_text(out, text_string(flags));
    text_add(out, "</pre></div>\n");
}

static void add_commands(const PlanReport *report, Text *out) {
    const ParallelConfig *c = &report->chosen->config;
    Text ours = {0}, megatron = {0};
    flags_trireme(report->costs, report->model, c, &ours);
    flags_megatron(report->costs, report->model, c, &megatron);
    add_flags("trireme", "flags", &ours, out);
    text_add(out, "<details><summary>The same for Megatron-LM</summary>\n");
    add_flags("Megatron-LM", "megatron", &megatron, out);
    text_add(out, "</details>\n");
    text_free(&ours);
    text_free(&megatron);
}

static void add_misfit(const PlanReport *report, Text *out) {
    const MemoryNeed *need = &report->chosen->memory;
    if (memory_verdict(need) != FITS_NOT) return;
    text_add(out, "<p class=\"caution\">It does not fit: the fullest %s needs %s and has %s.</p>\n",
             device_word(report->costs->machine), word_gb(need->total).text, word_gb(need->capacity).text);
}

static void add_advice(const PlanReport *report, Text *out) {
    text_add(out, "<section>\n");
    text_add(out, "<p class=\"advice\">");
    html_advice(report, out);
    text_add(out, "</p>\n");
    add_misfit(report, out);
    if (report->result && report->result->perhaps)
        text_add(out, "<p class=\"caution\">Nothing fits for sure: what is shown is within the error of the "
                      "memory that is predicted.</p>\n");
    text_add(out, "<dl class=\"figures\">\n");
    html_step_figures(report, out);
    add_run_figures(report, out);
    text_add(out, "</dl>\n");
    add_commands(report, out);
    text_add(out, "</section>\n");
}

void plan_page(const PlanPage *page, Text *out) {
    add_head(page->report, out);
    add_question(page->report, out);
    add_advice(page->report, out);
    page_explore(page, out);
    page_ranking(page, out);
    page_step(page, out);
    page_timeline(page, out);
    page_memory(page, out);
    page_scaling(page, out);
    page_reasons(page, out);
    page_rejected(page, out);
    page_accuracy(page, out);
    html_end(out);
}
