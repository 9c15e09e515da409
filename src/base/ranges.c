// Parses, prints and joins ranges of whole numbers, and counts the numbers outside of them.
#include "base/ranges.h"
#include <inttypes.h>
#include <string.h>

enum { PART = 64 }; // the most bytes of "A-B"

static const int64_t largest = INT64_C(9000000000000000); // of a sample: see RUN_STATE

// ---- text ---------------------------------------------------------------------------------------

static bool parse_part(char part[PART], Range *range) {
    char *dash = strchr(part, '-');
    if (dash) *dash = 0;
    if (!parse_int(part, &range->first) || !parse_int(dash ? dash + 1 : part, &range->end)) return false;
    return range->first >= 0 && range->first <= range->end++ && range->end <= largest;
}

static bool shares_a_number(const Ranges *ranges, Range with) {
    for (int i = 0; i < ranges->count; i++)
        if (with.first < ranges->items[i].end && ranges->items[i].first < with.end) return true;
    return false;
}

Status ranges_parse(Ranges *ranges, const char *text, const char *named) {
    *ranges = (Ranges){0};
    for (const char *at = text;; at++) {
        char part[PART];
        Range range;
        int length = (int)strcspn(at, ",");
        bool fits = snprintf(part, sizeof part, "%.*s", length, at) < PART;
        if (!fits || !parse_part(part, &range))
            return fail(ERR_CONFIG,
                        "%s %s: '%.*s' is not a range: write the first and the last number, such as 100-199",
                        named, text, length, at);
        if (shares_a_number(ranges, range))
            return fail(ERR_CONFIG, "%s %s: %.*s overlaps another range: join them into one", named, text,
                        length, at);
        if (!ranges_add(ranges, range.first, range.end))
            return fail(ERR_CONFIG, "%s: more than %d ranges", named, MAX_RANGES);
        at += length;
        if (!*at) return OK;
    }
}

void ranges_print(const Ranges *ranges, Text *out) {
    for (int i = 0; i < ranges->count; i++) {
        Range r = ranges->items[i];
        text_add(out, "%s%" PRId64, i ? "," : "", r.first);
        if (r.end > r.first + 1) text_add(out, "-%" PRId64, r.end - 1);
    }
}

// ---- numbers ------------------------------------------------------------------------------------

bool ranges_add(Ranges *ranges, int64_t first, int64_t end) {
    Ranges all = {0};
    int i = 0;
    for (; i < ranges->count && ranges->items[i].end < first; i++) all.items[all.count++] = ranges->items[i];
    Range joined = {first, end};
    for (; i < ranges->count && ranges->items[i].first <= end; i++) {
        if (ranges->items[i].first < joined.first) joined.first = ranges->items[i].first;
        if (ranges->items[i].end > joined.end) joined.end = ranges->items[i].end;
    }
    if (all.count + 1 + ranges->count - i > MAX_RANGES) return false;
    all.items[all.count++] = joined;
    for (; i < ranges->count; i++) all.items[all.count++] = ranges->items[i];
    *ranges = all;
    return true;
}

int64_t ranges_size(const Ranges *ranges) {
    int64_t size = 0;
    for (int i = 0; i < ranges->count; i++) size += ranges->items[i].end - ranges->items[i].first;
    return size;
}

int64_t ranges_left(const Ranges *ranges, int64_t count) {
    int64_t number = count;
    for (int i = 0; i < ranges->count && ranges->items[i].first <= number; i++)
        number += ranges->items[i].end - ranges->items[i].first;
    return number;
}

// The numbers of `more` are tried where a range of it or of `ranges` begins or ends: the first new one is such a
// number.
int64_t ranges_first_new(const Ranges *ranges, const Ranges *more, int64_t limit) {
    for (int i = 0; i < more->count; i++) {
        int64_t at = more->items[i].first;
        for (int k = 0; k < ranges->count; k++)
            if (ranges->items[k].first <= at && at < ranges->items[k].end) at = ranges->items[k].end;
        if (at < more->items[i].end) return at < limit ? at : -1;
    }
    return -1;
}
