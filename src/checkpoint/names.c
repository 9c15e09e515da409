#include "checkpoint/checkpoint.h"
#include <inttypes.h>

void state_tensor_name(StateTensor which, const char *param, char name[160]) {
    static const char *const prefixes[NUM_STATE_TENSORS] = {"", "optimizer.exp_avg.",
                                                            "optimizer.exp_avg_sq."};
    int size = snprintf(name, 160, "%s%s", prefixes[which], param);
    CHECK(size < 160, "the name of %s is too long", param);
}

Status checkpoint_names(const char *save, int64_t iteration, CheckpointNames *names) {
    int most = sizeof names->final;
    int final = snprintf(names->final, sizeof names->final, "%s/step-%08" PRId64, save, iteration);
    int temporary =
        snprintf(names->temporary, sizeof names->temporary, "%s/.tmp-step-%08" PRId64, save, iteration);
    if (final < most && temporary < most) return OK;
    return fail(ERR_CREATE, "%s: the name is too long", save);
}
