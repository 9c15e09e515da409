// What the files of a run say of it: run.json, the metrics, the ledger, the options of its newest checkpoint. All are
// only read, also while the run writes them.
#pragma once
#include "base/text.h"
#include "train/goodput.h"

typedef struct {
    int64_t iteration;
    double loss, grad_norm, lr, step_s, tokens_per_s; // NaN: the file does not say
} StepRow;

typedef struct {
    int64_t iteration;
    double loss;
} ValidationRow;

typedef struct {
    int64_t iteration;
    char text[200];
} RunEvent;

typedef struct {
    const char *name; // the path that was asked for; borrowed
    // Of run.json.
    bool has_state;
    char state[16], reason[1024], host[128], started[32], updated[32], ended[32];
    char metrics[4096], ledger[4096], beats[128], trace[4096], save[4096]; // paths; "": none
    int64_t status, pid, ranks, end, saved, blamed;                        // -1: not said
    int64_t iteration;                                                     // the last that any file names
    int64_t memory_bytes; // that rank 0 has taken; -1: not said
    bool gone;            // it says that it runs, on this machine, and its process is not there
    // Of the metrics: the run as it stands, without steps that were trained again.
    StepRow *steps;
    size_t num_steps, step_capacity;
    ValidationRow *validations;
    size_t num_validations, validation_capacity;
    RunEvent *events;
    size_t num_events, event_capacity;
    int64_t slow; // the rank that was found slow last; -1: none
    double slow_times;
    char slow_host[64];
    bool has_ledger;
    Goodput goodput;
    Text config; // options, as YAML; empty: not known
} RunRecord;

// Reads what there is of the run at `path`: its --save folder, its run.json, metrics or ledger. With `recent` only what
// a look at a running one needs: the last steps of the metrics, no ledger and no options. Fails with ERR_NO_INPUT where
// the path names nothing of a run.
Status run_record_read(RunRecord *record, const char *path, bool recent);
void run_record_free(RunRecord *record); // also a zeroed one
