// Ten runs of `trireme train` on this machine, of one and two ranks of a thread, beside what the planner says
// of them. None of the runs is one that the machine was measured by.
//
//   bench_plan_cpu TRIREME MACHINE.yaml [--json FILE]   of `TRIREME bench --machine MACHINE.yaml`
#include "median.h"
#include "planned.h"
#include "runs.h"
#include "table.h"
#include <math.h>

// Ranks of one thread, as the machine was measured.
#define GPT "--threads 1 --vocab-size 5000 "
#define LLAMA                                                                                                \
    "--threads 1 --vocab-size 6000 --swiglu --normalization RMSNorm --position-embedding-type rope "         \
    "--disable-bias-linear --untie-embeddings-and-output-weights --group-query-attention "                   \
    "--num-query-groups 2 --attention-dropout 0 --hidden-dropout 0 "

static const char *const grids[] = {
    GPT "--layers 4 --hidden 384 --heads 6 --seq 256 --mbs 2 --gbs 8",
    GPT "--layers 6 --hidden 320 --heads 5 --seq 192 --mbs 4 --gbs 8 --recompute-granularity full "
        "--recompute-method uniform",
    GPT "--layers 4 --hidden 512 --heads 8 --seq 256 --mbs 2 --gbs 8 --ranks 2 --tp 2",
    GPT "--layers 3 --hidden 640 --heads 8 --seq 320 --mbs 1 --gbs 4 --ranks 2 --tp 2 --sequence-parallel",
    GPT "--layers 3 --hidden 384 --heads 6 --seq 384 --mbs 1 --gbs 8 --ranks 2",
    GPT "--layers 6 --hidden 512 --heads 8 --seq 128 --mbs 4 --gbs 32 --ranks 2 --pp 2",
    GPT "--layers 8 --hidden 256 --heads 8 --seq 256 --mbs 2 --gbs 16 --ranks 2 --pp 2 --vp 2",
    LLAMA "--layers 4 --hidden 512 --heads 8 --seq 512 --mbs 1 --gbs 4",
    LLAMA "--layers 4 --hidden 448 --heads 7 --num-query-groups 7 --seq 384 --mbs 1 --gbs 8 --ranks 2 "
          "--use-distributed-optimizer",
    LLAMA "--layers 6 --hidden 512 --heads 8 --seq 256 --mbs 1 --gbs 16 --ranks 2 --pp 2 --schedule zb-h1",
};
static const char *const names[] = {"GPT 4x384, S 256",
                                    "GPT 6x320, S 192, recomputed",
                                    "GPT 4x512, t=2",
                                    "GPT 3x640, t=2, sequence-parallel",
                                    "GPT 3x384, d=2",
                                    "GPT 6x512, p=2",
                                    "GPT 8x256, p=2, v=2",
                                    "Llama 4x512",
                                    "Llama 4x448, d=2, distributed",
                                    "Llama 6x512, p=2, zb-h1"};
enum { NUM_GRIDS = sizeof grids / sizeof grids[0], STEPS = 11 };

static const Column COLUMNS[] = {
    {"predicted ms", 1, INFORMS}, {"measured ms", 1, LOWER_IS_BETTER}, {"error %", 1, INFORMS}};

static Status compare(Tables *tables, Planner *planner, const char *program, int i, double *error) {
    ModelShape model;
    Prediction prediction;
    double seconds[STEPS];
    Run run = {program, "", grids[i], NULL, STEPS};
    TRY(planner_predict(planner, grids[i], &model, &prediction));
    TRY(run_steps(&run, seconds));
    double step_s = median(seconds, STEPS);
    *error = prediction.step_s / step_s - 1;
    table_row(tables, names[i], (double[]){1e3 * prediction.step_s, 1e3 * step_s, 100 * *error});
    return OK;
}

static Status run(const char *program, const char *file, const char *json) {
    Planner planner;
    Tables tables = {0};
    double sum = 0, worst = 0;
    TRY(planner_open(&planner, file));
    table_begin(&tables, "steps against their predictions", COLUMNS, 3);
    Status status = OK;
    for (int i = 0; i < NUM_GRIDS && status == OK; i++) {
        double error = 0;
        status = compare(&tables, &planner, program, i, &error);
        sum += fabs(error), worst = fmax(worst, fabs(error));
    }
    planner_close(&planner);
    TRY(status);
    table_note(&tables, "%d grids, mean error %.1f %%, worst %.1f %%", NUM_GRIDS, 100 * sum / NUM_GRIDS,
               100 * worst);
    return tables_finish(&tables, "predictions", json);
}

int main(int argc, char **argv) {
    const char *json = tables_path(&argc, argv);
    if (argc != 3) {
        fprintf(stderr, "usage: bench_plan_cpu TRIREME MACHINE.yaml [--json FILE]\n");
        return ERR_USAGE;
    }
    Status status = run(argv[1], argv[2], json);
    if (status != OK) fprintf(stderr, "bench_plan_cpu: %s\n", fail_message());
    return (int)status;
}
