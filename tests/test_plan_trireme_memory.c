// The memory that a plan says trireme takes on a CPU is what `trireme memory` says.
#include "harness.h"
#include "plan/memory.h"
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

// What `trireme memory` and the log line of a run say, which equals what a run takes (test_train_memory).
static void options_memory(int argc, const char **words, int ranks, size_t *most) {
    char *argv[40];
    Options options;
    EngineSpec spec;
    int room[16];
    for (int i = 0; i < argc; i++) argv[i] = (char *)(uintptr_t)words[i];
    EXPECT_OK(options_parse(&options, FOR_MEMORY, argc, argv));
    EXPECT_OK(options_resolve(&options, ranks));
    EXPECT_OK(engine_spec(&options, 1, 300, room, &spec));
    *most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        EngineMemory memory;
        EXPECT_OK(engine_measure(&spec, rank, &memory, NULL));
        if (memory.total > *most) *most = memory.total;
    }
    options_destroy(&options);
}

#define COMMON                                                                                               \
    "--layers", "4", "--hidden", "32", "--heads", "4", "--seq", "16", "--vocab-size", "300",                 \
        "--tokenizer-type", "NullTokenizer", "--mock-data", "--mbs", "2", "--gbs", "16"

static void memory_is_exact(void) {
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
         {"--pp", "2", "--schedule", "zb-h1", "--recompute-granularity", "full", "--recompute-method",
          "uniform"},
         8},
        {{.grid = GRID(1, 1, 1), .chunks = 1, .schedule = "gpipe", .attention = ATTENTION_UNFUSED},
         {"--attention-backend", "unfused", "--schedule", "gpipe"},
         4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *words[32] = {COMMON};
        int argc = 0, rank;
        while (words[argc]) argc++;
        memcpy(words + argc, cases[i].words, (size_t)cases[i].count * sizeof *words);
        ParallelConfig config = cases[i].config;
        config.microbatch = 2, config.batch = 16, config.scatter_gather = true;
        size_t planned, taken;
        EXPECT_OK(trireme_memory(&GPT, &config, &planned, &rank));
        options_memory(argc + cases[i].count, words, grid_size(config.grid), &taken);
        EXPECT(planned == taken, "case %zu: %zu bytes planned, %zu taken", i, planned, taken);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"memory_is_exact", memory_is_exact}, {0}}, argc, argv);
}
