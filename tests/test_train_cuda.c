// Training on the CUDA device, with the simulated GPU: near the cpu device, and the laws of grids. The simulation runs
// streams late and in a random order, so a wait that is missing anywhere shows here.
#include "base/rank.h"
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// BY_CUDNN: attention as cuDNN takes it, by cuDNN; BY_KERNELS: the same by kernels of the program.
// BY_GPU: by whichever the GPU chooses.
enum {
    LLAMA = 1,
    SHARDED = 2,
    SEQUENCE_PARALLEL = 4,
    BY_CUDNN = 8,
    BY_KERNELS = 16,
    ANY_ORDER = 32,
    BY_GPU = 64,
    ON_HOST = 128, // AdamW's state
    HALF_ON_HOST = 256,
    CUT_VALUES = 512
};
enum { LAYERS = 4, GLOBAL_BATCH = 4, STEPS = 2 };

typedef struct {
    const char *name;
    Grid grid;
    const char *schedule;
    int chunks;
    DType dtype;
    unsigned ways; // LLAMA | ...
} Job;

// `opened` and `self`: see RunPlan.
static bool run_with(const char *device, const Job *job, void (*opened)(Engine *, void *), void *self,
                     RunResult *result) {
    RunPlan plan = {.spec = run_spec(job->grid, job->schedule, job->chunks, LAYERS, GLOBAL_BATCH),
                    .steps = STEPS,
                    .lr = 3e-3,
                    .transport = "threads",
                    .opened = opened,
                    .self = self,
                    .finished = run_expect_predicted_memory};
    if (job->ways & LLAMA) run_make_llama(&plan.spec);
    if (job->ways & (BY_CUDNN | BY_KERNELS | BY_GPU))
        plan.spec.shape.attention_dropout = 0, plan.spec.shape.head_size = 8;
    plan.spec.mode.attention = job->ways & BY_CUDNN     ? ATTENTION_CUDNN
                               : job->ways & BY_KERNELS ? ATTENTION_OWN
                                                        : ATTENTION_BY_GPU;
    plan.spec.mode.any_order = job->ways & ANY_ORDER;
    plan.spec.device = device;
    plan.spec.mode.dtype = job->dtype;
    plan.spec.mode.sequence_parallel = job->ways & SEQUENCE_PARALLEL;
    plan.spec.sharding = job->ways & SHARDED ? SHARD_OPTIMIZER : SHARD_NOTHING;
    if (job->ways & CUT_VALUES) plan.spec.sharding = SHARD_VALUES, plan.spec.reduce_every = true;
    plan.spec.offload = job->ways & ON_HOST ? 1 : job->ways & HALF_ON_HOST ? 0.5 : 0;
    return run_or_complain(&plan, job->name, result);
}

static bool run(const char *device, const Job *job, RunResult *result) {
    return run_with(device, job, NULL, NULL, result);
}

static void expect_near(const RunResult *a, const RunResult *b, const char *name, double most) {
    for (int i = 0; i < a->steps; i++) {
        double loss = fabs((double)(a->loss[i] - b->loss[i])) / (double)a->loss[i];
        double norm = fabs(a->norm[i] - b->norm[i]) / a->norm[i];
        EXPECT(loss <= most && norm <= 10 * most, "%s: step %d: loss differs by %.2g, norm by %.2g", name, i,
               loss, norm);
    }
}

static void near_the_cpu(void) {
    static const Job jobs[] = {{"gpt in bf16", GRID(1, 1, 1), "1f1b", 1, BF16, 0},
                               {"llama in fp16", GRID(1, 1, 1), "1f1b", 1, F16, LLAMA},
                               {"gpt", GRID(1, 1, 1), "1f1b", 1, F32, 0},
                               {"llama", GRID(1, 1, 1), "1f1b", 1, F32, LLAMA}};
    for (int i = 0; i < (harness_short() ? 2 : 4); i++) {
        RunResult cuda, cpu;
        if (!run("cuda-sim", &jobs[i], &cuda) || !run("cpu", &jobs[i], &cpu)) return;
        expect_near(&cuda, &cpu, jobs[i].name, jobs[i].dtype == F32 ? 1e-5 : 1e-3);
    }
}

// Ranks on one GPU or on several: a stage, a chunk, a share of the optimizer's state each.
static void grids_change_no_bit(void) {
    static const Job jobs[] = {{"p2", GRID(1, 1, 2), "1f1b", 1, F32, 0},
                               {"p4", GRID(1, 1, 4), "gpipe", 1, F32, 0},
                               {"p2 v2", GRID(1, 1, 2), "interleaved", 2, F32, 0}};
    static const char *const gpus[] = {"1", "2", "3"};
    RunResult one, other;
    if (!run("cuda-sim", &(Job){"p1", GRID(1, 1, 1), "1f1b", 1, F32, 0}, &one)) return;
    for (int i = harness_short() ? 2 : 0; i < 3; i++) {
        setenv("TRIREME_SIM_GPUS", gpus[i], 1);
        if (!run("cuda-sim", &jobs[i], &other)) return;
        run_expect_same_bits(&one, &other, jobs[i].name);
    }
    unsetenv("TRIREME_SIM_GPUS");
}

static void cuts_change_rounding_alone(void) {
    static const Job jobs[] = {{"t2", GRID(2, 1, 1), "1f1b", 1, F32, 0},
                               {"t2 p2 of a sequence", GRID(2, 1, 2), "1f1b", 1, F32, SEQUENCE_PARALLEL},
                               {"d2 p2", GRID(1, 2, 2), "1f1b", 1, F32, 0},
                               {"d4 sharded", GRID(1, 4, 1), "1f1b", 1, F32, SHARDED}};
    RunResult one, other;
    if (!run("cuda-sim", &(Job){"p1", GRID(1, 1, 1), "1f1b", 1, F32, 0}, &one)) return;
    for (int i = 0; i < 4; i += harness_short() ? 3 : 1) {
        if (!run("cuda-sim", &jobs[i], &other)) return;
        expect_near(&one, &other, jobs[i].name, 1e-5);
    }
}

static void attention_by_cudnn(void) {
    static const Job jobs[] = {
        {"gpt by cuDNN", GRID(1, 1, 1), "1f1b", 1, BF16, BY_CUDNN},
        {"gpt by cuDNN, 4 ranks", GRID(2, 1, 2), "1f1b", 1, BF16, BY_CUDNN},
        {"llama by cuDNN", GRID(2, 1, 1), "1f1b", 1, F16, BY_CUDNN | LLAMA},
        {"llama by cuDNN in any order", GRID(1, 1, 1), "1f1b", 1, BF16, BY_CUDNN | LLAMA | ANY_ORDER}};
    RunResult one, other, cpu;
    for (int i = harness_short() ? 2 : 0; i < 4; i++) {
        if (!run("cuda-sim", &jobs[i], &one) || !run("cpu", &jobs[i], &cpu)) return;
        expect_near(&one, &cpu, jobs[i].name, 1e-3);
    }
    if (!run("cuda-sim", &jobs[0], &one)) return;
    if (!run("cuda-sim", &(Job){"p2 by cuDNN", GRID(1, 1, 2), "1f1b", 1, BF16, BY_CUDNN}, &other)) return;
    run_expect_same_bits(&one, &other, "p2 by cuDNN");
    if (!run("cuda-sim", &(Job){"by kernels", GRID(1, 1, 1), "1f1b", 1, BF16, BY_KERNELS}, &other)) return;
    EXPECT(memcmp(one.norm, other.norm, STEPS * sizeof one.norm[0]) != 0, "cuDNN computes nothing");
}

// ---- optimizer state on the host --------------------------------------------------------------------------

// The host's step has the bits of the GPU's, and what is taken of both memories is what was said (run_with).
static void state_on_the_host_changes_no_bit(void) {
    static const Job jobs[] = {{"bf16", GRID(1, 1, 1), "1f1b", 1, BF16, ON_HOST},
                               {"fp16 d2 sharded", GRID(1, 2, 1), "1f1b", 1, F16, SHARDED | HALF_ON_HOST},
                               {"bf16 d2 cut", GRID(1, 2, 1), "1f1b", 1, BF16, CUT_VALUES | LLAMA | ON_HOST},
                               {"fp32 t2 p2", GRID(2, 1, 2), "1f1b", 1, F32, LLAMA | HALF_ON_HOST},
                               {"bf16 d2 p2", GRID(1, 2, 2), "interleaved", 2, BF16, ON_HOST}};
    for (int i = 0; i < (harness_short() ? 3 : 5); i++) {
        Job here = jobs[i];
        RunResult on_host, on_gpu;
        here.ways &= ~(unsigned)(ON_HOST | HALF_ON_HOST);
        if (!run("cuda-sim", &jobs[i], &on_host) || !run("cuda-sim", &here, &on_gpu)) return;
        run_expect_same_bits(&on_host, &on_gpu, jobs[i].name);
    }
}

static EngineMemory memory_with(double offload) {
    EngineMemory memory = {0};
    EngineSpec spec = run_spec((Grid)GRID(1, 1, 1), "1f1b", 1, LAYERS, GLOBAL_BATCH);
    spec.device = "cuda-sim", spec.mode.dtype = BF16, spec.offload = offload;
    EXPECT_OK(engine_measure(&spec, 0, &memory, NULL));
    return memory;
}

// 10 bytes of a parameter leave the GPU, and the host takes 12; a half of the state leaves a half.
static void the_gpu_is_relieved(void) {
    EngineMemory none = memory_with(0), half = memory_with(0.5), all = memory_with(1);
    double less = (double)(none.total - all.total), halfway = (double)(none.total - half.total);
    EXPECT(none.host == 0 && less > 0, "%zu bytes on the host, %g less on the GPU", none.host, less);
    EXPECT(fabs(halfway / less - 0.5) < 0.05, "a half of the state is %.3f of all", halfway / less);
    double host = (double)all.host, blocks = 2 * 4.0 / 16 / 10 * less; // the gradients of two of 16 blocks
    EXPECT(fabs((host - blocks) / (less * 12 / 10) - 1) < 0.05, "%g bytes on the host for %g", host, less);
}

// ---- attention as the GPU chooses -------------------------------------------------------------------------

static size_t workspace_for(EngineSpec spec, AttentionKernels attention) {
    EngineMemory memory;
    spec.mode.attention = attention;
    EXPECT_OK(engine_measure(&spec, 0, &memory, NULL));
    return memory.workspace;
}

static Status take_memory(Comm *world, void *arg) {
    EngineSpec *spec = arg;
    Engine *engine;
    TRY(engine_open(&engine, spec, world));
    *spec = *engine_spec_of(engine);
    EXPECT(engine_memory(engine)->workspace == workspace_for(*spec, spec->mode.attention), "the workspace");
    engine_close(engine);
    return OK;
}

// Returns who computes attention in an engine that leaves it to the GPU.
static AttentionKernels choice_of_engine(EngineSpec spec) {
    EXPECT_OK(
        comm_launch((CommOptions){.transport = "threads", .ranks = 1, .timeout_s = 120}, take_memory, &spec));
    return spec.mode.attention;
}

// Long enough a sequence that cuDNN's workspace is more than that of products.
static void workspace_is_of_the_choice(void) {
    const Grid alone = GRID(1, 1, 1);
    EngineSpec spec = run_spec(alone, "1f1b", 1, 1, 1);
    spec.device = "cuda-sim", spec.mode.dtype = BF16, spec.shape.attention_dropout = 0;
    spec.shape.sequence = spec.shape.positions = 2100;
    const size_t own = workspace_for(spec, ATTENTION_OWN), cudnn = workspace_for(spec, ATTENTION_CUDNN),
                 chosen = workspace_for(spec, ATTENTION_CUDNN_CHOSEN),
                 open = workspace_for(spec, ATTENTION_BY_GPU);
    EXPECT(own < cudnn && cudnn == chosen && cudnn == open, "%zu, %zu, %zu, %zu", own, cudnn, chosen, open);
    EXPECT(choice_of_engine(spec) == ATTENTION_CUDNN_CHOSEN, "on a GPU that cuDNN is for");
    setenv("TRIREME_SIM_CUDNN", "0", 1);
    EXPECT(choice_of_engine(spec) == ATTENTION_OWN, "without cuDNN");
    unsetenv("TRIREME_SIM_CUDNN");
    setenv("TRIREME_SIM_CAPABILITY", "80", 1);
    EXPECT(choice_of_engine(spec) == ATTENTION_OWN, "on a GPU that cuDNN is not for");
    unsetenv("TRIREME_SIM_CAPABILITY");
}

// The choice computes what the same word of a user's computes, in the memory that was said.
static void choice_computes_as_the_word(void) {
    static const struct {
        const char *capability;
        unsigned same_as;
    } rows[] = {{"90", BY_CUDNN}, {"80", BY_KERNELS}};
    for (int i = 0; i < 2; i++) {
        RunResult chosen, word;
        setenv("TRIREME_SIM_CAPABILITY", rows[i].capability, 1);
        if (run("cuda-sim", &(Job){"by GPU", GRID(1, 1, 1), "1f1b", 1, BF16, BY_GPU}, &chosen) &&
            run("cuda-sim", &(Job){"by word", GRID(1, 1, 1), "1f1b", 1, BF16, rows[i].same_as}, &word))
            run_expect_same_bits(&chosen, &word, rows[i].capability);
    }
    unsetenv("TRIREME_SIM_CAPABILITY");
}

// ---- plans ------------------------------------------------------------------------------------------------

static void meet(Engine *engine) {
    const Context *c = engine_context(engine);
    comm_barrier(context_group(c, ROLE_TENSOR));
    comm_barrier(context_group(c, ROLE_PIPELINE));
}

// From here on the first plan that is made ends the job. No rank asks for the variable while it is set.
static void forbid_plans(Engine *engine, void *failure) {
    meet(engine);
    if (rank_current()->rank == 0) setenv("TRIREME_SIM_FAIL", failure, 1);
    meet(engine);
}

// Steps and evaluations find all plans that they need.
static void plans_are_made_when_the_engine_opens(void) {
    static const Job jobs[] = {
        {"gpt", GRID(1, 1, 1), "1f1b", 1, BF16, 0},
        {"gpt by cuDNN", GRID(1, 1, 1), "1f1b", 1, BF16, BY_CUDNN},
        {"llama by cuDNN", GRID(1, 1, 1), "1f1b", 1, F16, BY_CUDNN | LLAMA | ANY_ORDER},
        {"t2 p2", GRID(2, 1, 2), "1f1b", 1, BF16, BY_CUDNN | SEQUENCE_PARALLEL},
        {"p2 v2", GRID(1, 1, 2), "interleaved", 2, F32, LLAMA}};
    static char failures[2][64] = {"cublasLtMatmulAlgoGetHeuristic:1", "workspace:1"};
    for (int i = 0; i < 5; i += harness_short() ? 3 : 1)
        for (int f = 0; f < 2; f++) {
            RunResult result;
            run_with("cuda-sim", &jobs[i], forbid_plans, failures[f], &result);
            unsetenv("TRIREME_SIM_FAIL");
        }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"near_the_cpu", near_the_cpu},
                       {"grids_change_no_bit", grids_change_no_bit},
                       {"cuts_change_rounding_alone", cuts_change_rounding_alone},
                       {"attention_by_cudnn", attention_by_cudnn},
                       {"state_on_the_host_changes_no_bit", state_on_the_host_changes_no_bit},
                       {"the_gpu_is_relieved", the_gpu_is_relieved},
                       {"workspace_is_of_the_choice", workspace_is_of_the_choice},
                       {"choice_computes_as_the_word", choice_computes_as_the_word},
                       {"plans_are_made_when_the_engine_opens", plans_are_made_when_the_engine_opens},
                       {0}},
        argc, argv);
}
