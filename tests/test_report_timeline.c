// The drawings: figures 3 and 4 of Narayanan et al. 2021 as text, and what must hold of any drawing.
#include "harness.h"
#include "report/report.h"
#include <stdlib.h>
#include <string.h>

static void make(const char *kind, int p, int v, int m, Schedule *schedule, Simulation *simulation) {
    EXPECT_OK(
        schedule_create(schedule, &(ScheduleSpec){.kind = kind, .ranks = p, .chunks = v, .microbatches = m}));
    schedule_simulate(schedule, (ScheduleCosts){.forward_us = 1, .backward_us = 2}, simulation);
}

static void expect_timeline(const char *kind, int p, int v, int m, int columns, bool colour,
                            const char *expected) {
    Schedule s;
    Simulation sim;
    Text text = {0};
    make(kind, p, v, m, &s, &sim);
    timeline_text(&s, &sim, columns, colour, &text);
    EXPECT(!strcmp(text_string(&text), expected), "%s\n%s", kind, text_string(&text));
    text_free(&text);
    simulation_destroy(&sim, &s);
    schedule_destroy(&s);
}

static void figure_3(void) {
    expect_timeline("gpipe", 4, 1, 8, 80, false,
                    "rank 0 0>1>2>3>4>5>6>7>                  0<<<1<<<2<<<3<<<4<<<5<<<6<<<7<<<\n"
                    "rank 1   0>1>2>3>4>5>6>7>            0<<<1<<<2<<<3<<<4<<<5<<<6<<<7<<<\n"
                    "rank 2     0>1>2>3>4>5>6>7>      0<<<1<<<2<<<3<<<4<<<5<<<6<<<7<<<\n"
                    "rank 3       0>1>2>3>4>5>6>7>0<<<1<<<2<<<3<<<4<<<5<<<6<<<7<<<\n"
                    "       0                                                            33 us\n"
                    "       0> forward   0< backward  of microbatch 0\n");
}

static void figure_4(void) {
    expect_timeline("1f1b", 4, 1, 8, 80, false,
                    "rank 0 0>1>2>3>            0<<<4>1<<<5>2<<<6>3<<<7>4<<<  5<<<  6<<<  7<<<\n"
                    "rank 1   0>1>2>        0<<<3>1<<<4>2<<<5>3<<<6>4<<<7>5<<<  6<<<  7<<<\n"
                    "rank 2     0>1>    0<<<2>1<<<3>2<<<4>3<<<5>4<<<6>5<<<7>6<<<  7<<<\n"
                    "rank 3       0>0<<<1>1<<<2>2<<<3>3<<<4>4<<<5>5<<<6>6<<<7>7<<<\n"
                    "       0                                                            33 us\n"
                    "       0> forward   0< backward  of microbatch 0\n");
    expect_timeline("interleaved", 2, 2, 4, 80, false,
                    "rank 0 0a1a0b1b2a  0BBB3a1BBB2b0AAA3b1AAA  2BBB  3BBB2AAA3AAA\n"
                    "rank 1   0a1a0b0BBB1b1BBB2a0AAA3a1AAA2b2BBB3b3BBB2AAA3AAA\n"
                    "       0                                              13.5 us\n"
                    "       0a 0b forward   0A 0B backward  of microbatch 0 in chunks 0 to 1\n");
}

static void narrow_terminals(void) {
    expect_timeline("1f1b", 2, 1, 3, 20, false,
                    "rank 0 01  0<21< 2<\n"
                    "rank 1  00<11<22<\n"
                    "       0      12 us\n"
                    "       0> forward   0< backward  of microbatch 0\n");
    expect_timeline("1f1b", 2, 1, 6, 20, false,
                    "rank 0 > <><><><>< <\n"
                    "rank 1 ><><><><><><\n"
                    "       0       21 us\n"
                    "       0> forward   0< backward  of microbatch 0\n");
}

static void colours(void) {
    expect_timeline(
        "1f1b", 1, 1, 1, 40, true,
        "rank 0 \x1b[30;48;5;74m0 \x1b[0m\x1b[30;48;5;71m0   \x1b[0m\n"
        "       0 3 us\n"
        "       \x1b[30;48;5;74m0 \x1b[0m forward   \x1b[30;48;5;71m0 \x1b[0m backward  of microbatch 0\n");
}

// No line is wider than asked, whatever the shape.
static void lines_fit_the_terminal(void) {
    for (int columns = 30; columns <= 200; columns += 17)
        for (int m = 8; m <= 128; m *= 4) {
            Schedule s;
            Simulation sim;
            Text text = {0};
            make("interleaved", 8, 3, m, &s, &sim);
            timeline_text(&s, &sim, columns, false, &text);
            for (const char *line = text.data; !strncmp(line, "rank", 4); line = strchr(line, '\n') + 1)
                EXPECT((int)strcspn(line, "\n") <= columns, "%d columns, %d microbatches: %.200s", columns, m,
                       line);
            text_free(&text);
            simulation_destroy(&sim, &s);
            schedule_destroy(&s);
        }
}

static int count(const char *text, const char *word) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word)) n++;
    return n;
}

// Each compute is one cell and one number inside the page; the title is text, not markup.
static void svg_shows_every_compute(void) {
    Schedule s;
    Simulation sim;
    Text svg = {0};
    make("interleaved", 4, 2, 8, &s, &sim);
    timeline_svg(&s, &sim, "a <b> & \"c\"", &svg);
    const char *text = text_string(&svg), *cells = strstr(text, "<g class=\"cell\">"),
               *key = strstr(text, "time, µs");
    EXPECT(!strncmp(text, "<svg ", 5) && !strcmp(text + svg.size - 7, "</svg>\n"), "%.80s", text);
    EXPECT(strstr(text, ">a &#60;b&#62; &#38; &#34;c&#34;</text>"), "title");
    EXPECT(strstr(text, ">28.5 µs, bubble 18.75 % of the ideal time (idle 15.79 % of the total)</text>"),
           "bubble");
    EXPECT(cells && key && count(cells, "<rect class=\"f0\"") == 4 * 8 + 1, "%d",
           count(cells, "<rect class=\"f0\""));
    EXPECT(count(cells, "<rect class=\"b1\"") == 4 * 8 + 1, "%d", count(cells, "<rect class=\"b1\""));
    EXPECT(count(cells, ">7</text>") == 4 * 2 * 2, "%d", count(cells, ">7</text>"));
    EXPECT(count(text, "<text") == count(text, "</text>") && count(text, "<g ") == count(text, "</g>"),
           "balance");
    text_free(&svg);
    simulation_destroy(&sim, &s);
    schedule_destroy(&s);
}

static void svg_keeps_within_its_page(void) {
    for (int m = 1; m <= 64; m *= 8) {
        Schedule s;
        Simulation sim;
        Text svg = {0};
        double page = 0;
        make("1f1b", 12, 1, m, &s, &sim);
        timeline_svg(&s, &sim, "wide", &svg);
        EXPECT(sscanf(svg.data, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%lf\"", &page) == 1 &&
                   page <= 2500,
               "%g", page);
        for (const char *at = svg.data; (at = strstr(at, "<rect class")); at++) {
            double x, y, width;
            char cell[160]; // scanning the whole text would measure it each time
            snprintf(cell, sizeof cell, "%.*s", (int)strcspn(at, "\n"), at);
            int fields =
                sscanf(cell, "<rect class=\"%*[a-z0-9]\" x=\"%lf\" y=\"%lf\" width=\"%lf\"", &x, &y, &width);
            EXPECT(fields == 3 && x >= 70 && width > 0 && x + width <= page, "%s", cell);
        }
        text_free(&svg);
        simulation_destroy(&sim, &s);
        schedule_destroy(&s);
    }
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"figure 3", figure_3},
        {"figure 4", figure_4},
        {"narrow terminals", narrow_terminals},
        {"colours", colours},
        {"lines fit the terminal", lines_fit_the_terminal},
        {"svg shows every compute", svg_shows_every_compute},
        {"svg keeps within its page", svg_keeps_within_its_page},
        {0},
    };
    return harness_run(tests, argc, argv);
}
