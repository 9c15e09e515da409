// The report of a run's time: as text, as JSON, and as a page. All have the same numbers.
#pragma once
#include "base/text.h"
#include "train/goodput.h"

double goodput_share(const Goodput *goodput, TimePart part); // of the wall time; 0 where there is none

// Adds the effective training time, a table of the parts with their shares, and one of the starts. `path` is the
// ledger.
void goodput_print(const Goodput *goodput, const char *path, Text *out);
// Adds one JSON object; docs/goodput.md lists its members. The seconds of the parts add up to those of the wall time.
void goodput_json(const Goodput *goodput, const char *path, Text *out);
void page_goodput(const Goodput *goodput, Text *out); // its sections, of a page of more
// Adds one HTML file that loads nothing else.
void goodput_page(const Goodput *goodput, const char *path, Text *out);
