// The weights of a model by its parameters: lists them, and reads the share of a rank.
#include "checkpoint/checkpoint.h"
#include "layout/kinds.h"
#include "layout/layers.h"
#include "model/model.h"
#include <stdlib.h>

static bool is_own(const Param *p) { return !p->spec.tied_to; }

static Status list(const Params *params, WeightSpec **weights, int *count) {
    *count = 0;
    *weights = calloc((size_t)params->count + 1, sizeof **weights);
    if (!*weights) return fail(ERR_OS, "no memory for the list of %d weights", params->count);
    for (int i = 0; i < params->count; i++) {
        const ParamSpec *spec = &params->items[i]->spec;
        if (!is_own(params->items[i])) continue;
        WeightSpec *weight = &(*weights)[(*count)++];
        *weight = (WeightSpec){.rows = spec->real_rows, .cols = spec->cols};
        weight->is_hidden_matrix = spec->matrices[0] > 0;
        weight->is_by_rule = spec->by_rule;
        weight->is_frozen = spec->by_rule ? params->adapters_only : params->items[i]->frozen;
        snprintf(weight->name, sizeof weight->name, "%s", spec->name);
    }
    return OK;
}

// Declares the model of a single rank and never places it.
Status model_weights(const ModelShape *shape, WeightSpec **weights, int *count) {
    Context context = {.mode = {.padded_vocabulary = shape->vocabulary}};
    Params params = {0};
    Schedule schedule;
    Gpt *gpt = NULL;
    *weights = NULL;
    const char *kind = schedule_kind_default(1)->name;
    TRY(schedule_create(&schedule,
                        &(ScheduleSpec){.kind = kind, .ranks = 1, .chunks = 1, .microbatches = 1}));
    Status status =
        gpt_create(&gpt, shape, (LayerSplit){.layers = shape->layers}, &context, &schedule, &params);
    if (status == OK) status = list(&params, weights, count);
    gpt_destroy(gpt);
    params_free(&params);
    schedule_destroy(&schedule);
    return status;
}

// Files contain a tied parameter once, under the name of the original.
Status weight_reader_fill(void *self, const Param *p, float *local) {
    const WeightReader *reader = self;
    const char *name = p->spec.tied_to ? p->spec.tied_to : p->spec.name;
    PlacementRects rects = placement_rects(&p->place, 0, param_local_count(p));
    for (PlacementRect at; placement_next_rect(&rects, &at);) {
        Rect rect = {at.row, at.col, at.rows, at.cols};
        TRY(reader->read(reader->self, name, rect, local + at.local, at.stride));
    }
    return OK;
}
