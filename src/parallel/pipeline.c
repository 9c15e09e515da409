#include "parallel/parallel.h"
#include <stdlib.h>

enum { FORWARD_CHANNEL, BACKWARD_CHANNEL };

// A slot and the messages that touch it.
typedef struct {
    Slot slot;
    ArenaMark empty;  // the stash with nothing but input and output in it
    Request received; // of input or output, whichever is due
    Request sent_output;
} SlotEntry;

// Where an input gradient waits until it is received.
typedef struct {
    Tensor gradient; // [T, H]
    Request sent;
} GradientBuffer;

// One microbatch of one chunk: the indices of what holds it, -1 before.
typedef struct {
    int slot, gradient;
} Item;

struct Pipeline {
    Context *context;
    const Schedule *schedule;
    const Program *program;
    Stage stage;
    SlotEntry *slots;
    int num_slots;
    int *free_slots, first_free, num_free; // a queue: the slot that has been free longest is taken first
    GradientBuffer *gradients;             // taken in turn
    int num_gradients, next_gradient;
    Item *items; // [chunks * microbatches]
    double total_s, wait_s;
    ChunkTimes *chunk_times;
};

// ---- slots -----------------------------------------------------------------------------------------------

static Status open_slot(Pipeline *p, SlotEntry *entry, size_t slot_bytes) {
    Slot *slot = &entry->slot;
    if (slot_bytes)
        TRY(arena_open(&slot->stash, "stash", device_memory(p->context->device), slot_bytes));
    else
        arena_open_measuring(&slot->stash, "stash");
    slot->layers = calloc(1, p->stage.slot_layers_bytes);
    if (!slot->layers) return fail(ERR_OS, "no memory for a slot's record of its layers");
    slot->input = tensor_take(&slot->stash, "stage input", p->stage.tokens, p->stage.hidden, F32);
    slot->output = tensor_take(&slot->stash, "stage output", p->stage.tokens, p->stage.hidden, F32);
    entry->empty = arena_mark(&slot->stash);
    return OK;
}

static size_t num_items(const Schedule *s) { return (size_t)s->num_chunks * (size_t)s->num_microbatches; }

static Status take_lists(Pipeline *p) {
    p->num_slots = schedule_peak_stash(p->schedule, p->context->place.pp);
    p->num_gradients = schedule_gradient_buffers(p->schedule, p->context->place.pp);
    p->slots = calloc((size_t)p->num_slots, sizeof *p->slots);
    p->free_slots = calloc((size_t)p->num_slots, sizeof *p->free_slots);
    p->gradients = calloc((size_t)p->num_gradients + 1, sizeof *p->gradients);
    p->items = calloc(num_items(p->schedule), sizeof *p->items);
    p->chunk_times = calloc((size_t)p->schedule->num_chunks, sizeof *p->chunk_times);
    if (p->slots && p->free_slots && p->gradients && p->items && p->chunk_times) return OK;
    return fail(ERR_OS, "no memory for %d slots", p->num_slots);
}

Status pipeline_create(Pipeline **out, Context *context, const Schedule *schedule, Stage stage, Arena *arena,
                       size_t slot_bytes) {
    Pipeline *p = *out = calloc(1, sizeof *p);
    if (!p) return fail(ERR_OS, "no memory for the pipeline");
    *p = (Pipeline){.context = context, .schedule = schedule, .stage = stage};
    p->program = &schedule->programs[context->place.pp];
    TRY(take_lists(p));
    for (int i = 0; i < p->num_slots; i++) TRY(open_slot(p, &p->slots[i], slot_bytes));
    for (int i = 0; i < p->num_gradients; i++)
        p->gradients[i].gradient =
            tensor_take(arena, "input gradient on its way", stage.tokens, stage.hidden, F32);
    return OK;
}

void pipeline_destroy(Pipeline *p) {
    if (!p) return;
    for (int i = 0; p->slots && i < p->num_slots; i++) {
        arena_close(&p->slots[i].slot.stash);
        free(p->slots[i].slot.layers);
    }
    free(p->chunk_times);
    free(p->items);
    free(p->gradients);
    free(p->free_slots);
    free(p->slots);
    free(p);
}

size_t pipeline_slot_peak(const Pipeline *p) {
    size_t peak = 0;
    for (int i = 0; i < p->num_slots; i++)
        if (p->slots[i].slot.stash.peak > peak) peak = p->slots[i].slot.stash.peak;
    return peak;
}

int pipeline_slot_count(const Pipeline *p) { return p->num_slots; }

PipelineTimes pipeline_times(const Pipeline *p) {
    return (PipelineTimes){p->total_s, p->wait_s, p->chunk_times};
}

// Time that this rank itself has worked: with one thread the thread's processor time, so that ranks that
// share a core do not count each other's turns.
static double work_clock_s(const Pipeline *p) {
    return device_threads(p->context->device) == 1 ? clock_thread_s() : clock_s();
}

static Item *item_of(Pipeline *p, Instr in) {
    return &p->items[in.chunk * p->schedule->num_microbatches + in.microbatch];
}

static SlotEntry *slot_of(Pipeline *p, Instr in) {
    int index = item_of(p, in)->slot;
    CHECK(index >= 0, "microbatch %d of chunk %d has no slot", in.microbatch, in.chunk);
    return &p->slots[index];
}

static void wait_for(Pipeline *p, Request *request) {
    if (!*request) return;
    double start = clock_s();
    comm_wait(p->context->pp, p->context->stream, request);
    p->wait_s += clock_s() - start;
}

// A slot may still be the source of its last microbatch's output; the queue gives that the longest time to
// leave.
static SlotEntry *take_slot(Pipeline *p, Instr in) {
    CHECK(p->num_free > 0, "no slot left for microbatch %d of chunk %d", in.microbatch, in.chunk);
    int index = p->free_slots[p->first_free];
    p->first_free = (p->first_free + 1) % p->num_slots;
    p->num_free--;
    item_of(p, in)->slot = index;
    SlotEntry *entry = &p->slots[index];
    wait_for(p, &entry->sent_output);
    arena_release(&entry->slot.stash, entry->empty);
    return entry;
}

static void free_slot(Pipeline *p, Instr in) {
    p->free_slots[(p->first_free + p->num_free) % p->num_slots] = item_of(p, in)->slot;
    p->num_free++;
}

// The buffer for the gradient that a backward leaves, absent on the first stage.
static Tensor take_gradient(Pipeline *p, Instr in) {
    if (!schedule_makes_message(p->schedule, p->context->place.pp, in)) return (Tensor){0};
    int index = item_of(p, in)->gradient = p->next_gradient;
    p->next_gradient = (index + 1) % p->num_gradients;
    wait_for(p, &p->gradients[index].sent);
    return p->gradients[index].gradient;
}

static void free_all(Pipeline *p) {
    p->first_free = p->next_gradient = 0;
    p->num_free = p->num_slots;
    for (int i = 0; i < p->num_slots; i++) p->free_slots[i] = i;
    for (size_t i = 0; i < num_items(p->schedule); i++) p->items[i] = (Item){-1, -1};
}

static void wait_for_sends(Pipeline *p) {
    for (int i = 0; i < p->num_slots; i++) wait_for(p, &p->slots[i].sent_output);
    for (int i = 0; i < p->num_gradients; i++) wait_for(p, &p->gradients[i].sent);
}

// ---- instructions -------------------------------------------------------------------------------

typedef struct {
    const Microbatch *microbatches;
    GradReducer *reducer; // NULL: forwards only
} Run;

static void recv_forward(Pipeline *p, Instr in) {
    SlotEntry *entry = take_slot(p, in);
    entry->received =
        comm_recv(p->context->pp, p->context->stream, entry->slot.input, in.peer, FORWARD_CHANNEL);
}

static void forward(Pipeline *p, Instr in, const Run *run) {
    SlotEntry *entry = item_of(p, in)->slot < 0 ? take_slot(p, in) : slot_of(p, in);
    wait_for(p, &entry->received);
    double start = work_clock_s(p);
    p->stage.forward(p->stage.self, in.chunk, &entry->slot, &run->microbatches[in.microbatch]);
    if (run->reducer)
        p->chunk_times[in.chunk].forward_s += work_clock_s(p) - start;
    else
        free_slot(p, in);
}

static void send_forward(Pipeline *p, Instr in) {
    SlotEntry *entry = slot_of(p, in);
    entry->sent_output =
        comm_send(p->context->pp, p->context->stream, entry->slot.output, in.peer, FORWARD_CHANNEL);
}

// The gradient arrives where the output still lies; whoever sends it has received that output, so the wait is
// short.
static void recv_backward(Pipeline *p, Instr in) {
    SlotEntry *entry = slot_of(p, in);
    wait_for(p, &entry->sent_output);
    entry->received =
        comm_recv(p->context->pp, p->context->stream, entry->slot.output, in.peer, BACKWARD_CHANNEL);
}

static void backward(Pipeline *p, Instr in, const Run *run) {
    SlotEntry *entry = slot_of(p, in);
    wait_for(p, &entry->received);
    entry->slot.input_gradient = take_gradient(p, in);
    double start = work_clock_s(p);
    p->stage.backward(p->stage.self, in.chunk, &entry->slot, &run->microbatches[in.microbatch]);
    p->chunk_times[in.chunk].backward_s += work_clock_s(p) - start;
    free_slot(p, in);
}

static void send_backward(Pipeline *p, Instr in) {
    GradientBuffer *buffer = &p->gradients[item_of(p, in)->gradient];
    buffer->sent = comm_send(p->context->pp, p->context->stream, buffer->gradient, in.peer, BACKWARD_CHANNEL);
}

static void execute(Pipeline *p, Instr in, const Run *run) {
    switch ((ScheduleOp)in.op) {
    case OP_RECV_FORWARD: recv_forward(p, in); return;
    case OP_FORWARD: forward(p, in, run); return;
    case OP_SEND_FORWARD: send_forward(p, in); return;
    case OP_RECV_BACKWARD: recv_backward(p, in); return;
    case OP_BACKWARD: backward(p, in, run); return;
    case OP_SEND_BACKWARD: send_backward(p, in); return;
    case OP_REDUCE_GRADS: grad_reducer_start(run->reducer, in.chunk); return;
    case OP_BACKWARD_INPUT:
    case OP_BACKWARD_WEIGHT:
    case NUM_SCHEDULE_OPS: break;
    }
    CHECK(false, "the executor does not know instruction %d", in.op);
}

static void run_program(Pipeline *p, Run run) {
    free_all(p);
    double start = clock_s(), waited_s = p->wait_s;
    for (int i = 0; i < p->program->count; i++) {
        Instr in = p->program->instrs[i];
        if (!run.reducer && schedule_ops[in.op].direction == BACKWARDS) continue;
        char text[16];
        instr_print(p->schedule, in, text);
        rank_doing("%s", text);
        execute(p, in, &run);
        comm_poll(p->context->pp);
    }
    wait_for_sends(p);
    if (run.reducer)
        p->total_s += clock_s() - start;
    else
        p->wait_s = waited_s;
}

void pipeline_train(Pipeline *p, const Microbatch *microbatches, GradReducer *reducer) {
    run_program(p, (Run){microbatches, reducer});
}

void pipeline_evaluate(Pipeline *p, const Microbatch *microbatches) {
    run_program(p, (Run){microbatches, NULL});
}
