// How long a rank waits for the others: ten minutes until steps are known, then by their longest; or what was
// asked for, always.
#include "harness.h"
#include "train/internal.h"
#include <math.h>
#include <string.h>

static void expect_limit(WaitLimit limit, double seconds, const char *reason) {
    EXPECT(fabs(limit.seconds - seconds) < 1e-6, "%g s, not %g", limit.seconds, seconds);
    EXPECT(reason ? limit.reason && strstr(limit.reason, reason) : !limit.reason, "'%s'",
           limit.reason ? limit.reason : "");
}

static void steps_are_learnt(void) {
    Options options = {.distributed_timeout_minutes = NAN};
    Patience patience = patience_open(&options, 0);
    for (int step = 0; step < 3; step++) {
        expect_limit(patience_in_step(&patience, 8), 600, "outside of training steps");
        patience_learn(&patience, 0.1, 8);
    }
    expect_limit(patience_in_step(&patience, 8), 60, "five times the longest step");
    patience_learn(&patience, 200, 8);
    patience_learn(&patience, 0.1, 8);
    expect_limit(patience_in_step(&patience, 8), 1000, "five times the longest step");
    expect_limit(patience_in_step(&patience, 16), 2000, "five times the longest step"); // the batch has grown
    expect_limit(patience_between_steps(&patience), 600, "outside of training steps");
}

// 100 GB at 20 MB/s.
static void large_checkpoints_take_longer(void) {
    Options options = {.distributed_timeout_minutes = NAN};
    Patience patience = patience_open(&options, 1e11);
    expect_limit(patience_between_steps(&patience), 600 + 5000, "outside of training steps");
}

static void what_was_asked_for_holds_always(void) {
    Options options = {.distributed_timeout_minutes = 0.5};
    Patience patience = patience_open(&options, 1e11);
    for (int step = 0; step < 9; step++) {
        expect_limit(patience_in_step(&patience, 8), 30, NULL);
        expect_limit(patience_between_steps(&patience), 30, NULL);
        patience_learn(&patience, 100, 8);
    }
    EXPECT(launch_timeout_s(&options) == 30, "%g s", launch_timeout_s(&options));
}

// A limit shorter than the wait for another run's lock would end the job as a hang.
static void the_lock_is_waited_for(void) {
    Options options = {.distributed_timeout_minutes = 0.5, .save = "folder", .lock_timeout = 90};
    Patience patience = patience_open(&options, 0);
    expect_limit(patience_for_lock(&patience), 120, "--lock-timeout");
    expect_limit(patience_between_steps(&patience), 30, NULL);
    options.distributed_timeout_minutes = NAN;
    patience = patience_open(&options, 0);
    expect_limit(patience_for_lock(&patience), 690, "--lock-timeout");
    expect_limit(patience_between_steps(&patience), 600, "outside of training steps");
    options.save = NULL;
    patience = patience_open(&options, 0);
    expect_limit(patience_for_lock(&patience), 600, "outside of training steps");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"steps_are_learnt", steps_are_learnt},
                                      {"large_checkpoints_take_longer", large_checkpoints_take_longer},
                                      {"what_was_asked_for_holds_always", what_was_asked_for_holds_always},
                                      {"the_lock_is_waited_for", the_lock_is_waited_for},
                                      {0}},
                       argc, argv);
}
