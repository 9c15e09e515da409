// The names and the order of tensors, and the proof that slices cover each tensor exactly once.
#include "checkpoint/manifest.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- the order of tensors -----------------------------------------------------------------------

static const char *const state_prefixes[NUM_STATE_TENSORS] = {
    "", "optimizer.exp_avg.", "optimizer.exp_avg_sq.", "optimizer.momentum.", "ema."};

void state_tensor_name(StateTensor which, const char *param, char name[160]) {
    int size = snprintf(name, 160, "%s%s", state_prefixes[which], param);
    CHECK(size < 160, "the name of %s is too long", param);
}

static int first_prefix(const char *name, const char *const *prefixes) {
    int i = 0;
    while (prefixes[i] && strncmp(name, prefixes[i], strlen(prefixes[i])) != 0) i++;
    return i;
}

// Weights come before moments; among them the order is that of the model, with numbers compared as numbers.
static int compare_names(const char *a, const char *b) {
    static const char *const moments[] = {
        "fp8.", "ema.", "optimizer.momentum.", "optimizer.exp_avg_sq.", "optimizer.exp_avg.", NULL};
    static const char *const parts[] = {"embedding.", "decoder.layers.", "decoder.", NULL};
    int kind = first_prefix(b, moments) - first_prefix(a, moments);
    if (kind) return kind;
    const char *prefix = moments[first_prefix(a, moments)];
    size_t skip = prefix ? strlen(prefix) : 0;
    int part = first_prefix(a + skip, parts) - first_prefix(b + skip, parts);
    return part ? part : strverscmp(a, b);
}

static int compare_numbers(int64_t a, int64_t b) { return (a > b) - (a < b); }

static int compare_slices(const void *a, const void *b) {
    const SliceEntry *x = a, *y = b;
    int order = compare_names(x->tensor, y->tensor);
    if (!order) order = compare_numbers(x->rect.row, y->rect.row);
    return order ? order : compare_numbers(x->rect.col, y->rect.col);
}

// ---- every element exactly once -----------------------------------------------------------------

typedef struct {
    int64_t row, col;
} Corner;

static int compare_corners(const void *a, const void *b) {
    const Corner *x = a, *y = b;
    int order = compare_numbers(x->row, y->row);
    return order ? order : compare_numbers(x->col, y->col);
}

// Keeps one of each corner that occurs an odd number of times.
static int odd_corners(Corner *corners, int count) {
    int odd = 0;
    for (int i = 0, same; i < count; i += same) {
        for (same = 1; i + same < count && !compare_corners(&corners[i], &corners[i + same]);) same++;
        if (same % 2) corners[odd++] = corners[i];
    }
    return odd;
}

// The corners that occur an odd number of times determine which elements are covered an odd number of times. When they
// are the corners of the whole tensor, every element is; and it is covered once when the areas add up to the whole.
static bool corners_fit(const SliceEntry *slices, int count) {
    Corner *corners = malloc(4 * (size_t)count * sizeof *corners);
    CHECK(corners, "no memory for the corners of %d slices", count);
    for (int i = 0; i < count; i++) {
        Rect r = slices[i].rect;
        corners[4 * i] = (Corner){r.row, r.col};
        corners[4 * i + 1] = (Corner){r.row, r.col + r.cols};
        corners[4 * i + 2] = (Corner){r.row + r.rows, r.col};
        corners[4 * i + 3] = (Corner){r.row + r.rows, r.col + r.cols};
    }
    qsort(corners, 4 * (size_t)count, sizeof *corners, compare_corners);
    int64_t rows = slices->rows, cols = slices->cols;
    const Corner whole[4] = {{0, 0}, {0, cols}, {rows, 0}, {rows, cols}};
    bool fit = odd_corners(corners, 4 * count) == 4 && !memcmp(corners, whole, sizeof whole);
    free(corners);
    return fit;
}

static Status check_cover(const SliceEntry *slices, int count, const char *what) {
    const SliceEntry *first = slices;
    int64_t whole = first->rows * first->cols, covered = 0;
    for (int i = 0; i < count; i++) {
        if (slices[i].rows != first->rows || slices[i].cols != first->cols)
            return fail(ERR_DATA, "%s: %s is [%" PRId64 ", %" PRId64 "] and [%" PRId64 ", %" PRId64 "]", what,
                        first->tensor, first->rows, first->cols, slices[i].rows, slices[i].cols);
        if (__builtin_add_overflow(covered, slices[i].rect.rows * slices[i].rect.cols, &covered))
            covered = INT64_MAX;
    }
    if (covered == whole && corners_fit(slices, count)) return OK;
    return fail(ERR_DATA,
                "%s: the %d slices of %s have %" PRId64 " elements for its %" PRId64
                "%s: each must be there exactly once",
                what, count, first->tensor, covered, whole, covered == whole ? ", but overlap" : "");
}

Status manifest_finish(Manifest *m, const char *what) {
    if (m->num_slices == 0) return fail(ERR_DATA, "%s: it has no tensors", what);
    qsort(m->slices, (size_t)m->num_slices, sizeof *m->slices, compare_slices);
    m->tensors = calloc((size_t)m->num_slices, sizeof *m->tensors);
    CHECK(m->tensors, "no memory for %d tensors of a manifest", m->num_slices);
    for (int i = 0, count; i < m->num_slices; i += count) {
        for (count = 1; i + count < m->num_slices;) {
            if (strcmp(m->slices[i].tensor, m->slices[i + count].tensor) != 0) break;
            count++;
        }
        TRY(check_cover(&m->slices[i], count, what));
        m->tensors[m->num_tensors++] = (TensorEntry){i, count};
    }
    return OK;
}

int manifest_find(const Manifest *m, const char *tensor) {
    int low = 0, high = m->num_tensors;
    while (low < high) {
        int middle = (low + high) / 2;
        int order = compare_names(tensor, m->slices[m->tensors[middle].first].tensor);
        if (order == 0) return middle;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

bool manifest_keeps(const Manifest *m, StateTensor which) {
    for (int i = 0; i < m->num_tensors; i++) {
        const char *name = m->slices[m->tensors[i].first].tensor;
        if (which != STATE_WEIGHT && !strncmp(name, state_prefixes[which], strlen(state_prefixes[which])))
            return true;
    }
    return which == STATE_WEIGHT;
}
