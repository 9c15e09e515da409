// Holds the table of operations, names an instruction, and says where the stages of a schedule are.
#include "layout/schedule.h"
#include <stdio.h>
#include <stdlib.h>

#define X(name, text, kind, direction, stash) {text, kind, direction, stash},
const ScheduleOpInfo schedule_ops[NUM_SCHEDULE_OPS] = {SCHEDULE_OPS(X)};
#undef X

void instr_print(const Schedule *schedule, Instr instr, char text[16]) {
    char microbatch[12] = "", chunk[6] = "";
    if (instr.microbatch >= 0) snprintf(microbatch, sizeof microbatch, "%d", instr.microbatch);
    if (schedule->num_chunks > 1) snprintf(chunk, sizeof chunk, ".%d", instr.chunk);
    snprintf(text, 16, "%s%.8s%s%s", schedule_ops[instr.op].text, microbatch, chunk, instr.pairs ? "+" : "");
}

void schedule_destroy(Schedule *schedule) {
    if (!schedule) return;
    for (int r = 0; r < schedule->num_ranks; r++) free(schedule->programs[r].instrs);
    free(schedule->programs);
    free(schedule->stage_place);
    free(schedule->stage);
    *schedule = (Schedule){0};
}

int schedule_stage(const Schedule *schedule, int rank, int chunk) {
    return schedule->stage[rank * schedule->num_chunks + chunk];
}

int schedule_stage_rank(const Schedule *schedule, int stage) {
    return schedule->stage_place[stage] / schedule->num_chunks;
}

Topology schedule_topology(const Schedule *schedule, Grid grid, int rank) {
    Topology topology = topology_of(grid, rank);
    topology.ends[0] = schedule_stage_rank(schedule, 0);
    topology.ends[1] = schedule_stage_rank(schedule, schedule->num_ranks * schedule->num_chunks - 1);
    return topology;
}

int schedule_partner(const Schedule *schedule, int rank, int chunk, ScheduleOp op) {
    bool to_next = op == OP_SEND_FORWARD || op == OP_RECV_BACKWARD;
    int stage = schedule_stage(schedule, rank, chunk) + (to_next ? 1 : -1);
    if (stage < 0 || stage >= schedule->num_ranks * schedule->num_chunks) return -1;
    int partner = schedule_stage_rank(schedule, stage);
    return partner == rank ? -1 : partner;
}
