// Shared by the sections of a plan's page: numbers as words, escaped text, bars of coloured shares. Every section is
// one function that adds its HTML. Pictures are inline SVG, so they are printed and shown without a script.
#pragma once
#include "report/report.h"

// ---- words.c: words ---------------------------------------------------------------------------

typedef struct {
    char text[64];
} Word;

Word word_number(double value); // three digits; whole from 100 on
Word word_count(double value);  // whole, in groups of three digits
Word word_seconds(double seconds);
Word word_gb(double bytes);
Word word_percent(double share);
Word word_days(double seconds); // of a whole training run
Word word_dollars(double dollars);
Word word_energy(double kwh);
Word word_tokens(double tokens);
Word word_change(double share); // signed, in percent

double tick_step(double most); // between ticks of an axis from 0 to `most`

void html_text(Text *out, const char *string); // escaped, for content and attributes
// Adds t·p·d, "8·4·2"; behind them c and ep where they are above 1, "8·4·2 c 2 ep 8".
void html_grid(Text *out, const ParallelConfig *config);

// ---- page.c: what every page has -----------------------------------------------------------------

void html_head(Text *out, const char *title); // up to the begin of the content
void html_end(Text *out);
const char *page_part(const char *name); // the style, or a script: a file of this folder
// Adds what is recommended, as a sentence; the figures of a step.
void html_advice(const PlanReport *report, Text *out);
void html_step_figures(const PlanReport *report, Text *out);
// Adds a number with its name and a note, in a list of the class "figures".
void html_figure(Text *out, const char *name, Word value, const char *note, ...)
    __attribute__((format(printf, 4, 5)));

// ---- bars.c: shares ---------------------------------------------------------------------------

typedef struct {
    const char *name, *class; // class: of the style, which has its colour
} Ink;

enum { NUM_STEP_PARTS = 9, NUM_MEMORY_PARTS = 7 };
enum { STEP_MESSAGES = 2 }; // the part of a step whose name messages_word knows

extern const Ink step_inks[NUM_STEP_PARTS], memory_inks[NUM_MEMORY_PARTS];
void step_parts(const Breakdown *parts, double seconds[NUM_STEP_PARTS]); // they add up to step_s
void memory_parts(const MemoryNeed *need, double bytes[NUM_MEMORY_PARTS]);

typedef struct {
    const Ink *inks;
    const double *values;
    int count;
    double full, mark; // value of the full width; where a line is drawn, 0: nowhere
    Word (*word)(double value);
} Bar;

void html_bar(Text *out, Bar bar);
void html_step_bar(Text *out, const Breakdown *parts, double full_s);
void html_memory_bar(Text *out, const MemoryNeed *need, double full_bytes);
void html_legend(Text *out, const Ink *inks, int count);

// ---- sections, in the order of the page ---------------------------------------------------------------

void page_explore(const PlanPage *page, Text *out);  // explore.c: other questions
void page_ranking(const PlanPage *page, Text *out);  // tables.c
void page_step(const PlanPage *page, Text *out);     // the parts of the winner's time
void page_reasons(const PlanPage *page, Text *out);  // what one other choice would cost
void page_memory(const PlanPage *page, Text *out);   // memory.c
void page_timeline(const PlanPage *page, Text *out); // timeline.c
void page_scaling(const PlanPage *page, Text *out);  // scaling.c
void page_rejected(const PlanPage *page, Text *out); // tables.c
void page_accuracy(const PlanPage *page, Text *out);
