// `trireme selftest --faults DIR`: tries whether a file system keeps checkpoints whole, whichever call fails.
#include "checkpoint/trial.h"
#include "cli/cli.h"
#include <stdio.h>

static void print_cell(const TrialResult *result, FileCall call, TrialFault fault) {
    char cell[32];
    int tried = result->tried[call][fault], wrong = result->broken[call][fault];
    if (wrong)
        snprintf(cell, sizeof cell, "%d of %d BROKEN", wrong, tried);
    else
        snprintf(cell, sizeof cell, "%d ok", tried);
    printf("  %-17s", cell);
}

static void print_table(const TrialResult *result, int *tried, int *wrong) {
    printf("%-8s %6s", "call", "made");
    for (TrialFault fault = 0; fault < NUM_TRIAL_FAULTS; fault++) printf("  %-17s", trial_fault_name(fault));
    printf("\n");
    for (FileCall call = 0; call < NUM_FILE_CALLS; call++) {
        printf("%-8s %6d", file_call_name(call), result->made[call]);
        for (TrialFault fault = 0; fault < NUM_TRIAL_FAULTS; fault++) {
            print_cell(result, call, fault);
            *tried += result->tried[call][fault], *wrong += result->broken[call][fault];
        }
        printf("\n");
    }
}

static Status verdict(const char *folder, const TrialResult *result, int tried, int wrong) {
    if (!result->locks)
        printf("%s has no locks (flock): nothing keeps two runs from saving to one folder there\n", folder);
    puts(
        "Not tried: a loss of power, which takes what was not synced. It cannot be simulated on a file system in use; a save "
        "syncs and reads back every file before its commit.");
    if (wrong)
        return fail(ERR_IO, "%s: after %d of %d faults a checkpoint was not whole; the first: %s", folder,
                    wrong, tried, text_string(&result->first));
    printf(
        "%s keeps checkpoints whole: after each of %d faults the older ones were intact, the new one was complete or absent, and "
        "the next save succeeded\n",
        folder, tried);
    return OK;
}

Status cmd_selftest(Options *o) {
    TrialResult result;
    int tried = 0, wrong = 0;
    if (o->positional.count)
        return fail(ERR_USAGE, "selftest takes no words such as %s", o->positional.items[0]);
    if (!o->faults) return fail(ERR_USAGE, "selftest needs --faults DIR, a folder of the file system to try");
    Status status = trial_run(o->faults, stop_on_signals(), &result);
    if (status == OK) {
        print_table(&result, &tried, &wrong);
        status = verdict(o->faults, &result, tried, wrong);
    }
    trial_free(&result);
    do_not_stop_on_signals();
    return status;
}
