// The page of one run or several.
#include "formats/formats.h"
#include "report/goodput_report.h"
#include "report/page/curves.h"
#include "report/run_page.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- the head ---------------------------------------------------------------------------------------------

static const char *state_words(const RunRecord *r) {
    if (!r->has_state) return "no run.json says how it goes";
    return r->gone ? "dead: its process is gone" : r->state;
}

static void add_header(const RunRecord *runs, int count, Text *out) {
    text_add(out, "<header>\n<p class=\"kicker\">trireme report</p>\n<h1>");
    if (count == 1)
        html_text(out, runs->name);
    else
        text_add(out, "%d runs", count);
    if (count == 1) text_add(out, " <span>");
    if (count == 1) html_text(out, state_words(runs));
    text_add(out, "%s</h1>\n", count == 1 ? "</span>" : "");
    if (count == 1 && *runs->started) {
        text_add(out, "<p class=\"question\">On %" PRId64 " rank%s, from ", runs->ranks,
                 runs->ranks == 1 ? "" : "s");
        html_text(out, runs->started);
        text_add(out, " to ");
        html_text(out, *runs->ended ? runs->ended : runs->updated);
        text_add(out, ".");
        if (*runs->reason) text_add(out, " ");
        html_text(out, runs->reason);
        text_add(out, "</p>\n");
    }
    text_add(out, "</header>\n");
}

// ---- numbers ----------------------------------------------------------------------------------------------

static double loss_of(const StepRow *row) { return row->loss; }
static double norm_of(const StepRow *row) { return row->grad_norm; }
static double rate_of(const StepRow *row) { return row->tokens_per_s; }
static double lr_of(const StepRow *row) { return row->lr; }
static double time_of(const StepRow *row) { return row->step_s; }

static double last_of(const RunRecord *r, RowNumber *number) {
    return r->num_steps ? number(&r->steps[r->num_steps - 1]) : NAN;
}

static double last_validation(const RunRecord *r) {
    return r->num_validations ? r->validations[r->num_validations - 1].loss : NAN;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const RunRecord *r, RowNumber *number) {
    double *values = malloc((r->num_steps + 1) * sizeof *values), median = NAN;
    size_t count = 0;
    CHECK(values, "no memory for %zu steps", r->num_steps);
    for (size_t i = 0; i < r->num_steps; i++)
        if (isfinite(number(&r->steps[i]))) values[count++] = number(&r->steps[i]);
    if (count) qsort(values, count, sizeof *values, by_size);
    if (count) median = values[count / 2];
    free(values);
    return median;
}

static Word word_loss(double loss) {
    Word word;
    snprintf(word.text, sizeof word.text, isnan(loss) ? "–" : "%.4f", loss);
    return word;
}

static Word word_known(double value, Word (*word)(double)) {
    return isnan(value) ? word_loss(NAN) : word(value);
}

static Word word_memory(double bytes) {
    Word word;
    if (bytes >= 1e9) return word_gb(bytes);
    snprintf(word.text, sizeof word.text, "%.0f MB", bytes / 1e6);
    return word;
}

static void add_figures(const RunRecord *r, Text *out) {
    double step_s = median_of(r, time_of);
    text_add(out, "<section>\n<dl class=\"figures\">\n");
    const Word end = word_known(r->end >= 0 ? (double)r->end : NAN, word_count);
    html_figure(out, "Iteration", word_known(r->iteration >= 0 ? (double)r->iteration : NAN, word_count),
                "of %s", end.text);
    html_figure(out, "Loss", word_loss(last_of(r, loss_of)), "of the last step");
    html_figure(out, "Validation", word_loss(last_validation(r)), "%zu evaluation%s", r->num_validations,
                r->num_validations == 1 ? "" : "s");
    html_figure(out, "Tokens a second", word_known(median_of(r, rate_of), word_count),
                "the median, of all ranks");
    html_figure(out, "Step", word_known(step_s, word_seconds), "the median");
    if (r->memory_bytes > 0) html_figure(out, "Memory", word_memory((double)r->memory_bytes), "of rank 0");
    text_add(out, "</dl>\n</section>\n");
}

static void add_row(const RunRecord *r, int number, Text *out) {
    text_add(
        out,
        "<tr><th><svg class=\"key\" viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"run%d\" width=\"10\" height=\"10\"/></svg>",
        number);
    html_text(out, r->name);
    text_add(out, "</th><td>");
    html_text(out, state_words(r));
    text_add(out, "</td>");
    const Word words[] = {word_known(r->iteration >= 0 ? (double)r->iteration : NAN, word_count),
                          word_loss(last_of(r, loss_of)),
                          word_loss(last_validation(r)),
                          word_known(median_of(r, rate_of), word_count),
                          word_known(median_of(r, time_of), word_seconds),
                          word_known(r->has_ledger && r->goodput.wall_us
                                         ? (double)r->goodput.us[TIME_PRODUCTIVE] / (double)r->goodput.wall_us
                                         : NAN,
                                     word_percent)};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        text_add(out, "<td class=\"n\">%s</td>", words[i].text);
    text_add(out, "</tr>\n");
}

static void add_comparison(const RunRecord *runs, int count, Text *out) {
    text_add(
        out,
        "<section>\n<h2>Side by side</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>run</th><th>state</th><th class=\"n\">iteration</th>"
        "<th class=\"n\">loss</th><th class=\"n\">validation</th><th class=\"n\">tokens/s</th><th class=\"n\">step</th><th class=\"n\">training</th></tr></thead>\n<tbody>\n");
    for (int i = 0; i < count; i++) add_row(&runs[i], i, out);
    text_add(
        out,
        "</tbody>\n</table></div>\n<p>Loss and validation are the last ones; tokens a second and the time of a step are medians; training is its share of the time.</p>\n</section>\n");
}

static void add_charts(const RunRecord *runs, int count, Text *out) {
    static const CurveChart charts[] = {{"Loss", loss_of, true, true},
                                        {"Tokens a second", rate_of, false, false},
                                        {"Norm of the gradient", norm_of, true, false},
                                        {"Learning rate", lr_of, false, false},
                                        {"Seconds of a step", time_of, true, false}};
    bool any = false;
    for (int i = 0; i < count; i++) any |= runs[i].num_steps > 0;
    if (!any) {
        text_add(
            out,
            "<section>\n<h2>Curves</h2>\n<p>There are no metrics: train with --metrics FILE.</p>\n</section>\n");
        return;
    }
    text_add(
        out,
        "<section>\n<h2>Curves</h2>\n<p>Over the iterations. Circles are validation losses.</p>\n<div class=\"charts\">\n");
    for (size_t i = 0; i < sizeof charts / sizeof *charts; i++) html_curves(out, charts[i], runs, count);
    text_add(out, "</div>\n</section>\n");
}

// ---- a step -----------------------------------------------------------------------------------------------

// As the address of an image: apart from the styles of the page.
static void add_image(const Text *svg, const char *words, Text *out) {
    text_add(out, "<div class=\"scroll\"><img class=\"drawn\" alt=\"%s\" src=\"data:image/svg+xml,", words);
    for (size_t i = 0; i < svg->size; i++) {
        unsigned char c = (unsigned char)svg->data[i];
        if (c < ' ' || c > '~' || strchr("\"#%<>&'", c))
            text_add(out, "%%%02X", c);
        else
            text_add_bytes(out, &c, 1);
    }
    text_add(out, "\"></div>\n");
}

static void add_step(const MeasuredStep *step, Text *out) {
    Text svg = {0}, words = {0};
    if (!step) return;
    text_add(
        out,
        "<section>\n<h2>One step, simulated and measured</h2>\n<p>The pipeline of iteration %" PRId64
        ", the median of %d traced steps: above as the schedule is with the times that each stage took, below as it was.</p>\n",
        step->iteration, step->num_steps);
    measured_step_svg(step, "simulated, and measured", &svg);
    add_image(&svg, "Timeline of the pipeline, simulated above and measured below", out);
    measured_step_print(step, &words);
    text_add(out, "<details open><summary>In numbers</summary>\n<div class=\"flags\"><pre tabindex=\"0\">");
    html_text(out, text_string(&words));
    text_add(out, "</pre></div></details>\n</section>\n");
    text_free(&svg);
    text_free(&words);
}

// ---- events -----------------------------------------------------------------------------------------------

static void add_events(const RunRecord *runs, int count, Text *out) {
    enum { MOST = 500 };
    size_t all = 0;
    for (int i = 0; i < count; i++) all += runs[i].num_events;
    if (!all) return;
    text_add(
        out,
        "<section>\n<h2>Events</h2>\n<div class=\"scroll\"><table>\n<thead><tr>%s<th class=\"n\">iteration</th><th>what happened</th></tr></thead>\n<tbody>\n",
        count > 1 ? "<th>run</th>" : "");
    for (int i = 0; i < count; i++) {
        size_t first = runs[i].num_events > MOST ? runs[i].num_events - MOST : 0;
        for (size_t k = first; k < runs[i].num_events; k++) {
            text_add(out, "<tr>");
            if (count > 1) text_add(out, "<th>");
            if (count > 1) html_text(out, runs[i].name);
            text_add(out, "%s<td class=\"n\">%s</td><td class=\"wide\">", count > 1 ? "</th>" : "",
                     word_count((double)runs[i].events[k].iteration).text);
            html_text(out, runs[i].events[k].text);
            text_add(out, "</td></tr>\n");
        }
    }
    text_add(out, "</tbody>\n</table></div>\n</section>\n");
}

// ---- options ----------------------------------------------------------------------------------------------

static const char *value_of(const Json *config, const char *key) {
    const Json *value = json_member(config, key);
    if (!value) return "";
    return value->type == JSON_TRUE    ? "true"
           : value->type == JSON_FALSE ? "false"
           : value->string             ? value->string
           : value->type == JSON_NULL  ? ""
                                       : "…";
}

static void add_difference(const Json *const *configs, int count, const char *key, Text *out) {
    bool differs = false;
    for (int i = 1; i < count; i++)
        differs |= strcmp(value_of(configs[i], key), value_of(configs[0], key)) != 0;
    if (!differs) return;
    text_add(out, "<tr><th>");
    html_text(out, key);
    text_add(out, "</th>");
    for (int i = 0; i < count; i++) {
        text_add(out, "<td>");
        html_text(out, value_of(configs[i], key));
        text_add(out, "</td>");
    }
    text_add(out, "</tr>\n");
}

// Each key once: of a run those that no earlier one has.
static void add_differences(const Json *const *configs, int count, Text *out) {
    for (int i = 0; i < count; i++)
        for (size_t k = 0; configs[i] && k < configs[i]->count; k++) {
            const char *key = configs[i]->items[k].key;
            bool earlier = !key;
            for (int before = 0; before < i && key; before++)
                earlier |= json_member(configs[before], key) != NULL;
            if (!earlier) add_difference(configs, count, key, out);
        }
}

// `runs`: those with options.
static void compare_options(const RunRecord *const *runs, const Json *const *configs, int count, Text *out) {
    Text rows = {0};
    add_differences(configs, count, &rows);
    if (!rows.size) {
        text_add(out, "<p>No option differs between the runs.</p>\n");
    } else {
        text_add(out, "<p>Those that differ between the runs:</p>\n<div class=\"scroll\"><table>\n"
                      "<thead><tr><th>option</th>");
        for (int i = 0; i < count; i++) {
            text_add(out, "<th>");
            html_text(out, runs[i]->name);
            text_add(out, "</th>");
        }
        text_add(out, "</tr></thead>\n<tbody>\n");
        text_add_bytes(out, rows.data, rows.size);
        text_add(out, "</tbody>\n</table></div>\n");
    }
    text_free(&rows);
}

static void add_unknown_options(const RunRecord *r, Text *out) {
    text_add(out, "<p>The options of ");
    html_text(out, r->name);
    text_add(out, " are not known: %s.</p>\n",
             r->config.size  ? "the config.yaml of its newest checkpoint cannot be read"
             : !r->has_state ? "its metrics or ledger does not have them; give its --save folder"
             : r->saved < 0  ? "nothing was saved yet"
                             : "there is no checkpoint beside its run.json; give its --save folder");
}

static void add_all_options(const RunRecord *r, Text *out) {
    text_add(out, "<details><summary>All options of ");
    html_text(out, r->name);
    text_add(out, "</summary>\n<div class=\"flags\"><pre tabindex=\"0\">");
    html_text(out, text_string(&r->config));
    text_add(out, "</pre></div></details>\n");
}

static void add_options(const RunRecord *runs, int count, Text *out) {
    const RunRecord *with[MAX_PAGE_RUNS], *without[MAX_PAGE_RUNS];
    Json *configs[MAX_PAGE_RUNS];
    int known = 0, unknown = 0;
    for (int i = 0; i < count; i++) {
        const RunRecord *r = &runs[i];
        bool is =
            r->config.size && yaml_parse(&configs[known], r->config.data, r->config.size, r->name) == OK;
        *(is ? &with[known++] : &without[unknown++]) = r;
    }
    text_add(out, "<section>\n<h2>Options</h2>\n");
    if (known > 1) compare_options(with, (const Json *const *)configs, known, out);
    for (int i = 0; i < unknown; i++) add_unknown_options(without[i], out);
    for (int i = 0; i < known; i++) add_all_options(with[i], out);
    text_add(out, "</section>\n");
    for (int i = 0; i < known; i++) json_free(configs[i]);
}

// ---- the page ---------------------------------------------------------------------------------------------

static void add_goodput(const RunRecord *runs, int count, Text *out) {
    for (int i = 0; i < count; i++) {
        if (!runs[i].has_ledger) continue;
        text_add(out, "<section>\n<h2>Where the time went%s", count > 1 ? ": " : "");
        if (count > 1) html_text(out, runs[i].name);
        text_add(out, "</h2>\n</section>\n");
        page_goodput(&runs[i].goodput, out);
    }
}

void run_page(const RunRecord *runs, int count, const MeasuredStep *step, Text *out) {
    CHECK(count > 0 && count <= MAX_PAGE_RUNS, "%d runs", count);
    html_head(out, count == 1 ? runs->name : "Runs side by side");
    add_header(runs, count, out);
    if (count == 1)
        add_figures(runs, out);
    else
        add_comparison(runs, count, out);
    add_charts(runs, count, out);
    add_step(step, out);
    add_goodput(runs, count, out);
    add_events(runs, count, out);
    add_options(runs, count, out);
    html_end(out);
}
