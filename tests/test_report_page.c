// The page of a plan: HTML that is well formed whatever is in it, that loads nothing, and says the numbers.
#include "harness.h"
#include "plan_fixtures.h"
#include "report/report.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- made-up answers -----------------------------------------------------------------------------------

typedef struct {
    Machine machine;
    Stack stack;
    CostModel costs;
    ModelShape model;
    SearchSpace space;
    Prediction best[3];
    PlanResult result;
    PlanReport report;
    Schedule schedule;
    Simulation simulation;
    ScalePoint scaling[3];
    SweepCell cells[3];
    PlanSweep sweep;
    PlanPage page;
} Case;

static Prediction prediction_of(ParallelConfig config, double step_s) {
    return (Prediction){.config = config,
                        .step_s = step_s,
                        .low_s = step_s / 1.1,
                        .high_s = step_s * 1.1,
                        .parts = {.compute = 0.6 * step_s,
                                  .recompute = 0.1 * step_s,
                                  .tensor = 0.1 * step_s,
                                  .bubble = 0.2 * step_s,
                                  .data = 0.08 * step_s,
                                  .optimizer = 0.02 * step_s},
                        .bubble = 0.25,
                        .tflops = 50,
                        .mfu = 0.4,
                        .hfu = 0.5,
                        .memory = {.parameters = 10e9,
                                   .gradients = 5e9,
                                   .optimizer = 20e9,
                                   .activations = 25e9,
                                   .reserve = 4e9,
                                   .total = 64e9,
                                   .capacity = 80e9,
                                   .margin = 0.08}};
}

static void add_result(Case *c) {
    for (int i = 0; i < 3; i++) c->best[i] = prediction_of(c->best[0].config, 12.5 + i);
    c->result = (PlanResult){.best = c->best,
                             .count = 3,
                             .tried = 1234,
                             .rejected = {12345, 7, 0},
                             .examples = {"t 3 <does> not divide", "needs 90 & more"},
                             .num_alternatives = 1};
    c->result.alternatives[0] = (Alternative){"t = 4", prediction_of(c->best[0].config, 15)};
}

// Two answers, and a question without one.
static void add_sweep(Case *c) {
    for (int i = 0; i < 3; i++) {
        c->cells[i] =
            (SweepCell){.report = c->report, .space = c->space, .best = c->best[0], .machine = "</script>m"};
        c->cells[i].report.space = &c->cells[i].space;
        c->cells[i].report.chosen = i == 2 ? NULL : &c->cells[i].best;
        c->cells[i].space.devices *= i + 1;
    }
    snprintf(c->cells[2].why, sizeof c->cells[2].why, "nothing <fits>");
    c->sweep = (PlanSweep){c->cells, 3};
}

// Of p stages, v chunks and m microbatches; forwards take 1 s, backwards 2.
static void case_open(Case *c, const char *kind, int p, int v, int m) {
    *c = (Case){.machine = plain_machine(), .stack = plain_stack(), .model = gpt_of(24, 1024, 16)};
    c->costs = costs_of(&c->machine, &c->stack);
    c->best[0].config = candidate_of(2, p, 2, m);
    c->best[0].config.chunks = v, c->best[0].config.schedule = kind;
    c->space = (SearchSpace){.devices = 4 * p, .batch = 2 * m};
    add_result(c);
    EXPECT_OK(schedule_create(&c->schedule,
                              &(ScheduleSpec){.kind = kind, .ranks = p, .chunks = v, .microbatches = m}));
    schedule_simulate(&c->schedule,
                      (ScheduleCosts){.forward_us = 1e6, .backward_us = 2e6, .weight_fraction = 0.5},
                      &c->simulation);
    for (int i = 0; i < 3; i++) {
        c->scaling[i] = (ScalePoint){2 * p << i, c->best[0]};
        c->scaling[i].prediction.step_s /= 1 << i;
    }
    c->report = (PlanReport){.model_name = "gpt-x",
                             .goodput = 1,
                             .model = &c->model,
                             .costs = &c->costs,
                             .space = &c->space,
                             .chosen = c->best,
                             .result = &c->result,
                             .tokens = 3e9,
                             .price = 2};
    add_sweep(c);
    c->page = (PlanPage){&c->report, &c->schedule, &c->simulation, c->scaling, 3, "</script>m", &c->sweep};
}

static void case_close(Case *c) {
    simulation_destroy(&c->simulation, &c->schedule);
    schedule_destroy(&c->schedule);
}

// ---- a reader of HTML ----------------------------------------------------------------------------------

enum { MAX_DEPTH = 40 };

typedef struct {
    const char *at;
    char open[MAX_DEPTH][16];
    int depth;
    const char *wrong; // NULL as long as nothing is
} Reader;

static bool is_void(const char *name) { return !strcmp(name, "meta") || !strcmp(name, "link"); }

static void read_name(Reader *r, char name[16]) {
    int length = 0;
    while (isalnum((unsigned char)*r->at) && length < 15) name[length++] = *r->at++;
    name[length] = 0;
}

// Attributes: NAME or NAME="VALUE", without < in the value. Ends behind the > of the tag.
static bool read_attributes(Reader *r) {
    for (;;) {
        r->at += strspn(r->at, " \n");
        if (*r->at == '>') return r->at++, false;
        if (!strncmp(r->at, "/>", 2)) return r->at += 2, true;
        size_t length = strspn(r->at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-12");
        r->at += length;
        if (!length) return r->wrong = "an attribute without a name", true;
        if (*r->at != '=') continue;
        if (r->at[1] != '"') return r->wrong = "an attribute without quotes", true;
        r->at += 2 + strcspn(r->at + 2, "\"<");
        if (*r->at++ != '"') return r->wrong = "an attribute that does not end", true;
    }
}

static void read_opening(Reader *r) {
    char name[16], end[24];
    read_name(r, name);
    bool closed = read_attributes(r);
    if (r->wrong || closed || is_void(name)) return;
    if (!strcmp(name, "script") || !strcmp(name, "style")) {
        snprintf(end, sizeof end, "</%s>", name);
        const char *found = strstr(r->at, end);
        if (!found)
            r->wrong = "a script or style that does not end";
        else
            r->at = found + strlen(end);
    } else if (r->depth == MAX_DEPTH) {
        r->wrong = "too deep";
    } else {
        memcpy(r->open[r->depth++], name, sizeof name);
    }
}

static void read_closing(Reader *r) {
    char name[16];
    read_name(r, name);
    if (*r->at++ != '>' || !r->depth || strcmp(name, r->open[--r->depth]))
        r->wrong = "an end of what is not open";
}

static const char *ill_formed(const char *html) {
    Reader r = {.at = html + strlen("<!DOCTYPE html>\n")};
    while (!r.wrong && *(r.at += strcspn(r.at, "<"))) {
        r.at++;
        if (*r.at == '/')
            r.at++, read_closing(&r);
        else
            read_opening(&r);
    }
    if (!r.wrong && r.depth) r.wrong = "a tag that is not closed";
    return r.wrong;
}

static void expect_well_formed(const PlanPage *page, const char *what) {
    static const char *const no_numbers[] = {"-nan", "\"nan", ">nan", "\"inf", ">inf", "-inf"};
    Text html = {0};
    plan_page(page, &html);
    const char *wrong = ill_formed(text_string(&html));
    EXPECT(!wrong, "%s: %s", what, wrong);
    for (size_t i = 0; i < sizeof no_numbers / sizeof *no_numbers; i++)
        EXPECT(!strstr(text_string(&html), no_numbers[i]), "%s: %s", what, no_numbers[i]);
    text_free(&html);
}

// ---- tests -----------------------------------------------------------------------------------------------

static void reader_finds_what_is_wrong(void) {
    static const char *const wrong[] = {"<p>",         "<p></b></p>",     "</p>",
                                        "<p a=b></p>", "<p a=\"<\"></p>", "<style>p"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char html[80];
        snprintf(html, sizeof html, "<!DOCTYPE html>\n%s", wrong[i]);
        EXPECT(ill_formed(html), "%s", wrong[i]);
    }
}

static void every_page_is_well_formed(void) {
    static const struct {
        const char *kind;
        int p, v, m;
    } shapes[] = {{"1f1b", 1, 1, 1},
                  {"1f1b", 4, 1, 8},
                  {"interleaved", 4, 2, 16},
                  {"zb-h1", 4, 1, 8},
                  {"gpipe", 8, 1, 300}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        Case c;
        case_open(&c, shapes[i].kind, shapes[i].p, shapes[i].v, shapes[i].m);
        expect_well_formed(&c.page, shapes[i].kind);
        c.report.given = true, c.report.tokens = 0, c.result.perhaps = true;
        expect_well_formed(&c.page, "given");
        c.report.result = NULL, c.report.model_name = NULL;
        c.page.schedule = NULL, c.page.num_scaling = 0, c.page.sweep = NULL;
        expect_well_formed(&c.page, "nothing but a prediction");
        c.machine.is_cpu = c.stack.is_trireme = true, c.best[0].extrapolates = true;
        c.stack.accuracy = (Accuracy){.rows = "a <b>", .method = "leave one out", .count = 9, .most_gpus = 8};
        expect_well_formed(&c.page, "a CPU");
        case_close(&c);
    }
}

static void names_are_escaped(void) {
    Case c;
    Text html = {0};
    case_open(&c, "1f1b", 2, 1, 4);
    c.report.model_name = "a<b>&\"'</title><script>x";
    snprintf(c.machine.gpu, sizeof c.machine.gpu, "<i>gpu");
    snprintf(c.machine.description, sizeof c.machine.description, "</p>");
    expect_well_formed(&c.page, "hostile names");
    plan_page(&c.page, &html);
    EXPECT(!strstr(text_string(&html), "<script>x"), "a name that is a script");
    EXPECT(strstr(text_string(&html), "a&#60;b&#62;&#38;&#34;&#39;&#60;/title&#62;"), "the name is shown");
    EXPECT(!strstr(text_string(&html), "</script>m"), "a machine's name ends a script");
    EXPECT(strstr(text_string(&html), "\"why\": \"nothing \\u003cfits>\""),
           "why there is no answer is there");
    EXPECT(strstr(text_string(&html), "t 3 &#60;does&#62; not divide"), "examples are shown");
    text_free(&html);
    case_close(&c);
}

// Whatever could make a browser fetch something; what the page links to is empty.
static void nothing_is_loaded(void) {
    static const char *const words[] = {"http:",  "https:",  "src=",      "url(",    "@import",
                                        "fetch(", "XMLHttp", "WebSocket", "import(", "sendBeacon",
                                        "<img",   "<iframe", "=\"//"};
    Case c;
    Text html = {0};
    case_open(&c, "1f1b", 2, 1, 4);
    plan_page(&c.page, &html);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        EXPECT(!strstr(text_string(&html), words[i]), "%s", words[i]);
    for (const char *at = text_string(&html); (at = strstr(at, "href=")); at++)
        EXPECT(!strncmp(at, "href=\"data:,\"", 13), "%.30s", at);
    EXPECT(strstr(text_string(&html), "default-src 'none'"), "the policy");
    text_free(&html);
    case_close(&c);
}

static void expect_text(const Text *html, const char *expected) {
    EXPECT(strstr(text_string(html), expected), "%s is missing", expected);
}

#define NBSP "\xc2\xa0"

// 1 s of 12 forwards and 2 s of as many backwards behind each other, then 8 % and 2 % of a step of 12.5 s.
static void numbers_are_printed(void) {
    Case c;
    Text html = {0};
    case_open(&c, "1f1b", 2, 1, 3);
    c.report.pue = 1.5, c.machine.node_watts = 4000, c.machine.devices_per_node = 8;
    plan_page(&c.page, &html);
    // 244,141 steps of 6 x 2048 tokens and 12.5 s, 8 devices of 500 W, times 1.5
    expect_text(&html,
                "<dt>Energy, at most</dt><dd>5.09" NBSP
                "MWh<small>500 W for a GPU with its share of a node, times 1.5 for the data centre</small>");
    expect_text(&html, "<dt>Step</dt><dd>12.5" NBSP "s<small>11.4" NBSP "s to 13.8" NBSP "s</small>");
    expect_text(&html, "<dt>MFU</dt><dd>40.0" NBSP "%");
    expect_text(&html, "<b>2-way tensor</b>, <b>2-way pipeline</b>, <b>2-way data</b> parallel");
    expect_text(&html, "<dt>Memory</dt><dd>64.0" NBSP "GB<small>of 80.0" NBSP "GB</small>");
    expect_text(&html, "<th scope=\"row\">computing again</th>");
    expect_text(&html, "1234 configurations were tried");
    expect_text(&html, "<td class=\"n\">12\xe2\x80\xaf"
                       "345</td><th scope=\"row\">break a rule</th>");
    expect_text(&html, "+20.0" NBSP "%");
    // 13.25 s in a million ticks; again: 1.25 s of 6 s of backwards. Rank 0: F0 F1 - B0 F2 B1 - B2.
    expect_text(&html,
                "id=\"spans\">{\"chunks\":1,\"tick\":1.325e-05,\"again\":0.2083,\"tail\":[75472,18868,0],"
                "\"ranks\":[\n[0,0,0,75472,0,1,0,75471,1,0,150944,150943,0,2,0,75472,1,1,0,150943,"
                "1,2,75472,150943],\n[0,0,75472,75471,1,0,0,150944,0,1,0,75471,1,1,0,150944,0,2,0,75472,"
                "1,2,0,150943]\n]}</script>");
    text_free(&html);
    case_close(&c);
}

// What the page's script adds up is where the simulation has it, for every rank and compute.
static void expect_rank(const char **at, const Program *program, const Span *spans, double tick_us) {
    long long now = 0;
    *at = strchr(*at, '[') + 1;
    for (int i = 0; i < program->count; i++) {
        int code, microbatch, read;
        long long gap, length;
        Instr in = program->instrs[i];
        if (schedule_ops[in.op].kind != COMPUTE) continue;
        if (sscanf(*at, "%d,%d,%lld,%lld%n", &code, &microbatch, &gap, &length, &read) != 4) {
            EXPECT(false, "compute %d is missing: %.40s", i, *at);
            return;
        }
        EXPECT(code / 4 == in.chunk && microbatch == in.microbatch, "compute %d", i);
        EXPECT(fabs((double)(now += gap) - spans[i].start_us / tick_us) <= 0.51, "start of compute %d", i);
        EXPECT(fabs((double)(now += length) - spans[i].end_us / tick_us) <= 0.51, "end of compute %d", i);
        *at += read + (**at == ']' ? 0 : 1);
    }
}

static void spans_are_the_simulation(void) {
    static const char *const kinds[] = {"1f1b", "interleaved", "zb-h1"};
    for (int k = 0; k < 3; k++) {
        Case c;
        Text html = {0};
        case_open(&c, kinds[k], 4, k == 1 ? 3 : 1, 24);
        plan_page(&c.page, &html);
        const char *at = strstr(text_string(&html), "\"ranks\":[\n") + strlen("\"ranks\":[");
        double tick_us = (c.simulation.total_us + 0.1 * 12.5e6) / 1e6;
        for (int r = 0; r < 4; r++) expect_rank(&at, &c.schedule.programs[r], c.simulation.spans[r], tick_us);
        text_free(&html);
        case_close(&c);
    }
}

// 64 ranks (in the short form 5) and 512 microbatches are to be mailed; what is larger still is not drawn.
static void large_schedules_stay_small(void) {
    Case c;
    Text html = {0};
    int ranks = harness_short() ? 5 : 64, m = 512;
    case_open(&c, "1f1b", ranks, 1, m);
    plan_page(&c.page, &html);
    double computes = 2.0 * ranks * m;
    EXPECT((double)html.size < 200e3 + 15 * computes, "%zu bytes", html.size);
    EXPECT(!ill_formed(text_string(&html)), "well formed");
    text_free(&html);
    case_close(&c);
    for (int more = harness_short(); more < 2; more++) {
        case_open(&c, "1f1b", 2, 1, PAGE_MAX_COMPUTES / 4 + more);
        plan_page(&c.page, &html);
        bool drawn = strstr(text_string(&html), "id=\"spans\"");
        EXPECT(drawn == !more && (drawn || html.size < 200000), "%d more than allowed: %d, %zu bytes", more,
               drawn, html.size);
        text_free(&html);
        case_close(&c);
    }
}

// The shares of a bar are as wide as what they stand for, and lie one after the other.
static void bars_add_up(void) {
    Case c;
    Text html = {0};
    case_open(&c, "1f1b", 2, 1, 4);
    plan_page(&c.page, &html);
    const char *at = strstr(text_string(&html), "class=\"time\"><svg");
    const char *end = strstr(at, "</svg>");
    double x, width, sum = 0;
    while ((at = strstr(at, " x=\"")) && at < end &&
           sscanf(at, " x=\"%lf\" width=\"%lf\"", &x, &width) == 2) {
        EXPECT(fabs(x - sum) < 0.2, "a share begins at %g, not %g", x, sum);
        sum = x + width;
        at++;
    }
    EXPECT(fabs(sum - 1000 * 12.5 / 14.5) < 0.3, "12.5 s of 14.5 s are %g of 1000", sum);
    text_free(&html);
    case_close(&c);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"reader_finds_what_is_wrong", reader_finds_what_is_wrong},
                                      {"every_page_is_well_formed", every_page_is_well_formed},
                                      {"names_are_escaped", names_are_escaped},
                                      {"nothing_is_loaded", nothing_is_loaded},
                                      {"numbers_are_printed", numbers_are_printed},
                                      {"spans_are_the_simulation", spans_are_the_simulation},
                                      {"large_schedules_stay_small", large_schedules_stay_small},
                                      {"bars_add_up", bars_add_up},
                                      {0}},
                       argc, argv);
}
