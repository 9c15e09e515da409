// What a token costs as one size of a run grows: layers, hidden size, sequence, vocabulary, microbatches,
// ranks, ranks of a sequence, experts, shards; beside what the planner says. Runs of `trireme train` in fp32, ranks of
// one thread.
//
//   bench_plan_growth TRIREME MACHINE.yaml [TABLE] [--json FILE]   of `TRIREME bench --machine MACHINE.yaml`
//
// TABLE is the title of one table. "against FLOPs" is the time that the cores of all ranks spend on a FLOP of the model
// (of a GPT 72 B L S H^2 (1 + S/6H + V/12LH)), without a pipeline's bubble, over that of the row above: attention's
// S^2 is in the formula, so a number well above 1 is growth that nobody has explained. More ranks than cores take
// turns; the planner, for which each has a core, says nothing of them.
#include "base/cores.h"
#include "base/text.h"
#include "median.h"
#include "planned.h"
#include "runs.h"
#include "table.h"
#include <math.h>
#include <string.h>

enum { MAX_SIZES = 8, STEPS = 3 };
static const double SUPERLINEAR = 1.1;

typedef struct {
    const char *name, *words;
} Way;

// A table has a row for each size, number of ranks and way. Of what it lacks a row has nothing.
typedef struct {
    const char *title, *words; // words: the options of all rows
    const char *size_option;
    int sizes[MAX_SIZES]; // rising; 0 ends them
    const char *axis, *axis_option;
    int ranks[MAX_SIZES]; // along the axis, no more than the size; 0 ends them
    const Way *ways;      // a name of NULL ends them
} Series;

static const Way grids[] = {{"1", "--ranks 1"},
                            {"2, t=2", "--ranks 2 --tensor-model-parallel-size 2"},
                            {"2, d=2", "--ranks 2 --overlap-grad-reduce"},
                            {"2, p=2", "--ranks 2 --pipeline-model-parallel-size 2"},
                            {0}};

#define SHARDS "--overlap-grad-reduce --data-parallel-sharding-strategy "
static const Way shards[] = {{"no_shard", SHARDS "no_shard"},
                             {"optim", SHARDS "optim"},
                             {"optim_grads", SHARDS "optim_grads"},
                             {"all, gathered", SHARDS "optim_grads_params --no-share-parameters"},
                             {"all, one copy", SHARDS "optim_grads_params"},
                             {0}};

static const Series series[] = {
    {.title = "layers",
     .words = "--hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 8191 "
              "--micro-batch-size 1 --global-batch-size 2",
     .size_option = "--num-layers",
     .sizes = {2, 4, 8, 16, 24}},
    {.title = "hidden-size",
     .words = "--num-layers 2 --num-attention-heads 4 --seq-length 512 --vocab-size 8191 "
              "--micro-batch-size 1 --global-batch-size 2",
     .size_option = "--hidden-size",
     .sizes = {256, 512, 1024, 2048}},
    {.title = "sequence",
     .words = "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --vocab-size 8191 "
              "--micro-batch-size 1 --global-batch-size 1",
     .size_option = "--seq-length",
     .sizes = {256, 512, 1024, 2048, 4096, 8192}},
    {.title = "vocabulary",
     .words = "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 512 "
              "--micro-batch-size 1 --global-batch-size 2",
     .size_option = "--vocab-size",
     .sizes = {8191, 16383, 32767, 65535, 131071, 262143}},
    {.title = "microbatches",
     .words = "--num-layers 2 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 8191 "
              "--micro-batch-size 1",
     .size_option = "--global-batch-size",
     .sizes = {1, 2, 4, 8, 16, 32}},
    {.title = "ranks",
     .words = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 8191 "
              "--micro-batch-size 1 --global-batch-size 16",
     .ways = grids},
    {.title = "context",
     .words =
         "--num-layers 1 --hidden-size 64 --num-attention-heads 1 --vocab-size 1023 "
         "--micro-batch-size 1 --global-batch-size 1 --position-embedding-type rope --attention-dropout 0 "
         "--hidden-dropout 0",
     .size_option = "--seq-length",
     .sizes = {8192, 16384, 32768, 65536},
     .axis = "c",
     .axis_option = "--context-parallel-size",
     .ranks = {1, 2, 4, 8}},
    {.title = "experts",
     .words = "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --vocab-size 1023 "
              "--swiglu --micro-batch-size 1 --global-batch-size 16 --moe-router-topk 4 "
              "--moe-ffn-hidden-size 256",
     .size_option = "--num-experts",
     .sizes = {4, 8, 16, 32, 64, 128},
     .axis = "ep",
     .axis_option = "--expert-model-parallel-size",
     .ranks = {1, 2, 4, 8}},
    {.title = "shards",
     .words = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 8191 "
              "--micro-batch-size 1 --global-batch-size 16",
     .axis = "d",
     .axis_option = "--data-parallel-size",
     .ranks = {2, 4, 8},
     .ways = shards},
};
enum { NUM_SERIES = sizeof series / sizeof *series };

static const Column COLUMNS[] = {{"us/token", 2, LOWER_IS_BETTER},
                                 {"predicted", 2, INFORMS},
                                 {"error %", 1, INFORMS},
                                 {"against FLOPs", 2, INFORMS}};

typedef struct {
    Tables tables;
    Planner planner;
    const char *program;
    double before;         // core seconds of a FLOP in the row above; 0: it is the first
    char superlinear[200]; // names of rows
} Bench;

static void begin(Bench *b, const char *title) {
    table_begin(&b->tables, title, COLUMNS, sizeof COLUMNS / sizeof *COLUMNS);
    b->before = 0, b->superlinear[0] = 0;
}

static void end(Bench *b) {
    if (b->superlinear[0]) table_note(&b->tables, "superlinear:%s", b->superlinear);
}

static Status grow(Bench *b, const char *name, const char *words) {
    ModelShape model;
    Prediction prediction;
    double seconds[STEPS];
    Run run = {b->program, "", words, NULL, STEPS};
    TRY(planner_predict(&b->planner, words, &model, &prediction));
    TRY(run_steps(&run, seconds));
    const ParallelConfig *c = &prediction.config;
    int ranks = grid_size(c->grid), busy = ranks < cores_usable() ? ranks : cores_usable();
    double step_s = median(seconds, STEPS), tokens = (double)c->batch * model.sequence;
    double bubble = (double)(grid_along(c->grid, AXIS_PP) - 1) / parallel_config_microbatches(c);
    double predicted_s = busy == ranks ? prediction.step_s : NAN;
    double flop_s = step_s * busy / (1 + bubble) /
                    model_flops(&model, padded_vocabulary(model.vocabulary, VOCABULARY_DIVISOR, 1), c->batch);
    double growth = b->before > 0 ? flop_s / b->before : NAN;
    table_row(&b->tables, name,
              (double[]){1e6 * step_s / tokens, 1e6 * predicted_s / tokens, 100 * (predicted_s / step_s - 1),
                         growth});
    size_t used = strlen(b->superlinear);
    if (growth > SUPERLINEAR) snprintf(b->superlinear + used, sizeof b->superlinear - used, " %s", name);
    b->before = flop_s;
    return OK;
}

// Appends `text`, behind `between` where something stands before it.
static void append(char *to, size_t size, const char *between, const char *text) {
    size_t used = strlen(to);
    int count = snprintf(to + used, size - used, "%s%s", used ? between : "", text);
    CHECK(count < (int)(size - used), "%s is too long", to);
}

static Status grow_row(Bench *b, const Series *s, int size, int ranks, const Way *way) {
    char words[512] = "", name[64] = "", text[80];
    append(words, sizeof words, " ", s->words);
    if (size) {
        snprintf(text, sizeof text, "%d", size), append(name, sizeof name, ", ", text);
        snprintf(text, sizeof text, "%s %d", s->size_option, size), append(words, sizeof words, " ", text);
    }
    if (ranks) {
        snprintf(text, sizeof text, "%s=%d", s->axis, ranks), append(name, sizeof name, ", ", text);
        snprintf(text, sizeof text, "--ranks %d %s %d", ranks, s->axis_option, ranks);
        append(words, sizeof words, " ", text);
    }
    if (way) append(name, sizeof name, ", ", way->name), append(words, sizeof words, " ", way->words);
    append(words, sizeof words, " ", "--threads 1");
    return grow(b, name, words);
}

static Status grow_series(Bench *b, const Series *s) {
    begin(b, s->title);
    for (int i = 0; i == 0 || s->sizes[i]; i++)
        for (int j = 0; j == 0 || s->ranks[j]; j++) {
            if (s->sizes[i] && s->ranks[j] > s->sizes[i]) continue;
            const Way *way = s->ways;
            do TRY(grow_row(b, s, s->sizes[i], s->ranks[j], way));
            while (way && (++way)->name);
        }
    end(b);
    return OK;
}

static Status no_table(const char *only) {
    Text titles = {0};
    for (int i = 0; i < NUM_SERIES; i++) text_add(&titles, "%s%s", i ? ", " : "", series[i].title);
    Status status = fail(ERR_USAGE, "no table is named %s; there are %s", only, text_string(&titles));
    text_free(&titles);
    return status;
}

// `only`: the title of one table; NULL: all.
static Status grow_all(Bench *b, const char *only) {
    bool found = false;
    for (int i = 0; i < NUM_SERIES; i++) {
        if (only && strcmp(only, series[i].title) != 0) continue;
        found = true;
        TRY(grow_series(b, &series[i]));
    }
    return found ? OK : no_table(only);
}

int main(int argc, char **argv) {
    const char *json = tables_path(&argc, argv);
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: bench_plan_growth TRIREME MACHINE.yaml [TABLE] [--json FILE]\n");
        return ERR_USAGE;
    }
    static Bench b;
    b.program = argv[1];
    Status status = planner_open(&b.planner, argv[2]);
    if (status == OK) {
        status = grow_all(&b, argc == 4 ? argv[3] : NULL);
        planner_close(&b.planner);
    }
    if (status == OK) status = tables_finish(&b.tables, "growth", json);
    if (status != OK) fprintf(stderr, "bench_plan_growth: %s\n", fail_message());
    return (int)status;
}
