// Finds the rank that computes slower than it should: the one for which all others wait.
//
// What a rank computes is wall time without its waits for other ranks. A rank is compared with the median of the others
// that have the same work, which are those of the same stages of the pipeline; where no other rank has the same work,
// with its own past. Then what slows all ranks alike, such as a clock that is lowered everywhere, is no finding.
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef enum { WORK_READING, WORK_FORWARD, WORK_BACKWARD, WORK_REST, NUM_WORK_PARTS } WorkPart;

extern const char *const work_parts[NUM_WORK_PARTS]; // for people

// What a rank has computed in some steps.
typedef struct {
    double part_s[NUM_WORK_PARTS];
    double longest_s; // the step that took longest; 0: not known
} RankWork;

typedef struct {
    int rank; // -1: none is slow
    WorkPart most;
    double own_s, usual_s;           // a step: of this rank, of ranks with the same work or of its past
    double own_part_s, usual_part_s; // the same of the part that differs most
    bool of_past, one_step;          // compared with its past; of one step alone, not of the mean
} SlowRank;

typedef struct {
    int num_ranks;
    int *work_of;   // [ranks]; ranks with the same number have the same work
    RankWork *work; // [ranks] since the last finding
    RankWork *past; // [ranks] of one sample; all zeros: not known
    double *others; // [ranks] scratch
    int steps;      // of `work`
    int64_t samples;
} Stragglers;

bool stragglers_open(Stragglers *stragglers, int num_ranks); // false: no memory
void stragglers_close(Stragglers *stragglers);
// Whether `work` is enough to be judged: of very short steps many are added up first.
bool stragglers_can_judge(const Stragglers *stragglers);
// Judges `work` of `steps` steps and `samples` samples. A rank is slow when it takes half as long again as it should
// and a quarter of a second longer in all, or half a second longer in one step.
SlowRank stragglers_judge(Stragglers *stragglers);
