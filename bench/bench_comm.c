// How much of an operation that was started hides behind computing, when the rank polls every millisecond.
//
//   bench_comm [--ranks N] [--mib N]                      N threads
//   mpirun -n N bench_comm [--transport mpi-messages]     N processes
//
// For each operation: how long it takes when nothing else is done; then started, with once, twice and
// four times as much computing before the wait: the time spent in the wait (exposed) and in the start and
// the polls (the copies and additions themselves), of the slowest rank, as fractions of the time alone.
// Medians.
#include "base/text.h"
#include "comm/comm.h"
#include "median.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPETITIONS = 9, NUM_FACTORS = 3 };
static const int factors[NUM_FACTORS] = {1, 2, 4};
static const double SLICE_S = 1e-3;

typedef struct {
    const char *transport;
    int64_t ranks, mib;
} Options;

typedef struct {
    Comm *world;
    Tensor whole, part; // of a collective
    Tensor other;       // as large as the whole one
    Tensor sent, received;
} Bench;

enum { MESSAGE_SHARE = 8 }; // messages are that much smaller than collectives

// ---- the operations -----------------------------------------------------------------------------------

typedef struct {
    CommRequest *a, *b;
} Started;

static Started start_all_reduce(Bench *b) {
    return (Started){comm_all_reduce_start(b->world, NULL, b->whole, REDUCE_SUM), NULL};
}

static Started start_reduce_scatter(Bench *b) {
    return (Started){comm_reduce_scatter_start(b->world, NULL, b->whole, b->part, REDUCE_SUM), NULL};
}

static Started start_all_gather(Bench *b) {
    return (Started){comm_all_gather_start(b->world, NULL, b->part, b->whole), NULL};
}

static Started start_all_to_all(Bench *b) {
    return (Started){comm_all_to_all_start(b->world, NULL, b->whole, b->other), NULL};
}

// To the next rank, from the one before.
static Started start_messages(Bench *b) {
    int size = comm_size(b->world), me = comm_rank(b->world);
    return (Started){comm_recv(b->world, NULL, b->received, (me + size - 1) % size, 0),
                     comm_send(b->world, NULL, b->sent, (me + 1) % size, 0)};
}

static void wait_for(Bench *b, Started s) {
    comm_wait(b->world, NULL, &s.a);
    comm_wait(b->world, NULL, &s.b);
}

static void all_reduce(Bench *b) { comm_all_reduce(b->world, NULL, b->whole, REDUCE_SUM); }
static void reduce_scatter(Bench *b) { comm_reduce_scatter(b->world, NULL, b->whole, b->part, REDUCE_SUM); }
static void all_gather(Bench *b) { comm_all_gather(b->world, NULL, b->part, b->whole); }
static void all_to_all(Bench *b) { comm_all_to_all(b->world, NULL, b->whole, b->other); }
static void messages(Bench *b) { wait_for(b, start_messages(b)); }

static const struct {
    const char *name;
    int share;
    void (*alone)(Bench *);
    Started (*start)(Bench *);
} rows[] = {{"all_reduce", 1, all_reduce, start_all_reduce},
            {"reduce_scatter", 1, reduce_scatter, start_reduce_scatter},
            {"all_gather", 1, all_gather, start_all_gather},
            {"all_to_all", 1, all_to_all, start_all_to_all},
            {"send+recv", MESSAGE_SHARE, messages, start_messages}};
enum { NUM_ROWS = sizeof rows / sizeof *rows };

// ---- measuring ----------------------------------------------------------------------------------------

static double time_alone(Bench *b, int row) {
    double times[REPETITIONS];
    rows[row].alone(b);
    for (int i = 0; i < REPETITIONS; i++) {
        comm_barrier(b->world);
        double start = clock_s();
        rows[row].alone(b);
        times[i] = clock_s() - start;
        comm_all_reduce_host(b->world, &times[i], 1, REDUCE_MAX);
    }
    return median(times, REPETITIONS);
}

// Computes for so many seconds, which the polls in between do not count towards; returns the time of the
// polls.
static double compute(Bench *b, double seconds) {
    double polls_s = 0;
    for (double left = seconds; left > 0; left -= SLICE_S) {
        double slice = left < SLICE_S ? left : SLICE_S, start = clock_s(), now = start;
        volatile float x = 1;
        while (now - start < slice) {
            for (int i = 0; i < 1000; i++) x = x * 0.999f + 0.001f;
            now = clock_s();
        }
        comm_poll(b->world);
        polls_s += clock_s() - now;
    }
    return polls_s;
}

static void overlap(Bench *b, int row, double seconds, double *exposed_s, double *polls_s) {
    double exposed[REPETITIONS], polls[REPETITIONS];
    for (int i = 0; i < REPETITIONS; i++) {
        comm_barrier(b->world);
        double start = clock_s();
        Started started = rows[row].start(b);
        polls[i] = clock_s() - start;
        polls[i] += compute(b, seconds);
        start = clock_s();
        wait_for(b, started);
        exposed[i] = clock_s() - start;
        comm_all_reduce_host(b->world, &exposed[i], 1, REDUCE_MAX);
        comm_all_reduce_host(b->world, &polls[i], 1, REDUCE_MAX);
    }
    *exposed_s = median(exposed, REPETITIONS);
    *polls_s = median(polls, REPETITIONS);
}

// Of one poll of `n` receives that nobody answers yet, against none.
static double poll_s(Bench *b, int n) {
    enum { MAX_REQUESTS = 16, POLLS = 20000 };
    CommRequest *requests[MAX_REQUESTS];
    float values[2][MAX_REQUESTS] = {{0}};
    int size = comm_size(b->world), me = comm_rank(b->world);
    for (int i = 0; i < n; i++)
        requests[i] =
            comm_recv(b->world, NULL, (Tensor){&values[0][i], 1, 1, F32}, (me + size - 1) % size, i);
    double start = clock_s();
    for (int i = 0; i < POLLS; i++) comm_poll(b->world);
    double each = (clock_s() - start) / POLLS;
    comm_barrier(b->world);
    for (int i = 0; i < n; i++) {
        CommRequest *sent = comm_send(b->world, NULL, (Tensor){&values[1][i], 1, 1, F32}, (me + 1) % size, i);
        comm_wait(b->world, NULL, &sent);
        comm_wait(b->world, NULL, &requests[i]);
    }
    return each;
}

static Tensor floats(int64_t count) {
    Tensor x = {malloc((size_t)count * sizeof(float)), 1, count, F32};
    CHECK(x.data, "no memory for %lld floats", (long long)count);
    for (int64_t i = 0; i < count; i++) ((float *)x.data)[i] = 0;
    return x;
}

static void measure_row(Bench *b, int row, int64_t mib) {
    double alone = time_alone(b, row), exposed[NUM_FACTORS], polls[NUM_FACTORS];
    for (int i = 0; i < NUM_FACTORS; i++) overlap(b, row, factors[i] * alone, &exposed[i], &polls[i]);
    if (comm_rank(b->world) != 0) return;
    printf("%-16s %8lld %8.2f ", rows[row].name, (long long)(mib / rows[row].share), alone * 1e3);
    for (int i = 0; i < NUM_FACTORS; i++) printf("  %5.2f / %4.2f", exposed[i] / alone, polls[i] / alone);
    printf("\n");
}

static Status measure(Comm *world, void *arg) {
    int64_t mib = ((const Options *)arg)->mib, all = mib * ((1 << 20) / (int64_t)sizeof(float));
    Bench b = {.world = world};
    b.part = floats(all / comm_size(world));
    b.whole = floats(b.part.cols * comm_size(world));
    b.other = floats(b.whole.cols);
    b.sent = floats(all / MESSAGE_SHARE);
    b.received = floats(b.sent.cols);
    bool speaks = comm_rank(world) == 0;
    if (speaks) printf("%-16s %8s %8s   exposed / polls, with computing x1, x2, x4\n", "", "MiB", "ms");
    for (int row = 0; row < NUM_ROWS; row++) measure_row(&b, row, mib);
    double idle = poll_s(&b, 0), busy = poll_s(&b, 10);
    if (speaks)
        printf("one poll: %.0f ns with nothing posted, %.0f ns with 10 receives\n", idle * 1e9, busy * 1e9);
    free(b.whole.data);
    free(b.part.data);
    free(b.other.data);
    free(b.sent.data);
    free(b.received.data);
    return OK;
}

int main(int argc, char **argv) {
    Options options = {.transport = launcher_ranks() ? "mpi" : "threads", .ranks = 2, .mib = 64};
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool good = (!strcmp(argv[i], "--transport") && *value) ||
                    (!strcmp(argv[i], "--ranks") && parse_int(value, &options.ranks) && options.ranks > 0) ||
                    (!strcmp(argv[i], "--mib") && parse_int(value, &options.mib) && options.mib >= 8);
        if (!good) {
            fprintf(stderr, "usage: bench_comm [--transport NAME] [--ranks N] [--mib N >= 8]\n");
            return ERR_USAGE;
        }
        if (!strcmp(argv[i], "--transport")) options.transport = value;
    }
    CommOptions comm = {.transport = options.transport,
                        .ranks = launcher_ranks() ? 0 : (int)options.ranks,
                        .timeout_s = 60,
                        .deterministic = true};
    Status status = comm_launch(comm, measure, &options);
    if (status != OK) fprintf(stderr, "bench_comm: %s\n", fail_message());
    return (int)status;
}
