// Runs the program of a pipeline schedule: posts messages, computes stages, and moves buffers between pools.
#include "base/trace.h"
#include "parallel/pipeline_state.h"

// ---- times -----------------------------------------------------------------------------------------------

static void add_time(Pipeline *p, Instr in, double worked_s, double own_s) {
    ChunkTimes *times = &p->chunk_times[in.chunk];
    bool backward = in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT || in.op == OP_BACKWARD_WEIGHT;
    if (in.op == OP_FORWARD) times->forward_s += worked_s, times->forward_own_s += own_s;
    if (backward) times->backward_s += worked_s, times->backward_own_s += own_s;
    if (in.op == OP_BACKWARD_WEIGHT) times->weight_s += worked_s;
}

static void read_span(Pipeline *p, TimedInstr *span) {
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

void pipeline_read_last_run(Pipeline *p) {
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
    pipeline_read_last_run(p);
    return (PipelineTimes){p->total_s, p->wait_s, p->chunk_times};
}

static void begin_span(Pipeline *p, Instr in) {
    CHECK(p->last.num_spans < p->last.capacity, "more than %d spans", p->last.capacity);
    p->last.spans[p->last.num_spans++] =
        (TimedInstr){.in = in,
                     .start = device_mark(p->context->device, p->context->stream),
                     .waited_s = rank_current()->waited_s};
}

static void end_span(Pipeline *p) {
    TimedInstr *span = &p->last.spans[p->last.num_spans - 1];
    span->end = device_mark(p->context->device, p->context->stream);
    span->waited_s = rank_current()->waited_s - span->waited_s;
}

static bool is_timed(const Pipeline *p, Instr in) {
    return p->last.traced || (p->last.training && schedule_ops[in.op].kind == COMPUTE);
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
        for (size_t i = 0; i < pipeline_items(p->schedule); i++) p->items[i].buffer[kind] = -1;
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

// The time of an instruction begins when its buffers and messages are there.
static void execute(Pipeline *p, Instr in, const Run *run) {
    BufferChanges changes =
        schedule_buffer_changes(p->schedule, context_rank(p->context, ROLE_PIPELINE), in, run->reducer);
    change_buffers(p, &changes, in.microbatch, true);
    complete_input(p, in);
    bool timed = is_timed(p, in);
    if (timed) begin_span(p, in);
    act(p, in, run);
    if (timed) end_span(p);
    change_buffers(p, &changes, in.microbatch, false);
}

// ---- pairs ----------------------------------------------------------------------------------------------

// A forward and the backward right after it. They take turns while rows travel; each has a Context of its own, which
// the pipeline's is while it runs.
typedef struct {
    Pipeline *pipeline;
    const Run *run; // at the backward
    Instr instrs[2];
} Pair;

static void give_turn(void *self) {
    Pipeline *p = self;
    Context mine = *p->context;
    Instr in = p->running;
    bool timed = is_timed(p, in);
    if (timed) end_span(p);
    turns_give(p->turns);
    if (timed) begin_span(p, in);
    *p->context = mine;
    p->running = in;
}

static void run_half(const Pair *pair, Instr in) {
    Pipeline *p = pair->pipeline;
    bool timed = is_timed(p, in);
    p->running = in;
    if (timed) begin_span(p, in);
    act(p, in, pair->run);
    if (timed) end_span(p);
}

static void run_backward(void *self) {
    const Pair *pair = self;
    run_half(pair, pair->instrs[1]);
}

// It begins in the middle of the backward, when that first waits.
static void run_forward(void *self) {
    const Pair *pair = self;
    Context *c = pair->pipeline->context;
    c->scratch = &pair->pipeline->beside;
    c->put_off = (ContextCall){0};
    c->again = false;
    run_half(pair, pair->instrs[0]);
}

static void execute_pair(Pipeline *p, const Instr *instrs, Run *run) {
    int rank = context_rank(p->context, ROLE_PIPELINE);
    Pair pair = {p, run, {instrs[0], instrs[1]}};
    BufferChanges changes[2];
    for (int i = 0; i < 2; i++) {
        changes[i] = schedule_buffer_changes(p->schedule, rank, instrs[i], true);
        change_buffers(p, &changes[i], instrs[i].microbatch, true);
    }
    for (int i = 0; i < 2; i++) complete_input(p, instrs[i]);
    Context before = *p->context;
    p->context->turn = (ContextCall){give_turn, p};
    run->at++;
    turns_run(p->turns, run_backward, run_forward, &pair);
    *p->context = before;
    for (int i = 0; i < 2; i++) change_buffers(p, &changes[i], instrs[i].microbatch, false);
}

// ---- programs -------------------------------------------------------------------------------------------

// An evaluation leaves out the backward half of the program.
static bool is_run(Instr in, const Run *run) {
    return run->reducer || schedule_ops[in.op].direction != BACKWARDS;
}

static bool is_measured(const Run *run) { return run->reducer && !run->reducer->paused; }

static void run_program(Pipeline *p, Run run) {
    pipeline_read_last_run(p);
    free_all(p);
    p->last.training = is_measured(&run);
    p->last.traced = trace_on() && (!run.reducer || is_measured(&run));
    p->last.start_s = clock_s();
    double waited_s = p->wait_s;
    for (; run.at < p->program->count; run.at++) {
        Instr in = p->program->instrs[run.at];
        if (!is_run(in, &run)) continue;
        char text[16], other[16] = "";
        bool pairs = in.pairs && run.reducer;
        instr_print(p->schedule, in, text);
        if (pairs) instr_print(p->schedule, p->program->instrs[run.at + 1], other);
        rank_doing("%s%s", text, other);
        if (pairs)
            execute_pair(p, &p->program->instrs[run.at], &run);
        else
            execute(p, in, &run);
        comm_poll(context_group(p->context, ROLE_PIPELINE));
    }
    wait_for_sends(p);
    p->last.end_s = clock_s();
    if (!is_measured(&run)) p->wait_s = waited_s;
    if (p->last.traced)
        pipeline_read_last_run(p); // a trace holds a rank's events in the order of their times
}

void pipeline_train(Pipeline *p, const Microbatch *microbatches, GradReducer *reducer) {
    run_program(p, (Run){.microbatches = microbatches, .reducer = reducer});
}

void pipeline_evaluate(Pipeline *p, const Microbatch *microbatches) {
    run_program(p, (Run){.microbatches = microbatches});
}
