// Draws schedules as text for a terminal.
#include "report/internal.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDLE = -1, NUM_SHADES = 3, NARROWEST = 20 };

// Background colours of the 256-colour palette, dark to light: forwards, backwards, weight gradients.
static const int shades[3][NUM_SHADES] = {{74, 117, 153}, {71, 114, 151}, {179, 222, 229}};

typedef struct {
    char *marks; // [width] characters to print
    int *styles; // [width] index into shades, or IDLE
    int width;
    bool colour, numbered; // numbered: the shortest compute has at least one character
} Row;

static int num_digits(int number) {
    int digits = 1;
    while (number >= 10) number /= 10, digits++;
    return digits;
}

bool is_compute(Instr in) { return schedule_ops[in.op].kind == COMPUTE; }

// Returns the longest time and the shortest compute of pictures that share one scale.
PanelTimes panel_times(const Schedule *schedule, const Panel *panels, int num_panels) {
    PanelTimes times = {0, 0};
    for (int p = 0; p < num_panels; p++)
        times.total_us = fmax(times.total_us, panels[p].simulation->total_us);
    times.shortest_us = times.total_us;
    for (int p = 0; p < num_panels; p++)
        for (int r = 0; r < schedule->num_ranks; r++)
            for (int i = 0; i < schedule->programs[r].count; i++) {
                Span span = panels[p].simulation->spans[r][i];
                double us = span.end_us - span.start_us;
                if (is_compute(schedule->programs[r].instrs[i]) && us > 0)
                    times.shortest_us = fmin(times.shortest_us, us);
            }
    return times;
}

// The shortest compute takes whole characters as long as they fit, so that equal times look equal.
static double characters_per_us(const Schedule *schedule, PanelTimes times, int width) {
    if (times.total_us <= 0) return 0;
    double fitting = floor(width * times.shortest_us / times.total_us + 1e-9),
           wanted = num_digits(schedule->num_microbatches - 1) + 1;
    return fitting < 1 ? width / times.total_us : fmin(fitting, wanted) / times.shortest_us;
}

static char mark_of(const Schedule *schedule, Instr in) {
    if (in.op == OP_BACKWARD_WEIGHT) return 'w';
    if (schedule->num_chunks == 1) return in.op == OP_FORWARD ? '>' : '<';
    return (char)((in.op == OP_FORWARD ? 'a' : 'A') + in.chunk % 26);
}

static int style_of(Instr in) {
    int direction = in.op == OP_FORWARD ? 0 : in.op == OP_BACKWARD_WEIGHT ? 2 : 1;
    return NUM_SHADES * direction + in.chunk % NUM_SHADES;
}

static void paint_cell(const Schedule *schedule, Instr in, int from, int to, Row *row) {
    bool marked = in.op != OP_FORWARD || schedule->num_chunks > 1;
    char number[12];
    snprintf(number, sizeof number, "%d", in.microbatch);
    int length = (int)strlen(number), room = to - from - (marked && !row->colour);
    for (int i = from; i < to; i++) {
        row->marks[i] = row->colour ? ' ' : mark_of(schedule, in);
        row->styles[i] = style_of(in);
    }
    int shown = room < length ? room : length;
    if (shown > 0 && row->numbered) memcpy(row->marks + from, number + length - shown, (size_t)shown);
}

static void paint_row(const Schedule *schedule, const Simulation *simulation, int rank, double scale,
                      Row *row) {
    memset(row->marks, ' ', (size_t)row->width);
    for (int i = 0; i < row->width; i++) row->styles[i] = IDLE;
    for (int i = 0; i < schedule->programs[rank].count; i++) {
        Span span = simulation->spans[rank][i];
        if (!is_compute(schedule->programs[rank].instrs[i])) continue;
        int from = (int)lround(span.start_us * scale), to = (int)lround(span.end_us * scale);
        if (from == to) from = to > 0 ? to - 1 : 0, to = from + 1;
        if (to > row->width) to = row->width;
        paint_cell(schedule, schedule->programs[rank].instrs[i], from, to, row);
    }
}

static void print_row(const Row *row, Text *out) {
    int last = row->width;
    while (last > 0 && row->styles[last - 1] == IDLE) last--;
    for (int i = 0, end; i < last; i = end) {
        int style = row->styles[i];
        for (end = i + 1; end < last && row->styles[end] == style;) end++;
        if (row->colour && style != IDLE)
            text_add(out, "\x1b[30;48;5;%dm", shades[style / NUM_SHADES][style % NUM_SHADES]);
        text_add_bytes(out, row->marks + i, (size_t)(end - i));
        if (row->colour && style != IDLE) text_add(out, "\x1b[0m");
    }
    text_add(out, "\n");
}

static void print_axis(double total_us, int label_width, double scale, Text *out) {
    char end[32];
    int length = snprintf(end, sizeof end, "%.6g us", total_us);
    int width = (int)lround(total_us * scale);
    text_add(out, "%*s0%*s\n", label_width, "", width > length ? width - 1 : length + 1, end);
}

static void print_sample(bool colour, int direction, int chunk, char mark, Text *out) {
    if (colour)
        text_add(out, " \x1b[30;48;5;%dm0 \x1b[0m", shades[direction][chunk % NUM_SHADES]);
    else
        text_add(out, " 0%c", mark);
}

static void print_legend(const Schedule *schedule, bool colour, int label_width, Text *out) {
    enum { MAX_SHOWN = 4 };
    int chunks = schedule->num_chunks, shown = chunks < MAX_SHOWN ? chunks : MAX_SHOWN;
    text_add(out, "%*s", label_width - 1, "");
    for (int direction = 0; direction < 2; direction++) {
        ScheduleOp op = direction ? OP_BACKWARD : OP_FORWARD;
        for (int c = 0; c < shown; c++)
            print_sample(colour, direction, c,
                         mark_of(schedule, (Instr){.op = (uint8_t)op, .chunk = (uint8_t)c}), out);
        text_add(out, "%s %s  ", shown < chunks ? " ..." : "", direction ? "backward" : "forward");
    }
    text_add(out, chunks > 1 ? "of microbatch 0 in chunks 0 to %d\n" : "of microbatch 0\n", chunks - 1);
}

static void print_panel(const Schedule *schedule, const Panel *panel, double scale, Row *row, Text *out) {
    int digits = num_digits(schedule->num_ranks - 1);
    if (panel->name) text_add(out, "%s, bubble %.1f %%:\n", panel->name, 100 * panel->simulation->bubble);
    for (int r = 0; r < schedule->num_ranks; r++) {
        paint_row(schedule, panel->simulation, r, scale, row);
        text_add(out, "rank %*d ", digits, r);
        print_row(row, out);
    }
}

void timeline_panels(const Schedule *schedule, const Panel *panels, int num_panels, int columns, bool colour,
                     Text *out) {
    int label_width = num_digits(schedule->num_ranks - 1) + (int)strlen("rank  ");
    if (columns < NARROWEST) columns = NARROWEST;
    Row row = {.width = columns - label_width, .colour = colour};
    row.marks = malloc((size_t)row.width);
    row.styles = malloc((size_t)row.width * sizeof *row.styles);
    CHECK(row.marks && row.styles, "no memory for a row of %d characters", row.width);
    PanelTimes times = panel_times(schedule, panels, num_panels);
    double scale = characters_per_us(schedule, times, row.width);
    row.numbered = scale * times.shortest_us > 1 - 1e-9;
    for (int p = 0; p < num_panels; p++) print_panel(schedule, &panels[p], scale, &row, out);
    print_axis(times.total_us, label_width, scale, out);
    print_legend(schedule, colour, label_width, out);
    free(row.styles);
    free(row.marks);
}

void timeline_text(const Schedule *schedule, const Simulation *simulation, int columns, bool colour,
                   Text *out) {
    timeline_panels(schedule, &(Panel){NULL, simulation}, 1, columns, colour, out);
}
