// A small model of hand-made parameters with every kind of cut, for tests that need parameters and no layers:
// a table and its tied copy at the two ends, and four layers whose parameters are cut by rows in two blocks,
// by columns, or not at all. With fixture_experts each layer has the matrices of as many experts besides.
#pragma once
#include "harness.h"
#include "nn/params.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIXTURE_HIDDEN = 10,
    FIXTURE_FFN = 48,
    FIXTURE_ROWS = 72,
    FIXTURE_LAYERS = 4,
    FIXTURE_PARAMS = 2 + 5 * FIXTURE_LAYERS,
    FIXTURE_MOST_PARAMS = FIXTURE_PARAMS + 3 * FIXTURE_LAYERS,
    FIXTURE_WIDTH = 12,                                // of an expert
    FIXTURE_LARGEST = 2 * FIXTURE_FFN * FIXTURE_HIDDEN // elements of the largest parameter
};

static int fixture_experts;

static inline int fixture_params(void) { return fixture_experts ? FIXTURE_MOST_PARAMS : FIXTURE_PARAMS; }

static inline void declare_experts(Params *params, int layer, int stage) {
    int64_t rows = 2 * FIXTURE_WIDTH * fixture_experts;
    ParamSpec specs[] = {
        {.name = "experts.fc1",
         rows,
         FIXTURE_HIDDEN,
         {.dim = 0, .blocks = 2},
         .decay = true,
         .matrices = {1}},
        {.name = "experts.fc1.bias", fixture_experts, 2 * FIXTURE_WIDTH, {.dim = 1, .blocks = 2}},
        {.name = "experts.fc2",
         FIXTURE_HIDDEN * fixture_experts,
         FIXTURE_WIDTH,
         {.dim = 1},
         .matrices = {1}}};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        char last[24];
        memcpy(last, specs[i].name, sizeof last);
        snprintf(specs[i].name, sizeof specs[i].name, "layers.%d.%s", layer, last);
        specs[i].stage = stage;
        specs[i].experts = fixture_experts;
        specs[i].init = INIT_NORMAL, specs[i].stddev = 0.2f;
        params_declare(params, specs[i]);
    }
}

static inline void declare_layer(Params *params, int layer, int stage) {
    ParamSpec specs[] = {
        {.name = "norm", 1, FIXTURE_HIDDEN, {.dim = -1}, INIT_ONE, .reduction = REDUCTION_PARTIAL},
        {.name = "fc1",
         2 * FIXTURE_FFN,
         FIXTURE_HIDDEN,
         {.dim = 0, .blocks = 2},
         INIT_NORMAL,
         0.3f,
         .decay = true,
         .matrices = {4, 2, 2}},
        {.name = "fc1.bias", 1, 2 * FIXTURE_FFN, {.dim = 1, .blocks = 2}, INIT_ZERO},
        {.name = "fc2",
         FIXTURE_HIDDEN,
         FIXTURE_FFN,
         {.dim = 1},
         INIT_NORMAL,
         0.1f,
         .decay = true,
         .matrices = {1}},
        {.name = "fc2.bias", 1, FIXTURE_HIDDEN, {.dim = -1}, INIT_ZERO, .reduction = REDUCTION_PARTIAL},
    };
    params_begin_unit(params);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        char last[16];
        memcpy(last, specs[i].name, sizeof last);
        snprintf(specs[i].name, sizeof specs[i].name, "layers.%d.%s", layer, last);
        specs[i].stage = stage;
        params_declare(params, specs[i]);
    }
    if (fixture_experts) declare_experts(params, layer, stage);
}

static inline void declare_model(Params *params, int stages) {
    ParamSpec table = {
        .name = "table", FIXTURE_ROWS, FIXTURE_HIDDEN, {.dim = 0}, INIT_NORMAL, 0.5f, .decay = true};
    table.real_rows = FIXTURE_ROWS - 5;
    params_begin_unit(params);
    params_declare(params, table);
    for (int layer = 0; layer < FIXTURE_LAYERS; layer++)
        declare_layer(params, layer, layer * stages / FIXTURE_LAYERS);
    snprintf(table.name, sizeof table.name, "head");
    table.tied_to = "table";
    table.stage = stages - 1;
    params_begin_unit(params);
    params_declare(params, table);
    CHECK(params->count == fixture_params(), "%d parameters", params->count);
}

// Makes a declared parameter what a rank of a grid holds of it, without memory.
static inline void param_hold_on(Param *p, Grid grid, int rank) {
    Topology topology = topology_of(grid, rank);
    p->place = placement_of(
        &topology, (PlacedTensor){.cut = p->spec.cut,
                                  .reduction = p->spec.experts ? REDUCTION_EXPERT : p->spec.reduction,
                                  .rows = p->spec.rows,
                                  .cols = p->spec.cols,
                                  .real_rows = p->spec.real_rows,
                                  .experts = p->spec.experts});
}

// The same of tensor rank `rank` of `tp`.
static inline void param_hold(Param *p, int tp, int rank) { param_hold_on(p, (Grid)GRID(tp, 1, 1), rank); }

// Chunk c of pipeline rank r holds stage c * p + r; `vee` turns every second chunk round.
static inline int fixture_stage(Grid grid, bool vee, int rank, int chunk) {
    return vee && chunk % 2 ? (chunk + 1) * grid_along(grid, AXIS_PP) - 1 - rank
                            : chunk * grid_along(grid, AXIS_PP) + rank;
}
