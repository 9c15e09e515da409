// Proves schedules: first rank by rank that every microbatch of every chunk goes once through each of its computes, in
// order, then by a walk. The walk alone would not notice a microbatch that all ranks leave out.
#include "layout/buffers.h"
#include "layout/parts.h"
#include "layout/walk.h"
#include <limits.h>
#include <stdlib.h>

// `done` has a cell for each microbatch of each chunk, with a bit per operation. The length of the program limits the
// memory, not the sizes that a file claims: n computes cannot finish n + 1 cells, so that one of the first n + 1 is
// always unfinished.
typedef struct {
    const Schedule *schedule;
    int rank, num_cells;
    uint16_t *done;                            // [num_cells], cell chunk * num_microbatches + microbatch
    int last_gradient_at[SCHEDULE_MAX_CHUNKS]; // the instruction
    int reduced_at[SCHEDULE_MAX_CHUNKS];       // the instruction, plus 1; 0: not yet
} Check;

static unsigned bit(ScheduleOp op) { return 1u << op; }

static unsigned effect(Instr in) {
    if (in.op == OP_BACKWARD) return bit(OP_BACKWARD_INPUT) | bit(OP_BACKWARD_WEIGHT);
    return bit((ScheduleOp)in.op);
}

// Returns the first operation of the same microbatch and chunk that must come before `in` and has not; `in.op` when
// none is missing.
static ScheduleOp missing_before(const Check *check, Instr in, unsigned done) {
    const Schedule *s = check->schedule;
    bool backward = in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT;
    unsigned needs = 0;
    if (in.op == OP_FORWARD && schedule_partner(s, check->rank, in.chunk, OP_RECV_FORWARD) >= 0)
        needs = bit(OP_RECV_FORWARD);
    if (backward && schedule_partner(s, check->rank, in.chunk, OP_RECV_BACKWARD) >= 0)
        needs = bit(OP_RECV_BACKWARD);
    if (in.op == OP_SEND_FORWARD || backward) needs |= bit(OP_FORWARD);
    if (in.op == OP_SEND_BACKWARD || in.op == OP_BACKWARD_WEIGHT) needs = bit(OP_BACKWARD_INPUT);
    for (ScheduleOp op = 0; op < NUM_SCHEDULE_OPS; op++)
        if (needs & ~done & bit(op)) return op;
    return (ScheduleOp)in.op;
}

static Status out_of_order(const Check *check, int at, Instr in, ScheduleOp missing) {
    char text[16], first[16];
    instr_print(check->schedule, in, text);
    if (missing == in.op)
        return fail(ERR_DATA, "rank %d instr %d: %s out of order: it comes a second time", check->rank, at,
                    text);
    in.op = (uint8_t)missing, in.pairs = false;
    instr_print(check->schedule, in, first);
    return fail(ERR_DATA, "rank %d instr %d: %s out of order: %s must come first", check->rank, at, text,
                first);
}

// Checks a compute whose neighbouring stage is on the same rank: there is no message, so that the other chunk must have
// run before.
static Status check_handed_over(const Check *check, int at, Instr in) {
    const Schedule *s = check->schedule;
    int chunk = schedule_local_chunk(s, check->rank, in.chunk, in.op == OP_FORWARD ? -1 : 1);
    int64_t cell = (int64_t)chunk * s->num_microbatches + in.microbatch;
    unsigned need = in.op == OP_FORWARD ? bit(OP_FORWARD) : bit(OP_BACKWARD_INPUT);
    if (chunk < 0 || cell >= check->num_cells || check->done[cell] & need) return OK;
    char text[16], first[16];
    instr_print(s, in, text);
    in.chunk = (uint8_t)chunk, in.pairs = false;
    instr_print(s, in, first);
    return fail(ERR_DATA, "rank %d instr %d: %s out of order: %s must come first", check->rank, at, text,
                first);
}

static Status check_order(Check *check, int at, Instr in) {
    int64_t cell = (int64_t)in.chunk * check->schedule->num_microbatches + in.microbatch;
    if (schedule_ops[in.op].stash < 0) check->last_gradient_at[in.chunk] = at;
    if (cell >= check->num_cells) return OK;
    unsigned done = check->done[cell], effects = effect(in);
    ScheduleOp missing = missing_before(check, in, done);
    if (missing != in.op || done & effects) return out_of_order(check, at, in, missing);
    check->done[cell] = (uint16_t)(done | effects);
    bool hands_over = in.op == OP_FORWARD || in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT;
    return hands_over ? check_handed_over(check, at, in) : OK;
}

static Status check_reduce(Check *check, int at, Instr in) {
    if (check->reduced_at[in.chunk]) return out_of_order(check, at, in, OP_REDUCE_GRADS);
    check->reduced_at[in.chunk] = at + 1;
    return OK;
}

static Status wrong_peer(const Check *check, int at, Instr in, int partner) {
    const Schedule *s = check->schedule;
    char text[16];
    instr_print(s, in, text);
    if (partner < 0)
        return fail(
            ERR_DATA,
            "rank %d instr %d: %s has no other end: stage %d of %d has no such neighbour on another rank",
            check->rank, at, text, schedule_stage(s, check->rank, in.chunk), s->num_ranks * s->num_chunks);
    return fail(ERR_DATA, "rank %d instr %d: %s names rank %d, but the neighbouring stage is on rank %d",
                check->rank, at, text, in.peer, partner);
}

static Status check_pair(const Check *check, int at, Instr in) {
    const Program *program = &check->schedule->programs[check->rank];
    Instr next = at + 1 < program->count ? program->instrs[at + 1] : in;
    bool same = next.chunk == in.chunk && next.microbatch == in.microbatch;
    if (in.op == OP_FORWARD && next.op == OP_BACKWARD && !same) return OK;
    char text[16];
    instr_print(check->schedule, in, text);
    return fail(
        ERR_DATA,
        "rank %d instr %d: %s: only a forward runs together with the next instruction, which must be a "
        "backward of another microbatch or chunk",
        check->rank, at, text);
}

static Status check_instr(Check *check, int at, Instr in) {
    const Schedule *s = check->schedule;
    bool reduce = in.op == OP_REDUCE_GRADS,
         in_range = in.microbatch >= 0 && in.microbatch < s->num_microbatches;
    if (in.op >= NUM_SCHEDULE_OPS || in.chunk >= s->num_chunks || !(reduce || in_range))
        return fail(ERR_DATA,
                    "rank %d instr %d: op %d, chunk %d, microbatch %d: no such thing in this schedule",
                    check->rank, at, in.op, in.chunk, in.microbatch);
    if (in.pairs) TRY(check_pair(check, at, in));
    if (reduce) return check_reduce(check, at, in);
    OpKind kind = schedule_ops[in.op].kind;
    if (kind == COMPUTE) return check_order(check, at, in);
    int partner = schedule_partner(s, check->rank, in.chunk, (ScheduleOp)in.op);
    if (partner < 0 || partner != in.peer) return wrong_peer(check, at, in, partner);
    return check_order(check, at, in);
}

static Status check_finished(const Check *check) {
    const Schedule *s = check->schedule;
    unsigned all = bit(OP_FORWARD) | bit(OP_BACKWARD_INPUT) | bit(OP_BACKWARD_WEIGHT);
    for (int cell = 0; cell < check->num_cells; cell++)
        if ((check->done[cell] & all) != all)
            return fail(ERR_DATA, "rank %d: microbatch %d of chunk %d is not finished", check->rank,
                        cell % s->num_microbatches, cell / s->num_microbatches);
    for (int chunk = 0; chunk < s->num_chunks; chunk++)
        if (check->reduced_at[chunk] <= check->last_gradient_at[chunk])
            return fail(ERR_DATA, "rank %d: R of chunk %d must come after its last gradient, instr %d",
                        check->rank, chunk, check->last_gradient_at[chunk]);
    return OK;
}

static Status check_program(const Schedule *schedule, int rank) {
    const Program *program = &schedule->programs[rank];
    int64_t cells = (int64_t)schedule->num_chunks * schedule->num_microbatches;
    if (cells > program->count + 1) cells = program->count + 1;
    Check check = {.schedule = schedule, .rank = rank, .num_cells = (int)cells};
    check.done = layout_alloc((size_t)cells, sizeof *check.done);
    Status status = OK;
    for (int i = 0; i < program->count && status == OK; i++)
        status = check_instr(&check, i, program->instrs[i]);
    if (status == OK) status = check_finished(&check);
    free(check.done);
    return status;
}

static Status check_programs(const Schedule *schedule) {
    for (int r = 0; r < schedule->num_ranks; r++) TRY(check_program(schedule, r));
    return OK;
}

// Walks an evaluation and a training step. Every FORWARD, BACKWARD_INPUT and BACKWARD_WEIGHT of a chunk takes 1, so
// that times are exact.
static Status walk_both(const Schedule *schedule, double *ends_us) {
    double unit = schedule->num_chunks;
    ScheduleCosts costs = {.forward_us = unit, .backward_us = 2 * unit, .weight_fraction = 0.5};
    Simulation training = {0};
    TRY(schedule_walk(schedule, costs, false, NULL));
    TRY(schedule_walk(schedule, costs, true, &training));
    *ends_us = training.ends_us;
    return OK;
}

Status schedule_verify(const Schedule *schedule) {
    double ends_us;
    TRY(check_programs(schedule));
    return walk_both(schedule, &ends_us);
}

// The loop ends: with as many buffers as messages no compute waits for a buffer.
Status schedule_prove(Schedule *schedule) {
    double undelayed_us, ends_us;
    TRY(check_programs(schedule));
    schedule->num_sending = INT_MAX;
    TRY(walk_both(schedule, &undelayed_us));
    schedule->num_sending = 1;
    while (walk_both(schedule, &ends_us) != OK || ends_us > undelayed_us) schedule->num_sending *= 2;
    return OK;
}
