// Ranges of whole numbers that something leaves out, such as the samples that a run does not train on: written A-B,
// both ends included, and the numbers that are left, counted from 0.
#pragma once
#include "base/text.h"

enum { MAX_RANGES = 256 };

typedef struct {
    int64_t first, end; // [first, end)
} Range;

// In rising order; neighbours neither overlap nor touch. A zeroed one leaves nothing out.
typedef struct {
    Range items[MAX_RANGES];
    int count;
} Ranges;

// Reads "A-B,C-D" or "A", in any order. Fails with ERR_CONFIG, which names `named` and the first part that is no range;
// ranges that share a number are refused.
Status ranges_parse(Ranges *ranges, const char *text, const char *named);
void ranges_print(const Ranges *ranges, Text *out); // "100-199,300"
// Adds [first, end) and joins it with ranges that it meets. Returns false when there are MAX_RANGES already.
bool ranges_add(Ranges *ranges, int64_t first, int64_t end);
int64_t ranges_size(const Ranges *ranges); // numbers that are left out
// The number that has `count` others in front of it, when those of the ranges are left out.   count >= 0
int64_t ranges_left(const Ranges *ranges, int64_t count);
// The smallest number below `limit` that is in `more` and not in `ranges`; -1: there is none.
int64_t ranges_first_new(const Ranges *ranges, const Ranges *more, int64_t limit);
