// Fields flow into lines of any width, and curves lie between their smallest and largest value.
#include "base/screen.h"
#include "harness.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const fields[] = {"step 12/100", "loss 3.2145",    "",
                                     "▁▂▃█",        "41.2k tokens/s", "0:01:03 left"};

static void expect_flow(int columns, int lines, const char *expected) {
    Text out = {0};
    screen_flow(fields, 6, columns, lines, &out);
    EXPECT(!strcmp(text_string(&out), expected), "%d columns, %d lines: '%s'", columns, lines,
           text_string(&out));
    text_free(&out);
}

static void fields_flow(void) {
    expect_flow(200, 3, "step 12/100  loss 3.2145  ▁▂▃█  41.2k tokens/s  0:01:03 left\n");
    expect_flow(60, 3, "step 12/100  loss 3.2145  ▁▂▃█  41.2k tokens/s  0:01:03 left\n"); // exactly
    expect_flow(59, 3, "step 12/100  loss 3.2145  ▁▂▃█  41.2k tokens/s\n0:01:03 left\n");
    expect_flow(19, 5, "step 12/100\nloss 3.2145  ▁▂▃█\n41.2k tokens/s\n0:01:03 left\n");
    expect_flow(19, 2, "step 12/100\nloss 3.2145  ▁▂▃█\n"); // the rest has no room
    expect_flow(14, 3, "step 12/100\nloss 3.2145\n▁▂▃█\n");
}

static void expect_curve(const double *values, int count, bool unicode, const char *expected) {
    Text out = {0};
    screen_curve(values, count, unicode, &out);
    EXPECT(!strcmp(text_string(&out), expected), "'%s', not '%s'", text_string(&out), expected);
    text_free(&out);
}

static void curves_use_all_heights(void) {
    expect_curve((double[]){0, 1, 2, 3, 4, 5, 6, 7}, 8, true, "▁▂▃▄▅▆▇█");
    expect_curve((double[]){7, NAN, 0}, 3, true, "█ ▁");
    expect_curve((double[]){2, 2}, 2, true, "▁▁");
    expect_curve((double[]){7, INFINITY, 3, 0}, 4, false, "^ -_");
}

// A file is no terminal.
static void files_get_nothing(void) {
    FILE *file = tmpfile();
    EXPECT(file, "no file");
    setenv("TERM", "xterm", 1);
    Screen screen = screen_open(file, fileno(file), false);
    screen_draw(&screen, "one\ntwo\n");
    screen_clear(&screen);
    fseek(file, 0, SEEK_END);
    EXPECT(ftell(file) == 0, "%ld bytes", ftell(file));
    fclose(file);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"fields_flow", fields_flow},
                                      {"curves_use_all_heights", curves_use_all_heights},
                                      {"files_get_nothing", files_get_nothing},
                                      {0}},
                       argc, argv);
}
