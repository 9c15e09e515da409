// The page of where the time of a run went: a bar and a table of its parts, and its starts.
#include "report/goodput_report.h"
#include "report/page/parts.h"
#include <inttypes.h>
#include <math.h>

static const Ink inks[NUM_TIME_PARTS] = {
    {"training", "compute"},     {"trained again", "again"},
    {"noticing ends", "tensor"}, {"ending what is left", "tensor"},
    {"nothing runs", "idle"},    {"starting", "stages"},
    {"loading", "redo"},         {"first step", "weight"},
    {"saves", "optimizer"},      {"evaluation", "forward later"},
    {"batches", "data"},         {"checks", "backward later"},
    {"unknown", "other"},
};

static Word word_time(double seconds) { return seconds < 1200 ? word_seconds(seconds) : word_days(seconds); }

static void add_bar(Text *out, const int64_t us[NUM_TIME_PARTS], double full_s) {
    double seconds[NUM_TIME_PARTS];
    for (int i = 0; i < NUM_TIME_PARTS; i++) seconds[i] = (double)us[i] / 1e6;
    if (full_s > 0) html_bar(out, (Bar){inks, seconds, NUM_TIME_PARTS, full_s, 0, word_time});
}

static void add_header(const Goodput *g, const char *path, Text *out) {
    text_add(
        out,
        "<header>\n<p class=\"kicker\">trireme goodput</p>\n<h1>%s <span>of the time was training</span></h1>\n"
        "<p class=\"question\">",
        word_percent(goodput_share(g, TIME_PRODUCTIVE)).text);
    html_text(out, path);
    text_add(out, ", from %s to %s.</p>\n</header>\n", g->first_at, g->last_at);
}

static double restart_s(const Goodput *g) {
    double us = 0;
    for (TimePart part = TIME_DETECTING; part <= TIME_FIRST_STEP; part++) us += (double)g->us[part];
    return us / 1e6;
}

static void add_figures(const Goodput *g, Text *out) {
    double wall_s = (double)g->wall_us / 1e6, again_s = (double)g->us[TIME_RECOMPUTED] / 1e6;
    text_add(out, "<section>\n<dl class=\"figures\">\n");
    html_figure(out, "Time", word_time(wall_s), "from the first to the last line");
    html_figure(out, "Iteration", word_count((double)g->iteration), "the furthest");
    html_figure(out, "Failures", word_count((double)g->failures), "in %d start%s", g->num_starts,
                g->num_starts == 1 ? "" : "s");
    html_figure(out, "Starts", word_time(restart_s(g)), "%s each",
                word_time(restart_s(g) / fmax(1, g->num_starts)).text);
    html_figure(out, "Trained again", word_time(again_s), "%s steps",
                word_count((double)g->steps_again).text);
    double save_s = (double)g->save_us / 1e6;
    html_figure(out, "Saves", word_count((double)g->saves), "%s each",
                word_time(save_s / fmax(1, (double)g->saves)).text);
    text_add(out, "</dl>\n");
    add_bar(out, g->us, wall_s);
    html_legend(out, inks, NUM_TIME_PARTS);
    text_add(out, "</section>\n");
}

static void add_parts(const Goodput *g, Text *out) {
    text_add(
        out,
        "<section>\n<h2>What the time went into</h2>\n<div class=\"scroll\"><table class=\"parts\">\n<thead><tr>"
        "<th>part</th><th class=\"n\">time</th><th class=\"n\">share</th></tr></thead>\n<tbody>\n");
    for (TimePart part = 0; part < NUM_TIME_PARTS; part++) {
        if (!g->us[part]) continue;
        text_add(out,
                 "<tr><th><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"%s\" width=\"10\" "
                 "height=\"10\"/></svg>%s</th><td class=\"n\">%s</td><td class=\"n\">%s</td></tr>\n",
                 inks[part].class, time_part_words(part), word_time((double)g->us[part] / 1e6).text,
                 word_percent(goodput_share(g, part)).text);
    }
    text_add(out,
             "</tbody>\n<tfoot><tr><th>all</th><td class=\"n\">%s</td><td class=\"n\">%s</td></tr></tfoot>\n"
             "</table></div>\n</section>\n",
             word_time((double)g->wall_us / 1e6).text, word_percent(1).text);
}

static double start_s(const RunStart *start) {
    double us = 0;
    for (int i = 0; i < NUM_TIME_PARTS; i++) us += (double)start->us[i];
    return us / 1e6;
}

static void add_iteration(Text *out, int64_t iteration) {
    text_add(out, "<td class=\"n\">%s</td>", iteration < 0 ? "" : word_count((double)iteration).text);
}

static void add_start(const RunStart *s, int number, double full_s, Text *out) {
    text_add(out, "<tr><th>%d</th><td class=\"n\">%s</td><td>", number,
             word_time((double)s->at_us / 1e6).text);
    if (s->tp) text_add(out, "t %d, p %d, d %d", s->tp, s->pp, s->dp);
    text_add(out, "</td>");
    add_iteration(out, s->loaded);
    add_iteration(out, s->reached);
    text_add(out, "<td>");
    if (*s->signal) text_add(out, "SIG");
    html_text(out, *s->signal ? s->signal : !s->ended ? "goes on" : s->failed ? "failed" : "ended");
    if (s->status) text_add(out, " (%d)", s->status);
    text_add(out, "</td><td class=\"wide\">");
    add_bar(out, s->us, full_s);
    text_add(out, "</td></tr>\n");
}

static void add_starts(const Goodput *g, Text *out) {
    enum { MOST = 2000 };
    double longest = 0;
    int first = g->num_starts > MOST ? g->num_starts - MOST : 0;
    for (int i = first; i < g->num_starts; i++) longest = fmax(longest, start_s(&g->starts[i]));
    text_add(out,
             "<section>\n<h2>Starts</h2>\n<p>Each with what came before it since the end of the one before.");
    if (first) text_add(out, " The first %d are left out.", first);
    text_add(
        out,
        "</p>\n<div class=\"scroll\"><table>\n<thead><tr><th></th><th class=\"n\">at</th><th>grid</th><th "
        "class=\"n\">from</th><th class=\"n\">to</th><th>end</th><th>time</th></tr></thead>\n<tbody>\n");
    for (int i = first; i < g->num_starts; i++) add_start(&g->starts[i], i + 1, longest, out);
    text_add(out, "</tbody>\n</table></div>\n</section>\n");
}

void page_goodput(const Goodput *g, Text *out) {
    add_figures(g, out);
    add_parts(g, out);
    if (g->num_starts) add_starts(g, out);
}

void goodput_page(const Goodput *g, const char *path, Text *out) {
    html_head(out, "Where the time of a run went");
    add_header(g, path, out);
    page_goodput(g, out);
    html_end(out);
}
