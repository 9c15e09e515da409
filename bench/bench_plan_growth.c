// What a token costs as one size of a run grows: layers, hidden size, sequence, vocabulary, microbatches,
// ranks; beside what the planner says. Runs of `trireme train` in fp32, ranks of one thread.
//
//   bench_plan_growth TRIREME MACHINE.yaml [--json FILE]   of `TRIREME bench --machine MACHINE.yaml`
//
// "against FLOPs" is the time that all ranks spend on a FLOP of the model (72 B L S H^2 (1 + S/6H + V/12LH),
// without a pipeline's bubble) over that of the row above: attention's S^2 is in the formula, so a number
// well above 1 is growth that nobody has explained.
#include "median.h"
#include "planned.h"
#include "runs.h"
#include "table.h"
#include <math.h>
#include <string.h>

enum { MAX_SIZES = 8, STEPS = 3 };
static const double SUPERLINEAR = 1.1;

// `%d` in the options is the size. Ranks are given by layouts instead.
typedef struct {
    const char *title, *words;
    int sizes[MAX_SIZES]; // rising; 0 ends them
} Series;

static const Series series[] = {
    {"layers",
     "--hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 8191 --micro-batch-size 1 "
     "--global-batch-size 2 --num-layers %d",
     {2, 4, 8, 16, 24}},
    {"hidden size",
     "--num-layers 2 --num-attention-heads 4 --seq-length 512 --vocab-size 8191 --micro-batch-size 1 "
     "--global-batch-size 2 --hidden-size %d",
     {256, 512, 1024, 2048}},
    {"sequence",
     "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --vocab-size 8191 --micro-batch-size 1 "
     "--global-batch-size 1 --seq-length %d",
     {256, 512, 1024, 2048, 4096, 8192}},
    {"vocabulary",
     "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --micro-batch-size 1 "
     "--global-batch-size 2 --vocab-size %d",
     {8191, 16383, 32767, 65535, 131071, 262143}},
    {"microbatches",
     "--num-layers 2 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 8191 "
     "--micro-batch-size 1 --global-batch-size %d",
     {1, 2, 4, 8, 16, 32}},
};
enum { NUM_SERIES = sizeof series / sizeof *series };

static const char RANKS[] = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 "
                            "--vocab-size 8191 --micro-batch-size 1 --global-batch-size 16 ";
static const struct {
    const char *name, *words;
} layouts[] = {{"1", ""},
               {"2, t=2", "--ranks 2 --tensor-model-parallel-size 2"},
               {"2, d=2", "--ranks 2 --overlap-grad-reduce"},
               {"2, p=2", "--ranks 2 --pipeline-model-parallel-size 2"}};
enum { NUM_LAYOUTS = sizeof layouts / sizeof *layouts };

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
    double step_s = median(seconds, STEPS), tokens = (double)c->batch * model.sequence;
    double bubble = (double)(grid_along(c->grid, AXIS_PP) - 1) / parallel_config_microbatches(c);
    double flop_s = step_s * grid_size(c->grid) / (1 + bubble) /
                    model_flops(&model, padded_vocabulary(model.vocabulary, VOCABULARY_DIVISOR, 1), c->batch);
    double growth = b->before > 0 ? flop_s / b->before : NAN;
    table_row(&b->tables, name,
              (double[]){1e6 * step_s / tokens, 1e6 * prediction.step_s / tokens,
                         100 * (prediction.step_s / step_s - 1), growth});
    size_t used = strlen(b->superlinear);
    if (growth > SUPERLINEAR) snprintf(b->superlinear + used, sizeof b->superlinear - used, " %s", name);
    b->before = flop_s;
    return OK;
}

static Status grow_series(Bench *b, const Series *s) {
    char words[512], name[32];
    begin(b, s->title);
    for (int i = 0; i < MAX_SIZES && s->sizes[i]; i++) {
        const char *at = strstr(s->words, "%d");
        snprintf(words, sizeof words, "%.*s%d --threads 1", (int)(at - s->words), s->words, s->sizes[i]);
        snprintf(name, sizeof name, "%d", s->sizes[i]);
        TRY(grow(b, name, words));
    }
    end(b);
    return OK;
}

static Status grow_ranks(Bench *b) {
    char words[512];
    begin(b, "ranks");
    for (int i = 0; i < NUM_LAYOUTS; i++) {
        snprintf(words, sizeof words, "%s%s --threads 1", RANKS, layouts[i].words);
        TRY(grow(b, layouts[i].name, words));
    }
    end(b);
    return OK;
}

static Status grow_all(Bench *b) {
    for (int i = 0; i < NUM_SERIES; i++) TRY(grow_series(b, &series[i]));
    return grow_ranks(b);
}

int main(int argc, char **argv) {
    const char *json = tables_path(&argc, argv);
    if (argc != 3) {
        fprintf(stderr, "usage: bench_plan_growth TRIREME MACHINE.yaml [--json FILE]\n");
        return ERR_USAGE;
    }
    static Bench b;
    b.program = argv[1];
    Status status = planner_open(&b.planner, argv[2]);
    if (status == OK) {
        status = grow_all(&b);
        planner_close(&b.planner);
    }
    if (status == OK) status = tables_finish(&b.tables, "growth", json);
    if (status != OK) fprintf(stderr, "bench_plan_growth: %s\n", fail_message());
    return (int)status;
}
