// Adds messages and reductions to programs of computes: the only code that knows where communication goes.
#include "layout/parts.h"
#include <stdlib.h>

static void add_message(const Schedule *schedule, int rank, Program *out, Instr at, ScheduleOp op) {
    int partner = schedule_partner(schedule, rank, at.chunk, op);
    if (partner < 0) return;
    at.op = (uint8_t)op;
    at.pairs = false;
    at.peer = (int16_t)partner;
    program_add(out, at);
}

static bool needs_gradient(Instr in) { return in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT; }

static void add_receive(const Schedule *schedule, int rank, Program *out, Instr in) {
    if (in.op == OP_FORWARD) add_message(schedule, rank, out, in, OP_RECV_FORWARD);
    if (needs_gradient(in)) add_message(schedule, rank, out, in, OP_RECV_BACKWARD);
}

static void add_send(const Schedule *schedule, int rank, Program *out, Instr in) {
    if (in.op == OP_FORWARD) add_message(schedule, rank, out, in, OP_SEND_FORWARD);
    if (needs_gradient(in)) add_message(schedule, rank, out, in, OP_SEND_BACKWARD);
}

static Program computes_of(const Program *program) {
    Program computes = {0};
    for (int i = 0; i < program->count; i++)
        if (schedule_ops[program->instrs[i].op].kind == COMPUTE) program_add(&computes, program->instrs[i]);
    return computes;
}

// Adds what follows the compute at this index.
static void add_rest(const Schedule *schedule, int rank, const Program *computes, int at,
                     const int *last_gradient, Program *out) {
    Instr in = computes->instrs[at];
    add_send(schedule, rank, out, in);
    if (schedule_ops[in.op].stash < 0 && last_gradient[in.chunk] == at)
        program_add(out, (Instr){.op = OP_REDUCE_GRADS, .chunk = in.chunk, .peer = -1, .microbatch = -1});
}

static Program lower_program(const Schedule *schedule, int rank, int receive_ahead) {
    Program computes = computes_of(&schedule->programs[rank]), out = {0};
    int last_gradient[SCHEDULE_MAX_CHUNKS] = {0}, received = 0;
    for (int i = 0; i < computes.count; i++)
        if (schedule_ops[computes.instrs[i].op].stash < 0) last_gradient[computes.instrs[i].chunk] = i;
    for (int i = 0, last; i < computes.count; i = last + 1) {
        last = i + (computes.instrs[i].pairs && i + 1 < computes.count);
        for (; received < computes.count && received - last <= receive_ahead; received++)
            add_receive(schedule, rank, &out, computes.instrs[received]);
        for (int at = i; at <= last; at++) program_add(&out, computes.instrs[at]);
        for (int at = i; at <= last; at++) add_rest(schedule, rank, &computes, at, last_gradient, &out);
    }
    free(computes.instrs);
    return out;
}

void schedule_lower(Schedule *schedule, int receive_ahead) {
    schedule->receive_ahead = receive_ahead;
    for (int r = 0; r < schedule->num_ranks; r++) {
        Program lowered = lower_program(schedule, r, receive_ahead);
        free(schedule->programs[r].instrs);
        schedule->programs[r] = lowered;
    }
}
