#include "layout/parts.h"
#include <stdlib.h>

#define X(name, text, kind, direction, stash) {text, kind, direction, stash},
const ScheduleOpInfo schedule_ops[NUM_SCHEDULE_OPS] = {SCHEDULE_OPS(X)};
#undef X

void *layout_take(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    CHECK(memory, "no memory for %zu items of %zu bytes of a schedule", count, size);
    return memory;
}

// ---- shape --------------------------------------------------------------------------------------------

void schedule_shape(Schedule *schedule, int ranks, int chunks, int microbatches) {
    size_t stages = (size_t)ranks * (size_t)chunks;
    *schedule = (Schedule){.num_ranks = ranks, .num_chunks = chunks, .num_microbatches = microbatches};
    schedule->stage = layout_take(stages, sizeof *schedule->stage);
    schedule->home = layout_take(stages, sizeof *schedule->home);
    schedule->programs = layout_take((size_t)ranks, sizeof *schedule->programs);
    for (int stage = 0; stage < ranks * chunks; stage++) {
        schedule->home[stage] = stage % ranks * chunks + stage / ranks;
        schedule->stage[schedule->home[stage]] = stage;
    }
}

void schedule_destroy(Schedule *schedule) {
    if (!schedule) return;
    for (int r = 0; r < schedule->num_ranks; r++) free(schedule->programs[r].instrs);
    free(schedule->programs);
    free(schedule->home);
    free(schedule->stage);
    *schedule = (Schedule){0};
}

void program_add(Program *program, Instr instr) {
    if (program->count == program->capacity) {
        program->capacity = program->capacity ? 2 * program->capacity : 64;
        program->instrs = realloc(program->instrs, (size_t)program->capacity * sizeof instr);
        CHECK(program->instrs, "no memory for %d instructions", program->capacity);
    }
    program->instrs[program->count++] = instr;
}

void program_compute(Program *out, ScheduleOp op, int chunk, int microbatch) {
    program_add(
        out,
        (Instr){.op = (uint8_t)op, .chunk = (uint8_t)chunk, .peer = -1, .microbatch = (int32_t)microbatch});
}

int schedule_stage(const Schedule *schedule, int rank, int chunk) {
    return schedule->stage[rank * schedule->num_chunks + chunk];
}

int schedule_home_rank(const Schedule *schedule, int stage) {
    return schedule->home[stage] / schedule->num_chunks;
}

Topology schedule_topology(const Schedule *schedule, Grid grid, int rank) {
    Topology topology = topology_of(grid, rank);
    topology.ends[0] = schedule_home_rank(schedule, 0);
    topology.ends[1] = schedule_home_rank(schedule, schedule->num_ranks * schedule->num_chunks - 1);
    return topology;
}

int schedule_partner(const Schedule *schedule, int rank, int chunk, ScheduleOp op) {
    bool to_next = op == OP_SEND_FORWARD || op == OP_RECV_BACKWARD;
    int stage = schedule_stage(schedule, rank, chunk) + (to_next ? 1 : -1);
    if (stage < 0 || stage >= schedule->num_ranks * schedule->num_chunks) return -1;
    int partner = schedule_home_rank(schedule, stage);
    return partner == rank ? -1 : partner;
}

// ---- lowering: the only code that knows where communication goes ------------------------------------------

static void add_message(const Schedule *schedule, int rank, Program *out, Instr at, ScheduleOp op) {
    int partner = schedule_partner(schedule, rank, at.chunk, op);
    if (partner < 0) return;
    at.op = (uint8_t)op;
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

static Program lower_program(const Schedule *schedule, int rank, int receive_ahead) {
    Program computes = computes_of(&schedule->programs[rank]), out = {0};
    int last_gradient[SCHEDULE_MAX_CHUNKS] = {0}, received = 0;
    for (int i = 0; i < computes.count; i++)
        if (schedule_ops[computes.instrs[i].op].stash < 0) last_gradient[computes.instrs[i].chunk] = i;
    for (int i = 0; i < computes.count; i++) {
        Instr in = computes.instrs[i];
        for (; received < computes.count && received - i <= receive_ahead; received++)
            add_receive(schedule, rank, &out, computes.instrs[received]);
        program_add(&out, in);
        add_send(schedule, rank, &out, in);
        if (schedule_ops[in.op].stash < 0 && last_gradient[in.chunk] == i)
            program_add(&out,
                        (Instr){.op = OP_REDUCE_GRADS, .chunk = in.chunk, .peer = -1, .microbatch = -1});
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
