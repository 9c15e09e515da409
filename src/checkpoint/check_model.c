// Checks that a checkpoint has what its model needs: every weight, and every moment where it has moments.
#include "checkpoint/manifest.h"
#include <inttypes.h>
#include <stdlib.h>

static Status check_tensor(const Checkpoint *c, StateTensor which, const WeightSpec *weight) {
    char name[160];
    state_tensor_name(which, weight->name, name);
    int i = checkpoint_find(c, name);
    if (i < 0) return fail(ERR_DATA, "%s: tensor %s is missing", checkpoint_folder(c), name);
    CheckpointTensor t = checkpoint_tensor(c, i);
    if (t.rows == weight->rows && t.cols == weight->cols) return OK;
    return fail(ERR_DATA,
                "%s: tensor %s is [%" PRId64 ", %" PRId64 "]; in its model it is [%" PRId64 ", %" PRId64 "]",
                checkpoint_folder(c), name, t.rows, t.cols, weight->rows, weight->cols);
}

static bool wants(const Checkpoint *c, StateTensor which, const WeightSpec *weight, bool muon, bool ema) {
    if (weight->is_frozen || (weight->is_by_rule && which != STATE_WEIGHT)) return false;
    bool moments = checkpoint_info(c)->has_optimizer, momentum = muon && weight->is_hidden_matrix;
    switch (which) {
    case STATE_EXP_AVG:
    case STATE_EXP_AVG_SQ: return moments && !momentum;
    case STATE_MOMENTUM: return moments && momentum;
    case STATE_EMA: return ema;
    default: return true;
    }
}

static Status check_tensors(const Checkpoint *c, const WeightSpec *weights, int count) {
    bool muon = checkpoint_keeps(c, STATE_MOMENTUM), ema = checkpoint_keeps(c, STATE_EMA);
    int wanted = 0;
    for (StateTensor which = 0; which < NUM_STATE_TENSORS; which++)
        for (int i = 0; i < count; i++) {
            if (!wants(c, which, &weights[i], muon, ema)) continue;
            TRY(check_tensor(c, which, &weights[i]));
            wanted++;
        }
    wanted += checkpoint_find(c, STATE_AMAX_NAME) >= 0;
    if (checkpoint_num_tensors(c) == wanted) return OK;
    return fail(ERR_DATA, "%s: %d tensors; its model has %d", checkpoint_folder(c), checkpoint_num_tensors(c),
                wanted);
}

Status checkpoint_check_model(const Checkpoint *c) {
    const ModelShape *shape = &checkpoint_info(c)->shape;
    WeightSpec *weights;
    int count;
    // Checked before anything is allocated for each layer.
    if (shape->layers > checkpoint_num_tensors(c))
        return fail(ERR_DATA, "%s: %d tensors for %d layers", checkpoint_folder(c), checkpoint_num_tensors(c),
                    shape->layers);
    TRY(model_weights(shape, &weights, &count));
    Status status = check_tensors(c, weights, count);
    free(weights);
    return status;
}
