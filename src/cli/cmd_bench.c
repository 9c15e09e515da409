// `trireme bench`: measures this machine and writes its description for the planner, or which algorithms are fastest for
// the matrix products of a run.
#include "base/cores.h"
#include "base/file.h"
#include "cli/cli.h"
#include "machine/algorithms_bench.h"
#include "machine/cpu_price.h"
#include "train/train.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void tell(const char *what, int ranks) {
    fprintf(stderr, "bench: %s, %d rank%s at work\n", what, ranks, ranks > 1 ? "s" : "");
}

// Checks that the file can be written before anything is measured.
static Status check_folder(const char *option, const char *path) {
    const char *slash = strrchr(path, '/');
    char folder[4096];
    int length = slash ? (int)(slash - path) + 1 : 1;
    if (length >= (int)sizeof folder)
        return fail(ERR_CREATE, "%s %.80s...: the name is too long", option, path);
    snprintf(folder, sizeof folder, "%.*s", length, slash ? path : ".");
    if (access(folder, W_OK | X_OK) == 0) return OK;
    return fail(create_status(), "%s %s: cannot create: %s", option, path, strerror(errno));
}

// The name of the machine is that of the file, without folders and ending.
static Status check_options(const Options *options) {
    const char *path = options->machine;
    size_t length = path ? strlen(path) : 0;
    if (!length)
        return fail(
            ERR_USAGE,
            "bench writes its measurements to a file: --machine FILE.yaml is required, or --product-algorithms "
            "FILE");
    if (length < 6 || strcmp(path + length - 5, ".yaml") != 0)
        return fail(ERR_USAGE, "--machine %s: the name of the file to write must end in .yaml", path);
    return check_folder("--machine", path);
}

// Prints the rates of a row of operations, with the largest number of ranks and with one rank.
static void print_rate(const Rate *row) {
    printf("%-42s %-5s %5d", row->op, dtype_name(row->dtype), row->ranks);
    for (int i = 0; i < MAX_TERMS; i++)
        if (i < row->count)
            printf(" %10.3g", row->seconds[i]);
        else
            printf(" %10s", "");
    printf(" %8.1f\n", 100 * row->error);
}

static void print_table(const Machine *machine) {
    printf("%-42s %-5s %5s %-*s %8s\n", "class", "type", "ranks", 11 * MAX_TERMS - 1,
           " seconds of a unit of each term", "error %");
    for (int i = 0; i < machine->num_rates; i++) print_rate(&machine->rates[i]);
    printf("\na rank: %.0f GFLOP/s in fp32", 1e3 * machine->peak_tflops[F32]);
    if (machine->peak_tflops[BF16] > 0) printf(", %.0f in bf16", 1e3 * machine->peak_tflops[BF16]);
    printf("; %.1f GB/s with all %d ranks at work; %.1f GB of memory\n", machine->memory_gbs,
           machine->devices_per_node, machine->memory_gb);
}

static Status write_machine(const Machine *machine, const char *path) {
    Text text = {0};
    machine_print(machine, &text);
    Status status = file_write(path, text_string(&text), text.size);
    text_free(&text);
    return status == OK ? OK : fail(status, "--machine %s", fail_message());
}

static void name_machine(Machine *machine, const CpuBench *bench) {
    snprintf(machine->gpu, sizeof machine->gpu, "cpu");
    snprintf(machine->description, sizeof machine->description,
             "measured by trireme bench: %d rank%s of %d thread%s", bench->ranks, bench->ranks > 1 ? "s" : "",
             bench->threads, bench->threads > 1 ? "s" : "");
}

// Under a launcher its ranks share the processors; else there are as many ranks as fit with --threads threads each.
static CpuBench bench_of(const Options *options) {
    int launched = launcher_ranks();
    Cores cores;
    cores_allowed(&cores);
    CpuBench bench = {
        .threads = options->threads != INT_UNSET ? options->threads : 1, .bf16 = options->bf16, .tell = tell};
    bench.ranks = launched ? launched : cores.count / bench.threads;
    if (bench.ranks < 1) bench.ranks = 1;
    return bench;
}

// ---- algorithms of matrix products ------------------------------------------------------------------------

static Status write_table(const Options *options, const EngineSpec *spec) {
    Text table = {0};
    AlgorithmsBench done;
    Status status = algorithms_bench(spec, &table, &done);
    if (status == OK) status = file_write(options->product_algorithms, text_string(&table), table.size);
    if (status == OK)
        printf("%d different matrix products; %s has the fastest algorithms of %d\n", done.products,
               options->product_algorithms, done.chosen);
    text_free(&table);
    return status;
}

static Status bench_algorithms(Options *options) {
    EngineSpec spec;
    int *room;
    if (options->machine)
        return fail(ERR_USAGE,
                    "--machine and --product-algorithms are measured by a command each: leave out one");
    TRY(check_folder("--product-algorithms", options->product_algorithms));
    TRY(train_resolve(options, options->ranks != INT_UNSET ? options->ranks : 1));
    tell_notes(options);
    TRY(device_check(options->device));
    TRY(engine_spec_of_run(options, threads_per_rank(options, options->shape.world_size), &spec, &room));
    spec.algorithms = NULL; // the file that is written
    Status status = write_table(options, &spec);
    free(room);
    return status;
}

// ---- the machine ------------------------------------------------------------------------------------------

static Status bench_machine(Options *options) {
    Machine machine;
    tell_notes(options);
    TRY(check_options(options));
    CpuBench bench = bench_of(options);
    TRY(cpu_bench(&machine, &bench));
    Status status = OK;
    if (machine.num_rates) {
        name_machine(&machine, &bench);
        print_table(&machine);
        status = write_machine(&machine, options->machine);
    }
    machine_close(&machine);
    return status;
}

Status cmd_bench(Options *options) {
    if (options->positional.count)
        return fail(ERR_USAGE, "bench takes options only, not %s", options->positional.items[0]);
    return options->product_algorithms ? bench_algorithms(options) : bench_machine(options);
}
