#include "cli/cli.h"
#include "train/train.h"
#include <sched.h>
#include <stdlib.h>

// A signal handler can reach nothing but a static: the one mutable one of the program, set once, read by the loop.
static volatile sig_atomic_t stopped;

// The first signal asks for a clean end after the current step; the second one ends the process as usual.
static void ask_to_stop(int signal) {
    (void)signal;
    stopped = 1;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static int processors(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? n : 1;
}

// The processors this process may use, shared out over the ranks it shares them with.
static int threads_per_rank(const Options *options, int ranks_here) {
    if (options->threads != INT_UNSET) return options->threads;
    int each = processors() / ranks_here;
    return each > 0 ? each : 1;
}

static Status world_size(const Options *options, int launched, int *size) {
    *size = launched ? launched : options->ranks != INT_UNSET ? options->ranks : 1;
    if (launched && options->ranks != INT_UNSET && options->ranks != launched)
        return fail(ERR_CONFIG,
                    "--ranks %d, but the launcher started %d: leave --ranks out under mpirun and srun",
                    options->ranks, launched);
    return OK;
}

static Status save_configuration(const Options *options) {
    if (!options->save_config) return OK;
    Text text = {0};
    options_save(options, FOR_TRAIN, &text);
    Status status = file_write(options->save_config, text_string(&text), text.size);
    text_free(&text);
    return status;
}

static Status start(Options *options) {
    int launched = comm_launcher_ranks(), size;
    TRY(world_size(options, launched, &size));
    TRY(options_resolve(options, size));
    bool speaks = comm_launcher_rank() == 0;
    if (speaks) {
        fputs(options_notes(options), stderr);
        TRY(save_configuration(options));
    }
    TrainJob job = {.options = options, .stopped = &stopped};
    job.threads = threads_per_rank(options, launched ? comm_launcher_ranks_here() : size);
    CommOptions comm = {.transport = launched ? "mpi" : "threads",
                        .ranks = size,
                        .timeout_s = options->distributed_timeout_minutes * 60,
                        .check = options->check_comm,
                        .deterministic = options->deterministic_mode};
    catch_signals();
    return comm_launch(comm, train_run, &job);
}

Status cmd_train(int argc, char **argv) {
    Options options;
    Status status = options_parse(&options, FOR_TRAIN, argc, argv);
    if (status == OK) {
        status = start(&options);
        options_destroy(&options);
    }
    // Every process of a launched job has the same message; one of them says it.
    if (status != OK && comm_launcher_rank() > 0) fail(status, "%s", "");
    return status;
}
