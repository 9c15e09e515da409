// Lists the weights of a model and checks what a caller wants of them.
#include "api/tensors.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

Status weights_list(const ModelShape *shape, WeightList *list) {
    return model_weights(shape, &list->items, &list->count);
}

void weights_free(WeightList *list) {
    free(list->items);
    *list = (WeightList){0};
}

TriremeTensor weights_tensor(const WeightList *list, int i) {
    if (i < 0 || i >= list->count) return (TriremeTensor){0};
    const WeightSpec *w = &list->items[i];
    return (TriremeTensor){w->name, w->rows, w->cols};
}

const WeightSpec *weights_find(const WeightList *list, const char *name) {
    for (int i = 0; i < list->count; i++)
        if (!strcmp(list->items[i].name, name)) return &list->items[i];
    return NULL;
}

static Status no_weight(const WeightList *list, const char *name) {
    const char **names = calloc((size_t)list->count + 1, sizeof *names);
    CHECK(names, "no memory for %d names", list->count);
    for (int i = 0; i < list->count; i++) names[i] = list->items[i].name;
    const char *nearest = text_nearest(name, names, list->count);
    free(names);
    return fail(ERR_NO_INPUT, "the model has no tensor %s%s%s%s", name, nearest ? "; did you mean " : "",
                nearest ? nearest : "", nearest ? "?" : "");
}

Status weights_check(const WeightList *list, const char *name, Rect r) {
    const WeightSpec *w = weights_find(list, name);
    if (!w) return no_weight(list, name);
    bool inside = r.row >= 0 && r.col >= 0 && r.rows > 0 && r.cols > 0 && r.row <= w->rows - r.rows &&
                  r.col <= w->cols - r.cols;
    if (inside) return OK;
    return fail(ERR_USAGE,
                "%s is [%" PRId64 ", %" PRId64 "] and has no %" PRId64 " rows from row %" PRId64
                " with %" PRId64 " columns from column %" PRId64,
                name, w->rows, w->cols, r.rows, r.row, r.cols, r.col);
}
