// Starts the ranks of a verb. What all of them must have in common is listed first, so that it is compared before
// anything is computed.
#include "base/version.h"
#include "cli/cli.h"
#include "device/algorithms.h"
#include "device/links.h"
#include "train/train.h"
#include <gnu/libc-version.h>
#include <stdlib.h>
#include <string.h>

// Environment variables that change results: the instructions, and the precision.
static const char *const variables[] = {
    "TRIREME_MAX_CPU_ISA",  "DNNL_MAX_CPU_ISA",         "ONEDNN_MAX_CPU_ISA",         "DNNL_CPU_ISA_HINTS",
    "ONEDNN_CPU_ISA_HINTS", "DNNL_DEFAULT_FPMATH_MODE", "ONEDNN_DEFAULT_FPMATH_MODE", "GLIBC_TUNABLES",
};

// Threads of one process use NCCL only where the user wants it.
void prepare_links(const Options *options) {
    const char *wanted = options->device_transport;
    if (!strcmp(wanted, "nccl") || (!strcmp(wanted, "auto") && launcher_ranks() > 1)) links_set_environment();
}

static void add_environment(Text *out) {
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        text_add(out, "the environment's %s\t%s\n", variables[i], value ? value : "unset");
    }
}

static void add_command_line(const char *verdict, Text *out) {
    text_add(out, "the command line\t%s\n", verdict);
}

// The program comes first in the list: another program may list other things.
void list_common(const Options *options, Text *out) {
    char build[64];
    build_id(build, sizeof build);
    add_command_line("understood", out);
    text_add(out, "the program\t%s, build %s\n", TRIREME_VERSION, build);
    options_list(options, out);
    add_environment(out);
    text_add(out, "the arithmetic\t");
    device_arithmetic(options->device, out);
    text_add(out, ", C library %s\n", gnu_get_libc_version());
    text_add(out, "the algorithms of products\t");
    if (options->product_algorithms)
        algorithms_describe(options->product_algorithms, out);
    else
        text_add(out, "the library's");
    text_add(out, "\n");
}

typedef struct {
    Status prepared;
    char message[sizeof((Rank *)0)->message];
    RankMain *rank_main;
    void *arg;
} Start;

// A process that has failed still joins the others here, so that its message is printed, and printed once.
static Status start_rank(Comm *world, void *arg) {
    const Start *start = arg;
    Status mine = start->prepared == OK ? OK : fail(start->prepared, "%s", start->message);
    TRY(comm_agree(world, mine));
    return start->rank_main(world, start->arg);
}

Status start_ranks(const Options *o, Status prepared, const Text *common, int threads,
                   const atomic_int *stopped, RankMain *rank_main, void *arg) {
    int launched = launcher_ranks(), asked = o->ranks != INT_UNSET ? o->ranks : 1;
    if (prepared != OK && launched < 2) return prepared;
    Start start = {.prepared = prepared, .rank_main = rank_main, .arg = arg};
    snprintf(start.message, sizeof start.message, "%s", fail_message());
    CommOptions comm = {.transport = comm_transport_here(),
                        .ranks = launched ? launched : asked,
                        .timeout_s = launch_timeout_s(o),
                        .check = o->check_comm,
                        .device_transport = o->device_transport,
                        .deterministic = o->deterministic_mode,
                        // As many as a rank gets cores, unless the user has chosen.
                        .threads = o->threads == INT_UNSET ? 0 : threads,
                        .bind_cores = o->bind_cores,
                        .device = o->device,
                        .common = text_string(common),
                        .stopped = stopped};
    return comm_launch(comm, start_rank, &start);
}

Status refuse_command_line(Verb verb, Status status) {
    Options defaults;
    Text common = {0};
    add_command_line(fail_message(), &common);
    CHECK(options_parse(&defaults, verb, 0, NULL) == OK, "no arguments are refused: %s", fail_message());
    status = start_ranks(&defaults, status, &common, 1, NULL, NULL, NULL);
    options_destroy(&defaults);
    text_free(&common);
    return status;
}
