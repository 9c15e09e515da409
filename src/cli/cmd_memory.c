#include "cli/cli.h"
#include "train/train.h"

Status cmd_memory(int argc, char **argv) {
    Options options;
    Text report = {0};
    Status status = options_parse(&options, FOR_MEMORY, argc, argv);
    if (status == OK) status = options_resolve(&options, options.ranks != INT_UNSET ? options.ranks : 1);
    if (status == OK) {
        fputs(options_notes(&options), stderr);
        status = memory_report(&options, &report);
    }
    if (status == OK) fputs(text_string(&report), stdout);
    text_free(&report);
    options_destroy(&options);
    return status;
}
