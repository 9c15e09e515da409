// `trireme memory`: prints what memory each rank of a run would take.
#include "base/libraries.h"
#include "cli/cli.h"
#include "machine/machine.h"
#include "train/train.h"
#include <string.h>

// A GPU holds more than a run's arenas: how much, the program's own stack says, which may not be measured.
static Status add_allowance(const Options *options, Text *out) {
    Stack stack;
    if (strncmp(options->device, "cuda", 4) != 0) return OK;
    if (!library_present(LIBRARY_YAML)) {
        text_add(
            out,
            "\nThe bytes above are exact: what a run takes of a GPU's memory itself. CUDA's context and the kernels of its\n"
            "libraries come on top; how much to allow for them stands in a file of YAML, and this build lacks libyaml.\n");
        return OK;
    }
    TRY(stack_open(&stack, "trireme-cuda"));
    text_add(
        out,
        "\nThe bytes above are exact: what a run takes of a GPU's memory itself. CUDA's context and the kernels of its\n"
        "libraries come on top, on each GPU once for each rank: allow %.0f MiB for them (%s).\n",
        1e9 * stack.constants.reserve_gb / 1048576,
        *stack.unmeasured ? "an allowance that is not measured yet" : "measured");
    return OK;
}

Status cmd_memory(Options *options) {
    Text report = {0};
    TRY(train_resolve(options, options->ranks != INT_UNSET ? options->ranks : 1));
    tell_notes(options);
    Status status = memory_report(options, &report);
    if (status == OK) status = add_allowance(options, &report);
    if (status == OK) fputs(text_string(&report), stdout);
    text_free(&report);
    return status;
}
