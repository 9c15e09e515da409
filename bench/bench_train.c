// Training steps of GPT-2 124M, sequences of 1024, run by the program itself (runs.h).
//
//   bench_train steps TRIREME [fp32|bf16] [--json FILE]             shares of the products and of the machine
//   bench_train scaling TRIREME [fp32|bf16] [td|p|c] [--json FILE]  two ranks of a thread against one of two; c: of
//                                                                   one sequence of 8192
//   bench_train pytorch TRIREME [fp32|bf16] PYTHON [--json FILE]    beside pytorch_gpt.py, which PYTHON runs
//   bench_train trace TRIREME                                       what --trace costs
//
// Without a type both. Wall times: nothing else should run. Every step does the same number of samples in the
// rows that are compared, so that the optimizer weighs the same in each.
#include "base/cores.h"
#include "base/text.h"
#include "ceilings.h"
#include "median.h"
#include "products.h"
#include "runs.h"
#include "table.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCE = 1024, LONG_SEQUENCE = 8192, THREADS = 2, MAX_WORDS = 1024 };

// NullTokenizer has one token more than it is told.
#define GPT2                                                                                                 \
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length %d --vocab-size 50256 "         \
    "--hidden-dropout %g --attention-dropout %g --micro-batch-size %d --global-batch-size %d %s"

typedef struct {
    const char *trireme;
    Tables tables;
} Bench;

typedef struct {
    DType dtype;
    float dropout;
    int sequence, microbatch, batch, steps;
    const char *launcher, *words; // words: of its grid and threads
    const char *length;           // of Run
} Case;

static const char *type_name(DType dtype) { return dtype == BF16 ? "bf16" : "fp32"; }

// The seconds of each step.
static Status run_case(const Bench *b, const Case *c, double *seconds) {
    char words[MAX_WORDS];
    snprintf(words, sizeof words, GPT2 "%s", c->sequence, (double)c->dropout, (double)c->dropout,
             c->microbatch, c->batch, c->words, c->dtype == BF16 ? " --bf16" : "");
    Run run = {b->trireme, c->launcher, words, c->length, c->steps};
    return run_steps(&run, seconds);
}

static Status median_case(const Bench *b, const Case *c, double *step_s) {
    double seconds[MAX_RUN_STEPS];
    TRY(run_case(b, c, seconds));
    *step_s = median(seconds, c->steps);
    return OK;
}

// ---- steps: shares of what the machine does ---------------------------------------------------------------

enum { STEP_BATCH = 4 };

static const Column STEP_COLUMNS[] = {{"s/step", 3, LOWER_IS_BETTER}, {"tokens/s", 1, HIGHER_IS_BETTER},
                                      {"GFLOP/s", 1, INFORMS},        {"% products", 1, INFORMS},
                                      {"% best shape", 1, INFORMS},   {"% peak", 1, INFORMS},
                                      {"causal % prod", 1, INFORMS},  {"causal % peak", 1, INFORMS}};

// `products`: of the same microbatch. 72 B L S H^2 (1 + S/6H + V/12LH) has attention in full; the half below
// the diagonal is 6 B L S^2 H of it.
static Status step_row(Bench *b, const Case *c, const Products *products, double peak) {
    ModelShape shape = gpt2_124m(SEQUENCE);
    double s = SEQUENCE, flops = model_flops(&shape, table_rows(&shape), c->batch), step_s;
    double causal = flops - 6.0 * c->batch * shape.layers * s * s * shape.hidden;
    TRY(median_case(b, c, &step_s));
    char name[80];
    snprintf(name, sizeof name, "microbatch %d, dropout %g", c->microbatch, (double)c->dropout);
    double rate = flops / step_s, least = causal / step_s;
    table_row(&b->tables, name,
              (double[]){step_s, c->batch * s / step_s, rate / 1e9, 100 * rate / products->all,
                         100 * rate / products->best, 100 * rate / peak, 100 * least / products->all,
                         100 * least / peak});
    return OK;
}

static Status bench_steps(Bench *b, DType dtype) {
    static const int microbatches[] = {1, 2, 4};
    enum { SIZES = 3 };
    double peak = measure_ceilings(THREADS).flops[dtype];
    Products products[SIZES];
    char title[80];
    snprintf(title, sizeof title, "steps of 4 samples, %s, 1 rank x 2 threads", type_name(dtype));
    table_begin(&b->tables, title, STEP_COLUMNS, sizeof STEP_COLUMNS / sizeof *STEP_COLUMNS);
    for (int i = 0; i < SIZES; i++) {
        ModelShape shape = gpt2_124m(SEQUENCE);
        products[i] = measure_products(&shape, microbatches[i], dtype, THREADS);
        Case c = {dtype, 0, SEQUENCE, microbatches[i], STEP_BATCH, 3, "", "--threads 2", NULL};
        TRY(step_row(b, &c, &products[i], peak));
        c.dropout = 0.1f;
        if (i == 0) TRY(step_row(b, &c, &products[i], peak));
    }
    for (int i = 0; i < SIZES; i++)
        table_note(&b->tables,
                   "matrix products of a microbatch of %d: %.1f GFLOP/s over all shapes, %.1f at the best; "
                   "multiply-adds %.1f",
                   microbatches[i], products[i].all / 1e9, products[i].best / 1e9, peak / 1e9);
    return OK;
}

// ---- scaling: two ranks of a thread -----------------------------------------------------------------------

typedef struct {
    const char *name, *words;
    int stages;
} Layout;

#define BASE        "--threads 2"
#define RAMP        " --rampup-batch-size 4 28 4"
#define RAMP_LENGTH "--train-samples 36"
#define TWO         "--threads 1 "
static const Layout td_layouts[] = {
    {"t=2", TWO "--tensor-model-parallel-size 2", 1},
    {"d=2", TWO "--overlap-grad-reduce", 1},
    {"d=2, distributed optimizer",
     TWO "--overlap-grad-reduce --use-distributed-optimizer --overlap-param-gather", 1},
    {"d=2, one copy of the values",
     TWO "--overlap-grad-reduce --data-parallel-sharding-strategy optim_grads_params", 1},
};
// The head takes as long as four layers.
static const Layout p_layouts[] = {
    {"p=2 (8+4 layers)", TWO RAMP " --pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 4",
     2}};
// Of one sequence.
static const Layout c_layouts[] = {{"c=2", TWO "--cp 2", 1},
                                   {"c=2, in a ring", TWO "--cp 2 --cp-comm-type p2p", 1}};

static const Column SCALING_COLUMNS[] = {{"s/step", 3, LOWER_IS_BETTER},
                                         {"tokens/s", 1, HIGHER_IS_BETTER},
                                         {"% of 1x2", 1, HIGHER_IS_BETTER},
                                         {"bubble %", 1, INFORMS},
                                         {"% without it", 1, INFORMS}};

static Status scaling_row(Bench *b, const Case *base, const Layout *layout, bool mpi, double base_s) {
    char words[MAX_WORDS], name[80];
    snprintf(words, sizeof words, "%s%s", layout->words, mpi ? "" : " --ranks 2");
    snprintf(name, sizeof name, "%s, %s", layout->name, mpi ? "mpi" : "threads");
    Case c = *base;
    c.words = words, c.launcher = mpi ? "mpirun --bind-to core -n 2 " : "";
    double step_s, bubble = (double)(layout->stages - 1) / c.batch;
    TRY(median_case(b, &c, &step_s));
    table_row(&b->tables, name,
              (double[]){step_s, (double)c.batch * c.sequence / step_s, 100 * base_s / step_s, 100 * bubble,
                         100 * base_s * (1 + bubble) / step_s});
    return OK;
}

// One rank of two threads runs before and after the others: a machine's mood that changes is seen.
static Status bench_layouts(Bench *b, const Case *base, const Layout *layouts, int count) {
    char title[80], length[32] = "";
    if (base->sequence != SEQUENCE) snprintf(length, sizeof length, " of %d tokens", base->sequence);
    snprintf(title, sizeof title, "steps of %d samples%s, %s, 2 ranks x 1 thread", base->batch, length,
             type_name(base->dtype));
    double base_s, again_s, tokens = (double)base->batch * base->sequence;
    table_begin(&b->tables, title, SCALING_COLUMNS, sizeof SCALING_COLUMNS / sizeof *SCALING_COLUMNS);
    TRY(median_case(b, base, &base_s));
    table_row(&b->tables, "1 rank x 2 threads", (double[]){base_s, tokens / base_s, 100, 0, 100});
    for (int i = 0; i < 2 * count; i++) TRY(scaling_row(b, base, &layouts[i / 2], i % 2, base_s));
    TRY(median_case(b, base, &again_s));
    double again = 100 * base_s / again_s;
    table_row(&b->tables, "1 rank x 2 threads, again",
              (double[]){again_s, tokens / again_s, again, 0, again});
    return OK;
}

// Of the pipeline's many samples a first step of four is enough to warm up. A step of a long sequence takes as long as
// several others.
static Status bench_scaling(Bench *b, DType dtype, const char *which) {
    const Case td = {dtype, 0, SEQUENCE, 1, 4, 3, "", BASE, NULL};
    const Case p = {dtype, 0, SEQUENCE, 1, 32, 1, "", BASE RAMP, RAMP_LENGTH};
    const Case c = {dtype, 0, LONG_SEQUENCE, 1, 1, 1, "", BASE, NULL};
    if (!which || !strcmp(which, "td"))
        TRY(bench_layouts(b, &td, td_layouts, sizeof td_layouts / sizeof *td_layouts));
    if (!which || !strcmp(which, "p"))
        TRY(bench_layouts(b, &p, p_layouts, sizeof p_layouts / sizeof *p_layouts));
    if (!which || !strcmp(which, "c"))
        TRY(bench_layouts(b, &c, c_layouts, sizeof c_layouts / sizeof *c_layouts));
    return OK;
}

// ---- pytorch ----------------------------------------------------------------------------------

enum { TORCH_STEPS = 3, OWN_WAYS = 2, WAYS = 4 };

// Without these PyTorch gives its large tensors back to the system and takes them, page by page, in every
// step.
#define TORCH_SETTINGS                                                                                       \
    "env -u OPENBLAS_CORETYPE OMP_NUM_THREADS=2 MALLOC_MMAP_THRESHOLD_=8589934592 "                          \
    "MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456 "

static const Column TORCH_COLUMNS[] = {{"s/step", 3, INFORMS},
                                       {"tokens/s", 1, HIGHER_IS_BETTER},
                                       {"one rank is x", 2, HIGHER_IS_BETTER},
                                       {"t=2 is x", 2, HIGHER_IS_BETTER}};

static Status torch_case(const char *python, const Case *c, bool compile, double *step_s) {
    char command[MAX_WORDS];
    snprintf(command, sizeof command,
             TORCH_SETTINGS "%s -B bench/pytorch_gpt.py --dtype %s --dropout 0 --batch %d --microbatches %d "
                            "--threads 2 --steps %d%s 2>/dev/null",
             python, type_name(c->dtype), c->microbatch, c->batch / c->microbatch, c->steps,
             compile ? " --compile" : "");
    return run_number(command, "step_s", step_s);
}

// Both programs on both cores; of ours the two ways to use them.
static Status bench_against(Bench *b, const char *python, DType dtype, int microbatch) {
    static const char *const names[WAYS] = {"trireme, one rank", "trireme, t=2", "PyTorch eager",
                                            "PyTorch torch.compile"};
    static const char *const words[OWN_WAYS] = {BASE, TWO "--tensor-model-parallel-size 2 --ranks 2"};
    double step_s[WAYS];
    char name[80];
    for (int way = 0; way < WAYS; way++) {
        bool own = way < OWN_WAYS;
        Case c = {dtype, 0, SEQUENCE, microbatch, STEP_BATCH, TORCH_STEPS, "", own ? words[way] : "", NULL};
        TRY(own ? median_case(b, &c, &step_s[way]) : torch_case(python, &c, way == WAYS - 1, &step_s[way]));
        snprintf(name, sizeof name, "%s, microbatch %d", names[way], microbatch);
        table_row(&b->tables, name,
                  (double[]){step_s[way], STEP_BATCH * SEQUENCE / step_s[way],
                             own ? NAN : step_s[way] / step_s[0], own ? NAN : step_s[way] / step_s[1]});
    }
    return OK;
}

static Status bench_pytorch(Bench *b, DType dtype, const char *python) {
    char title[80], version[80], command[MAX_WORDS];
    snprintf(command, sizeof command, "%s -c 'import torch; print(torch.__version__)'", python);
    TRY(run_line(command, version, sizeof version));
    snprintf(title, sizeof title, "steps of 4 samples, %s, 2 threads", type_name(dtype));
    table_begin(&b->tables, title, TORCH_COLUMNS, sizeof TORCH_COLUMNS / sizeof *TORCH_COLUMNS);
    TRY(bench_against(b, python, dtype, 1));
    TRY(bench_against(b, python, dtype, 4));
    table_note(&b->tables, "PyTorch %s, median of %d steps", version, TORCH_STEPS);
    return OK;
}

// ---- what --trace costs -----------------------------------------------------------------------------------

// Small layers, so that there are many events for the time.
#define SMALL                                                                                                \
    "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 64 --vocab-size 1000 "            \
    "--micro-batch-size 1 --global-batch-size 16 --threads 1 --ranks 2 --pipeline-model-parallel-size 2 "
#define TRACE "/tmp/trireme-bench-trace.json"

static Status bench_trace(Bench *b) {
    enum { TURNS = 3, STEPS = 40 };
    static const char *const words[] = {SMALL, SMALL "--trace " TRACE};
    double times[2][TURNS], seconds[MAX_RUN_STEPS];
    for (int i = 0; i < 2 * TURNS; i++) {
        Run run = {b->trireme, "", words[i % 2], NULL, STEPS};
        Status status = run_steps(&run, seconds);
        remove(TRACE);
        TRY(status);
        times[i % 2][i / 2] = median(seconds, STEPS);
    }
    double plain_s = median(times[0], TURNS), traced_s = median(times[1], TURNS);
    printf("--trace: a step of 4 layers of 256, p=2, m=16 takes %.2f ms, traced %.2f ms: %.3f times\n",
           1e3 * plain_s, 1e3 * traced_s, traced_s / plain_s);
    return OK;
}

// ---- all of it --------------------------------------------------------------------------------------------

static Status run_verb(Bench *b, const char *verb, DType dtype, const char *word) {
    if (!strcmp(verb, "steps") && !word) return bench_steps(b, dtype);
    if (!strcmp(verb, "scaling")) return bench_scaling(b, dtype, word);
    if (!strcmp(verb, "pytorch") && word) return bench_pytorch(b, dtype, word);
    return fail(ERR_USAGE,
                "usage: bench_train steps|scaling|pytorch|trace TRIREME [fp32|bf16] [td|p|c|PYTHON] "
                "[--json FILE]");
}

static Status bench_train(int argc, char **argv) {
    const char *json = tables_path(&argc, argv), *verb = argc > 1 ? argv[1] : "";
    Bench b = {.trireme = argc > 2 ? argv[2] : NULL};
    if (b.trireme && !strcmp(verb, "trace")) return bench_trace(&b);
    bool single = argc > 3 && !strcmp(argv[3], "fp32"), half = argc > 3 && !strcmp(argv[3], "bf16");
    int next = 3 + (single || half);
    const char *word = argc > next ? argv[next] : NULL;
    if (!b.trireme) verb = "";
    if (!half) TRY(run_verb(&b, verb, F32, word));
    if (!single) TRY(run_verb(&b, verb, BF16, word));
    return tables_finish(&b.tables, verb, json);
}

int main(int argc, char **argv) {
    cores_wait_briefly(argv); // as the program does
    Status status = bench_train(argc, argv);
    if (status) fprintf(stderr, "bench_train: %s\n", fail_message());
    return (int)status;
}
