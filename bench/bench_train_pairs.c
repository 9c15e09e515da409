// How much of the rows' travel to experts and back is hidden by the schedule paired, where messages are slow: two ranks
// that are threads, half of the experts each, and all-to-alls that take a given time.
//
//   bench_train_pairs [--json FILE]
//
// Every all-to-all of rows takes `x` units after the one before it has arrived; a unit is a sixth of what a layer
// computes in a forward and a backward. Times are a rank's processor time and what it would wait for such messages, so
// that they do not depend on what else the machine does. "apart" is the schedule 1f1b. "hidden" is the share of the
// travel that a step of pairs does not take longer for, beside that of the simulator for layers of equal parts: the
// first forward and the last backward are alone. Medians of some steps.
#include "median.h"
#include "table.h"
#include "train/train.h"
#include <math.h>
#include <stdlib.h>

enum { LAYERS = 4, MICROBATCHES = 8, SEQUENCE = 128, HIDDEN = 128, VOCABULARY = 512, RANKS = 2, STEPS = 3 };

static const double TRAVELS[] = {0.3, 0.6, 0.9, 1.2, 2.0};
static const Column COLUMNS[] = {{"apart ms", 1, INFORMS},
                                 {"paired ms", 1, INFORMS},
                                 {"hidden %", 1, HIGHER_IS_BETTER},
                                 {"simulated %", 1, INFORMS}};

// ---- slow messages ----------------------------------------------------------------------------------------

// The linker puts these in the place of comm's, for all of the program.
CommRequest *__real_comm_all_to_all_start(Comm *comm, Stream *stream, Tensor in, Tensor out);
CommRequest *__wrap_comm_all_to_all_start(Comm *comm, Stream *stream, Tensor in, Tensor out);
void __real_comm_wait(Comm *comm, Stream *stream, CommRequest **request);
void __wrap_comm_wait(Comm *comm, Stream *stream, CommRequest **request);

static double travel_s; // of the run
enum { MOST_UNDER_WAY = 8 };

// Of this rank: what is under way, when the last of it arrives, and how long the rank has waited for such.
static _Thread_local struct {
    CommRequest *request;
    double due_s;
} under_way[MOST_UNDER_WAY];
static _Thread_local double last_due_s, waited_s;

static double rank_s(void) { return clock_thread_s() + waited_s; }

CommRequest *__wrap_comm_all_to_all_start(Comm *comm, Stream *stream, Tensor in, Tensor out) {
    CommRequest *request = __real_comm_all_to_all_start(comm, stream, in, out);
    int i = 0;
    if (in.dtype == I32) return request; // counts
    while (i < MOST_UNDER_WAY && under_way[i].request) i++;
    CHECK(i < MOST_UNDER_WAY, "more than %d all-to-alls under way", MOST_UNDER_WAY);
    last_due_s = fmax(last_due_s, rank_s()) + travel_s;
    under_way[i].request = request, under_way[i].due_s = last_due_s;
    return request;
}

void __wrap_comm_wait(Comm *comm, Stream *stream, CommRequest **request) {
    for (int i = 0; i < MOST_UNDER_WAY && *request; i++) {
        if (under_way[i].request != *request) continue;
        waited_s += fmax(0, under_way[i].due_s - rank_s());
        under_way[i].request = NULL;
    }
    __real_comm_wait(comm, stream, request);
}

// ---- a training step --------------------------------------------------------------------------------------

static EngineSpec spec_of(const char *schedule) {
    EngineSpec spec = {.grid = GRID(1, RANKS, 1), .schedule = schedule, .num_chunks = 1};
    spec.grid.size[AXIS_ETP] = 1, spec.grid.size[AXIS_EP] = RANKS;
    spec.num_microbatches = MICROBATCHES;
    spec.shape = (ModelShape){.layers = LAYERS,
                              .hidden = HIDDEN,
                              .heads = 4,
                              .head_size = HIDDEN / 4,
                              .ffn = HIDDEN,
                              .experts = 8,
                              .experts_topk = 2,
                              .expert_ffn = HIDDEN,
                              .activation = ACTIVATION_SWIGLU,
                              .sequence = SEQUENCE,
                              .positions = SEQUENCE,
                              .vocabulary = VOCABULARY,
                              .norm_epsilon = 1e-5f,
                              .init_std = 0.02f,
                              .seed = 1234};
    spec.mode = (ModelMode){.microbatch = 1, .dtype = F32};
    spec.mode.padded_vocabulary = padded_vocabulary(VOCABULARY, 1, 1);
    spec.split.layers = LAYERS;
    spec.adam = (AdamOptions){0.9, 0.95, 1e-8, 1.0};
    spec.bucket_elements = 40000000;
    spec.device = "cpu", spec.threads = 1;
    return spec;
}

typedef struct {
    const char *schedule;
    double seconds; // of a step, on rank 0
} Step;

static Status measure_step(Comm *world, void *arg) {
    enum { TOKENS = MICROBATCHES * SEQUENCE };
    Step *step = arg;
    EngineSpec spec = spec_of(step->schedule);
    Engine *engine;
    double times[STEPS];
    int32_t *tokens = malloc(2 * TOKENS * sizeof *tokens), *labels = tokens + TOKENS;
    if (!tokens) return fail(ERR_OS, "no memory for %d tokens", TOKENS);
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)(((uint32_t)i + (uint32_t)comm_rank(world)) * 2654435761u % VOCABULARY);
        labels[i] = (tokens[i] + 1) % VOCABULARY;
    }
    Batch batch = {.num_microbatches = MICROBATCHES, .tokens = tokens, .labels = labels};
    TRY(engine_open(&engine, &spec, world));
    for (int i = -1; i < STEPS; i++) {
        double start_s = rank_s();
        engine_gradients(engine, batch, 1);
        if (i >= 0) times[i] = rank_s() - start_s;
    }
    if (comm_rank(world) == 0) step->seconds = median(times, STEPS);
    engine_close(engine);
    free(tokens);
    return OK;
}

static Status measure(const char *schedule, double each_s, double *seconds) {
    Step step = {.schedule = schedule};
    travel_s = each_s;
    TRY(comm_launch((CommOptions){.transport = "threads", .ranks = RANKS, .timeout_s = 600, .cores = 1},
                    measure_step, &step));
    *seconds = step.seconds;
    return OK;
}

// The share that the simulator says, where all parts of a layer take a unit.
static Status simulated_share(double x, double *share) {
    StageExchange layers = {LAYERS, {1, 1, x, 0, 0}, {2, 2, x, 1, 1}};
    ScheduleSpec spec = {
        .kind = schedule_kind_paired()->name, .ranks = 1, .chunks = 1, .microbatches = MICROBATCHES};
    ScheduleCosts costs = {.forward_us = LAYERS * (2 + 2 * x), .backward_us = LAYERS * (4 + 2 * x)};
    Schedule order;
    Simulation together, apart;
    TRY(schedule_order(&order, &spec));
    schedule_replay(&order, costs, &apart);
    costs.stage_exchanges = &layers;
    schedule_replay(&order, costs, &together);
    *share = (apart.total_us - together.total_us) / (LAYERS * MICROBATCHES * 4 * x);
    simulation_destroy(&together, &order);
    simulation_destroy(&apart, &order);
    schedule_destroy(&order);
    return OK;
}

static Status bench(Tables *tables) {
    double fast_s, paired_fast_s;
    TRY(measure("1f1b", 0, &fast_s));
    TRY(measure(schedule_kind_paired()->name, 0, &paired_fast_s));
    table_begin(tables, "pairs of a forward and a backward, 2 ranks of a thread", COLUMNS,
                sizeof COLUMNS / sizeof *COLUMNS);
    table_row(tables, "no travel", (double[]){1e3 * fast_s, 1e3 * paired_fast_s, NAN, NAN});
    for (size_t i = 0; i < sizeof TRAVELS / sizeof *TRAVELS; i++) {
        double each_s = TRAVELS[i] * fast_s / (6 * LAYERS * MICROBATCHES), apart_s, paired_s, simulated;
        char name[32];
        TRY(measure("1f1b", each_s, &apart_s));
        TRY(measure(schedule_kind_paired()->name, each_s, &paired_s));
        TRY(simulated_share(TRAVELS[i], &simulated));
        snprintf(name, sizeof name, "x %.1f", TRAVELS[i]);
        table_row(tables, name,
                  (double[]){1e3 * apart_s, 1e3 * paired_s,
                             100 * (1 - (paired_s - paired_fast_s) / (4 * LAYERS * MICROBATCHES * each_s)),
                             100 * simulated});
    }
    return OK;
}

int main(int argc, char **argv) {
    const char *json = tables_path(&argc, argv);
    Tables tables = {0};
    Status status = bench(&tables);
    if (status == OK) status = tables_finish(&tables, "pairs", json);
    if (status != OK) fprintf(stderr, "bench_train_pairs: %s\n", fail_message());
    return (int)status;
}
