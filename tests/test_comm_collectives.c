// The laws of the collectives, for every type, size and place: each equals a plain loop over all ranks'
// data, bit for bit, on threads, and under mpirun in shared memory, in messages and checked: there it
// starts itself.
#include "comm_values.h"
#include <math.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

static const DType types[] = {F32, F64, BF16, F16};
enum { NUM_TYPES = sizeof types / sizeof *types };
static const int64_t counts[] = {0, 1, 7, 1000};
enum { NUM_COUNTS = sizeof counts / sizeof *counts };

// A blocking call has nothing to wait for; of those started, half are awaited, half are done by polls alone.
static void finish(Comm *comm, CommRequest *request, int64_t count) {
    if (count % 2)
        while (!comm_done(comm, &request)) sched_yield();
    comm_wait(comm, NULL, &request);
}

// ---- one operation at a time --------------------------------------------------------------------------

static void try_all_reduce(Comm *comm, int64_t count, DType type, ReduceOp op, bool started) {
    Tensor x = tensor_new(count, type);
    int salt = 10 * (int)type + (int)op;
    fill(x, comm_rank(comm), salt);
    if (started)
        finish(comm, comm_all_reduce_start(comm, NULL, x, op), count);
    else
        comm_all_reduce(comm, NULL, x, op);
    expect_reduced(comm, x, 0, salt, op, started ? "started all_reduce" : "all_reduce");
    free(x.data);
}

static void try_reduce_scatter(Comm *comm, int64_t n, DType type, ReduceOp op, bool in_place, bool started) {
    int size = comm_size(comm), me = comm_rank(comm), salt = 40 + (int)type;
    Tensor in = tensor_new(n * size, type), own = tensor_new(n, type), out = own;
    fill(in, me, salt);
    if (in_place) out = tensor_part(in, me * n, n);
    if (started)
        finish(comm, comm_reduce_scatter_start(comm, NULL, in, out, op), n);
    else
        comm_reduce_scatter(comm, NULL, in, out, op);
    expect_reduced(comm, out, me * n, salt, op, in_place ? "reduce_scatter in place" : "reduce_scatter");
    int bad = 0;
    for (int64_t i = 0; !in_place && i < in.cols; i++)
        bad += get(in, i) != as_stored(value(me, i, salt), type);
    EXPECT(!bad, "reduce_scatter changed %d elements of its input", bad);
    free(in.data);
    free(own.data);
}

static void try_all_gather(Comm *comm, int64_t n, DType type, bool in_place, bool started) {
    int size = comm_size(comm), me = comm_rank(comm), salt = 50 + (int)type, bad = 0;
    Tensor own = tensor_new(n, type), out = tensor_new(n * size, type), in = own;
    if (in_place) in = tensor_part(out, me * n, n);
    fill(in, me, salt);
    if (started)
        finish(comm, comm_all_gather_start(comm, NULL, in, out), n);
    else
        comm_all_gather(comm, NULL, in, out);
    for (int64_t i = 0; i < out.cols; i++)
        bad += get(out, i) != as_stored(value((int)(i / n), i % n, salt), type);
    EXPECT(!bad, "all_gather of %lld %s over %d: %d wrong", (long long)n, dtype_name(type), size, bad);
    free(own.data);
    free(out.data);
}

// Rank r's slice for this rank is slice `rank` of what it had.
static int wrong_slices(Comm *comm, Tensor out, int salt) {
    int bad = 0;
    int64_t n = out.cols / comm_size(comm), mine = comm_rank(comm) * n;
    for (int64_t i = 0; i < out.cols; i++)
        bad += get(out, i) != as_stored(value((int)(i / n), mine + i % n, salt), out.dtype);
    return bad;
}

static void try_all_to_all(Comm *comm, int64_t n, DType type, bool started) {
    int size = comm_size(comm), me = comm_rank(comm), salt = 70 + (int)type;
    Tensor in = tensor_new(n * size, type), out = tensor_new(n * size, type);
    fill(in, me, salt);
    if (started)
        finish(comm, comm_all_to_all_start(comm, NULL, in, out), n);
    else
        comm_all_to_all(comm, NULL, in, out);
    int bad = wrong_slices(comm, out, salt), changed = 0;
    EXPECT(!bad, "all_to_all of %lld %s over %d: %d wrong", (long long)n, dtype_name(type), size, bad);
    for (int64_t i = 0; i < in.cols; i++) changed += get(in, i) != as_stored(value(me, i, salt), type);
    EXPECT(!changed, "all_to_all changed %d elements of its input", changed);
    free(in.data);
    free(out.data);
}

// Of large counts, the short form takes the widest type, blocking, and a narrow one, started.
static void law_each(Comm *comm, int64_t count) {
    bool tree = can_add_in_tree(comm_size(comm));
    for (int t = 0; t < NUM_TYPES; t++) {
        for (int kind = 0; kind < 4; kind++) {
            bool started = kind & 1, in_place = kind & 2;
            if (harness_short() && count > 1000 && types[t] != (started ? BF16 : F64)) continue;
            try_all_reduce(comm, count, types[t], in_place ? REDUCE_MAX : REDUCE_SUM, started);
            if (tree) try_all_reduce(comm, count, types[t], REDUCE_TREE, started);
            try_reduce_scatter(comm, count, types[t], REDUCE_SUM, in_place, started);
            if (tree) try_reduce_scatter(comm, count, types[t], REDUCE_TREE, in_place, started);
            try_all_gather(comm, count, types[t], in_place, started);
            if (!in_place) try_all_to_all(comm, count, types[t], started);
        }
    }
    try_all_gather(comm, count, I32, false, true);
    try_all_to_all(comm, count, I32, true);
}

// ---- several ------------------------------------------------------------------------------------------

static void law_broadcast(Comm *comm) {
    for (int c = 0; c < NUM_COUNTS; c++) {
        int root = c % comm_size(comm);
        Tensor x = tensor_new(counts[c], F32);
        fill(x, comm_rank(comm), 3);
        comm_broadcast(comm, NULL, x, root);
        int64_t bad = 0;
        for (int64_t i = 0; i < x.cols; i++) bad += get(x, i) != (double)(float)value(root, i, 3);
        EXPECT(!bad, "broadcast of %lld from %d: %lld wrong", (long long)counts[c], root, (long long)bad);
        free(x.data);
    }
    char text[700] = "";
    if (comm_rank(comm) == 0) memset(text, 'x', sizeof text - 1);
    comm_broadcast_host(comm, text, sizeof text, 0);
    EXPECT(strlen(text) == sizeof text - 1, "a text of %zu bytes", strlen(text));
}

// reduce_scatter and all_gather, both in place, leave what all_reduce leaves.
static void law_two_halves(Comm *comm) {
    for (int t = 0; t < NUM_TYPES; t++) {
        int64_t n = 1237;
        Tensor a = tensor_new(n * comm_size(comm), types[t]), b = tensor_new(a.cols, types[t]);
        Tensor mine = tensor_part(b, comm_rank(comm) * n, n);
        fill(a, comm_rank(comm), 60);
        fill(b, comm_rank(comm), 60);
        comm_all_reduce(comm, NULL, a, REDUCE_SUM);
        finish(comm, comm_reduce_scatter_start(comm, NULL, b, mine, REDUCE_SUM), n);
        finish(comm, comm_all_gather_start(comm, NULL, mine, b), n);
        EXPECT(!memcmp(a.data, b.data, tensor_bytes(a)), "%s: halves differ from the whole",
               dtype_name(types[t]));
        free(a.data);
        free(b.data);
    }
}

static void law_max_keeps_nan(Comm *comm) {
    for (int t = 0; t < NUM_TYPES; t++)
        for (int bad_rank = 0; bad_rank < comm_size(comm); bad_rank++) {
            Tensor x = tensor_new(2, types[t]);
            set(x, 0, comm_rank(comm) == bad_rank ? (double)NAN : 1.0);
            set(x, 1, -1.0 - comm_rank(comm));
            comm_all_reduce(comm, NULL, x, REDUCE_MAX);
            EXPECT(isnan(get(x, 0)), "%s: NaN of rank %d became %g", dtype_name(types[t]), bad_rank,
                   get(x, 0));
            EXPECT(get(x, 1) == -1, "%s: maximum %g", dtype_name(types[t]), get(x, 1));
            free(x.data);
        }
}

typedef struct {
    CommRequest *request;
    Comm *comm;
    Tensor whole, mine, other;
    int kind, salt;
} Flight;

// Kind 0: all_reduce; 1: reduce_scatter in place; 2: all_gather in place; 3: all_to_all.
static Flight take_off(Comm *comm, int i) {
    int64_t n = 1 + (i * 2477) % 9001;
    Flight f = {.comm = comm, .kind = i % 7 % 4, .salt = 100 + i};
    f.whole = tensor_new(n * comm_size(comm), types[i % NUM_TYPES]);
    f.mine = tensor_part(f.whole, comm_rank(comm) * n, n);
    f.other = tensor_new(f.kind == 3 ? f.whole.cols : 0, f.whole.dtype);
    fill(f.kind == 2 ? f.mine : f.whole, comm_rank(comm), f.salt);
    if (f.kind == 0) f.request = comm_all_reduce_start(comm, NULL, f.whole, REDUCE_SUM);
    if (f.kind == 1) f.request = comm_reduce_scatter_start(comm, NULL, f.whole, f.mine, REDUCE_SUM);
    if (f.kind == 2) f.request = comm_all_gather_start(comm, NULL, f.mine, f.whole);
    if (f.kind == 3) f.request = comm_all_to_all_start(comm, NULL, f.whole, f.other);
    return f;
}

static void land(Flight *f) {
    comm_wait(f->comm, NULL, &f->request);
    int64_t n = f->mine.cols, bad = 0;
    if (f->kind == 0) expect_reduced(f->comm, f->whole, 0, f->salt, REDUCE_SUM, "all_reduce in flight");
    if (f->kind == 1)
        expect_reduced(f->comm, f->mine, comm_rank(f->comm) * n, f->salt, REDUCE_SUM,
                       "reduce_scatter in flight");
    for (int64_t i = 0; f->kind == 2 && i < f->whole.cols; i++)
        bad += get(f->whole, i) != as_stored(value((int)(i / n), i % n, f->salt), f->whole.dtype);
    if (f->kind == 3) bad = wrong_slices(f->comm, f->other, f->salt);
    EXPECT(!bad, "kind %d, %d, in flight: %lld wrong", f->kind, f->salt, (long long)bad);
    free(f->other.data);
    free(f->whole.data);
}

// Started on three groups in one order, with messages around the ring and blocking calls in between, and
// awaited in reverse.
static void law_in_flight(Comm *world) {
    enum { FLIGHTS = 24 };
    int size = comm_size(world), me = comm_rank(world), half[8], n = 0;
    Comm *parity, *groups[3] = {world, world, world};
    for (int i = me % 2; i < size; i += 2) half[n++] = i;
    EXPECT_OK(comm_split(world, "parity", half, n, &parity));
    int all[8];
    for (int i = 0; i < size; i++) all[i] = size - 1 - i;
    EXPECT_OK(comm_split(world, "reversed", all, size, &groups[2]));
    groups[1] = parity;
    Flight flights[FLIGHTS];
    for (int i = 0; i < FLIGHTS; i++) {
        flights[i] = take_off(groups[i / 2 % 3], i);
        double token[2] = {100 * me + i, -1};
        CommRequest *recv =
            comm_recv(world, NULL, (Tensor){&token[1], 1, 1, F64}, (me + size - 1) % size, i % 2);
        CommRequest *send = comm_send(world, NULL, (Tensor){&token[0], 1, 1, F64}, (me + 1) % size, i % 2);
        comm_wait(world, NULL, &recv);
        comm_wait(world, NULL, &send);
        EXPECT(token[1] == 100 * ((me + size - 1) % size) + i, "token %g in round %d", token[1], i);
        double one = 1;
        if (i % 5 == 1) comm_all_reduce_host(groups[i % 3], &one, 1, REDUCE_SUM);
        EXPECT(i % 5 != 1 || one == comm_size(groups[i % 3]), "a blocking reduction among started ones: %g",
               one);
    }
    for (int i = FLIGHTS - 1; i >= 0; i--) land(&flights[i]);
    comm_close(groups[2]);
    comm_close(parity);
}

static Status laws(Comm *world, void *arg) {
    for (int c = 0; c < NUM_COUNTS; c++) law_each(world, counts[c]);
    for (const int64_t *large = arg; *large; large++) law_each(world, *large);
    law_broadcast(world);
    law_two_halves(world);
    law_max_keeps_nan(world);
    law_in_flight(world);
    return OK;
}

// Open MPI is not built for the thread sanitizer.
#if defined(__SANITIZE_THREAD__)
static const bool mpi_runs = false;
#else
static const bool mpi_runs = true;
#endif

// ---- where they are run -------------------------------------------------------------------------------

static void on_threads(void) {
    int64_t large[] = {0};
    for (int size = 1; size <= 8; size += harness_short() && size == 3 ? 5 : 1)
        EXPECT_OK(comm_launch(options_for("threads", size, false), laws, large));
}

static void checked(void) {
    int64_t large[] = {0};
    for (int size = 2; size <= 3; size++)
        EXPECT_OK(comm_launch(options_for("threads", size, true), laws, large));
}

static Status count_all(Comm *world, void *arg) {
    (void)arg;
    Tensor whole = tensor_new(80, BF16), part = tensor_new(10, BF16), other = tensor_new(80, BF16);
    CommRequest *gather = comm_all_gather_start(world, NULL, part, whole);
    CommRequest *scatter = comm_reduce_scatter_start(world, NULL, whole, part, REDUCE_SUM);
    comm_reduce_scatter(world, NULL, whole, part, REDUCE_SUM);
    comm_all_to_all(world, NULL, whole, other);
    comm_wait(world, NULL, &scatter);
    comm_wait(world, NULL, &gather);
    const CommCount *c = comm_counts(world);
    EXPECT(c[COMM_ALL_GATHER].calls == 1 && c[COMM_ALL_GATHER].bytes == 180, "%g bytes gathered",
           c[COMM_ALL_GATHER].bytes);
    EXPECT(c[COMM_REDUCE_SCATTER].calls == 2 && c[COMM_REDUCE_SCATTER].bytes == 360, "%g bytes scattered",
           c[COMM_REDUCE_SCATTER].bytes);
    EXPECT(c[COMM_ALL_TO_ALL].calls == 1 && c[COMM_ALL_TO_ALL].bytes == 320, "%g bytes from all to all",
           c[COMM_ALL_TO_ALL].bytes);
    free(whole.data);
    free(part.data);
    free(other.data);
    return OK;
}

// What is started counts like what blocks.
static void on_null(void) {
    CommOptions options = options_for("null", 8, false);
    options.null_rank = 5;
    EXPECT_OK(comm_launch(options, count_all, NULL));
}

static void on_mpi(void) {
    const char *transport = getenv("TRIREME_TEST_TRANSPORT");
    // More than small messages hold; than a chunk in shared memory, 256 KiB, or the scratch of messages, 2 MiB.
    int64_t large[] = {4097, strcmp(transport, "mpi") ? 180001 : 70001, 0};
    EXPECT_OK(comm_launch(options_for(transport, 0, getenv("TRIREME_TEST_CHECK")), laws, large));
}

static void become_mpirun(const char *transport, const char *ranks, bool check) {
    char self[512] = "";
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) _exit(126);
    setenv("TRIREME_TEST_TRANSPORT", transport, 1);
    if (check) setenv("TRIREME_TEST_CHECK", "1", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); // Open MPI's
    execl(TEST_FOLDER "/mpirun.sh", "mpirun.sh", ranks, self, NULL);
    _exit(127);
}

static void under_mpirun(void) {
    static const struct {
        const char *transport, *ranks;
        bool check;
    } runs[] = {{"mpi", "3", true}, {"mpi-messages", "3", false}, {"mpi", "2", false}, {"mpi", "4", false}};
    size_t count = harness_short() ? 2 : sizeof runs / sizeof *runs;
    for (size_t i = 0; mpi_runs && i < count; i++) {
        pid_t child = fork();
        if (child == 0) become_mpirun(runs[i].transport, runs[i].ranks, runs[i].check);
        int status = 0;
        EXPECT(waitpid(child, &status, 0) == child && status == 0, "%s ranks on %s end with status %d",
               runs[i].ranks, runs[i].transport, status);
    }
}

int main(int argc, char **argv) {
    if (launcher_ranks() > 0) return harness_run((const Test[]){{"on_mpi", on_mpi}, {0}}, argc, argv);
    return harness_run((const Test[]){{"on_threads", on_threads},
                                      {"checked", checked},
                                      {"on_null", on_null},
                                      {"under_mpirun", under_mpirun},
                                      {0}},
                       argc, argv);
}
