// Sums up a run after its last step: its rate, memory, and the bubble of its pipeline.
#include "train/run.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

// ---- what is printed ------------------------------------------------------------------------------

static void print_bubble(const Reporter *r, const RunSummary *s) {
    printf("pipeline bubble over the ideal time: ");
    if (!isnan(s->formula))
        printf("%.1f %% by the formula for equal stages of %s, ", 100 * s->formula,
               r->options->shape.schedule);
    printf("%.1f %% when the schedule is replayed with each stage's measured times\n", 100 * s->replay);
    printf("waiting for other stages: %.1f %% of the pipeline's time", 100 * s->waited);
    if (s->busy_threads > s->cores)
        printf(" (%d threads share %d processors: most of it is other ranks' turns)", s->busy_threads,
               s->cores);
    printf("\n");
}

void reporter_summary(Reporter *r, const RunSummary *s) {
    double tokens = (double)s->samples * r->options->seq_length;
    reporter_clear_progress(r);
    if (r->options->quiet) return;
    if (!s->iterations) {
        printf("nothing was trained: 0 iterations\n");
        return;
    }
    printf("trained %" PRId64 " iterations in %.1f s", s->iterations, s->seconds);
    if (s->skipped) printf(", %" PRId64 " of them skipped (they changed nothing)", s->skipped);
    if (!isnan(r->first_loss)) printf(": lm loss %.4f -> %.4f", r->first_loss, r->last_loss);
    if (!isnan(r->last_validation)) printf(", validation %.4f", r->last_validation);
    printf("; %.0f tokens/s\n", s->seconds > 0 ? tokens / s->seconds : 0);
    fflush(stdout);
    if (r->brief) return;
    if (r->options->shape.pp > 1) print_bubble(r, s);
    double model = s->resident_bytes - s->bytes_before;
    printf(
        "peak resident memory of all ranks: %.1f MiB; program and data took %.1f MiB before the model, the rest "
        "is %.1f MiB, predicted: %.1f MiB (%+.1f MiB)\n",
        s->resident_bytes / 1048576, s->bytes_before / 1048576, model / 1048576, s->predicted_bytes / 1048576,
        (model - s->predicted_bytes) / 1048576);
    fflush(stdout);
}

// ---- of all ranks ---------------------------------------------------------------------------------

// Gives every rank the measured times of every stage, and simulates the schedule with them.   Collective over the
// world.
static double replayed_bubble(TrainingRun *run) {
    const Schedule *schedule = engine_schedule(run->engine);
    int num_stages = schedule->num_ranks * schedule->num_chunks;
    PipelineTimes times = engine_times(run->engine);
    double *us = calloc((size_t)(3 * num_stages), sizeof *us);
    CHECK(us, "no memory for %d stages", num_stages);
    Grid grid = run->spec.grid;
    double runs = (double)run->microbatches * (grid_size(grid) / grid_count(grid, ROLE_PIPELINE));
    for (int c = 0; c < schedule->num_chunks && runs > 0; c++) {
        int stage = schedule_stage(schedule, context_rank(engine_context(run->engine), ROLE_PIPELINE), c);
        us[stage] = 1e6 * times.chunks[c].forward_s / runs;
        us[num_stages + stage] = 1e6 * times.chunks[c].backward_s / runs;
        us[2 * num_stages + stage] = 1e6 * times.chunks[c].weight_s / runs;
    }
    comm_all_reduce_host(run->world, us, 3 * num_stages, REDUCE_SUM);
    Simulation simulation;
    schedule_simulate(schedule, schedule_costs_of_stages(us, num_stages), &simulation);
    double bubble = simulation.bubble;
    simulation_destroy(&simulation, schedule);
    free(us);
    return bubble;
}

void run_sum_up(TrainingRun *run) {
    const RunShape *shape = &run->options->shape;
    ScheduleSpec spec = engine_schedule_spec(&run->spec, run->spec.num_microbatches);
    PipelineTimes times = engine_times(run->engine);
    double waits[2] = {times.wait_s, times.total_s};
    comm_all_reduce_host(run->world, waits, 2, REDUCE_SUM);
    double memory[3] = {resident_bytes(run->world, true), run->bytes_before,
                        (double)engine_memory(run->engine)->total};
    comm_all_reduce_host(run->world, memory, 3, REDUCE_SUM);
    RunSummary summary = {
        .iterations = run->control.iteration - run->first,
        .skipped = run->skipped,
        .samples = run->samples,
        .seconds = run->train_s,
        .formula = schedule_kind(shape->schedule)->bubble(&spec),
        .replay = shape->pp > 1 && run->control.iteration > run->first ? replayed_bubble(run) : 0,
        .waited = waits[1] > 0 ? waits[0] / waits[1] : 0,
        .busy_threads = run->job->ranks_here * run->spec.threads,
        .cores = (int)sysconf(_SC_NPROCESSORS_ONLN),
        .resident_bytes = memory[0],
        .bytes_before = memory[1],
        .predicted_bytes = memory[2],
    };
    if (run->reporter) reporter_summary(run->reporter, &summary);
}
