// The memory that a plan says trireme takes, on a CPU and on a GPU, is what `trireme memory` says.
#include "harness.h"
#include "plan/memory.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const ModelShape GPT = {.layers = 4,
                               .hidden = 32,
                               .heads = 4,
                               .head_size = 8,
                               .ffn = 128,
                               .sequence = 16,
                               .positions = 16,
                               .vocabulary = 300,
                               .hidden_dropout = 0.1f,
                               .attention_dropout = 0.1f,
                               .norm_epsilon = 1e-5f,
                               .init_std = 0.02f,
                               .seed = 1};

// What `trireme memory` says, which equals what a run takes (test_train_memory): the most of a rank, and the most of a
// rank's host, which may be those of two ranks.
static EngineMemory options_memory(int argc, const char **words, int ranks) {
    char *argv[40];
    Options options;
    EngineSpec spec;
    int room[16];
    for (int i = 0; i < argc; i++) argv[i] = (char *)(uintptr_t)words[i];
    EXPECT_OK(options_parse(&options, FOR_MEMORY, argc, argv));
    EXPECT_OK(options_resolve(&options, ranks));
    EXPECT_OK(engine_spec(&options, 1, 300, room, &spec));
    EngineMemory most = {0};
    size_t host = 0;
    for (int rank = 0; rank < ranks; rank++) {
        EngineMemory memory;
        EXPECT_OK(engine_measure(&spec, rank, &memory, NULL));
        if (memory.host > host) host = memory.host;
        if (memory.total > most.total) most = memory;
    }
    most.host = host;
    options_destroy(&options);
    return most;
}

#define COMMON                                                                                               \
    "--layers", "4", "--hidden", "32", "--heads", "4", "--seq", "16", "--vocab-size", "300",                 \
        "--tokenizer-type", "NullTokenizer", "--mock-data", "--mbs", "2", "--gbs", "16"

#define MUON                                                                                                 \
    { .iterations = 5, .momentum = 0.9, .split_qkv = true, .coefficients = "quintic", .extra_scale = 1 }

// Ways to run it, and the options that say so.
static const struct {
    ParallelConfig config;
    const char *words[8];
    int count;
} cases[] = {
    {{.grid = GRID(1, 1, 1), .chunks = 1, .schedule = "1f1b"}, {0}, 0},
    {{.grid = GRID(2, 1, 1), .chunks = 1, .schedule = "1f1b", .sequence_parallel = true},
     {"--tp", "2", "--sequence-parallel"},
     3},
    {{.grid = GRID(1, 2, 1), .chunks = 1, .schedule = "1f1b", .zero_stage = 1},
     {"--use-distributed-optimizer"},
     1},
    {{.grid = GRID(1, 1, 2), .chunks = 2, .schedule = "interleaved"}, {"--pp", "2", "--vp", "2"}, 4},
    {{.grid = GRID(1, 1, 2), .chunks = 1, .schedule = "zb-h1", .recompute = RECOMPUTE_UNIFORM},
     {"--pp", "2", "--schedule", "zb-h1", "--recompute-granularity", "full", "--recompute-method", "uniform"},
     8},
    {{.grid = GRID(1, 1, 1), .chunks = 1, .schedule = "gpipe", .attention = ATTENTION_UNFUSED},
     {"--attention-backend", "unfused", "--schedule", "gpipe"},
     4},
    {{.grid = GRID(1, 1, 1), .chunks = 1, .schedule = "1f1b", .dtype = BF16, .device = "cuda-sim"},
     {"--bf16", "--device", "cuda-sim"},
     3},
    {{.grid = GRID(2, 1, 1), .chunks = 1, .schedule = "1f1b", .muon = MUON},
     {"--tp", "2", "--optimizer", "muon"},
     4},
    {{.grid = GRID(1, 2, 1), .chunks = 1, .schedule = "1f1b", .dtype = BF16, .zero_stage = 1, .muon = MUON},
     {"--bf16", "--use-distributed-optimizer", "--optimizer", "muon"},
     4},
    {{.grid = {.size = {[AXIS_CP] = 2}}, .chunks = 1, .schedule = "1f1b", .context_way = CONTEXT_RING},
     {"--context-parallel-size", "2", "--cp-comm-type", "p2p"},
     4},
    {{.grid = {.size = {[AXIS_CP] = 2}}, .chunks = 1, .schedule = "1f1b", .context_way = CONTEXT_ALL_TO_ALL},
     {"--context-parallel-size", "2", "--cp-comm-type", "a2a"},
     4},
    {{.grid = {.size = {[AXIS_DP] = 4}, .instances = 2}, .chunks = 1, .schedule = "1f1b", .zero_stage = 1},
     {"--use-distributed-optimizer", "--num-distributed-optimizer-instances", "2"},
     3},
    {{.grid = GRID(1, 2, 1),
      .chunks = 1,
      .schedule = "1f1b",
      .dtype = BF16,
      .device = "cuda-sim",
      .zero_stage = 1,
      .offload = 0.25},
     {"--bf16", "--device", "cuda-sim", "--use-distributed-optimizer", "--optimizer-cpu-offload",
      "--optimizer-offload-fraction", "0.25"},
     7},
    {{.grid = GRID(1, 1, 2), .chunks = 1, .schedule = "1f1b", .device = "cuda-sim", .offload = 1},
     {"--pp", "2", "--device", "cuda-sim", "--optimizer-cpu-offload"},
     5},
    {{.grid = GRID(2, 1, 2), .chunks = 1, .schedule = "1f1b", .device = "cuda-sim"},
     {"--tp", "2", "--pp", "2", "--device", "cuda-sim"},
     6},
};

static void memory_is_exact(void) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *words[32] = {COMMON};
        int argc = 0, rank;
        while (words[argc]) argc++;
        memcpy(words + argc, cases[i].words, (size_t)cases[i].count * sizeof *words);
        ParallelConfig config = cases[i].config;
        config.microbatch = 2, config.batch = 16, config.scatter_gather = true;
        size_t planned, host;
        EXPECT_OK(trireme_memory(&GPT, &config, &planned, &host, &rank));
        EngineMemory taken = options_memory(argc + cases[i].count, words, grid_size(config.grid));
        EXPECT(planned == taken.total && host == taken.host,
               "case %zu: %zu bytes and %zu of the host planned, %zu and %zu taken", i, planned, host,
               taken.total, taken.host);
        EXPECT(!host == !(config.offload > 0), "case %zu: %zu bytes of the host", i, host);
    }
}

static const CostModel *gpu_costs(void) {
    static Machine machine;
    static Stack stack;
    static CostModel costs;
    EXPECT_OK(machine_open(&machine, "dgx-h200"));
    EXPECT_OK(stack_open(&stack, "trireme-cuda"));
    costs = (CostModel){.machine = &machine, .stack = &stack, .constants = constants_of(&machine, &stack)};
    return &costs;
}

static const ParallelConfig GPU_RUN = {.grid = GRID(1, 1, 1),
                                       .chunks = 1,
                                       .microbatch = 2,
                                       .batch = 16,
                                       .schedule = "1f1b",
                                       .dtype = BF16,
                                       .device = "cuda-sim"};

// On top of what the run takes there is the allowance alone; its error says how well the total is known.
static void gpu_has_an_allowance(void) {
    const CostModel *costs = gpu_costs();
    MemoryNeed need;
    size_t bytes;
    int rank;
    EXPECT_OK(memory_exact(costs, &GPT, &GPU_RUN, &need));
    EXPECT_OK(trireme_memory(&GPT, &GPU_RUN, &bytes, &(size_t){0}, &rank));
    double allowance = 1e9 * costs->constants.reserve_gb;
    EXPECT(need.total == (double)bytes + allowance && need.reserve == allowance && need.guessed == 0,
           "%.0f bytes needed, %zu taken, %.0f allowed, %.0f guessed", need.total, bytes, need.reserve,
           need.guessed);
    EXPECT(need.margin * need.total == 0.5 * allowance, "a margin of %g", need.margin);
    double parts =
        need.parameters + need.gradients + need.optimizer + need.activations + need.ends + need.buffers;
    EXPECT(fabs(parts + need.reserve - need.total) < 1, "%.0f in parts, %.0f in all", parts, need.total);
}

// Without dropout cuDNN's attention takes most where it computes whole heads; in pieces of a shared sequence the program's
// kernels do, with hardly any workspace. The guess is near what the module says.
static void expect_guess_of_attention(const CostModel *costs, int context_ranks, ContextWay way) {
    ModelShape model = GPT;
    ParallelConfig run = GPU_RUN;
    MemoryNeed exact, guess;
    bool in_pieces = context_ranks > 1 && way != CONTEXT_ALL_TO_ALL;
    model.sequence = model.positions = 1024, model.hidden = 768, model.heads = 12, model.head_size = 64;
    model.attention_dropout = 0;
    run.microbatch = 16, run.batch = 16, run.grid.size[AXIS_CP] = context_ranks, run.context_way = way;
    EXPECT_OK(memory_exact(costs, &model, &run, &exact));
    setenv("TRIREME_CUDA", "/nonexistent", 1);
    EXPECT_OK(memory_exact(costs, &model, &run, &guess));
    unsetenv("TRIREME_CUDA");
    double most = in_pieces ? 32 << 20 : (double)(600 << 20) / context_ranks;
    EXPECT(guess.guessed > 0.6 * most && guess.guessed <= most &&
               fabs(guess.total - exact.total) < 0.05 * exact.total,
           "%d ranks to a sequence, way %d: %.0f bytes guessed, %.0f in all, not %.0f", context_ranks, way,
           guess.guessed, guess.total, exact.total);
}

// Without its module a machine can plan for a device all the same, and says what it guesses.
static void module_is_missing(void) {
    const CostModel *costs = gpu_costs();
    MemoryNeed exact, guess;
    Work with, without;
    EXPECT_OK(memory_exact(costs, &GPT, &GPU_RUN, &exact));
    EXPECT_OK(work_record(&with, &GPT, &GPU_RUN));
    EXPECT(parallel_config_device(&GPU_RUN), "no module: %s", fail_message());
    setenv("TRIREME_CUDA", "/nonexistent", 1);
    EXPECT(!parallel_config_device(&GPU_RUN), "a module in a folder that does not exist");
    EXPECT_OK(memory_exact(costs, &GPT, &GPU_RUN, &guess));
    EXPECT_OK(work_record(&without, &GPT, &GPU_RUN));
    unsetenv("TRIREME_CUDA");
    EXPECT(guess.guessed == 32 << 20 && fabs(guess.total - exact.total) < 1 << 20,
           "%.0f bytes guessed, %.0f in all, not %.0f", guess.guessed, guess.total, exact.total);
    expect_guess_of_attention(costs, 1, CONTEXT_ALL_GATHER);
    for (ContextWay way = 0; way < NUM_CONTEXT_WAYS; way++) expect_guess_of_attention(costs, 2, way);
    double flops = 0;
    for (ModelPart part = 0; part < NUM_PARTS; part++)
        flops += work_flops(&with.forward[part]) + work_flops(&with.backward[part]) -
                 work_flops(&without.forward[part]) - work_flops(&without.backward[part]);
    EXPECT(flops == 0, "%g FLOPs more with the module", flops);
    work_free(&with), work_free(&without);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"memory_is_exact", memory_is_exact},
                                      {"gpu_has_an_allowance", gpu_has_an_allowance},
                                      {"module_is_missing", module_is_missing},
                                      {0}},
                       argc, argv);
}
