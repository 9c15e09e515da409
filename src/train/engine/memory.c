// Reports the memory of a run for `trireme memory` and --dry-run: each rank and each block, measured by the trainer's
// own step on the null device, beside the published formulas.
#include "comm/device_transport.h"
#include "comm/groups.h"
#include "comm/nccl.h"
#include "device/peer.h"
#include "train/internal.h"
#include <stdlib.h>
#include <string.h>

// The parts of the report, to which each stage adds.
typedef struct {
    const EngineSpec *spec;
    Schedule schedule;
    Text ranks, saved, blocks;
    int64_t checkpoint_bytes;
    size_t shared_bytes; // the most that the replicas of a stage share
    size_t host_bytes;   // the most that a rank takes of the host's memory
} Report;

static double sbh(const EngineSpec *spec) {
    return (double)spec->shape.sequence / grid_along(spec->grid, AXIS_CP) * spec->mode.microbatch *
           spec->shape.hidden;
}

// ---- each pipeline rank ---------------------------------------------------------------------------------

// Prints the arenas of every stage where stages are few, else those of the first and last stage.
static bool shows_blocks(const Report *r, int pp) {
    enum { MAX_SHOWN = 8 };
    int num_ranks = grid_along(r->spec->grid, AXIS_PP);
    return num_ranks <= MAX_SHOWN || pp == 0 || pp == num_ranks - 1;
}

static void add_rank(Report *r, int pp, const EngineMemory *m) {
    text_add(&r->ranks, "%4d %10.1f %8d %10.1f %11d %10.1f", pp, mib(m->run), m->num_stashes, mib(m->stash),
             m->num_recomputed, mib(m->recomputed));
    text_add(&r->ranks, " %10.1f %10.1f %10.1f\n", mib(m->scratch + m->beside), mib(m->workspace),
             mib(m->total));
}

static StashSum layer_sum(const EngineSpec *spec) {
    return model_stash_sum(&spec->shape, &spec->mode, grid_along(spec->grid, AXIS_TP));
}

// Korthikanti 2022: 2sbh for every group that is recomputed, or a share of it, and all terms of other layers.
static double published_saved(const EngineSpec *spec, int layers) {
    const ModelMode *mode = &spec->mode;
    int k = mode->recompute_layers, block = layers < k ? layers : k;
    bool shared = mode->sequence_parallel || mode->distribute_saved;
    double input = 2 * sbh(spec) / (shared ? grid_along(spec->grid, AXIS_TP) : 1);
    if (mode->recompute == RECOMPUTE_UNIFORM) return input * ((layers + k - 1) / k);
    return input * block + (layers - block) * layer_sum(spec).published;
}

// The input of the stage's first layer is kept as the message that brought it.
static void add_saved(Report *r, int pp, const EngineMemory *m) {
    const EngineSpec *spec = r->spec;
    double published = 0, rows = spec->mode.sequence_parallel ? grid_along(spec->grid, AXIS_TP) : 1;
    double input = sbh(spec) / rows * (double)dtype_bytes(spec->mode.dtype);
    for (int c = 0; c < spec->num_chunks; c++) {
        int first, layers;
        layer_range(spec->split, grid_along(spec->grid, AXIS_PP), spec->num_chunks,
                    schedule_stage(&r->schedule, pp, c), &first, &layers);
        double one = published_saved(spec, layers);
        if (one > published) published = one;
    }
    text_add(&r->saved, "  pipeline rank %-12d %16.0f %16.0f\n", pp, published, (double)m->stash + input);
}

// Replicas are alike, but for the matrices that each of them orthogonalises for all (parallel/muon.h): of those the one
// that takes most.
static Status find_largest(Report *r, int pp, int *rank) {
    size_t most = 0;
    int cp = grid_along(r->spec->grid, AXIS_CP);
    int replicas = r->spec->muon.iterations > 0 ? grid_count(r->spec->grid, ROLE_REPLICAS) : 1;
    for (int i = 0; i < replicas; i++) {
        EngineMemory m;
        Place place = {.at[AXIS_PP] = pp, .at[AXIS_DP] = i / cp, .at[AXIS_CP] = i % cp};
        int one = grid_rank(r->spec->grid, place);
        if (!i) *rank = one;
        if (replicas > 1) TRY(engine_measure(r->spec, one, &m, NULL));
        if (replicas > 1 && m.total > most) most = m.total, *rank = one;
    }
    return OK;
}

static Status measure_rank(Report *r, int pp) {
    EngineMemory m;
    int rank = 0;
    bool shown = shows_blocks(r, pp);
    TRY(find_largest(r, pp, &rank));
    if (shown) text_add(&r->blocks, "\nthe arenas of pipeline rank %d:\n", pp);
    TRY(engine_measure(r->spec, rank, &m, shown ? &r->blocks : NULL));
    add_rank(r, pp, &m);
    if (m.shared > r->shared_bytes) r->shared_bytes = m.shared;
    if (m.host > r->host_bytes) r->host_bytes = m.host;
    if (r->spec->mode.recompute >= RECOMPUTE_UNIFORM) add_saved(r, pp, &m);
    return OK;
}

// ---- the whole report --------------------------------------------------------------------------------------------

static void add_terms(const EngineSpec *spec, Text *out) {
    StashTerm terms[MAX_STASH_TERMS];
    StashSum sum = layer_sum(spec);
    int count = model_stash_terms(&spec->shape, &spec->mode, grid_along(spec->grid, AXIS_TP), terms);
    text_add(
        out,
        "\nbytes that one layer keeps of one microbatch on a rank (unless it is recomputed as a whole):\n"
        "%-28s %16s %16s\n",
        "", "published", "kept here");
    for (int i = 0; i < count; i++)
        text_add(out, "  %-26s %16.0f %16.0f\n", terms[i].what, terms[i].published, terms[i].kept);
    text_add(out, "  %-26s %16.0f %16.0f\n", "sum", sum.published, sum.kept);
    text_add(out,
             "  %-26s %16.3f %16.3f\n"
             "published: Korthikanti et al. 2022; dropout masks are drawn again here, never stored\n",
             "in units of s*b*h", sum.published / sbh(spec), sum.kept / sbh(spec));
}

// The first rank holds an end of the model: it has all groups that there are.
static void add_staging(const Report *r, Text *out) {
    Topology first = schedule_topology(&r->schedule, r->spec->grid, 0);
    int ranks = grid_size(r->spec->grid);
    if (ranks == 1 || strncmp(r->spec->device, "cuda", 4) != 0) return;
    text_add(
        out,
        "\nRanks that NCCL links (--device-transport) take %.1f MiB more for the staging buffers of their groups, and\n"
        "what NCCL takes for its own.\n",
        mib(groups_staging_bytes(&first, ALL_ROLES, nccl_staging_bytes)));
    if (ranks > MAX_PEERS) return;
    text_add(
        out,
        "Threads of one process (--device-transport peer) take %.1f MiB more where GPUs do not reach each other's memory.\n",
        mib(peer_staging_bytes(ranks) + groups_staging_bytes(&first, ALL_ROLES, peer_staging_bytes)));
}

static void add_shared(const Report *r, Text *out) {
    if (!r->shared_bytes) return;
    text_add(
        out,
        "\nReplicas of one machine share one copy of the values, %.1f MiB, of which the total of a rank has an equal part.\n"
        "On several machines, or with --no-share-parameters, each rank keeps shards and gathers a unit at a time.\n",
        mib(r->shared_bytes));
}

static void add_host(const Report *r, Text *out) {
    if (!r->host_bytes) return;
    text_add(
        out,
        "\nWith --optimizer-cpu-offload each rank also takes up to %.1f MiB of the host's memory (pinned beside a GPU).\n",
        mib(r->host_bytes));
}

static void add_checkpoints(const Report *r, Text *out) {
    double one = (double)r->checkpoint_bytes / 1048576;
    text_add(
        out,
        "\na checkpoint is %.1f MiB. --memory-save-interval takes, of all machines together, %.1f MiB for two of them\n"
        "(%.1f MiB with several machines, where each is there twice) and %.1f MiB for the ranks' copies of what is saved\n",
        one, 2 * one, 4 * one, one);
}

static void print_report(const Report *r, Text *out) {
    const char *which = r->spec->muon.iterations > 0 ? "tp ranks are alike; of dp ranks the one with most"
                                                     : "all tp and dp ranks of a stage are alike";
    text_add(
        out,
        "MiB of each rank with %d thread%s, by pipeline stage (%s):\n"
        "  pp        run  stashes x MiB each  recomputed x MiB each    scratch  workspace      total\n%s",
        r->spec->threads, r->spec->threads == 1 ? "" : "s", which, text_string(&r->ranks));
    add_terms(r->spec, out);
    if (r->saved.size)
        text_add(out,
                 "\nbytes that all layers of the fullest chunk keep, recomputed as wholes: 2*s*b*h of each "
                 "group, or shares\n%s",
                 text_string(&r->saved));
    text_add(out, "%s", text_string(&r->blocks));
    add_staging(r, out);
    add_shared(r, out);
    add_host(r, out);
    add_checkpoints(r, out);
}

Status memory_add(const EngineSpec *spec, Text *out) {
    Report report = {.spec = spec};
    ScheduleSpec schedule = engine_schedule_spec(spec, spec->num_microbatches);
    TRY(schedule_create(&report.schedule, &schedule));
    Status status = OK;
    for (int pp = 0; status == OK && pp < grid_along(spec->grid, AXIS_PP); pp++)
        status = measure_rank(&report, pp);
    if (status == OK) status = spec_state_bytes(report.spec, true, &report.checkpoint_bytes);
    if (status == OK) print_report(&report, out);
    text_free(&report.blocks);
    text_free(&report.saved);
    text_free(&report.ranks);
    schedule_destroy(&report.schedule);
    return status;
}

Status engine_spec_of_run(const Options *options, int threads, EngineSpec *spec, int **room) {
    int vocabulary, eod;
    *room = NULL;
    TRY(batches_vocabulary(options, &vocabulary, &eod));
    *room = calloc((size_t)engine_spec_room(options), sizeof **room);
    if (!*room) return fail(ERR_OS, "no memory for the layers of each stage");
    Status status = engine_spec(options, threads, vocabulary, *room, spec);
    if (status == OK) return OK;
    free(*room);
    *room = NULL;
    return status;
}

Status memory_report(const Options *options, Text *out) {
    EngineSpec spec;
    int *room;
    TRY(engine_spec_of_run(options, threads_per_rank(options, options->shape.world_size), &spec, &room));
    const EngineSpec here = engine_spec_here(&spec, 0);
    Status status = memory_add(&here, out);
    free(room);
    return status;
}
