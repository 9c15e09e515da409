// What an executor holds, and how many buffers that takes: the one place that knows what an instruction takes
// and gives back. The walk and the executor follow the same list.
#include "layout/parts.h"

static void change(HoldChanges *changes, Hold hold, int chunk, bool take) {
    changes->items[changes->count++] = (HoldChange){hold, chunk, take};
}

static void take(HoldChanges *changes, Hold hold, int chunk) { change(changes, hold, chunk, true); }
static void give_back(HoldChanges *changes, Hold hold, int chunk) { change(changes, hold, chunk, false); }

int schedule_local_chunk(const Schedule *schedule, int rank, int chunk, int step) {
    int stage = schedule_stage(schedule, rank, chunk) + step;
    if (stage < 0 || stage >= schedule->num_ranks * schedule->num_chunks) return -1;
    int home = schedule->home[stage];
    return home / schedule->num_chunks == rank ? home % schedule->num_chunks : -1;
}

static void forward_holds(const Schedule *s, int rank, int chunk, bool training, HoldChanges *changes) {
    bool receives = schedule_partner(s, rank, chunk, OP_RECV_FORWARD) >= 0;
    bool last = schedule_stage(s, rank, chunk) == s->num_ranks * s->num_chunks - 1;
    int before = schedule_local_chunk(s, rank, chunk, -1);
    if (!receives) take(changes, HOLD_INPUT, chunk);
    take(changes, HOLD_STASH, chunk);
    take(changes, last ? HOLD_OUTPUT_GRADIENT : HOLD_OUTPUT, chunk);
    if (before >= 0) give_back(changes, HOLD_OUTPUT, before);
    if (training) return;
    give_back(changes, HOLD_INPUT, chunk);
    give_back(changes, HOLD_STASH, chunk);
    if (last) give_back(changes, HOLD_OUTPUT_GRADIENT, chunk);
}

static void backward_input_holds(const Schedule *s, int rank, int chunk, HoldChanges *changes) {
    int before = schedule_local_chunk(s, rank, chunk, -1);
    bool sends = schedule_partner(s, rank, chunk, OP_SEND_BACKWARD) >= 0;
    if (before >= 0) take(changes, HOLD_OUTPUT_GRADIENT, before);
    if (sends) take(changes, HOLD_INPUT_GRADIENT, chunk);
    give_back(changes, HOLD_OUTPUT_GRADIENT, chunk);
}

HoldChanges schedule_holds(const Schedule *schedule, int rank, Instr in, bool training) {
    HoldChanges changes = {.count = 0};
    if (in.op == OP_RECV_FORWARD) take(&changes, HOLD_INPUT, in.chunk);
    if (in.op == OP_RECV_BACKWARD) take(&changes, HOLD_OUTPUT_GRADIENT, in.chunk);
    if (in.op == OP_FORWARD) forward_holds(schedule, rank, in.chunk, training, &changes);
    if (in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT)
        backward_input_holds(schedule, rank, in.chunk, &changes);
    if (in.op == OP_BACKWARD_INPUT) take(&changes, HOLD_RECOMPUTED, in.chunk);
    if (in.op == OP_BACKWARD_WEIGHT) give_back(&changes, HOLD_RECOMPUTED, in.chunk);
    if (in.op == OP_BACKWARD || in.op == OP_BACKWARD_WEIGHT) {
        give_back(&changes, HOLD_INPUT, in.chunk);
        give_back(&changes, HOLD_STASH, in.chunk);
    }
    if (in.op == OP_SEND_FORWARD) give_back(&changes, HOLD_OUTPUT, in.chunk);
    if (in.op == OP_SEND_BACKWARD) give_back(&changes, HOLD_INPUT_GRADIENT, in.chunk);
    return changes;
}

// ---- pools --------------------------------------------------------------------------------------------

// What a program holds of one kind; `early` of it lies ready for a compute that is yet to come.
typedef struct {
    int held, early, takes, peak, peak_needed;
    bool sent, received;
} Account;

static void note_peaks(Account *account) {
    int needed = account->held - account->early;
    if (account->held > account->peak) account->peak = account->held;
    if (needed > account->peak_needed) account->peak_needed = needed;
}

static void count(Account *account, HoldChange one, OpKind kind) {
    account->held += one.take ? 1 : -1;
    account->takes += one.take;
    account->early += kind == RECV;
    account->sent |= kind == SEND;
    account->received |= kind == RECV;
    note_peaks(account);
}

static void count_needed(Account *account) {
    account->early--;
    note_peaks(account);
}

static void count_instr(const Schedule *s, int rank, Instr in, Account accounts[NUM_HOLDS]) {
    bool backward = in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT;
    if (in.op == OP_FORWARD && schedule_partner(s, rank, in.chunk, OP_RECV_FORWARD) >= 0)
        count_needed(&accounts[HOLD_INPUT]);
    if (backward && schedule_partner(s, rank, in.chunk, OP_RECV_BACKWARD) >= 0)
        count_needed(&accounts[HOLD_OUTPUT_GRADIENT]);
    HoldChanges changes = schedule_holds(s, rank, in, true);
    for (int i = 0; i < changes.count; i++)
        count(&accounts[changes.items[i].hold], changes.items[i], schedule_ops[in.op].kind);
}

// A buffer that was sent is given back at once, while its message may still be under way: one of num_sending
// is among those in use, the others make it possible to go on meanwhile. Receives that are posted ahead get
// as many more than computes need, used or not: so pools grow with the microbatches where a kind says so.
static int pool_size(const Schedule *schedule, const Account *account) {
    int64_t size = account->peak, ahead = (int64_t)account->peak_needed + schedule->receive_ahead;
    if (account->sent) size += schedule->num_sending - 1;
    if (account->received && ahead > size) size = ahead;
    return size < account->takes ? (int)size : account->takes;
}

void schedule_pools(const Schedule *schedule, int rank, int sizes[NUM_HOLDS]) {
    const Program *program = &schedule->programs[rank];
    Account accounts[NUM_HOLDS] = {0};
    for (int i = 0; i < program->count; i++) count_instr(schedule, rank, program->instrs[i], accounts);
    for (int hold = 0; hold < NUM_HOLDS; hold++) sizes[hold] = pool_size(schedule, &accounts[hold]);
}

int schedule_pool(const Schedule *schedule, int rank, Hold hold) {
    int sizes[NUM_HOLDS];
    schedule_pools(schedule, rank, sizes);
    return sizes[hold];
}

int schedule_peak_stash(const Schedule *schedule, int rank) {
    return schedule_pool(schedule, rank, HOLD_STASH);
}
