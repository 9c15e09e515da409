// Says which instruction allocates and frees which buffer, and how many buffers that takes. The walk and the executor
// follow the same table.
#include "layout/buffers.h"

#define X(kind, name) name,
const char *const buffer_names[NUM_BUFFER_KINDS] = {BUFFER_KINDS(X)};
#undef X

static void change(BufferChanges *changes, BufferKind kind, int chunk, bool alloc) {
    changes->items[changes->count++] = (BufferChange){kind, chunk, alloc};
}

static void allocate(BufferChanges *changes, BufferKind kind, int chunk) {
    change(changes, kind, chunk, true);
}
static void release(BufferChanges *changes, BufferKind kind, int chunk) {
    change(changes, kind, chunk, false);
}

int schedule_local_chunk(const Schedule *schedule, int rank, int chunk, int step) {
    int stage = schedule_stage(schedule, rank, chunk) + step;
    if (stage < 0 || stage >= schedule->num_ranks * schedule->num_chunks) return -1;
    int place = schedule->stage_place[stage];
    return place / schedule->num_chunks == rank ? place % schedule->num_chunks : -1;
}

static void forward_holds(const Schedule *s, int rank, int chunk, bool training, BufferChanges *changes) {
    bool receives = schedule_partner(s, rank, chunk, OP_RECV_FORWARD) >= 0;
    bool last = schedule_stage(s, rank, chunk) == s->num_ranks * s->num_chunks - 1;
    int before = schedule_local_chunk(s, rank, chunk, -1);
    if (!receives) allocate(changes, BUFFER_INPUT, chunk);
    allocate(changes, BUFFER_STASH, chunk);
    allocate(changes, last ? BUFFER_OUTPUT_GRADIENT : BUFFER_OUTPUT, chunk);
    if (before >= 0) release(changes, BUFFER_OUTPUT, before);
    if (training) return;
    release(changes, BUFFER_INPUT, chunk);
    release(changes, BUFFER_STASH, chunk);
    if (last) release(changes, BUFFER_OUTPUT_GRADIENT, chunk);
}

static void backward_input_holds(const Schedule *s, int rank, int chunk, BufferChanges *changes) {
    int before = schedule_local_chunk(s, rank, chunk, -1);
    bool sends = schedule_partner(s, rank, chunk, OP_SEND_BACKWARD) >= 0;
    if (before >= 0) allocate(changes, BUFFER_OUTPUT_GRADIENT, before);
    if (sends) allocate(changes, BUFFER_INPUT_GRADIENT, chunk);
    release(changes, BUFFER_OUTPUT_GRADIENT, chunk);
}

BufferChanges schedule_buffer_changes(const Schedule *schedule, int rank, Instr in, bool training) {
    BufferChanges changes = {.count = 0};
    if (in.op == OP_RECV_FORWARD) allocate(&changes, BUFFER_INPUT, in.chunk);
    if (in.op == OP_RECV_BACKWARD) allocate(&changes, BUFFER_OUTPUT_GRADIENT, in.chunk);
    if (in.op == OP_FORWARD) forward_holds(schedule, rank, in.chunk, training, &changes);
    if (in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT)
        backward_input_holds(schedule, rank, in.chunk, &changes);
    if (in.op == OP_BACKWARD_INPUT) allocate(&changes, BUFFER_RECOMPUTED, in.chunk);
    if (in.op == OP_BACKWARD_WEIGHT) release(&changes, BUFFER_RECOMPUTED, in.chunk);
    if (in.op == OP_BACKWARD || in.op == OP_BACKWARD_WEIGHT) {
        release(&changes, BUFFER_INPUT, in.chunk);
        release(&changes, BUFFER_STASH, in.chunk);
    }
    if (in.op == OP_SEND_FORWARD) release(&changes, BUFFER_OUTPUT, in.chunk);
    if (in.op == OP_SEND_BACKWARD) release(&changes, BUFFER_INPUT_GRADIENT, in.chunk);
    return changes;
}

// ---- pools --------------------------------------------------------------------------------------------

// The buffers of one kind that a program holds; `early` of them have been received for a compute that is yet to come.
typedef struct {
    int held, early, allocs, peak, peak_needed;
    bool sent, received;
} Account;

static void note_peaks(Account *account) {
    int needed = account->held - account->early;
    if (account->held > account->peak) account->peak = account->held;
    if (needed > account->peak_needed) account->peak_needed = needed;
}

static void count(Account *account, BufferChange one, OpKind kind) {
    account->held += one.alloc ? 1 : -1;
    account->allocs += one.alloc;
    account->early += kind == RECV;
    account->sent |= kind == SEND;
    account->received |= kind == RECV;
    note_peaks(account);
}

static void count_needed(Account *account) {
    account->early--;
    note_peaks(account);
}

static void count_instr(const Schedule *s, int rank, Instr in, Account accounts[NUM_BUFFER_KINDS]) {
    bool backward = in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT;
    if (in.op == OP_FORWARD && schedule_partner(s, rank, in.chunk, OP_RECV_FORWARD) >= 0)
        count_needed(&accounts[BUFFER_INPUT]);
    if (backward && schedule_partner(s, rank, in.chunk, OP_RECV_BACKWARD) >= 0)
        count_needed(&accounts[BUFFER_OUTPUT_GRADIENT]);
    BufferChanges changes = schedule_buffer_changes(s, rank, in, true);
    for (int i = 0; i < changes.count; i++)
        count(&accounts[changes.items[i].kind], changes.items[i], schedule_ops[in.op].kind);
}

// A buffer is freed as soon as its send is posted, while its message may still be under way: one of the num_sending
// buffers is among those in use, the others let the rank go on meanwhile. Receives that are posted ahead get as many
// more than computes need, used or not, so that pools grow with the microbatches where a kind says so.
static int pool_size(const Schedule *schedule, const Account *account) {
    int64_t size = account->peak, ahead = (int64_t)account->peak_needed + schedule->receive_ahead;
    if (account->sent) size += schedule->num_sending - 1;
    if (account->received && ahead > size) size = ahead;
    return size < account->allocs ? (int)size : account->allocs;
}

void schedule_pools(const Schedule *schedule, int rank, int sizes[NUM_BUFFER_KINDS]) {
    const Program *program = &schedule->programs[rank];
    Account accounts[NUM_BUFFER_KINDS] = {0};
    for (int i = 0; i < program->count; i++) count_instr(schedule, rank, program->instrs[i], accounts);
    for (int kind = 0; kind < NUM_BUFFER_KINDS; kind++) sizes[kind] = pool_size(schedule, &accounts[kind]);
}

int schedule_pool(const Schedule *schedule, int rank, BufferKind kind) {
    int sizes[NUM_BUFFER_KINDS];
    schedule_pools(schedule, rank, sizes);
    return sizes[kind];
}

int schedule_peak_stash(const Schedule *schedule, int rank) {
    return schedule_pool(schedule, rank, BUFFER_STASH);
}
