// Looks at the ranks of a run: what each does, whether it makes progress, and how long it may take.
#include "base/cores.h"
#include "base/process.h"
#include "supervise/supervise.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define LEAST_S      5.0  // the shortest limit of an instruction of a step
#define LEAST_SLOW_S 60.0 // of reading, saving and all else that may wait for a disk
#define MOST_LOAD    8.0

void view_look(RankView *view, const BeatPage *page, int slot, double tick_s) {
    uint64_t signs = beat_signs(page, slot);
    Beat before = view->beat;
    bool read = beat_read(page, slot, &view->beat);
    bool same = view->joined && read && before.since_ns == view->beat.since_ns &&
                before.iteration == view->beat.iteration && before.num_waits == view->beat.num_waits;
    view->quiet_s = signs == view->signs ? view->quiet_s + tick_s : 0;
    view->same_s = same || !read ? view->same_s + tick_s : 0;
    view->signs = signs;
    view->joined = view->joined || read;
    if (!view->joined || view->beat.phase == BEAT_DONE || view->gone) return;
    if (kill(view->beat.pid, 0) == 0 || errno != ESRCH) return;
    beat_read(page, slot, &view->beat); // what it has said last
    view->gone = view->beat.phase != BEAT_DONE;
}

void view_process(RankView *view) {
    char state = view->joined && !view->gone ? process_status(view->beat.pid, NULL) : 'S';
    view->stopped = state == 'T';
    view->on_disk = state == 'D';
    // One that has ended stays until its parent has waited for it, as a launcher may never do.
    bool ended = !state || state == 'Z' || state == 'X';
    view->gone = view->gone || (ended && view->beat.phase != BEAT_DONE);
}

static bool is_slow_part(const RankView *view) { return view->on_disk || view->beat.phase != BEAT_TRAINING; }

double view_limit(const RankView *view, const HangRule *rule) {
    double usual_s = 1e-9 * (double)view->beat.usual_ns;
    bool waits = *view->beat.wait; // it looks ten times a second, whatever it waits for
    if (view->stopped) return LEAST_S;
    if (view->beat.phase == BEAT_CONNECTING) return INFINITY; // the session waits for the first to be through
    if (waits && !view->on_disk) return rule->load * fmax(LEAST_S, rule->factor * usual_s);
    if (!view->beat.usual_ns) return rule->load * rule->setup_s;
    return rule->load * fmax(is_slow_part(view) ? LEAST_SLOW_S : LEAST_S, rule->factor * usual_s);
}

double machine_load(int own_threads) {
    double mean = 0;
    long running = 0;
    Cores cores;
    FILE *file = fopen("/proc/loadavg", "re");
    if (!file) return 1;
    if (fscanf(file, "%lf %*f %*f %ld/", &mean, &running) != 2) mean = 0;
    fclose(file);
    cores_allowed(&cores);
    // Ranks that share processors have done so in the steps that were measured, too.
    int usual = own_threads > cores.count ? own_threads : cores.count;
    double load = fmax(mean, (double)running) / (usual > 0 ? usual : 1);
    return fmin(MOST_LOAD, fmax(1, load));
}
