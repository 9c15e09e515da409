// Finds cores that compute wrongly: every family of kernels, on every core, again and again, against known answers.
#pragma once
#include "base/cores.h"
#include "machine/known_answers.h"
#include <stdatomic.h>

// A bit that is flipped in a result of one core, for tests.
typedef struct {
    int core; // the number of the system
    AnswerFamily family;
    int64_t from_round; // counted from 0
    int bit;            // of the first result
} PlantedFault;

typedef struct {
    double seconds;              // how long to go on; every core makes at least one round
    int64_t least_rounds;        // and so many, however long they take
    bool at_once;                // all cores compute at the same time; else one after the other
    const atomic_int *stopped;   // other than 0 ends it; may be NULL
    const PlantedFault *planted; // NULL: none
} VerifyPlan;

// One wrong result.
typedef struct {
    int core;
    AnswerFamily family;
    int64_t round, byte, differ; // the first byte that differs, and how many do
    uint32_t got, want;          // the 4 bytes around it
} MachineFault;

enum { FAULTS_KEPT = 16 };
typedef struct {
    Cores cores;
    int64_t rounds;  // the fewest of any core
    int64_t checked; // results
    int64_t wrong;
    MachineFault faults[FAULTS_KEPT]; // the first ones
    int64_t wrong_of[CORES_MAX];      // by place in `cores`
} MachineReport;

// Checks every core that this process may use. The calling thread is bound as before at the end. Fails with
// ERR_REPLICAS when a result is wrong: the message names the core, the family and the bits of the first; with ERR_OS
// without memory or threads.
Status verify_machine(const VerifyPlan *plan, MachineReport *report);
