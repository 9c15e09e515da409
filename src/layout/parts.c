// Makes the parts of a schedule: its sizes with the usual stage map, and programs that grow.
#include "layout/parts.h"
#include <stdlib.h>

void *layout_alloc(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    CHECK(memory, "no memory for %zu items of %zu bytes of a schedule", count, size);
    return memory;
}

void schedule_shape(Schedule *schedule, int ranks, int chunks, int microbatches) {
    size_t stages = (size_t)ranks * (size_t)chunks;
    *schedule = (Schedule){.num_ranks = ranks, .num_chunks = chunks, .num_microbatches = microbatches};
    schedule->stage = layout_alloc(stages, sizeof *schedule->stage);
    schedule->stage_place = layout_alloc(stages, sizeof *schedule->stage_place);
    schedule->programs = layout_alloc((size_t)ranks, sizeof *schedule->programs);
    for (int stage = 0; stage < ranks * chunks; stage++) {
        schedule->stage_place[stage] = stage % ranks * chunks + stage / ranks;
        schedule->stage[schedule->stage_place[stage]] = stage;
    }
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
