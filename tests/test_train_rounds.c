// Training runs post to groups of experts what layout/rounds.h lists, in that order, on every rank: in forwards and
// backwards alone and in pairs, in one round and in several, also where the ranks want other numbers of them.
#include "base/text.h"
#include "harness.h"
#include "layout/kinds.h"
#include "layout/rounds.h"
#include "runs.h"
#include <string.h>

enum { RANKS = 2, LAYERS = 2, MICROBATCHES = 4 };

// Forwards of a step, and of the evaluation after it.
enum { FORWARDS_RUN = 2 * MICROBATCHES };

typedef struct {
    Text text; // a line for each instruction: the posts to the group of experts that a rank has made in it
    char doing[48];
    int wanted[FORWARDS_RUN * LAYERS], num_wanted; // rounds that the rank has asked for
    bool on;                                       // the run has begun
} Record;

typedef struct {
    Record records[RANKS];
} Records;

static bool is_compute(const char *doing) { return *doing && strchr("FBIW", *doing); }

// c: counts, a: the agreement, m: largest magnitudes, x: rows, gradients or results, which are BF16.
static char letter_of(CommOp op, DType dtype) {
    if (op == COMM_ALL_REDUCE) return dtype == F64 ? 'a' : 0;
    if (op != COMM_ALL_TO_ALL) return 0;
    return dtype == I32 ? 'c' : dtype == F32 ? 'm' : 'x';
}

static void note_call(void *self, const Comm *group, CommOp op, DType dtype, size_t bytes) {
    Record *record = self;
    const char *doing = rank_current()->doing;
    char letter = letter_of(op, dtype);
    (void)bytes;
    if (!letter || !is_compute(doing) || comm_size(group) != RANKS) return;
    if (strcmp(doing, record->doing)) text_add(&record->text, "\n%s ", doing);
    memcpy(record->doing, doing, sizeof record->doing);
    text_add_bytes(&record->text, &letter, 1);
}

static Records *listening; // of the run under way; each rank writes its own

// Linked in place of comm_all_reduce_host (CMakeLists.txt): notes what a rank brings to the agreement.
void __real_comm_all_reduce_host(Comm *comm, double *values, int count, ReduceOp op);
void __wrap_comm_all_reduce_host(Comm *comm, double *values, int count, ReduceOp op);
void __wrap_comm_all_reduce_host(Comm *comm, double *values, int count, ReduceOp op) {
    Record *record = listening ? &listening->records[rank_current()->rank % RANKS] : NULL;
    if (record && record->on && is_compute(rank_current()->doing) && comm_size(comm) == RANKS &&
        record->num_wanted < FORWARDS_RUN * LAYERS)
        record->wanted[record->num_wanted++] = (int)values[0];
    __real_comm_all_reduce_host(comm, values, count, op);
}

typedef struct {
    const char *schedule;
    int rounds; // 0: as the routers choose, of few rows each
    bool looks, again;
} Way;

typedef struct {
    const Way *way;
    Records records;
} Job;

// Equal logits: every token goes to experts 0 and 1, which are rank 0's.
static void listen(Engine *engine, void *self) {
    const Context *c = engine_context(engine);
    const Params *params = engine_params(engine);
    Job *job = self;
    for (int i = 0; i < params->count && job->way->rounds; i++)
        if (strstr(params->items[i]->spec.name, "router"))
            device_zero(c->device, c->stream, params->items[i]->value);
    Comm *group = context_group(c, ROLE_EXPERT);
    Record *record = &job->records.records[comm_rank(group)];
    record->on = true;
    comm_on_call(group, note_call, record);
}

// ---- what is listed -----------------------------------------------------------------------------------------

static RoundsPass pass_of(const Instr *in) {
    if (in->op == OP_BACKWARD_INPUT) return ROUNDS_INPUT_HALF;
    return in->op == OP_BACKWARD_WEIGHT ? ROUNDS_WEIGHT_HALF : ROUNDS_BACKWARD;
}

// What each rank wants in the layers of a compute. The backward of a microbatch follows its forward in training.
static void copy_wanted(const Job *job, RoundsCompute compute, int forward, int *wanted) {
    for (int rank = 0; rank < RANKS; rank++)
        for (int layer = 0; layer < LAYERS; layer++)
            wanted[(rank * NUM_ROUNDS_COMPUTES + (int)compute) * LAYERS + layer] =
                job->way->rounds ? job->way->rounds
                                 : job->records.records[rank].wanted[forward * LAYERS + layer];
}

// `forward`, `backward`: one of them or NULL. `first`: the number of the first forward.
static void list_compute(const Job *job, const Instr *forward, const Instr *backward, int first, int rank,
                         Text *out) {
    static const char letters[NUM_ROUND_OPS] = {'c', 'a', 'm', 'x', 'x', 0, 'x', 0, 0};
    int wanted[RANKS * NUM_ROUNDS_COMPUTES * LAYERS] = {0};
    RoundsWork work = {.ep = RANKS,
                       .groups = 1,
                       .looks = job->way->looks,
                       .layers = {forward ? LAYERS : 0, backward ? LAYERS : 0},
                       .backward = backward ? pass_of(backward) : ROUNDS_BACKWARD,
                       .again = job->way->again,
                       .wanted = wanted};
    RoundSteps steps = {0};
    if (forward) copy_wanted(job, ROUNDS_OF_FORWARD, first + forward->microbatch, wanted);
    if (backward) copy_wanted(job, ROUNDS_OF_BACKWARD, first + backward->microbatch, wanted);
    EXPECT_OK(rounds_verify(&work));
    rounds_steps(&work, rank, &steps);
    for (size_t i = 0; i < steps.count; i++) {
        char letter = letters[steps.steps[i].post.op];
        if (letter && !steps.steps[i].waits) text_add_bytes(out, &letter, 1);
    }
    rounds_steps_free(&steps);
}

static void name_instr(const Schedule *schedule, Instr in, Text *out) {
    char text[16];
    instr_print(schedule, in, text);
    text_add(out, "%s", text);
}

// An evaluation runs the forwards alone.
static void list_program(const Job *job, const Schedule *schedule, int rank, bool training, Text *out) {
    const Program *program = &schedule->programs[0];
    for (int i = 0; i < program->count; i++) {
        const Instr *in = &program->instrs[i];
        bool is_forward = in->op == OP_FORWARD, pairs = training && in->pairs;
        if (schedule_ops[in->op].kind != COMPUTE || (!training && !is_forward)) continue;
        text_add(out, "\n");
        name_instr(schedule, *in, out);
        if (pairs) name_instr(schedule, in[1], out);
        text_add(out, " ");
        const Instr *backward = pairs ? &in[1] : is_forward ? NULL : in;
        list_compute(job, is_forward ? in : NULL, backward, training ? 0 : MICROBATCHES, rank, out);
        i += pairs;
    }
}

// ---- runs ---------------------------------------------------------------------------------------------------

static RunPlan plan_of(const Way *way) {
    Grid grid = GRID(1, RANKS, 1);
    grid.size[AXIS_EP] = RANKS;
    RunPlan plan = {.spec = run_spec(grid, way->schedule, 1, LAYERS, RANKS * MICROBATCHES),
                    .steps = 1,
                    .transport = "threads",
                    .check_comm = true,
                    .opened = listen};
    ModelMode *mode = &plan.spec.mode;
    run_make_model(&plan.spec, RUN_EXPERTS);
    // With equal logits all pairs of a rank are for rank 0.
    int pairs = plan.spec.shape.sequence * mode->microbatch * plan.spec.shape.experts_topk;
    mode->dispatch_slot = way->rounds ? (pairs + way->rounds - 1) / way->rounds : 2;
    mode->dtype = BF16;
    if (way->looks) mode->float8 = FLOAT8_HYBRID, mode->recipe = RECIPE_TENSORWISE;
    if (way->again) mode->recompute = RECOMPUTE_UNIFORM, mode->recompute_layers = 1;
    return plan;
}

// Returns in how many layers the two ranks wanted other numbers of rounds.
static int expect_listed(const Way *way) {
    Job job = {.way = way};
    RunPlan plan = plan_of(way);
    RunResult result;
    ScheduleSpec spec = {.kind = way->schedule, .ranks = 1, .chunks = 1, .microbatches = MICROBATCHES};
    Schedule schedule;
    int differ = 0;
    plan.self = &job;
    EXPECT_OK(schedule_create(&schedule, &spec));
    listening = &job.records;
    bool ran = run_or_complain(&plan, way->schedule, &result);
    listening = NULL;
    for (int rank = 0; rank < RANKS && ran; rank++) {
        Text want = {0};
        const char *got = text_string(&job.records.records[rank].text);
        list_program(&job, &schedule, rank, true, &want);
        list_program(&job, &schedule, rank, false, &want);
        EXPECT(!strcmp(got, text_string(&want)),
               "%s, %d rounds, looks %d, again %d, rank %d posts:%s\nnot:%s", way->schedule, way->rounds,
               way->looks, way->again, rank, got, text_string(&want));
        text_free(&want);
    }
    for (int i = 0; i < FORWARDS_RUN * LAYERS; i++)
        differ += job.records.records[0].wanted[i] != job.records.records[1].wanted[i];
    for (int rank = 0; rank < RANKS; rank++) text_free(&job.records.records[rank].text);
    schedule_destroy(&schedule);
    return differ;
}

static const char *const schedules[] = {"1f1b", "paired", "zb-h1"};

static void runs_post_what_is_listed(void) {
    for (int i = 0; i < 3 * 2 * 2 * 2; i++) {
        Way way = {schedules[i % 3], i / 3 % 2 ? 3 : 1, i / 6 % 2, i / 12};
        expect_listed(&way);
    }
}

// The largest number is that of both.
static void other_numbers_of_rounds_are_agreed(void) {
    for (int i = 0; i < 3 * 2; i++) {
        Way way = {.schedule = schedules[i % 3], .looks = i / 3};
        int differ = expect_listed(&way);
        EXPECT(differ > 0, "%s: all ranks want the same", way.schedule);
    }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"runs post what is listed", runs_post_what_is_listed},
                       {"other numbers of rounds are agreed", other_numbers_of_rounds_are_agreed},
                       {0}},
        argc, argv);
}
