// Tests how the ranks of a machine share its cores.
#include "base/cores.h"
#include "sysfs_tree.h"
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *program; // as it was started

// Processors such as a container leaves them: with holes.
static Cores some(int count) {
    Cores all = {.count = count};
    for (int i = 0; i < count; i++) all.ids[i] = 2 * i + i / 5;
    return all;
}

static void check_shares(int count, int ranks, int threads) {
    Cores all = some(count), mine;
    int next = 0;
    bool fit = ranks * threads <= count;
    for (int rank = 0; rank < ranks; rank++) {
        EXPECT(cores_share(&all, ranks, threads, rank, &mine) == fit, "%d cores, %d ranks of %d threads",
               count, ranks, threads);
        EXPECT(mine.count >= threads || !fit, "rank %d has %d cores for %d threads", rank, mine.count,
               threads);
        EXPECT(mine.count <= count / ranks + 1 || !fit, "rank %d has %d of %d", rank, mine.count, count);
        for (int i = 0; fit && i < mine.count && next < count; i++, next++)
            EXPECT(mine.ids[i] == all.ids[next], "rank %d has core %d", rank, mine.ids[i]);
        EXPECT(fit || !memcmp(&mine, &all, sizeof all), "a rank that does not fit is left alone");
    }
    EXPECT(next == (fit ? count : 0), "%d of %d cores are used", next, count);
}

// Each core belongs to one rank, in order, and to each rank about as many, enough for its threads.
static void shares(void) {
    for (int count = 1; count <= 20; count++)
        for (int ranks = 1; ranks <= count + 1; ranks++)
            for (int threads = 1; threads <= count; threads++) check_shares(count, ranks, threads);
    check_shares(CORES_MAX / 2, 7, 3);
}

// ---- where processors are: two sockets of two cores of two threads ----------------------------------------

static void make_machine(const char *root) {
    for (int id = 0; id < 8; id++) tree_processor(root, id, id % 4 / 2, id % 2);
}

static void expect_text(Cores cores, const char *expected);

static void expect_advice(Cores cores, int threads, const char *expected) {
    Text text = {0};
    cores_print_domains(&cores, threads, harness_path("machine"), &text);
    EXPECT(!strcmp(text_string(&text), expected), "%s", text_string(&text));
    text_free(&text);
}

// Two ranks have a socket each, four a core each.
static void order(void) {
    Cores all = {8, {0, 1, 2, 3, 4, 5, 6, 7}}, ordered = all, mine;
    cores_order(&ordered, "/nowhere");
    EXPECT(!memcmp(&ordered, &all, sizeof all), "nothing is known, and nothing is moved");
    make_machine(harness_path("machine"));
    cores_order(&ordered, harness_path("machine"));
    cores_share(&ordered, 2, 4, 0, &mine);
    expect_text(mine, "0-1,4-5");
    cores_share(&ordered, 2, 1, 1, &mine);
    expect_text(mine, "2-3,6-7");
    cores_share(&ordered, 4, 2, 3, &mine);
    expect_text(mine, "3,7");
    expect_advice(mine, 2, "");
    expect_advice(all, 4, "");
    expect_advice(all, 5, ", in 2 NUMA domains: start 2 ranks in its place, and each uses the memory of one");
}

// The shares of ranks in sixteen cores of one socket, of four NUMA domains of which the last one has `last` cores.
static void expect_domains(const char *what, int last, int ranks, int threads, const char *const *shares) {
    const char *root = harness_path(what);
    static const char *const lists[] = {"0,4,8,12", "1,5,9,13", "2,6,10,14", "3,7,11,15"};
    for (int id = 0; id < 16; id++) tree_processor(root, id, 0, id);
    tree_write(root, "0-3", "devices/system/node/online");
    for (int i = 0; i < 4; i++) tree_write(root, lists[i], "devices/system/node/node%d/cpulist", i);
    Cores allowed = {12 + last, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}, none = {0}, mine;
    RankCores all[8];
    for (int r = 0; r < ranks; r++) all[r] = cores_of_rank(&allowed, &none);
    EXPECT(cores_order(&allowed, root) == 4, "four domains");
    for (int r = 0; r < ranks; r++) {
        EXPECT(cores_divide(all, ranks, threads, r, root, &mine), "%s: rank %d", what, r);
        expect_text(mine, shares[r]);
    }
}

// A rank stays in one domain, or has whole ones, where numbers permit it.
static void domains(void) {
    static const char *const one_each[] = {"0,4,8,12", "1,5,9,13", "2,6,10,14", "3,7,11,15"};
    expect_domains("one each", 4, 4, 4, one_each);
    expect_domains("two each", 4, 2, 8, (const char *[]){"0-1,4-5,8-9,12-13", "2-3,6-7,10-11,14-15"});
    expect_domains("halves", 4, 8, 2,
                   (const char *[]){"0,4", "8,12", "1,5", "9,13", "2,6", "10,14", "3,7", "11,15"});
    // A cpuset without core 15: shares are whole domains, not quarters of fifteen cores.
    expect_domains("cpuset", 3, 4, 3, (const char *[]){"0,4,8,12", "1,5,9,13", "2,6,10,14", "3,7,11"});
    // Three ranks do not divide four domains.
    expect_domains("three", 4, 3, 5, (const char *[]){"0-1,4,8,12", "2,5-6,9,13", "3,7,10-11,14-15"});
}

static void binding(void) {
    Cores before, now, one;
    cores_allowed(&before);
    EXPECT(before.count >= 1, "%d processors", before.count);
    one = before;
    one.ids[0] = before.ids[before.count - 1];
    one.count = 1;
    cores_bind(&one);
    cores_allowed(&now);
    EXPECT(now.count == 1 && now.ids[0] == one.ids[0], "bound to %d, on %d of %d", one.ids[0], now.ids[0],
           now.count);
    cores_bind(&before);
    cores_allowed(&now);
    EXPECT(!memcmp(&now, &before, sizeof now), "let go of again");
}

static void expect_text(Cores cores, const char *expected) {
    Text text = {0};
    cores_print(&cores, &text);
    EXPECT(!strcmp(text_string(&text), expected), "%s, not %s", text_string(&text), expected);
    text_free(&text);
}

static void words(void) {
    expect_text((Cores){1, {3}}, "3");
    expect_text((Cores){4, {0, 1, 2, 3}}, "0-3");
    expect_text((Cores){5, {0, 2, 3, 7, 9}}, "0,2-3,7,9");
}

static void expect_list(const char *text, const char *expected) {
    Cores cores;
    tree_write(harness_folder(), text, "list");
    cores_read(harness_path("list"), &cores);
    expect_text(cores, expected);
}

static void lists(void) {
    Cores none;
    expect_list("0", "0");
    expect_list("0-3,8", "0-3,8");
    expect_list("0,2,4,1020-1030", "0,2,4,1020-1023");
    expect_list("", "");
    expect_list("0-3 8", "");
    expect_list("0-", "");
    expect_list("-1", "");
    expect_list("all", "");
    cores_read(harness_path("no-list"), &none);
    EXPECT(!none.count, "a file that does not exist");
}

// ---- ranks with GPUs --------------------------------------------------------------------------------------

// A machine's ranks: what each may use, and what is near its GPU, as lists of the system.
typedef struct {
    const char *allowed, *near;
} Rank;

static Cores read_list(const char *text) {
    Cores cores;
    tree_write(harness_folder(), text, "list");
    cores_read(harness_path("list"), &cores);
    return cores;
}

// Expects the ranks' shares, and that each rank is bound, or that none is.
static void expect_shares(const char *what, const Rank *ranks, int num_ranks, int threads, bool bound,
                          const char *const *shares) {
    RankCores all[16];
    for (int r = 0; r < num_ranks; r++) {
        const Cores allowed = read_list(ranks[r].allowed), near = read_list(ranks[r].near);
        all[r] = cores_of_rank(&allowed, &near);
    }
    for (int r = 0; r < num_ranks; r++) {
        Cores mine;
        Text text = {0};
        EXPECT(cores_divide(all, num_ranks, threads, r, "/nowhere", &mine) == bound, "%s: rank %d", what, r);
        cores_print(&mine, &text);
        EXPECT(!strcmp(text_string(&text), shares[r]), "%s: rank %d has %s, not %s", what, r,
               text_string(&text), shares[r]);
        text_free(&text);
    }
}

static void near_gpus(void) {
    static const Rank two_sockets[] = {{"0-15", "0-7"},  {"0-15", "0-7"},  {"0-15", "0-7"},
                                       {"0-15", "0-7"},  {"0-15", "8-15"}, {"0-15", "8-15"},
                                       {"0-15", "8-15"}, {"0-15", "8-15"}};
    static const char *const pairs[] = {"0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"};
    expect_shares("two sockets", two_sockets, 8, 1, true, pairs);
    expect_shares("two sockets, all threads", two_sockets, 8, 2, true, pairs);
    expect_shares("one rank", two_sockets, 1, 1, true, (const char *[]){"0-7"});
    expect_shares("three ranks", two_sockets + 3, 3, 4, true, (const char *[]){"0-7", "8-11", "12-15"});
    // The GPUs' order is not that of the sockets.
    static const Rank crossed[] = {{"0-3", "2-3"}, {"0-3", "0-1"}, {"0-3", "2-3"}, {"0-3", "0-1"}};
    expect_shares("crossed", crossed, 4, 1, true, (const char *[]){"2", "0", "3", "1"});
    // A cpuset that is smaller than the nodes; of the second one, it holds a single core.
    static const Rank small[] = {{"4-8", "0-7"}, {"4-8", "0-7"}, {"4-8", "8-15"}};
    expect_shares("cpuset", small, 3, 1, true, (const char *[]){"4-5", "6-7", "8"});
    // A launcher has divided the ranks by socket, or has given each its own.
    static const Rank launched[] = {{"0-7", "0-7"}, {"8-15", "8-15"}, {"0-7", "0-7"}, {"3", "8-15"}};
    expect_shares("launched", launched, 4, 1, true, (const char *[]){"0-3", "8-15", "4-7", "3"});
}

// Shares are those of ranks without GPUs.
static void not_near_gpus(void) {
    static const char *const quarters[] = {"0-3", "4-7", "8-11", "12-15"};
    static const Rank without_node[] = {{"0-15", "8-15"}, {"0-15", ""}, {"0-15", "0-7"}, {"0-15", "0-7"}};
    expect_shares("a GPU without node", without_node, 4, 1, true, quarters);
    static const Rank elsewhere[] = {{"0-15", "16-31"}, {"0-15", "0-7"}, {"0-15", "0-7"}, {"0-15", "0-7"}};
    expect_shares("a cpuset without a core of the node", elsewhere, 4, 1, true, quarters);
    static const Rank many[] = {{"0-15", "14-15"}, {"0-15", "14-15"}, {"0-15", "14-15"}, {"0-15", "0-13"}};
    expect_shares("more ranks than cores of a node", many, 4, 1, true, quarters);
    expect_shares("more threads than cores of a node", many + 1, 3, 2, true,
                  (const char *[]){"0-4", "5-9", "10-15"});
    static const Rank overlapping[] = {{"0-15", "0-9"}, {"0-15", "8-15"}, {"0-15", "0-9"}, {"0-15", "0-9"}};
    expect_shares("nodes that overlap", overlapping, 4, 1, true, quarters);
    static const Rank crowded[] = {{"0-1", "0"}, {"0-1", "0"}, {"0-1", "1"}};
    expect_shares("more ranks than cores", crowded, 3, 1, false, (const char *[]){"0-1", "0-1", "0-1"});
}

static void limits(void) {
    Cores all;
    cores_allowed(&all);
    int usable = cores_usable();
    EXPECT(usable >= 1 && usable <= all.count, "%d of %d processors", usable, all.count);
    EXPECT(cores_limit(1) == 1, "%d threads", cores_limit(1));
    EXPECT(cores_limit(usable + 1) == usable, "%d threads", cores_limit(usable + 1));
}

// ---- waiting: this program starts itself, as its own child ------------------------------------------------

// The child's exit status: 0 when it has `wanted` ("": nothing) in GOMP_SPINCOUNT, and its own name.
static int tell_of_waiting(char **argv, const char *wanted) {
    char name[64] = "", own[64];
    cores_wait_briefly(argv);
    const char *turns = getenv("GOMP_SPINCOUNT"), *path = strrchr(argv[0], '/');
    FILE *file = fopen("/proc/self/comm", "r");
    if (file && !fgets(name, sizeof name, file)) *name = 0;
    if (file) fclose(file);
    snprintf(own, sizeof own, "%.15s\n", path ? path + 1 : argv[0]); // as much as the system keeps
    if (strcmp(turns ? turns : "-", *wanted ? wanted : "-") != 0) return 1;
    return file && strcmp(name, own) != 0 ? 2 : 0;
}

static void expect_waiting(const char *variable, const char *value, const char *wanted) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        unsetenv("OMP_WAIT_POLICY"), unsetenv("GOMP_SPINCOUNT"), unsetenv("KMP_BLOCKTIME");
        if (variable) setenv(variable, value, 1);
        execl(program, program, "--waits", wanted, (char *)NULL);
        _exit(127);
    }
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s=%s: status %x", variable ? variable : "nothing",
           value, (unsigned)status);
}

// Set once where the user has not chosen; a process keeps its name.
static void waiting(void) {
    if (access("/proc/self/exe", R_OK) != 0) return;
    expect_waiting(NULL, "", "1000");
    expect_waiting("OMP_WAIT_POLICY", "active", "");
    expect_waiting("KMP_BLOCKTIME", "5", "");
    expect_waiting("GOMP_SPINCOUNT", "7", "7");
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "--waits")) return tell_of_waiting(argv, argv[2]);
    program = argv[0];
    return harness_run((const Test[]){{"shares", shares},
                                      {"order", order},
                                      {"domains", domains},
                                      {"binding", binding},
                                      {"words", words},
                                      {"lists", lists},
                                      {"near_gpus", near_gpus},
                                      {"not_near_gpus", not_near_gpus},
                                      {"limits", limits},
                                      {"waiting", waiting},
                                      {0}},
                       argc, argv);
}
