// Decides how long a rank waits for the others before the job ends as a hang: as the user says, or several times the
// longest step so far. A false alarm costs more than a late one, so every limit is generous.
#include "train/internal.h"
#include <math.h>

#define SETUP_S       600.0       // everything except training steps: set-up, data, evaluation, checkpoints
#define SLOW_DISK     2e7         // bytes per second: the slowest expected reading and writing of checkpoints
#define MIN_STEP_S    60.0        // the shortest limit in a step
#define TIMES_LONGEST 5.0         // the longest step so far
enum { STEPS_TO_LEARN_FROM = 3 }; // the first one is slower, and few steps say little

double launch_timeout_s(const Options *o) {
    double minutes = o->distributed_timeout_minutes;
    return isnan(minutes) ? SETUP_S : 60 * minutes;
}

Patience patience_open(const Options *o, double checkpoint_bytes) {
    bool fixed = !isnan(o->distributed_timeout_minutes);
    return (Patience){.fixed = fixed,
                      .lock_s = o->save ? o->lock_timeout : 0,
                      .slow_s = launch_timeout_s(o) + (fixed ? 0 : checkpoint_bytes / SLOW_DISK)};
}

WaitLimit patience_for_lock(const Patience *p) {
    if (!(p->lock_s > 0)) return patience_between_steps(p);
    return (WaitLimit){p->slow_s + p->lock_s,
                       p->fixed ? "--distributed-timeout-minutes and --lock-timeout"
                                : "the default outside of training steps, and --lock-timeout"};
}

WaitLimit patience_between_steps(const Patience *p) {
    return (WaitLimit){p->slow_s, p->fixed ? NULL : "the default outside of training steps"};
}

WaitLimit patience_in_step(const Patience *p, int samples) {
    if (p->fixed || p->steps < STEPS_TO_LEARN_FROM) return patience_between_steps(p);
    return (WaitLimit){fmax(MIN_STEP_S, TIMES_LONGEST * p->longest_s * samples),
                       "five times the longest step so far, and at least a minute"};
}

void patience_learn(Patience *p, double step_s, int samples) {
    p->steps++;
    p->longest_s = fmax(p->longest_s, step_s / samples);
}
