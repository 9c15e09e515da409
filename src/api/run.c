// Training runs for libtrireme: those of the program, whose ranks ask between two steps what the caller wants.
#include "api/tensors.h"
#include "api/trireme.h"
#include "api/worker.h"
#include "cli/cli.h"
#include "train/train.h"
#include <stdlib.h>
#include <string.h>

typedef enum { ASK_STEP, ASK_EVALUATE, ASK_SAVE, ASK_READ, ASK_WRITE, ASK_END } Ask;

typedef struct {
    Ask ask;
    const char *tensor;
    Rect rect;
    float *out;
    const float *whole;
    double loss;
} Request;

struct TriremeRun {
    Options options;
    RunFile file;
    TrainJob job;
    Text common;
    RankWorker worker;
    WeightList weights;
    RunStep last;
    bool started;
};

// ---- on a rank ------------------------------------------------------------------------------------------

static Status answer(TrainingRun *training, Request *request) {
    double loss = 0;
    switch (request->ask) {
    case ASK_EVALUATE:
        TRY(run_evaluate(training, &loss));
        if (comm_rank(run_world(training)) == 0) request->loss = loss;
        return OK;
    case ASK_SAVE: return run_save(training);
    case ASK_READ: return run_read_weight(training, request->tensor, request->rect, request->out);
    case ASK_WRITE: return run_write_weight(training, request->tensor, request->whole);
    default: return OK;
    }
}

// TrainJob.between.
static Status serve(void *self, TrainingRun *training, bool *ends) {
    TriremeRun *run = self;
    int rank = comm_rank(run_world(training));
    Status last = OK;
    if (rank == 0) run->last = run_last_step(training);
    if (rank == 0 && !run->weights.items) last = weights_list(run_shape(training), &run->weights);
    for (;;) {
        Request *request = worker_fetch(&run->worker, rank, last);
        if (request->ask == ASK_STEP) return OK;
        *ends = request->ask == ASK_END;
        if (*ends) return OK;
        last = answer(training, request);
    }
}

// ---- for the caller ---------------------------------------------------------------------------------------

static Status run_ranks(void *self) {
    TriremeRun *run = self;
    return start_ranks(&run->options, OK, &run->common, run->job.threads, NULL, train_run, &run->job);
}

static Status prepare(TriremeRun *run) {
    Options *o = &run->options;
    int ranks = o->ranks != INT_UNSET ? o->ranks : 1;
    if (launcher_ranks())
        return fail(ERR_USAGE, "the ranks of the library are threads: start the program without a launcher");
    if (o->dry_run) return fail(ERR_USAGE, "--dry-run prints and trains nothing: use the program for it");
    list_common(o, &run->common);
    TRY(train_resolve(o, ranks));
    TRY(device_check(o->device));
    run->file = (RunFile){.options = o, .started = time(NULL), .saved = -1, .lock = -1};
    run->job = (TrainJob){.options = o,
                          .file = &run->file,
                          .ranks_here = ranks,
                          .start_s = clock_s(),
                          .threads = threads_per_rank(o, ranks),
                          .quiet = true,
                          .between = serve,
                          .self = run};
    run->worker = (RankWorker){.ranks = ranks, .run = run_ranks, .self = run};
    return OK;
}

static void release(TriremeRun *run) {
    weights_free(&run->weights);
    text_free(&run->common);
    options_destroy(&run->options);
    free(run);
}

int trireme_run_open(TriremeRun **out, const char *const *words, int count) {
    TriremeRun *run = calloc(1, sizeof *run);
    *out = NULL;
    if (!run) return (int)fail(ERR_OS, "no memory for a run");
    Status status = options_parse(&run->options, FOR_TRAIN, count, (char **)words);
    if (status == OK) status = prepare(run);
    if (status == OK) status = worker_start(&run->worker);
    if (status != OK) {
        release(run);
        return (int)status;
    }
    *out = run;
    return 0;
}

int trireme_run_step(TriremeRun *run, TriremeStep *step) {
    if (run->last.over)
        return (int)fail(ERR_USAGE, "all %lld steps are done: --train-iters says how many there are",
                         (long long)run->last.end);
    Status status = worker_ask(&run->worker, &(Request){.ask = ASK_STEP});
    if (status == OK && step) *step = trireme_run_last(run);
    return (int)status;
}

TriremeStep trireme_run_last(const TriremeRun *run) {
    const RunStep *s = &run->last;
    return (TriremeStep){.iteration = s->iteration,
                         .train_iters = s->end,
                         .consumed_samples = s->consumed,
                         .loss = s->loss,
                         .grad_norm = s->grad_norm,
                         .learning_rate = s->learning_rate,
                         .seconds = s->seconds,
                         .skipped = s->skipped,
                         .over = s->over};
}

int trireme_run_evaluate(TriremeRun *run, double *loss) {
    Request request = {.ask = ASK_EVALUATE};
    Status status = worker_ask(&run->worker, &request);
    if (status == OK) *loss = request.loss;
    return (int)status;
}

int trireme_run_save(TriremeRun *run) {
    if (!run->options.save)
        return (int)fail(ERR_CONFIG, "the run has no --save: name the folder when it is opened");
    return (int)worker_ask(&run->worker, &(Request){.ask = ASK_SAVE});
}

int trireme_run_tensors(const TriremeRun *run) { return run->weights.count; }
TriremeTensor trireme_run_tensor(const TriremeRun *run, int i) { return weights_tensor(&run->weights, i); }

int trireme_run_read(TriremeRun *run, const char *name, int64_t row, int64_t col, int64_t rows, int64_t cols,
                     float *out) {
    Request request = {.ask = ASK_READ, .tensor = name, .rect = {row, col, rows, cols}, .out = out};
    Status checked = weights_check(&run->weights, name, request.rect);
    if (checked != OK) return (int)checked;
    return (int)worker_ask(&run->worker, &request);
}

// The rest of the tensor keeps its numbers.
static Status replace(TriremeRun *run, const WeightSpec *w, Rect part, const float *in, float *whole) {
    Request read = {.ask = ASK_READ, .tensor = w->name, .rect = {0, 0, w->rows, w->cols}, .out = whole};
    TRY(worker_ask(&run->worker, &read));
    for (int64_t i = 0; i < part.rows; i++)
        memcpy(whole + (part.row + i) * w->cols + part.col, in + i * part.cols,
               (size_t)part.cols * sizeof *in);
    return worker_ask(&run->worker, &(Request){.ask = ASK_WRITE, .tensor = w->name, .whole = whole});
}

int trireme_run_write(TriremeRun *run, const char *name, int64_t row, int64_t col, int64_t rows, int64_t cols,
                      const float *in) {
    Rect part = {row, col, rows, cols};
    Status checked = weights_check(&run->weights, name, part);
    if (checked != OK) return (int)checked;
    const WeightSpec *w = weights_find(&run->weights, name);
    float *whole = malloc((size_t)(w->rows * w->cols) * sizeof *whole);
    if (!whole) return (int)fail(ERR_OS, "no memory for the tensor %s", name);
    Status status = replace(run, w, part, in, whole);
    free(whole);
    return (int)status;
}

int trireme_run_close(TriremeRun *run) {
    if (!run) return 0;
    Status status = worker_end(&run->worker, &(Request){.ask = ASK_END});
    release(run);
    return (int)status;
}
