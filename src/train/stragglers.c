// Judges from the times of all ranks which one is slow.
#include "train/stragglers.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLOWER       1.5  // times the usual time
#define MOST_NOISE_S 0.25 // that a scheduler may take from a rank in some steps without being told
#define LONG_STOP_S  0.5  // in one step
#define ENOUGH_S     0.5  // of work, to judge by

const char *const work_parts[NUM_WORK_PARTS] = {[WORK_READING] = "reading data",
                                                [WORK_FORWARD] = "forward",
                                                [WORK_BACKWARD] = "backward",
                                                [WORK_REST] = "reductions and the optimizer"};

// What is compared: a part of the work, all of it, or the longest step.
enum { ALL_PARTS = NUM_WORK_PARTS, LONGEST };

bool stragglers_open(Stragglers *s, int num_ranks) {
    size_t n = (size_t)num_ranks;
    *s = (Stragglers){.num_ranks = num_ranks,
                      .work_of = calloc(n, sizeof *s->work_of),
                      .work = calloc(n, sizeof *s->work),
                      .past = calloc(n, sizeof *s->past),
                      .others = calloc(n, sizeof *s->others)};
    return s->work_of && s->work && s->past && s->others;
}

void stragglers_close(Stragglers *s) {
    free(s->work_of);
    free(s->work);
    free(s->past);
    free(s->others);
    *s = (Stragglers){0};
}

static double value(const RankWork *w, int what) {
    double sum = 0;
    if (what == LONGEST) return w->longest_s;
    if (what < ALL_PARTS) return w->part_s[what];
    for (int i = 0; i < NUM_WORK_PARTS; i++) sum += w->part_s[i];
    return sum;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// NaN: there are no values.
static double median(double *values, int count) {
    if (!count) return NAN;
    qsort(values, (size_t)count, sizeof *values, by_size);
    return values[(count - 1) / 2];
}

static double median_of_same_work(const Stragglers *s, int rank, int what) {
    int count = 0;
    for (int i = 0; i < s->num_ranks; i++)
        if (i != rank && s->work_of[i] == s->work_of[rank]) s->others[count++] = value(&s->work[i], what);
    return median(s->others, count);
}

static double times_past(const Stragglers *s, int rank) {
    return value(&s->work[rank], ALL_PARTS) / (value(&s->past[rank], ALL_PARTS) * (double)s->samples);
}

// By how much all other ranks are slower than they were, at least 1.
static double common_slowdown(const Stragglers *s, int rank) {
    int count = 0;
    for (int i = 0; i < s->num_ranks; i++)
        if (i != rank && value(&s->past[i], ALL_PARTS) > 0) s->others[count++] = times_past(s, i);
    return count ? fmax(1, median(s->others, count)) : 1;
}

// NaN: not known.
static double expected(const Stragglers *s, int rank, int what, bool *of_past) {
    double usual = median_of_same_work(s, rank, what);
    *of_past = isnan(usual);
    if (!*of_past) return usual;
    if (value(&s->past[rank], ALL_PARTS) <= 0) return NAN;
    double sample_s = value(&s->past[rank], what == LONGEST ? ALL_PARTS : what);
    double samples = (double)s->samples / (what == LONGEST ? s->steps : 1);
    return sample_s * samples * common_slowdown(s, rank);
}

// The seconds that the rank has taken too long, where it counts as slow; else 0.
static double too_long(const Stragglers *s, int rank, int what, double least_s) {
    bool of_past;
    double own = value(&s->work[rank], what), usual = expected(s, rank, what, &of_past);
    return own >= SLOWER * usual && own - usual >= least_s ? own - usual : 0; // false for NaN
}

static void find_most(const Stragglers *s, SlowRank *slow) {
    double most = -1;
    bool of_past;
    for (int i = 0; i < NUM_WORK_PARTS; i++) {
        double own = value(&s->work[slow->rank], i), usual = expected(s, slow->rank, i, &of_past);
        if (own - usual <= most) continue;
        most = own - usual;
        slow->most = (WorkPart)i;
        slow->own_part_s = own / s->steps;
        slow->usual_part_s = usual / s->steps;
    }
}

static SlowRank describe(const Stragglers *s, int rank, int what) {
    SlowRank slow = {.rank = rank, .one_step = what == LONGEST};
    double steps = what == LONGEST ? 1 : s->steps;
    slow.own_s = value(&s->work[rank], what) / steps;
    slow.usual_s = expected(s, rank, what, &slow.of_past) / steps;
    find_most(s, &slow);
    return slow;
}

// The past of the rank that is slow stays what it was. Of the others it is a running mean.
static void learn(Stragglers *s, int slow) {
    for (int i = 0; i < s->num_ranks; i++) {
        bool known = value(&s->past[i], ALL_PARTS) > 0;
        for (int part = 0; part < NUM_WORK_PARTS && i != slow; part++) {
            double *past = &s->past[i].part_s[part], now = s->work[i].part_s[part] / (double)s->samples;
            *past = known ? 0.8 * *past + 0.2 * now : now;
        }
    }
}

bool stragglers_can_judge(const Stragglers *s) {
    double most = 0;
    for (int i = 0; i < s->num_ranks; i++) most = fmax(most, value(&s->work[i], ALL_PARTS));
    return s->steps > 0 && most >= ENOUGH_S;
}

SlowRank stragglers_judge(Stragglers *s) {
    SlowRank slow = {.rank = -1};
    double most = 0;
    for (int rank = 0; rank < s->num_ranks; rank++) {
        double mean = too_long(s, rank, ALL_PARTS, MOST_NOISE_S);
        double longest = too_long(s, rank, LONGEST, LONG_STOP_S);
        if (fmax(mean, longest) <= most) continue;
        most = fmax(mean, longest);
        slow = describe(s, rank, mean > 0 ? ALL_PARTS : LONGEST);
    }
    learn(s, slow.rank);
    return slow;
}
