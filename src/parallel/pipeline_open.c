// Opens a pipeline: its pools of buffers and arenas, its channels, and the schedule that it runs.
#include "parallel/pipeline_state.h"
#include <stdlib.h>
#include <string.h>

// ---- opening and closing ---------------------------------------------------------------------------------

static bool has_arenas(BufferKind kind) { return kind == BUFFER_STASH || kind == BUFFER_RECOMPUTED; }

static Status open_pool(Pipeline *p, BufferKind kind, const PipelineSpec *spec) {
    Pool *pool = &p->pools[kind];
    int size = schedule_pool(spec->schedule, context_rank(p->context, ROLE_PIPELINE), kind);
    pool->capacity = size > spec->capacity[kind] ? size : spec->capacity[kind];
    pool->buffers = calloc((size_t)pool->capacity + 1, sizeof *pool->buffers);
    pool->free = calloc((size_t)pool->capacity + 1, sizeof *pool->free);
    if (!pool->buffers || !pool->free)
        return fail(ERR_OS, "no memory for %d buffers for %s", pool->capacity, buffer_names[kind]);
    for (int i = 0; i < pool->capacity && !has_arenas(kind); i++)
        pool->buffers[i].message =
            tensor_take(spec->arena, buffer_names[kind], p->stage.rows, p->stage.hidden, p->stage.dtype);
    return OK;
}

static Status open_arena(Pipeline *p, Arena *arena, const char *name, size_t bytes, bool measuring) {
    if (!measuring) return arena_open(arena, name, device_memory(p->context->device), bytes);
    arena_open_measuring(arena, name);
    return OK;
}

static Status open_arenas(Pipeline *p, const PipelineSpec *spec) {
    for (int i = 0; i < p->pools[BUFFER_STASH].capacity; i++) {
        Slot *slot = &p->slots[i];
        TRY(open_arena(p, &slot->stash, "stash", spec->stash_bytes, spec->measuring));
        slot->layers = calloc(1, p->stage.slot_layers_bytes + 1);
        if (!slot->layers) return fail(ERR_OS, "no memory for a slot's record of its layers");
    }
    for (int i = 0; i < p->pools[BUFFER_RECOMPUTED].capacity; i++)
        TRY(open_arena(p, &p->recomputed[i], "recomputed", spec->recomputed_bytes, spec->measuring));
    return OK;
}

size_t pipeline_items(const Schedule *s) { return (size_t)s->num_chunks * (size_t)s->num_microbatches; }

static int num_pairs(const Program *program) {
    int count = 0;
    for (int i = 0; i < program->count; i++) count += program->instrs[i].pairs;
    return count;
}

static Status take_lists(Pipeline *p) {
    size_t chunks = (size_t)p->schedule->num_chunks;
    p->num_items = pipeline_items(p->schedule);
    p->slots = calloc((size_t)p->pools[BUFFER_STASH].capacity, sizeof *p->slots);
    p->recomputed = calloc((size_t)p->pools[BUFFER_RECOMPUTED].capacity + 1, sizeof *p->recomputed);
    p->items = calloc(p->num_items, sizeof *p->items);
    p->last_weight = calloc(chunks, sizeof *p->last_weight);
    p->chunk_times = calloc(chunks, sizeof *p->chunk_times);
    if (p->slots && p->recomputed && p->items && p->last_weight && p->chunk_times) return OK;
    return fail(ERR_OS, "no memory for %zu microbatches in flight", p->num_items);
}

static void choose_rows(Pipeline *p, bool scatter_gather) {
    const Context *c = p->context;
    int64_t tp = scatter_gather && !c->mode.sequence_parallel ? context_ranks(c, ROLE_TENSOR) : 1;
    if (p->stage.rows % tp) tp = 1;
    p->num_rows = p->stage.rows / tp;
    p->first_row = tp > 1 ? context_rank(c, ROLE_TENSOR) * p->num_rows : 0;
}

Status pipeline_create(Pipeline **out, Context *context, const PipelineSpec *spec) {
    Pipeline *p = *out = calloc(1, sizeof *p);
    if (!p) return fail(ERR_OS, "no memory for the pipeline");
    *p = (Pipeline){.context = context, .stage = spec->stage, .schedule = spec->schedule};
    choose_rows(p, spec->scatter_gather);
    for (BufferKind kind = 0; kind < NUM_BUFFER_KINDS; kind++) TRY(open_pool(p, kind, spec));
    TRY(take_lists(p));
    TRY(open_arenas(p, spec));
    if (num_pairs(&spec->schedule->programs[context_rank(context, ROLE_PIPELINE)])) {
        TRY(turns_open(&p->turns));
        TRY(open_arena(p, &p->beside, "scratch of a forward beside a backward", spec->beside_bytes,
                       spec->measuring));
    }
    return pipeline_use(p, spec->schedule);
}

void pipeline_destroy(Pipeline *p) {
    if (!p) return;
    pipeline_read_last_run(p); // every mark is read once (device.h)
    for (int i = 0; p->slots && i < p->pools[BUFFER_STASH].capacity; i++) {
        arena_close(&p->slots[i].stash);
        free(p->slots[i].layers);
    }
    for (int i = 0; p->recomputed && i < p->pools[BUFFER_RECOMPUTED].capacity; i++)
        arena_close(&p->recomputed[i]);
    for (int kind = 0; kind < NUM_BUFFER_KINDS; kind++) {
        free(p->pools[kind].free);
        free(p->pools[kind].buffers);
    }
    arena_close(&p->beside);
    turns_close(p->turns);
    free(p->last.spans);
    free(p->chunk_times);
    free(p->last_weight);
    free(p->items);
    free(p->recomputed);
    free(p->slots);
    free(p);
}

// The messages between neighbouring stages, in the order of the model: every rank opens them in this order.
Status pipeline_connect(Pipeline *p) {
    const Schedule *s = p->schedule;
    Comm *comm = context_group(p->context, ROLE_PIPELINE);
    int edges = s->num_ranks * s->num_chunks - 1;
    CommChannel *channels = calloc((size_t)edges * 2 + 1, sizeof *channels);
    CHECK(channels, "no memory for %d channels", 2 * edges);
    for (int i = 0; i < edges; i++) {
        int before = schedule_stage_rank(s, i), after = schedule_stage_rank(s, i + 1);
        channels[2 * i] = (CommChannel){before, after, FORWARDS};
        channels[2 * i + 1] = (CommChannel){after, before, BACKWARDS};
    }
    Status status = comm_open_channels(comm, channels, 2 * edges);
    free(channels);
    return status;
}

static Status take_spans(Pipeline *p, int instrs) {
    LastRun *last = &p->last;
    if (instrs <= last->capacity) return OK;
    pipeline_read_last_run(p);
    free(last->spans);
    last->spans = calloc((size_t)instrs, sizeof *last->spans);
    last->capacity = last->spans ? instrs : 0;
    return last->spans ? OK : fail(ERR_OS, "no memory for the times of %d instructions", instrs);
}

// The pools get the sizes that the walk of this very schedule had, not those of the largest schedule.
Status pipeline_use(Pipeline *p, const Schedule *schedule) {
    const Schedule *s = p->schedule;
    size_t places = (size_t)s->num_ranks * (size_t)s->num_chunks;
    if (schedule->num_ranks != s->num_ranks || schedule->num_chunks != s->num_chunks ||
        memcmp(schedule->stage, s->stage, places * sizeof *s->stage) ||
        pipeline_items(schedule) > p->num_items)
        return fail(ERR_CONFIG,
                    "a schedule of %d ranks, %d chunks and %d microbatches does not fit this pipeline",
                    schedule->num_ranks, schedule->num_chunks, schedule->num_microbatches);
    int rank = context_rank(p->context, ROLE_PIPELINE), sizes[NUM_BUFFER_KINDS];
    for (BufferKind kind = 0; kind < NUM_BUFFER_KINDS; kind++) {
        sizes[kind] = schedule_pool(schedule, rank, kind);
        if (sizes[kind] > p->pools[kind].capacity)
            return fail(ERR_CONFIG, "the schedule of %d microbatches needs %d buffers for %s, there are %d",
                        schedule->num_microbatches, sizes[kind], buffer_names[kind], p->pools[kind].capacity);
    }
    const Program *program = &schedule->programs[rank];
    CHECK(p->turns || !num_pairs(program), "the largest batch has no pairs, and %d microbatches have",
          schedule->num_microbatches);
    TRY(take_spans(p, program->count + num_pairs(program) * p->stage.most_turns));
    for (int kind = 0; kind < NUM_BUFFER_KINDS; kind++) p->pools[kind].size = sizes[kind];
    p->schedule = schedule;
    p->program = program;
    for (int i = 0; i < p->program->count; i++)
        if (schedule_ops[p->program->instrs[i].op].stash < 0) p->last_weight[p->program->instrs[i].chunk] = i;
    return OK;
}

int pipeline_pool_count(const Pipeline *p, BufferKind kind) { return p->pools[kind].capacity; }

static const Arena *arena_of(const Pipeline *p, BufferKind kind, int i) {
    return kind == BUFFER_STASH ? &p->slots[i].stash : &p->recomputed[i];
}

const Arena *pipeline_beside(const Pipeline *p) { return p->turns ? &p->beside : NULL; }

size_t pipeline_pool_peak(const Pipeline *p, BufferKind kind) {
    size_t peak = 0;
    for (int i = 0; i < p->pools[kind].capacity; i++)
        if (arena_of(p, kind, i)->peak > peak) peak = arena_of(p, kind, i)->peak;
    return peak;
}

const Arena *pipeline_pool_fullest(const Pipeline *p, BufferKind kind) {
    const Arena *fullest = NULL;
    for (int i = 0; i < p->pools[kind].capacity; i++)
        if (!fullest || arena_of(p, kind, i)->used > fullest->used) fullest = arena_of(p, kind, i);
    return fullest;
}
