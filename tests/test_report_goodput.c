// Reports of a run's time: the same numbers as text, as JSON whose seconds add up, and as a page that loads nothing.
#include "formats/formats.h"
#include "harness.h"
#include "report/goodput_report.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char ledger[] =
    "{\"at\": \"2026-11-24T00:00:00.000Z\", \"mono_s\": 0, \"event\": \"opening\", \"ranks\": 4, \"tp\": 2, \"pp\": 2, "
    "\"dp\": 1}\n"
    "{\"at\": \"2026-11-24T00:00:01.000Z\", \"mono_s\": 1.000001, \"event\": \"ready\"}\n"
    "{\"at\": \"2026-11-24T00:00:02.000Z\", \"mono_s\": 2.000003, \"event\": \"loaded\", \"iteration\": 0}\n"
    "{\"at\": \"2026-11-24T00:00:02.000Z\", \"mono_s\": 9, \"event\": \"steps\", \"from\": 0, \"to\": 7, \"seconds\": 6.1, "
    "\"waiting_s\": 0.1, \"checks_s\": 0.2}\n"
    "bad\n"
    "{\"at\": \"2026-11-24T00:00:20.000Z\", \"mono_s\": 20, \"event\": \"opening\", \"seconds\": 1, \"ranks\": 2, \"tp\": 2, "
    "\"pp\": 1, \"dp\": 1}\n"
    "{\"at\": \"2026-11-24T00:00:23.000Z\", \"mono_s\": 23.456789, \"event\": \"steps\", \"from\": 2, \"to\": 12, "
    "\"seconds\": 3}\n"
    "{\"at\": \"2026-11-24T00:00:25.000Z\", \"mono_s\": 25, \"event\": \"save\", \"stall_s\": 1.5}\n";

static Goodput account(void) {
    Goodput g;
    EXPECT_OK(goodput_of(&g, ledger, sizeof ledger - 1, "x"));
    return g;
}

static void expect_words(const Text *text, const char *const *words) {
    for (; *words; words++)
        EXPECT(strstr(text_string(text), *words) != NULL, "no \"%s\" in\n%s", *words, text_string(text));
}

static void text_names_parts_and_starts(void) {
    Goodput g = account();
    Text text = {0};
    goodput_print(&g, "some/ledger", &text);
    expect_words(&text,
                 (const char *const[]){"some/ledger: 25.00 s", "2 starts, 1 failure, iteration 12",
                                       "effective training time: 30.40 %", "steps trained again", "5 steps",
                                       "nothing runs", "100.00 %", "t2 p1 d1", "killed", "goes on",
                                       "1 line of the ledger cannot be read, first line 5", NULL});
    text_free(&text);
    goodput_free(&g);
}

static void json_adds_up(void) {
    Goodput g = account();
    Text text = {0};
    Json *json;
    double wall = 0, all = 0, effective = 0;
    goodput_json(&g, "a \"b\"\n", &text);
    EXPECT_OK(json_parse(&json, text.data, text.size, "goodput"));
    const Json *seconds = json_member(json, "seconds"), *starts = json_member(json, "starts");
    EXPECT(seconds && seconds->count == NUM_TIME_PARTS && starts && starts->count == 2, "%s", text.data);
    for (size_t i = 0; seconds && i < seconds->count; i++) {
        double part = 0;
        EXPECT(json_double(&seconds->items[i], &part), "part %zu", i);
        all += 1e6 * part;
    }
    EXPECT(json_double(json_member(json, "wall_s"), &wall) && llround(all) == llround(1e6 * wall),
           "%.0f of %.0f us", all, 1e6 * wall);
    EXPECT(json_double(json_member(json, "effective"), &effective) && fabs(effective - 0.304) < 1e-6, "%g",
           effective);
    EXPECT(!strcmp(json_string(json_member(json, "ledger")), "a \"b\"\n"), "the path");
    json_free(json);
    text_free(&text);
    goodput_free(&g);
}

static void page_loads_nothing(void) {
    Goodput g = account();
    Text html = {0};
    goodput_page(&g, "<script>alert(1)</script>", &html);
    expect_words(&html,
                 (const char *const[]){"<!DOCTYPE html>", "default-src 'none'", "prefers-color-scheme: dark",
                                       "&#60;script&#62;alert(1)", "steps trained again", "nothing runs",
                                       "t 2, p 1, d 1", "</html>", NULL});
    EXPECT(!strstr(html.data, "<script>alert"), "the path is not escaped");
    EXPECT(!strstr(html.data, "src=\"") && !strstr(html.data, "http://") && !strstr(html.data, "https://"),
           "the page loads something");
    text_free(&html);
    goodput_free(&g);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"text_names_parts_and_starts", text_names_parts_and_starts},
                                      {"json_adds_up", json_adds_up},
                                      {"page_loads_nothing", page_loads_nothing},
                                      {0}},
                       argc, argv);
}
