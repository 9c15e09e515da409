// The picture of a run that `trireme watch` shows: how far it is, what each rank does, who waits for whom, since when.
#pragma once
#include "base/beat.h"
#include "report/run_record.h"

// Adds the picture. `page` has the heartbeats; without a header it has none. `columns`: of the screen. Ranks that
// compute come first, then those that wait, each with the longest time first, and at most `most_ranks` of them.
void watch_print(const RunRecord *record, const BeatPage *page, int columns, int most_ranks, Text *out);
