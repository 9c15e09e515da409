// Ten runs of `trireme train` on this machine, of one and two ranks of a thread, beside what the planner says
// of them. Usage: bench_plan_cpu TRIREME MACHINE.yaml, where `TRIREME bench --machine MACHINE.yaml` wrote the
// file. None of the runs is one that the machine was measured by.
#include "plan/plan.h"
#include "train/train.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPT "--vocab-size 5000 "
#define LLAMA                                                                                                   \
    "--vocab-size 6000 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "  \
    "--untie-embeddings-and-output-weights --group-query-attention --num-query-groups 2 --attention-dropout 0 " \
    "--hidden-dropout 0 "

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
enum { NUM_GRIDS = sizeof grids / sizeof grids[0], MOST_WORDS = 80, MOST_COMMAND = 2048 };

static const char COMMON[] =
    "--mock-data --tokenizer-type NullTokenizer --seed 3 --lr 1e-4 --eval-iters 0 --plain --threads 1 "
    "--train-iters 12 --log-interval 1 --metrics metrics.jsonl ";

static int split(char *text, char **words) {
    int count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        CHECK(count < MOST_WORDS, "more than %d words", MOST_WORDS);
        words[count++] = word;
    }
    return count;
}

static int ranks_of(const Options *o) { return o->ranks != INT_UNSET ? o->ranks : 1; }

static Candidate candidate_of(const Options *o) {
    const RunShape *s = &o->shape;
    return (Candidate){.grid = {s->tp, s->dp, s->pp},
                       .context = 1,
                       .chunks = s->vp,
                       .microbatch = o->micro_batch_size,
                       .batch = s->global_batch,
                       .schedule = s->schedule,
                       .recompute = !strcmp(s->recompute, "uniform")     ? RECOMPUTE_UNIFORM
                                    : !strcmp(s->recompute, "selective") ? RECOMPUTE_SELECTIVE
                                                                         : RECOMPUTE_NOTHING,
                       .attention = s->keep_probabilities ? ATTENTION_UNFUSED : ATTENTION_FUSED,
                       .dtype = o->bf16 ? BF16 : F32,
                       .sequence_parallel = s->sequence_parallel,
                       .zero_stage = o->use_distributed_optimizer,
                       .scatter_gather = o->scatter_gather_tensors_in_pipeline,
                       .overlap_gradients = o->overlap_grad_reduce};
}

static Status parse(const char *grid, ModelShape *model, Candidate *candidate) {
    char text[MOST_COMMAND], *words[MOST_WORDS];
    Options options;
    snprintf(text, sizeof text, "%s%s", COMMON, grid);
    TRY(options_parse(&options, FOR_TRAIN, split(text, words), words));
    TRY(options_resolve(&options, ranks_of(&options)));
    *model = options_model(&options, options.vocab_size);
    *candidate = candidate_of(&options);
    static char schedule[32];
    snprintf(schedule, sizeof schedule, "%s", candidate->schedule);
    candidate->schedule = schedule; // the options' words end with them
    options_destroy(&options);
    return OK;
}

static Status train(const char *program, const char *grid) {
    char command[MOST_COMMAND];
    remove("metrics.jsonl");
    snprintf(command, sizeof command, "%s train %s%s > /dev/null", program, COMMON, grid);
    return system(command) == 0 ? OK : fail(ERR_OS, "%s failed", command);
}

static Status compare(const char *program, const Site *site, PlanCache *cache, const char *grid,
                      double *error) {
    ModelShape model;
    Candidate candidate;
    Prediction prediction;
    PlanRows rows = {0};
    TRY(parse(grid, &model, &candidate));
    TRY(predict(cache, site, &model, &candidate, &prediction));
    TRY(train(program, grid));
    TRY(plan_rows_add_metrics(&rows, "metrics.jsonl", &model, &candidate, "cpu"));
    *error = prediction.step_s / rows.items[0].step_s - 1;
    printf("%9.1f %9.1f %7.1f %%  %s\n", 1e3 * prediction.step_s, 1e3 * rows.items[0].step_s, 100 * *error,
           grid);
    fflush(stdout);
    plan_rows_free(&rows);
    return OK;
}

static Status run(const char *program, const char *file) {
    Machine machine;
    Stack stack;
    PlanCache *cache;
    double sum = 0, worst = 0;
    TRY(machine_open(&machine, file));
    TRY(stack_for(&stack, &machine));
    TRY(plan_cache_open(&cache));
    Site site = {.machine = &machine, .constants = constants_of(&machine, &stack), .stack = &stack};
    printf("predicted  measured  error\n");
    for (int i = 0; i < NUM_GRIDS; i++) {
        double error;
        TRY(compare(program, &site, cache, grids[i], &error));
        sum += fabs(error), worst = fmax(worst, fabs(error));
    }
    printf("%d grids, mean error %.1f %%, worst %.1f %%\n", NUM_GRIDS, 100 * sum / NUM_GRIDS, 100 * worst);
    plan_cache_close(cache);
    machine_close(&machine);
    return OK;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: bench_plan_cpu TRIREME MACHINE.yaml\n");
        return ERR_USAGE;
    }
    Status status = run(argv[1], argv[2]);
    if (status != OK) fprintf(stderr, "bench_plan_cpu: %s\n", fail_message());
    return (int)status;
}
