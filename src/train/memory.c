// `trireme memory`: what a run would take, rank by rank and block by block, found by running the trainer's own step
// on a device that only counts, and set beside the published formula.
#include "train/internal.h"
#include <stdlib.h>

static double mib(double bytes) { return bytes / (1 << 20); }

static Status add_ranks(const EngineSpec *spec, Text *out) {
    Grid grid = spec->grid;
    text_add(out, "MiB of each rank, by pipeline stage (all tp and dp ranks of a stage are alike):\n"
                  "  pp        run  stashes       x MiB each    scratch  workspace      total\n");
    for (int pp = 0; pp < grid.pp; pp++) {
        EngineMemory m;
        TRY(engine_measure(spec, grid_rank(grid, (Place){0, 0, pp}), &m, NULL));
        text_add(out, "%4d %10.1f %8d %16.1f %10.1f %10.1f %10.1f\n", pp, mib((double)m.run), m.num_stashes,
                 mib((double)m.stash), mib((double)m.scratch), mib((double)m.workspace),
                 mib((double)m.total));
    }
    return OK;
}

static void add_terms(const EngineSpec *spec, Text *out) {
    StashTerm terms[MOST_STASH_TERMS];
    double published = 0, kept = 0;
    int count = model_stash_terms(&spec->shape, &spec->mode, spec->grid.tp, terms);
    text_add(
        out,
        "\nbytes that one layer keeps of one microbatch on a rank (unless it is recomputed as a whole):\n"
        "%-28s %16s %16s\n",
        "", "published", "kept here");
    for (int i = 0; i < count; i++) {
        text_add(out, "  %-26s %16.0f %16.0f\n", terms[i].what, terms[i].published, terms[i].kept);
        published += terms[i].published, kept += terms[i].kept;
    }
    text_add(out, "  %-26s %16.0f %16.0f\n", "sum", published, kept);
    double sbh = (double)spec->shape.sequence * spec->shape.microbatch * spec->shape.hidden;
    text_add(out,
             "  %-26s %16.3f %16.3f\n"
             "published: Korthikanti et al. 2022; dropout masks are drawn again here, never stored\n",
             "in units of s*b*h", published / sbh, kept / sbh);
}

static Status report(const EngineSpec *spec, Text *out) {
    EngineMemory memory;
    Text map = {0};
    Status status = add_ranks(spec, out);
    if (status == OK) status = engine_measure(spec, 0, &memory, &map);
    if (status == OK) {
        add_terms(spec, out);
        text_add(out, "\nthe arenas of rank 0:\n%s", text_string(&map));
    }
    text_free(&map);
    return status;
}

Status memory_report(const Options *options, Text *out) {
    int vocabulary, eod, threads = options->threads == INT_UNSET ? 1 : options->threads;
    EngineSpec spec;
    TRY(batches_vocabulary(options, &vocabulary, &eod));
    int *layers_of_stage = calloc((size_t)(options->shape.pp * options->shape.vp), sizeof *layers_of_stage);
    if (!layers_of_stage) return fail(ERR_OS, "no memory for the layers of each stage");
    Status status = engine_spec(options, threads, vocabulary, layers_of_stage, &spec);
    if (status == OK) status = report(&spec, out);
    free(layers_of_stage);
    return status;
}
