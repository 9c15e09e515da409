// Distributes the layers of a model over pipeline stages, evenly, by balance or as a text says.
#include "layout/layers.h"
#include "layout/parts.h"
#include <stdlib.h>
#include <string.h>

static int rank_layers(LayerSplit split, int p, int rank) {
    if (rank == 0 && split.first) return split.first;
    if (rank == p - 1 && split.last) return split.last;
    int others = p - (split.first > 0) - (split.last > 0), rest = split.layers - split.first - split.last;
    CHECK(rest % others == 0, "%d layers over %d ranks", rest, others);
    return rest / others;
}

static int stage_layers(LayerSplit split, int p, int num_chunks, int stage) {
    if (split.counts) return split.counts[stage];
    int layers = rank_layers(split, p, stage % p);
    CHECK(layers % num_chunks == 0, "%d layers of rank %d in %d chunks", layers, stage % p, num_chunks);
    return layers / num_chunks;
}

void layer_range(LayerSplit split, int pp_size, int num_chunks, int stage, int *first, int *count) {
    *first = 0;
    for (int before = 0; before < stage; before++) *first += stage_layers(split, pp_size, num_chunks, before);
    *count = stage_layers(split, pp_size, num_chunks, stage);
}

// Gives each layer to the stage with the smallest load. The stages between the ends are all alike, so that they are
// filled in turn.
void layer_balance(int layers, int stages, double embedding, double head, int *counts) {
    CHECK(layers >= 0 && stages >= 1, "%d layers over %d stages", layers, stages);
    memset(counts, 0, (size_t)stages * sizeof *counts);
    int last = stages - 1, next = last > 1 ? 1 : 0;
    for (int layer = 0; layer < layers; layer++) {
        int least = 0;
        double load = embedding + counts[0];
        if (next && counts[next] < load) load = counts[least = next];
        if (last && head + counts[last] < load) least = last;
        counts[least]++;
        if (least == next && next) next = next + 1 < last ? next + 1 : 1;
    }
}

// ---- layouts as text ------------------------------------------------------------------------------------

enum { MAX_OPEN = 16 };

// The text with every repetition written out, and the positions that a '*' or ')' may refer to.
typedef struct {
    char *items; // of "Et|L"
    int count, capacity;
    int repeatable; // where the letter or group before a '*' begins, -1: there is none
    int open[MAX_OPEN], num_open;
} Layout;

static bool add_item(Layout *layout, char item) {
    layout->repeatable = layout->count;
    if (layout->count == layout->capacity) return false;
    layout->items[layout->count++] = item;
    return true;
}

static bool repeat(Layout *layout, int times) {
    int begin = layout->repeatable, size = layout->count - begin;
    if ((int64_t)size * (times - 1) > layout->capacity - layout->count) return false;
    for (int i = 1; i < times; i++) {
        memcpy(layout->items + layout->count, layout->items + begin, (size_t)size);
        layout->count += size;
    }
    layout->repeatable = -1;
    return true;
}

// Returns a number of at most 9 digits and moves past it; 0: there is no number above 0.
static int read_times(const char **text) {
    int times = 0;
    for (int i = 0; i < 9 && **text >= '0' && **text <= '9'; i++, (*text)++)
        times = 10 * times + (**text - '0');
    return **text >= '0' && **text <= '9' ? 0 : times;
}

static const char *open_group(Layout *layout) {
    layout->repeatable = -1;
    if (layout->num_open == MAX_OPEN) return "groups are nested deeper than 16";
    layout->open[layout->num_open++] = layout->count;
    return NULL;
}

static const char *close_group(Layout *layout) {
    if (!layout->num_open) return "this ')' closes nothing";
    layout->repeatable = layout->open[--layout->num_open];
    return layout->repeatable == layout->count ? "the group holds nothing" : NULL;
}

// Reads the item at *text and moves past it. Returns the rule that it breaks, or NULL.
static const char *read_item(Layout *layout, const char **text) {
    static const char too_long[] = "by here there are more layers or stages than the run has";
    char item = *(*text)++;
    if (strchr("Et|L", item)) return add_item(layout, item) ? NULL : too_long;
    if (item == '(') return open_group(layout);
    if (item == ')') return close_group(layout);
    if (item == ',') return layout->repeatable = -1, NULL;
    if (item != '*') return "only E, t, L, |, *, digits after *, ( ) and , are known";
    if (layout->repeatable < 0) return "a letter or a group must come right before '*'";
    int times = read_times(text);
    if (!times) return "a number from 1 to 999999999 must follow '*'";
    return repeat(layout, times) ? NULL : too_long;
}

static Status read_layout(const char *text, Layout *layout) {
    layout->repeatable = -1;
    for (const char *at = text; *at;) {
        int column = (int)(at - text) + 1;
        const char *wrong = read_item(layout, &at);
        if (wrong) return fail(ERR_CONFIG, "pipeline layout, character %d: %s", column, wrong);
    }
    if (layout->num_open) return fail(ERR_CONFIG, "pipeline layout: a '(' is not closed at its end");
    return OK;
}

static Status count_layers(const Layout *layout, int layers, int stages, int *counts) {
    int stage = 0, placed = 0;
    for (int i = 0; i < layout->count; i++) {
        char item = layout->items[i];
        if ((item == 'E') != (i == 0) || (item == 'L') != (i == layout->count - 1))
            return fail(
                ERR_CONFIG,
                "pipeline layout, stage %d: E, the embedding, must be at the very start, L, head and loss, "
                "at the very end, and neither anywhere else",
                stage + 1);
        if (item == 't') placed++;
        if (item == '|') stage++;
        if (stage < stages) counts[stage] += item == 't';
    }
    if (stage + 1 != stages || placed != layers)
        return fail(
            ERR_CONFIG,
            "pipeline layout: %d layers (t) in %d stages (separated by |); the run has %d layers and %d "
            "stages (pipeline ranks x chunks)",
            placed, stage + 1, layers, stages);
    return OK;
}

Status layer_parse(const char *text, int layers, int stages, int *counts) {
    CHECK(layers >= 0 && stages >= 1, "%d layers over %d stages", layers, stages);
    // Twice the right size, so that the message about most mistakes can give the numbers.
    Layout layout = {.capacity = 2 * (layers + stages) + 2};
    layout.items = layout_alloc((size_t)layout.capacity, 1);
    memset(counts, 0, (size_t)stages * sizeof *counts);
    Status status = read_layout(text, &layout);
    if (status == OK && !layout.count) status = fail(ERR_CONFIG, "pipeline layout: it is empty");
    if (status == OK) status = count_layers(&layout, layers, stages, counts);
    free(layout.items);
    return status;
}
