// How jobs end when something is wrong: each case runs in a process of its own, on threads, under mpirun and over
// connections of its own, and the test looks at the exit status, at what was said, and at how long it took.
//   test_comm_failures --case NAME TRANSPORT RANKS   runs one case
#include "base/libraries.h"
#include "comm/comm.h"
#include "harness.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

// Open MPI is not built for the thread sanitizer.
static bool mpi_runs(void) {
#if defined(__SANITIZE_THREAD__)
    return false;
#else
    return library_present(LIBRARY_MPI);
#endif
}

// MPICH's mpirun sometimes returns that it killed the other ranks, instead of the status of the one that failed.
#if __has_include(<mpi.h>)
#include <mpi.h>
#endif
#if defined(MPICH_VERSION)
static const int other_status = SIGKILL;
#else
static const int other_status = -1;
#endif

// After which waiting is a hang: longer than a busy machine takes to start the ranks of all jobs here.
#define LIMIT_S 3.0

static void rest(double seconds) {
    for (int i = 0; i < (int)(seconds * 100); i++) usleep(10000);
}

// ---- the cases: what the ranks do wrong ------------------------------------------------------------------

static Tensor floats(int64_t count) { return (Tensor){calloc((size_t)count, sizeof(float)), 1, count, F32}; }

static Status other_operation(Comm *world) {
    rank_doing(comm_rank(world) == 1 ? "F3.0" : "B1.0");
    Tensor x = floats(512);
    if (comm_rank(world) == 1)
        comm_all_reduce(world, NULL, x, REDUCE_SUM);
    else
        comm_broadcast(world, NULL, x, 0);
    return OK;
}

static Status other_size(Comm *world) {
    comm_barrier(world);
    comm_all_reduce(world, NULL, floats(comm_rank(world) ? 100 : 101), REDUCE_SUM);
    return OK;
}

static Status other_order(Comm *world) {
    Tensor x = floats(7);
    CommRequest *request =
        comm_all_reduce_start(world, NULL, x, comm_rank(world) == 1 ? REDUCE_MAX : REDUCE_SUM);
    CommRequest *second =
        comm_all_reduce_start(world, NULL, x, comm_rank(world) == 1 ? REDUCE_SUM : REDUCE_MAX);
    comm_wait(world, NULL, &request);
    comm_wait(world, NULL, &second);
    return OK;
}

static Status other_type(Comm *world) {
    Tensor in = floats(600), out = floats(200);
    in.dtype = out.dtype = comm_rank(world) == 2 ? F16 : BF16;
    CommRequest *request = comm_reduce_scatter_start(world, NULL, in, out, REDUCE_SUM);
    comm_wait(world, NULL, &request);
    return OK;
}

// Slice 0 in place is rank 0's; on the others it would be overwritten while it is read.
static Status other_slice(Comm *world) {
    Tensor whole = floats(300);
    comm_all_gather(world, NULL, tensor_part(whole, 0, 100), whole);
    return OK;
}

static Status other_message_size(Comm *world) {
    CommRequest *request = NULL;
    if (comm_rank(world) == 0) request = comm_send(world, NULL, floats(10), 1, 2);
    if (comm_rank(world) == 1) request = comm_recv(world, NULL, floats(20), 0, 2);
    comm_wait(world, NULL, &request);
    comm_barrier(world);
    return OK;
}

static Status no_answer(Comm *world) {
    rank_doing("rf3.1");
    CommRequest *request = NULL;
    if (comm_rank(world) == 0) request = comm_recv(world, NULL, floats(10), 1, 2);
    comm_wait(world, NULL, &request);
    rank_doing("a long rest");
    rest(60);
    return OK;
}

static Status absent(Comm *world) {
    if (comm_rank(world) == 1) rest(60);
    comm_barrier(world);
    return OK;
}

static Status absent_at_another_limit(Comm *world) {
    comm_set_timeout(world, LIMIT_S, "a limit of its own");
    return absent(world);
}

static Status reduce_without_rank_1(Comm *world, int count) {
    CommRequest *last = NULL;
    if (comm_rank(world) == 1) rest(60);
    for (int i = 0; i < count; i++) last = comm_all_reduce_start(world, NULL, floats(100), REDUCE_SUM);
    comm_wait(world, NULL, &last);
    return OK;
}

// More than are in flight at a time, and one waits for the last.
static Status absent_behind(Comm *world) { return reduce_without_rank_1(world, 4); }

// So many that the last one has no slot yet: those who have entered what holds it are not waited for.
static Status absent_far_behind(Comm *world) { return reduce_without_rank_1(world, 12); }

static Status bug(Comm *world) {
    if (comm_rank(world) == 1) CHECK(comm_size(world) == 0, "a bug on purpose");
    comm_barrier(world);
    return OK;
}

static Status lone_error(Comm *world) {
    if (comm_rank(world) == 1) return fail(ERR_DATA, "a damaged file");
    comm_barrier(world);
    return OK;
}

static Status agreed_error(Comm *world) {
    return comm_agree(world, comm_rank(world) == 1 ? fail(ERR_DATA, "a damaged file") : OK);
}

// Leaves its process number behind, for the test to see that nothing stays.
static void sign(const Comm *world) {
    char path[512];
    snprintf(path, sizeof path, "%s.%d", getenv("TRIREME_TEST_PIDS"), comm_rank(world));
    FILE *file = fopen(path, "w");
    if (!file) return;
    fprintf(file, "%d\n", (int)getpid());
    fclose(file);
}

static Status stopped(Comm *world) {
    sign(world);
    comm_barrier(world);
    if (comm_rank(world) == 1) raise(SIGSTOP);
    comm_barrier(world);
    return OK;
}

static Status stopped_before_split(Comm *world) {
    Comm *pair;
    const int ranks[] = {0, 1};
    sign(world);
    comm_barrier(world);
    if (comm_rank(world) == 1) raise(SIGSTOP);
    if (comm_rank(world) > 1) return OK;
    TRY(comm_split(world, "pair", ranks, 2, &pair));
    comm_close(pair);
    return OK;
}

static Status stopped_at_the_end(Comm *world) {
    sign(world);
    comm_barrier(world);
    if (comm_rank(world) == 1) raise(SIGSTOP);
    return OK;
}

static Status killed(Comm *world) {
    sign(world);
    comm_barrier(world);
    if (comm_rank(world) == 1) raise(SIGKILL);
    comm_barrier(world);
    return OK;
}

// A third of the time limit passes in waiting; meanwhile the test stops the whole process for longer than it.
static Status slow(Comm *world) {
    if (comm_rank(world) == 1) rest(LIMIT_S / 3);
    comm_barrier(world);
    return OK;
}

static const struct {
    const char *name;
    Status (*run)(Comm *world);
    double timeout_s;
    bool check, any_order;
    int ranks; // 0: as the launcher says
    int cores; // that all ranks share; 0: those of the machine
} cases[] = {
    {"other_operation", other_operation, .timeout_s = 30, .check = true},
    {"other_size", other_size, .timeout_s = 30, .check = true},
    {"other_order", other_order, .timeout_s = 30, .check = true},
    {"other_type", other_type, .timeout_s = 30, .check = true},
    {"other_slice", other_slice, .timeout_s = 30},
    {"other_message_size", other_message_size, .timeout_s = 30},
    {"no_answer", no_answer, .timeout_s = LIMIT_S},
    {"absent", absent, .timeout_s = LIMIT_S},
    {"absent_at_another_limit", absent_at_another_limit, .timeout_s = 1000},
    {"absent_behind", absent_behind, .timeout_s = LIMIT_S},
    {"absent_far_behind", absent_far_behind, .timeout_s = LIMIT_S, .cores = 1},
    {"absent_any_order", absent_behind, .timeout_s = LIMIT_S, .any_order = true},
    {"other_ranks", absent, .timeout_s = 30, .ranks = 5},
    {"bug", bug, .timeout_s = 30},
    {"lone_error", lone_error, .timeout_s = 30},
    {"agreed_error", agreed_error, .timeout_s = 30},
    {"stopped", stopped, .timeout_s = LIMIT_S},
    {"stopped_before_split", stopped_before_split, .timeout_s = LIMIT_S},
    {"stopped_at_the_end", stopped_at_the_end, .timeout_s = LIMIT_S},
    {"killed", killed, .timeout_s = 30},
    {"slow", slow, .timeout_s = LIMIT_S},
};

static Status run_selected(Comm *world, void *index) { return cases[*(int *)index].run(world); }

static int run_case(char **argv) {
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        if (strcmp(cases[i].name, argv[0]) != 0) continue;
        CommOptions options = {.transport = argv[1],
                               .ranks = cases[i].ranks ? cases[i].ranks : atoi(argv[2]),
                               .timeout_s = cases[i].timeout_s,
                               .check = cases[i].check,
                               .cores = cases[i].cores,
                               .deterministic = !cases[i].any_order};
        Status status = comm_launch(options, run_selected, &i);
        if (status != OK && *fail_message()) fprintf(stderr, "trireme: error: %s\n", fail_message());
        if (status != OK && launcher_rank() == 0) rest(1); // time for others to say it a second time
        return (int)status;
    }
    return ERR_USAGE;
}

// ---- the other side -----------------------------------------------------------------------------------

typedef struct {
    int status; // exit code, or 128 + signal
    double seconds;
    char said[20000];
} Outcome;

static void become_case(const char *name, const char *transport, const char *said) {
    int file = open(said, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    char self[512] = "", pids[512];
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) _exit(126);
    snprintf(pids, sizeof pids, "%s/%s", harness_folder(), name);
    setenv("TRIREME_TEST_PIDS", pids, 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); // jobs that are ended do not clean up
    setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 1);
    setenv("PRTE_MCA_odls_base_sigkill_timeout", "0", 1);
    if (!strcmp(transport, "threads"))
        execl(self, self, "--case", name, transport, "3", NULL);
    else if (!strcmp(transport, "tcp"))
        execl(TEST_FOLDER "/tcprun.sh", "tcprun.sh", "3", self, "--case", name, transport, "0", NULL);
    else
        execl(TEST_FOLDER "/mpirun.sh", "mpirun.sh", "3", self, "--case", name, transport, "0", NULL);
    _exit(127);
}

static void read_said(const char *path, Outcome *outcome) {
    FILE *file = fopen(path, "r");
    size_t size = file ? fread(outcome->said, 1, sizeof outcome->said - 1, file) : 0;
    outcome->said[size] = 0;
    // Open MPI 5 writes zero bytes between its lines.
    for (size_t i = 0; i < size; i++)
        if (!outcome->said[i]) outcome->said[i] = ' ';
    if (file) fclose(file);
}

static pid_t start_case(const char *name, const char *transport, const char *said) {
    pid_t child = fork();
    if (child == 0) become_case(name, transport, said);
    return child;
}

static void finish_case(pid_t child, double start, const char *said, Outcome *outcome) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    outcome->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome->seconds = clock_s() - start;
    read_said(said, outcome);
}

static void said_path(char *path, size_t size, int number) {
    snprintf(path, size, "%s/said.%d", harness_folder(), number);
}

static int occurrences(const char *text, const char *word) {
    int n = 0;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) n++;
    return n;
}

typedef struct {
    const char *name, *transport;
    int status;
    const char *words[4];
} Expectation;

static void compare(const Expectation *e, const Outcome *o) {
    bool launched = strcmp(e->transport, "threads") != 0;
    EXPECT(o->status == e->status || (launched && o->status == other_status),
           "%s on %s ended with %d, not %d:\n%s", e->name, e->transport, o->status, e->status, o->said);
    EXPECT(o->seconds < 100, "%s on %s took %.1f s", e->name, e->transport, o->seconds);
    for (int i = 0; i < 4 && e->words[i]; i++)
        EXPECT(strstr(o->said, e->words[i]), "%s on %s did not say '%s':\n%s", e->name, e->transport,
               e->words[i], o->said);
    EXPECT(occurrences(o->said, "trireme: error:") <= 1, "%s on %s said it more than once:\n%s", e->name,
           e->transport, o->said);
}

// Runs the cases side by side: most of their time is waiting.
static void expect_all(const Expectation *expectations, int count) {
    enum { MAX_CHILDREN = 10 };
    pid_t children[MAX_CHILDREN];
    char said[MAX_CHILDREN][512];
    double start = clock_s();
    for (int i = 0; i < count; i++) {
        said_path(said[i], sizeof said[i], i);
        bool runs = mpi_runs() || strncmp(expectations[i].transport, "mpi", 3) != 0;
        children[i] = runs ? start_case(expectations[i].name, expectations[i].transport, said[i]) : 0;
    }
    for (int i = 0; i < count; i++) {
        Outcome o;
        if (!children[i]) continue;
        finish_case(children[i], start, said[i], &o);
        compare(&expectations[i], &o);
    }
}

static void mismatches(void) {
    static const char operation[] =
        "group world: rank 1 calls all_reduce (sum) of 512 f32 where rank 0 calls broadcast of 512";
    static const char size[] =
        "rank 1 calls all_reduce (sum) of 100 f32 where rank 0 calls all_reduce (sum) of 101 f32";
    static const char message[] = "rank 0 sends 40 bytes on channel 2 to rank 1, which expects 80";
    const Expectation expectations[] = {
        {"other_operation", "threads", ERR_BUG, {operation, "(call 1; at F3.0 / B1.0)"}},
        {"other_operation", "mpi", ERR_BUG, {operation, "(call 1; at F3.0 / B1.0)"}},
        {"other_message_size", "threads", ERR_BUG, {message}},
        {"other_message_size", "mpi", ERR_BUG, {message}},
        {"other_type", "threads", ERR_BUG, {"rank 2 calls reduce_scatter (sum) of 200 f16", "of 200 bf16"}},
        {"other_slice", "threads", ERR_BUG, {"all_gather of group world: a slice overlaps the whole"}},
        {"other_size", "threads", ERR_BUG, {size, "call 2", "others that differ: 2"}},
        {"other_order", "threads", ERR_BUG, {"(max) of 7 f32", "(sum) of 7 f32", "call 1"}},
    };
    expect_all(expectations, sizeof expectations / sizeof *expectations);
}

static void hangs(void) {
    static const char receive[] = "at rf3.1 for rank 1 in recv on channel 2 of world";
    static const char event[] = "recv of 10 elements from rank 1 on channel 2";
    const Expectation expectations[] = {
        {"no_answer",
         "threads",
         ERR_HANG,
         {"hang: [rank 0] has waited", receive, event, "[rank 1] is at a long rest"}},
        {"no_answer", "mpi", ERR_HANG, {"hang: [rank 0] has waited", receive, event}},
        {"absent",
         "threads",
         ERR_HANG,
         {"for rank 1 in barrier of world (limit 3 s; --distributed-timeout-"}},
        {"absent_at_another_limit", "threads", ERR_HANG, {"(limit 3 s: a limit of its own; --distributed-"}},
        {"absent", "mpi", ERR_HANG, {"for rank 1 in barrier of world"}},
        {"absent", "mpi-messages", ERR_HANG, {"for rank 1 in barrier of world"}},
        {"absent_far_behind", "threads", ERR_HANG, {"for rank 1 in all_reduce of world"}},
        {"absent_behind", "mpi", ERR_HANG, {"for rank 1 in all_reduce of world"}},
        {"absent_behind", "mpi-messages", ERR_HANG, {"for rank 1 in all_reduce of world"}},
        {"absent_any_order", "mpi-messages", ERR_HANG, {"for rank 1 2 in all_reduce of world"}},
    };
    expect_all(expectations, sizeof expectations / sizeof *expectations);
}

static void ends(void) {
    static const char agreed[] = "trireme: error: [rank 1] a damaged file\n";
    static const char lone[] = "trireme: error: [rank 1] a damaged file (others were still at work";
    const Expectation expectations[] = {
        {"bug", "threads", ERR_BUG, {"[rank 1] a bug on purpose"}},
        {"bug", "mpi", ERR_BUG, {"[rank 1] a bug on purpose"}},
        {"agreed_error", "threads", ERR_DATA, {agreed}},
        {"agreed_error", "mpi", ERR_DATA, {agreed}},
        {"lone_error", "threads", ERR_DATA, {lone}},
        {"lone_error", "mpi", ERR_DATA, {lone}},
        {"other_ranks", "mpi", ERR_CONFIG, {"5 ranks are wanted, the launcher started 3"}},
    };
    expect_all(expectations, sizeof expectations / sizeof *expectations);
}

static int signed_pid(const char *name, int rank) {
    char path[512];
    int pid = 0;
    snprintf(path, sizeof path, "%s/%s.%d", harness_folder(), name, rank);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%d", &pid) != 1) pid = 0;
    if (file) fclose(file);
    return pid;
}

// Neither running nor stopped; a zombie that nobody has collected yet is dead.
static bool is_dead(int pid) {
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
    if (file) fclose(file);
    return state == 'X' || state == 'Z';
}

static void expect_dead(const char *name) {
    for (int rank = 0; rank < 3; rank++) {
        int pid = signed_pid(name, rank);
        for (int i = 0; i < 50 && !is_dead(pid); i++) rest(0.1);
        EXPECT(pid > 0 && is_dead(pid), "%s: rank %d still runs as process %d", name, rank, pid);
    }
}

static void stopped_rank_ends_the_job(void) {
    const Expectation expectations[] = {
        {"stopped", "mpi", ERR_HANG, {"for rank 1 in barrier of world"}},
        {"stopped_before_split", "mpi", ERR_HANG, {"for the other ranks in the set-up of group pair"}},
        {"stopped_at_the_end",
         "mpi",
         ERR_HANG,
         {"for the other ranks in the end of the job (the limit; --distributed-timeout-"}},
    };
    if (!mpi_runs()) return;
    expect_all(expectations, sizeof expectations / sizeof *expectations);
    for (int i = 0; i < 3; i++) expect_dead(expectations[i].name);
}

static void over_connections(void) {
    static const char operation[] = "rank 1 calls all_reduce (sum) of 512 f32 where rank 0 calls broadcast";
    const Expectation first[] = {
        {"other_operation", "tcp", ERR_BUG, {operation, "(call 1; at F3.0 / B1.0)"}},
        {"other_message_size", "tcp", ERR_BUG, {"rank 0 sends 40 bytes on channel 2 to rank 1"}},
        {"no_answer", "tcp", ERR_HANG, {"hang: [rank 0] has waited", "in recv on channel 2 of world"}},
        {"absent", "tcp", ERR_HANG, {"for rank 1 in barrier of world"}},
        {"absent_behind", "tcp", ERR_HANG, {"for rank 1 in all_reduce of world"}},
        {"bug", "tcp", ERR_BUG, {"[rank 1] a bug on purpose", "[rank 2] rank 1 has failed"}},
        {"agreed_error", "tcp", ERR_DATA, {"trireme: error: [rank 1] a damaged file\n"}},
        {"lone_error", "tcp", ERR_DATA, {"error: [rank 1] a damaged file (others were still at work"}},
        {"other_ranks", "tcp", ERR_CONFIG, {"5 ranks are wanted, the launcher started 3"}}};
    static const char gone[] = "[rank 0] rank 1 ended without saying why",
                      told[] = "[rank 2] rank 1 has failed";
    const Expectation second[] = {
        {"killed", "tcp", 128 + SIGKILL, {gone, told}},
        {"stopped", "tcp", ERR_HANG, {"for rank 1 in barrier of world"}},
        {"stopped_at_the_end", "tcp", ERR_HANG, {"ranks in the end of the job (the limit;"}}};
    expect_all(first, sizeof first / sizeof *first);
    expect_all(second, sizeof second / sizeof *second);
    for (int i = 0; i < 3; i++) expect_dead(second[i].name);
}

static void stopped_time_does_not_count(void) {
    char said[512];
    Outcome o;
    said_path(said, sizeof said, 0);
    double start = clock_s();
    pid_t child = start_case("slow", "threads", said);
    rest(LIMIT_S / 6);
    kill(child, SIGSTOP);
    rest(LIMIT_S * 1.3);
    kill(child, SIGCONT);
    finish_case(child, start, said, &o);
    EXPECT(o.status == OK, "a stop of the whole job ended it with %d:\n%s", o.status, o.said);
}

int main(int argc, char **argv) {
    if (argc == 5 && !strcmp(argv[1], "--case")) return run_case(argv + 2);
    return harness_run((const Test[]){{"mismatches", mismatches},
                                      {"hangs", hangs},
                                      {"ends", ends},
                                      {"stopped_rank_ends_the_job", stopped_rank_ends_the_job},
                                      {"over_connections", over_connections},
                                      {"stopped_time_does_not_count", stopped_time_does_not_count},
                                      {0}},
                       argc, argv);
}
