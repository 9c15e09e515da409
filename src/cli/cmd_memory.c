// `trireme memory`: prints what memory each rank of a run would take.
#include "cli/cli.h"
#include "train/train.h"

Status cmd_memory(Options *options) {
    Text report = {0};
    TRY(train_resolve(options, options->ranks != INT_UNSET ? options->ranks : 1));
    tell_notes(options);
    Status status = memory_report(options, &report);
    if (status == OK) fputs(text_string(&report), stdout);
    text_free(&report);
    return status;
}
