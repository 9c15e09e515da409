// Pictures of what a schedule does with its time, in the manner of figures 3 and 4 of Narayanan et al. 2021: one row per
// pipeline rank, time to the right, each compute a cell with the number of its microbatch, idle time left empty.
#pragma once
#include "layout/layout.h"

// For a terminal of `columns` characters. Each cell ends in a mark of direction and chunk: "0>" forward and "0<" backward, or
// "0a" and "0A" for chunk 0, "0b" and "0B" for chunk 1, when ranks have several. `colour` adds what a terminal shows.
// A number that does not fit shows its last digits; where even the marks do not fit, a column shows what ends in it last.
void timeline_text(const Schedule *schedule, const Simulation *simulation, int columns, bool colour,
                   Text *out);

// A drawing for print: forwards blue, backwards green, weight gradients amber, later chunks lighter. `title` is any text.
void timeline_svg(const Schedule *schedule, const Simulation *simulation, const char *title, Text *out);
