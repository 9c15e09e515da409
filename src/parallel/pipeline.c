// Runs the program of a pipeline schedule: posts messages, computes stages, and moves buffers between pools.
#include "base/trace.h"
#include "parallel/parallel.h"
#include <stdlib.h>
#include <string.h>

// The memory of one message, and the request that is filling or sending it.
typedef struct {
    Tensor message; // [rows, hidden]; absent in the pools of arenas
    CommRequest *pending;
} Buffer;

// Buffers of one kind. The current schedule uses `size` of the `capacity` buffers. `free` is a ring of the indices of
// free buffers; the one that has been free longest comes first.
typedef struct {
    Buffer *buffers;
    int *free, capacity, size, first_free, num_free;
} Pool;

// One microbatch of one chunk: the index of the buffer that it holds in each pool, -1 for none.
typedef struct {
    int buffer[NUM_BUFFER_KINDS];
} Item;

// When the device began an instruction and ended it.
typedef struct {
    Instr in;
    DeviceMark start, end;
    double waited_s; // of the host for other ranks, in between
} Span;

// The times of the last run that are not yet added up. The host is ahead of the device and would wait for it where it
// reads a mark, so it reads them when the next run begins, in pipeline_times, before the list is replaced, and at once
// for a trace.
typedef struct {
    bool training, traced;
    double start_s, end_s; // the host's part
    Span *spans;           // [capacity], of the timed instructions
    int num_spans, capacity;
} LastRun;

struct Pipeline {
    Context *context;
    Stage stage;
    const Schedule *schedule;
    const Program *program;
    Pool pools[NUM_BUFFER_KINDS];
    Slot *slots;       // [capacity of the pool of stashes]: each with its arena
    Arena *recomputed; // [capacity of the pool of recomputed activations]
    Item *items;       // [chunks * microbatches]
    size_t num_items;
    int *last_weight; // [chunks]: where the program completes the chunk's gradients
    // The rows of a message that this rank sends and receives. Where these are not all rows, the receivers gather them.
    int64_t first_row, num_rows;
    double total_s, wait_s;
    ChunkTimes *chunk_times;
    LastRun last;
};

// ---- times -----------------------------------------------------------------------------------------------

static void add_time(Pipeline *p, Instr in, double worked_s, double own_s) {
    ChunkTimes *times = &p->chunk_times[in.chunk];
    bool backward = in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT || in.op == OP_BACKWARD_WEIGHT;
    if (in.op == OP_FORWARD) times->forward_s += worked_s, times->forward_own_s += own_s;
    if (backward) times->backward_s += worked_s, times->backward_own_s += own_s;
    if (in.op == OP_BACKWARD_WEIGHT) times->weight_s += worked_s;
}

static void read_span(Pipeline *p, Span *span) {
    device_mark_read(p->context->device, &span->start);
    device_mark_read(p->context->device, &span->end);
    double own_s = span->end.wall_s - span->start.wall_s - span->waited_s;
    if (p->last.training) add_time(p, span->in, span->end.work_s - span->start.work_s, own_s);
    if (!p->last.traced) return;
    trace_add((TraceEvent){.start_s = span->start.wall_s,
                           .end_s = span->end.wall_s,
                           .name = schedule_ops[span->in.op].text,
                           .chunk = span->in.chunk,
                           .microbatch = span->in.microbatch,
                           .peer = -1,
                           .row = TRACE_PIPELINE});
}

// Adds up the last run, which ends where host and device have both ended it. Does nothing the second time.
static void read_last_run(Pipeline *p) {
    LastRun *last = &p->last;
    double end_s = last->end_s;
    for (int i = 0; i < last->num_spans; i++) {
        read_span(p, &last->spans[i]);
        if (last->spans[i].end.wall_s > end_s) end_s = last->spans[i].end.wall_s;
    }
    if (last->training) p->total_s += end_s - last->start_s;
    last->num_spans = 0;
    last->training = false;
}

PipelineTimes pipeline_times(Pipeline *p) {
    read_last_run(p);
    return (PipelineTimes){p->total_s, p->wait_s, p->chunk_times};
}

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

static size_t num_items(const Schedule *s) { return (size_t)s->num_chunks * (size_t)s->num_microbatches; }

static Status take_lists(Pipeline *p) {
    size_t chunks = (size_t)p->schedule->num_chunks;
    p->num_items = num_items(p->schedule);
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
    return pipeline_use(p, spec->schedule);
}

void pipeline_destroy(Pipeline *p) {
    if (!p) return;
    read_last_run(p); // every mark is read once (device.h)
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
    read_last_run(p);
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
        memcmp(schedule->stage, s->stage, places * sizeof *s->stage) || num_items(schedule) > p->num_items)
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
    TRY(take_spans(p, schedule->programs[rank].count));
    for (int kind = 0; kind < NUM_BUFFER_KINDS; kind++) p->pools[kind].size = sizes[kind];
    p->schedule = schedule;
    p->program = &schedule->programs[rank];
    for (int i = 0; i < p->program->count; i++)
        if (schedule_ops[p->program->instrs[i].op].stash < 0) p->last_weight[p->program->instrs[i].chunk] = i;
    return OK;
}

int pipeline_pool_count(const Pipeline *p, BufferKind kind) { return p->pools[kind].capacity; }

static const Arena *arena_of(const Pipeline *p, BufferKind kind, int i) {
    return kind == BUFFER_STASH ? &p->slots[i].stash : &p->recomputed[i];
}

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

// ---- pools -----------------------------------------------------------------------------------------------

static void wait_for(Pipeline *p, CommRequest **request) {
    if (!*request) return;
    double start = clock_s();
    comm_wait(context_group(p->context, ROLE_PIPELINE), p->context->stream, request);
    p->wait_s += clock_s() - start;
}

static int *index_of(Pipeline *p, BufferKind kind, int chunk, int microbatch) {
    return &p->items[chunk * p->schedule->num_microbatches + microbatch].buffer[kind];
}

static Buffer *buffer_of(Pipeline *p, BufferKind kind, Instr in) {
    int index = *index_of(p, kind, in.chunk, in.microbatch);
    CHECK(index >= 0, "microbatch %d of chunk %d holds no %s", in.microbatch, in.chunk, buffer_names[kind]);
    return &p->pools[kind].buffers[index];
}

// Absent where the microbatch holds no buffer of this kind.
static Tensor message_of(Pipeline *p, BufferKind kind, int chunk, int microbatch) {
    int index = *index_of(p, kind, chunk, microbatch);
    return index < 0 ? (Tensor){0} : p->pools[kind].buffers[index].message;
}

// Waits until the last message has left the buffer. It had the longest time for that, because the ring gives out the
// buffer that has been free longest.
static void alloc_buffer(Pipeline *p, Pool *pool, int *index) {
    CHECK(pool->num_free > 0, "all %d buffers for %s are in use", pool->size, buffer_names[pool - p->pools]);
    *index = pool->free[pool->first_free];
    pool->first_free = (pool->first_free + 1) % pool->size;
    pool->num_free--;
    wait_for(p, &pool->buffers[*index].pending);
}

static void free_buffer(Pool *pool, int *index) {
    CHECK(*index >= 0, "a buffer is freed that was not allocated");
    pool->free[(pool->first_free + pool->num_free++) % pool->size] = *index;
    *index = -1;
}

static void change_buffers(Pipeline *p, const BufferChanges *changes, int microbatch, bool take) {
    for (int i = 0; i < changes->count; i++) {
        BufferChange change = changes->items[i];
        if (change.alloc != take) continue;
        int *index = index_of(p, change.kind, change.chunk, microbatch);
        if (take)
            alloc_buffer(p, &p->pools[change.kind], index);
        else
            free_buffer(&p->pools[change.kind], index);
    }
}

static void free_all(Pipeline *p) {
    for (int kind = 0; kind < NUM_BUFFER_KINDS; kind++) {
        Pool *pool = &p->pools[kind];
        pool->first_free = 0;
        pool->num_free = pool->size;
        for (int i = 0; i < pool->size; i++) pool->free[i] = i;
        for (size_t i = 0; i < num_items(p->schedule); i++) p->items[i].buffer[kind] = -1;
    }
}

static void wait_for_sends(Pipeline *p) {
    for (int kind = 0; kind < NUM_BUFFER_KINDS; kind++)
        for (int i = 0; i < p->pools[kind].size; i++) wait_for(p, &p->pools[kind].buffers[i].pending);
}

// ---- instructions -------------------------------------------------------------------------------

typedef struct {
    const Microbatch *microbatches;
    GradReducer *reducer; // NULL in an evaluation, which runs the forwards alone
    int at;               // the index of the instruction
} Run;

static Tensor share_of(const Pipeline *p, Tensor message) {
    return tensor_rows(message, p->first_row, p->num_rows);
}

static void post_send(Pipeline *p, Instr in, BufferKind kind) {
    Buffer *buffer = buffer_of(p, kind, in);
    buffer->pending = comm_send(context_group(p->context, ROLE_PIPELINE), p->context->stream,
                                share_of(p, buffer->message), in.peer, (int)schedule_ops[in.op].direction);
}

static void post_receive(Pipeline *p, Instr in, BufferKind kind) {
    Buffer *buffer = buffer_of(p, kind, in);
    buffer->pending = comm_recv(context_group(p->context, ROLE_PIPELINE), p->context->stream,
                                share_of(p, buffer->message), in.peer, (int)schedule_ops[in.op].direction);
}

// Waits for the message that a compute consumes, where there is one.
static void complete_receive(Pipeline *p, Instr in, ScheduleOp receive, BufferKind kind) {
    if (schedule_partner(p->schedule, context_rank(p->context, ROLE_PIPELINE), in.chunk, receive) < 0) return;
    Buffer *buffer = buffer_of(p, kind, in);
    wait_for(p, &buffer->pending);
    if (p->num_rows < p->stage.rows)
        comm_all_gather(context_group(p->context, ROLE_TENSOR), p->context->stream,
                        share_of(p, buffer->message), buffer->message);
}

static void complete_input(Pipeline *p, Instr in) {
    if (in.op == OP_FORWARD) complete_receive(p, in, OP_RECV_FORWARD, BUFFER_INPUT);
    if (in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT)
        complete_receive(p, in, OP_RECV_BACKWARD, BUFFER_OUTPUT_GRADIENT);
}

static Slot *slot_of(Pipeline *p, Instr in) {
    int index = *index_of(p, BUFFER_STASH, in.chunk, in.microbatch);
    CHECK(index >= 0, "microbatch %d of chunk %d has no stash", in.microbatch, in.chunk);
    Slot *slot = &p->slots[index];
    slot->input = message_of(p, BUFFER_INPUT, in.chunk, in.microbatch);
    slot->output = slot->output_gradient = slot->input_gradient = (Tensor){0};
    int recomputed = *index_of(p, BUFFER_RECOMPUTED, in.chunk, in.microbatch);
    slot->recomputed = recomputed < 0 ? NULL : &p->recomputed[recomputed];
    return slot;
}

// The last stage has no output. It writes the gradient with which its backward begins.
static void forward(Pipeline *p, Instr in, const Run *run) {
    int rank = context_rank(p->context, ROLE_PIPELINE),
        before = schedule_local_chunk(p->schedule, rank, in.chunk, -1);
    Slot *slot = slot_of(p, in);
    slot->output = message_of(p, BUFFER_OUTPUT, in.chunk, in.microbatch);
    if (!slot->output.data) slot->output = message_of(p, BUFFER_OUTPUT_GRADIENT, in.chunk, in.microbatch);
    arena_release(&slot->stash, (ArenaMark){0});
    if (before >= 0)
        device_copy(p->context->device, p->context->stream, slot->input,
                    message_of(p, BUFFER_OUTPUT, before, in.microbatch));
    p->stage.forward(p->stage.self, in.chunk, slot, &run->microbatches[in.microbatch]);
}

static void backward(Pipeline *p, Instr in, const Run *run, Halves halves) {
    int rank = context_rank(p->context, ROLE_PIPELINE),
        before = schedule_local_chunk(p->schedule, rank, in.chunk, -1);
    Slot *slot = slot_of(p, in);
    if (halves == INPUT_HALF) arena_release(slot->recomputed, (ArenaMark){0});
    if (halves & INPUT_HALF) {
        slot->output_gradient = message_of(p, BUFFER_OUTPUT_GRADIENT, in.chunk, in.microbatch);
        slot->input_gradient = before >= 0 ? message_of(p, BUFFER_OUTPUT_GRADIENT, before, in.microbatch)
                                           : message_of(p, BUFFER_INPUT_GRADIENT, in.chunk, in.microbatch);
    }
    p->stage.backward(p->stage.self, in.chunk, slot, &run->microbatches[in.microbatch], halves,
                      run->at == p->last_weight[in.chunk]);
}

static void act(Pipeline *p, Instr in, const Run *run) {
    switch ((ScheduleOp)in.op) {
    case OP_RECV_FORWARD: post_receive(p, in, BUFFER_INPUT); return;
    case OP_FORWARD: forward(p, in, run); return;
    case OP_SEND_FORWARD: post_send(p, in, BUFFER_OUTPUT); return;
    case OP_RECV_BACKWARD: post_receive(p, in, BUFFER_OUTPUT_GRADIENT); return;
    case OP_BACKWARD: backward(p, in, run, BOTH_HALVES); return;
    case OP_BACKWARD_INPUT: backward(p, in, run, INPUT_HALF); return;
    case OP_BACKWARD_WEIGHT: backward(p, in, run, WEIGHT_HALF); return;
    case OP_SEND_BACKWARD: post_send(p, in, BUFFER_INPUT_GRADIENT); return;
    case OP_REDUCE_GRADS: grad_reducer_start(run->reducer, in.chunk); return;
    case NUM_SCHEDULE_OPS: break;
    }
    CHECK(false, "instruction %d is unknown", in.op);
}

static bool is_timed(const Pipeline *p, Instr in) {
    return p->last.traced || (p->last.training && schedule_ops[in.op].kind == COMPUTE);
}

// The time of an instruction begins when its buffers and messages are there.
static void execute(Pipeline *p, Instr in, const Run *run) {
    BufferChanges changes =
        schedule_buffer_changes(p->schedule, context_rank(p->context, ROLE_PIPELINE), in, run->reducer);
    change_buffers(p, &changes, in.microbatch, true);
    complete_input(p, in);
    Span *span = is_timed(p, in) ? &p->last.spans[p->last.num_spans++] : NULL;
    if (span) *span = (Span){in, .start = device_mark(p->context->device, p->context->stream)};
    double waited_s = rank_current()->waited_s;
    act(p, in, run);
    if (span) span->end = device_mark(p->context->device, p->context->stream);
    if (span) span->waited_s = rank_current()->waited_s - waited_s;
    change_buffers(p, &changes, in.microbatch, false);
}

// An evaluation leaves out the backward half of the program.
static bool is_run(Instr in, const Run *run) {
    return run->reducer || schedule_ops[in.op].direction != BACKWARDS;
}

static bool is_measured(const Run *run) { return run->reducer && !run->reducer->paused; }

static void run_program(Pipeline *p, Run run) {
    read_last_run(p);
    free_all(p);
    p->last.training = is_measured(&run);
    p->last.traced = trace_on() && (!run.reducer || is_measured(&run));
    p->last.start_s = clock_s();
    double waited_s = p->wait_s;
    for (; run.at < p->program->count; run.at++) {
        Instr in = p->program->instrs[run.at];
        if (!is_run(in, &run)) continue;
        char text[16];
        instr_print(p->schedule, in, text);
        rank_doing("%s", text);
        execute(p, in, &run);
        comm_poll(context_group(p->context, ROLE_PIPELINE));
    }
    wait_for_sends(p);
    p->last.end_s = clock_s();
    if (!is_measured(&run)) p->wait_s = waited_s;
    if (p->last.traced) read_last_run(p); // a trace holds a rank's events in the order of their times
}

void pipeline_train(Pipeline *p, const Microbatch *microbatches, GradReducer *reducer) {
    run_program(p, (Run){.microbatches = microbatches, .reducer = reducer});
}

void pipeline_evaluate(Pipeline *p, const Microbatch *microbatches) {
    run_program(p, (Run){.microbatches = microbatches});
}
