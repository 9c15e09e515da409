// `trireme bench`: measures this machine and writes its description for the planner, or which algorithms are fastest
// for the matrix products of a run.
#include "base/cores.h"
#include "base/file.h"
#include "cli/cli.h"
#include "machine/algorithms_bench.h"
#include "machine/rates.h"
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

static void name_machine(Machine *machine, const RatesBench *bench) {
    snprintf(machine->gpu, sizeof machine->gpu, "cpu");
    snprintf(machine->description, sizeof machine->description,
             "measured by trireme bench: %d rank%s of %d thread%s", bench->ranks, bench->ranks > 1 ? "s" : "",
             bench->threads, bench->threads > 1 ? "s" : "");
}

// Under a launcher its ranks share the processors; else there are as many ranks as fit with --threads threads each.
static RatesBench bench_of(const Options *options) {
    int launched = launcher_ranks();
    Cores cores;
    cores_allowed(&cores);
    RatesBench bench = {
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

// Options of a run say nothing of a machine.
static Status check_given(const Options *options) {
    static const char *const of_machine[] = {"machine", "stack", "threads", "bf16", "device", NULL};
    const char *field = options_given_beside(options, of_machine);
    if (!field) return OK;
    char name[64];
    snprintf(name, sizeof name, "%s", field);
    for (char *c = name; *c; c++)
        if (*c == '_') *c = '-';
    return fail(ERR_USAGE, "bench --machine trains models of its own: leave out --%s", name);
}

static Status write_stack(Stack *stack, const char *path) {
    Text text = {0};
    stack_print(stack, &text);
    Status status = file_write(path, text_string(&text), text.size);
    text_free(&text);
    return status == OK ? OK : fail(status, "--stack %s", fail_message());
}

// The name of a file without its folders, and of the folders alone.
static const char *file_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// The stack lies beside its machine, which names it.
static Status check_stack(const Options *options) {
    const char *machine = options->machine, *stack = options->stack;
    size_t folder = (size_t)(file_of(stack) - stack), length = strlen(stack);
    if (length < 6 || strcmp(stack + length - 5, ".yaml") != 0)
        return fail(ERR_USAGE, "--stack %s: the name of the file to write must end in .yaml", stack);
    if (strlen(file_of(stack)) >= MAX_NAME || strlen(file_of(machine)) >= MAX_NAME)
        return fail(ERR_USAGE, "--stack %s: the names of both files must have fewer than %d letters", stack,
                    MAX_NAME);
    if (folder != (size_t)(file_of(machine) - machine) || strncmp(machine, stack, folder) != 0 ||
        !strcmp(machine, stack))
        return fail(ERR_USAGE,
                    "--stack %s: it must be another file in the folder of --machine %s, which names it",
                    stack, machine);
    return check_folder("--stack", stack);
}

static void name_gpu(Machine *machine, Stack *stack, const Options *options) {
    const char *name = file_of(options->machine);
    snprintf(machine->description, sizeof machine->description,
             "measured by trireme bench: %d of %s; peaks are those of its products",
             machine->devices_per_node, machine->gpu);
    snprintf(machine->stack, sizeof machine->stack, "%s", file_of(options->stack));
    snprintf(stack->machine, sizeof stack->machine, "%.*s", (int)strlen(name) - 5, name);
    snprintf(stack->description, sizeof stack->description, "trireme on %s, measured by trireme bench",
             machine->gpu);
    memset(&stack->aliases, 0, sizeof stack->aliases);
    memset(stack->unmeasured, 0, sizeof stack->unmeasured);
}

static void print_gpu(const Machine *machine, const Stack *stack) {
    printf("%-42s %-5s %5s %-*s %8s\n", "class", "type", "ranks", 11 * MAX_TERMS - 1,
           " seconds of a unit of each term", "error %");
    for (int i = 0; i < machine->num_rates; i++) print_rate(&machine->rates[i]);
    printf(
        "\na GPU: %.3g TFLOP/s in bf16, %.3g in fp32, at its best; copies of %.4g GB/s; %.3g GB/s to the host or "
        "another GPU; a launch takes %.3g us\n",
        machine->peak_tflops[BF16], machine->peak_tflops[F32], machine->memory_gbs, machine->link_gbs,
        stack->constants.launch_us);
}

static Status bench_gpu(const Options *options) {
    Machine machine;
    Stack stack;
    if (!options->stack)
        return fail(ERR_USAGE,
                    "--device %s: bench measures the program's constants, too: --stack FILE.yaml is required",
                    options->device);
    TRY(check_stack(options));
    Status status = rates_bench_gpu(&machine, &stack, options->device, tell);
    if (status == OK) {
        name_gpu(&machine, &stack, options);
        print_gpu(&machine, &stack);
        status = write_stack(&stack, options->stack);
    }
    if (status == OK) status = write_machine(&machine, options->machine);
    machine_close(&machine);
    return status;
}

static Status bench_machine(Options *options) {
    Machine machine;
    tell_notes(options);
    TRY(check_options(options));
    TRY(check_given(options));
    if (!strncmp(options->device, "cuda", 4)) return bench_gpu(options);
    if (strcmp(options->device, "cpu") != 0)
        return fail(ERR_CONFIG, "--device %s: bench measures cpu, cuda and cuda-sim", options->device);
    if (options->stack)
        return fail(ERR_USAGE, "--stack: a CPU's measurements are all in its machine file: leave it out");
    RatesBench bench = bench_of(options);
    TRY(rates_bench(&machine, &bench));
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
