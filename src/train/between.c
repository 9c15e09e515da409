// What a caller may do with a run between its steps (TrainJob.between): look at it, read and write its weights.
#include "train/engine/engine.h"
#include "train/run.h"
#include <string.h>

Status run_between(TrainingRun *run, RunVerdict *verdict) {
    bool ends = false;
    if (!run->job->between) return OK;
    TRY(run->job->between(run->job->self, run, &ends));
    if (ends) *verdict = TIME_IS_UP;
    return OK;
}

Comm *run_world(const TrainingRun *run) { return run->world; }
const ModelShape *run_shape(const TrainingRun *run) { return &run->spec.shape; }

RunStep run_last_step(const TrainingRun *run) {
    RunStep step = run->last;
    step.iteration = run->control.iteration;
    step.end = run->control.end;
    step.consumed = run->control.consumed;
    step.learning_rate = control_options(&run->control).lr;
    step.over = step.iteration >= step.end;
    return step;
}

// ---- weights --------------------------------------------------------------------------------------------

// Copies what a slice has of a rectangle of its tensor.
static void copy_part(const Slice *slice, Rect wanted, float *out) {
    Rect have = slice->rect;
    int64_t top = have.row > wanted.row ? have.row : wanted.row;
    int64_t left = have.col > wanted.col ? have.col : wanted.col;
    int64_t bottom =
        have.row + have.rows < wanted.row + wanted.rows ? have.row + have.rows : wanted.row + wanted.rows;
    int64_t right =
        have.col + have.cols < wanted.col + wanted.cols ? have.col + have.cols : wanted.col + wanted.cols;
    for (int64_t row = top; row < bottom && left < right; row++)
        slice_read(slice, (row - have.row) * slice->stride + left - have.col, right - left,
                   out + (row - wanted.row) * wanted.cols + left - wanted.col);
}

Status run_read_weight(TrainingRun *run, const char *name, Rect rect, float *out) {
    EngineState state = {0};
    char tensor[160];
    Status status = engine_state(run->engine, false, false, &state);
    state_tensor_name(STATE_WEIGHT, name, tensor);
    for (int i = 0; i < state.count && status == OK; i++)
        if (!strcmp(state.items[i].tensor, tensor)) copy_part(&state.items[i], rect, out);
    engine_state_free(&state);
    return comm_agree(run->world, status);
}

// A whole tensor [rows, cols] in memory, as a WeightReader.
typedef struct {
    const float *values;
    int64_t cols;
} Whole;

static Status read_whole(void *self, const char *name, Rect rect, float *out, int64_t stride) {
    const Whole *whole = self;
    (void)name; // no other one is asked for
    for (int64_t i = 0; i < rect.rows; i++)
        memcpy(out + i * stride, whole->values + (rect.row + i) * whole->cols + rect.col,
               (size_t)rect.cols * sizeof *out);
    return OK;
}

Status run_write_weight(TrainingRun *run, const char *name, const float *values) {
    const Params *params = engine_params(run->engine);
    const Param *param = params_find(params, name);
    if (!param) return fail(ERR_NO_INPUT, "the model has no tensor %s", name);
    Whole whole = {values, param->spec.cols};
    WeightReader reader = {read_whole, &whole};
    Status status = params_fill_one(params, engine_context(run->engine)->device, name, weight_reader_fill,
                                    &reader, optimizer_write_master, engine_optimizer(run->engine));
    return comm_agree(run->world, status);
}
