// Tests how the ranks of a machine share its cores.
#include "base/cores.h"
#include "harness.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static void write_number(const char *folder, int id, const char *what, int number) {
    char path[600];
    snprintf(path, sizeof path, "%s/cpu%d/topology/%s", folder, id, what);
    FILE *file = fopen(path, "w");
    EXPECT(file, "%s", path);
    if (!file) return;
    fprintf(file, "%d\n", number);
    fclose(file);
}

static void make_machine(const char *folder) {
    char path[600];
    for (int id = 0; id < 8; id++) {
        snprintf(path, sizeof path, "%s/cpu%d", folder, id);
        mkdir(path, 0700);
        strcat(path, "/topology");
        mkdir(path, 0700);
        write_number(folder, id, "physical_package_id", id % 4 / 2);
        write_number(folder, id, "core_id", id % 2);
    }
}

static void expect_text(Cores cores, const char *expected);

// Two ranks have a socket each, four a core each.
static void order(void) {
    Cores all = {8, {0, 1, 2, 3, 4, 5, 6, 7}}, ordered = all, mine;
    cores_order(&ordered, "/nowhere");
    EXPECT(!memcmp(&ordered, &all, sizeof all), "nothing is known, and nothing is moved");
    make_machine(harness_folder());
    cores_order(&ordered, harness_folder());
    cores_share(&ordered, 2, 4, 0, &mine);
    expect_text(mine, "0-1,4-5");
    cores_share(&ordered, 2, 1, 1, &mine);
    expect_text(mine, "2-3,6-7");
    cores_share(&ordered, 4, 2, 3, &mine);
    expect_text(mine, "3,7");
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
                                      {"binding", binding},
                                      {"words", words},
                                      {"waiting", waiting},
                                      {0}},
                       argc, argv);
}
