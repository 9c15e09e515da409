// How the ranks of a job without MPI find each other: each case starts processes with the variables of a launcher and
// looks at how they end and what they say, among others, strangers, and ranks of other jobs.
#include "comm/comm.h"
#include "comm/meeting.h"
#include "harness.h"
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RANKS = 4, STRANGERS = 300 };

// What a rank leaves behind.
typedef struct {
    int status;
    double at_s;
    char message[1024];
} Ended;

static Ended *ended;    // [MAX_RANKS] shared with the processes
static int tried_ports; // how many this test has taken

// A port that nobody else is likely to use: tests run side by side.
static int new_port(void) { return 10000 + (getpid() * 7 + tried_ports++ * 131) % 20000; }

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static Status add_up(Comm *world, void *arg) {
    (void)arg;
    double sum[2] = {comm_rank(world) + 1, 1};
    comm_all_reduce_host(world, sum, 2, REDUCE_SUM);
    int size = comm_size(world);
    return sum[0] == size * (size + 1) / 2.0 && sum[1] == size ? OK
                                                               : fail(ERR_NUMERIC, "the sum is %g", sum[0]);
}

// Starts a process as rank `rank` of `size`; its end goes to ended[slot].
static pid_t start(int slot, int rank, int size, int port, double timeout_s, RankMain *rank_main) {
    pid_t child = fork();
    if (child) return child;
    set_number("RANK", rank);
    set_number("WORLD_SIZE", size);
    setenv("MASTER_ADDR", "127.0.0.1", 0);
    set_number("MASTER_PORT", port);
    CommOptions options = {.transport = "tcp", .timeout_s = timeout_s, .deterministic = true, .threads = 1};
    ended[slot].status = (int)comm_launch(options, rank_main, NULL);
    ended[slot].at_s = clock_s();
    snprintf(ended[slot].message, sizeof ended[slot].message, "%s", fail_message());
    _exit(0);
}

static atomic_int stopped;
static void stop(int number) { stopped = number; }

// The same with a plan of its own, as far as the meeting.
static pid_t start_meeting(int slot, MeetingPlan plan) {
    Meeting meeting;
    pid_t child = fork();
    if (child) return child;
    strcpy(plan.host, "127.0.0.1");
    plan.stopped = &stopped;
    signal(SIGTERM, stop);
    ended[slot].status = (int)meeting_hold(&meeting, &plan);
    snprintf(ended[slot].message, sizeof ended[slot].message, "%s", fail_message());
    _exit(0);
}

static void finish(const pid_t *children, int count) {
    for (int i = 0; i < count; i++) {
        int status = 0;
        while (waitpid(children[i], &status, 0) < 0 && errno == EINTR) continue;
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %d ended with %x", i,
               (unsigned)status);
    }
}

static void expect_end(int slot, Status status, const char *words) {
    EXPECT(ended[slot].status == (int)status, "process %d: status %d, not %d: %s", slot, ended[slot].status,
           (int)status, ended[slot].message);
    EXPECT(strstr(ended[slot].message, words), "process %d did not say '%s' but: %s", slot, words,
           ended[slot].message);
}

// Rank 0 may come last.
static void in_any_order(void) {
    int port = new_port();
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = start(i, 2 - i, 3, port, 30, add_up);
        if (i == 1) usleep(300000);
    }
    finish(children, 3);
    for (int i = 0; i < 3; i++) expect_end(i, OK, "");
}

// More ranks are at the door than rank 0 lets in at a time.
static void many_at_once(void) {
    MeetingPlan plan = {.size = 4, .port = (uint16_t)new_port(), .timeout_s = 30, .max_guests = 1};
    pid_t children[4] = {start_meeting(0, plan)};
    usleep(200000);
    kill(children[0], SIGSTOP);
    for (int r = 1; r < 4; r++) {
        plan.rank = r;
        children[r] = start_meeting(r, plan);
    }
    usleep(300000);
    kill(children[0], SIGCONT);
    finish(children, 4);
    for (int r = 0; r < 4; r++) expect_end(r, OK, "");
}

static void nobody_listens(void) {
    char words[128];
    int port = new_port();
    pid_t child = start(0, 1, 2, port, 0.5, add_up);
    finish(&child, 1);
    snprintf(words, sizeof words,
             "rank 1 cannot reach rank 0 at 127.0.0.1:%d within 0.5 s: Connection refused", port);
    expect_end(0, ERR_UNAVAILABLE, words);
}

// Sends TERM to the first process while the ranks wait for each other, and expects it and the others to end soon.
static void expect_stop(pid_t *children, int count) {
    double start_s = clock_s();
    usleep(500000);
    kill(children[0], SIGTERM);
    finish(children, count);
    EXPECT(clock_s() - start_s < 20, "they end after %.3g s", clock_s() - start_s);
    expect_end(0, INTERRUPTED, "stopped by a signal before all ranks had come");
}

static void signals_stop(void) {
    MeetingPlan plan = {.size = 3, .port = (uint16_t)new_port(), .timeout_s = 60}, other = plan;
    other.rank = 1;
    pid_t zero[2] = {start_meeting(0, plan), start_meeting(1, other)};
    expect_stop(zero, 2); // rank 0 tells the rank that has come
    expect_end(1, INTERRUPTED, "");
    pid_t early = start_meeting(0, other);
    expect_stop(&early, 1); // before rank 0 is there
    plan.timeout_s = 3;
    pid_t joined[2] = {start_meeting(0, other), start_meeting(1, plan)};
    expect_stop(joined, 2); // while rank 0 waits for others
    expect_end(1, ERR_UNAVAILABLE, "2 of 3 did not come");
}

static void ranks_are_missing(void) {
    int port = new_port();
    pid_t children[] = {start(0, 0, 4, port, 1, add_up), start(1, 2, 4, port, 5, add_up)};
    finish(children, 2);
    expect_end(0, ERR_UNAVAILABLE, "ranks 1 3 of 4 did not come");
    expect_end(1, ERR_UNAVAILABLE, "");
    // A launcher may kill all ranks when the first one ends, and only rank 0 has something to print.
    EXPECT(!*ended[1].message && ended[1].at_s > ended[0].at_s + 0.3, "rank 2 ends %.3g s after rank 0: %s",
           ended[1].at_s - ended[0].at_s, ended[1].message);
}

// Rank 1 has come and is killed before rank 2 comes.
static void one_is_gone_again(void) {
    MeetingPlan plan = {.size = 3, .port = (uint16_t)new_port(), .timeout_s = 30};
    pid_t children[3];
    for (int r = 0; r < 3; r++) {
        plan.rank = r;
        children[r] = start_meeting(r, plan);
        if (r < 2) usleep(400000);
        if (r == 1) kill(children[1], SIGKILL);
        if (r == 1) waitpid(children[1], NULL, 0);
    }
    finish((pid_t[]){children[0], children[2]}, 2);
    expect_end(0, ERR_UNAVAILABLE, "rank 1 ended before all ranks had come");
    expect_end(2, ERR_UNAVAILABLE, "");
}

static void other_sizes_and_numbers(void) {
    int port = new_port();
    pid_t sizes[] = {start(0, 0, 2, port, 30, add_up), start(1, 1, 3, port, 30, add_up)};
    finish(sizes, 2);
    expect_end(0, ERR_CONFIG, "was started as one of 3 ranks, rank 0 as one of 2: WORLD_SIZE");
    expect_end(1, ERR_CONFIG, "was started as one of 3 ranks, rank 0 as one of 2: WORLD_SIZE");
    port = new_port();
    pid_t twice[] = {start(0, 0, 3, port, 30, add_up), start(1, 1, 3, port, 30, add_up),
                     start(2, 1, 3, port, 30, add_up)};
    finish(twice, 3);
    expect_end(0, ERR_CONFIG, "rank 1 has come twice");
    pid_t beyond = start(0, 5, 3, port, 30, add_up);
    finish(&beyond, 1);
    expect_end(0, ERR_CONFIG, "RANK=5 of WORLD_SIZE=3");
}

static int listen_here(int *port) {
    int fd = socket_listen(0);
    CHECK(fd >= 0, "cannot listen: %s", strerror(errno));
    *port = socket_port(fd);
    return fd;
}

static void port_is_in_use(void) {
    int port, listener = listen_here(&port);
    pid_t child = start(0, 0, 2, port, 5, add_up);
    finish(&child, 1);
    expect_end(0, ERR_UNAVAILABLE, "another job may use it: give all ranks another MASTER_PORT");
    close(listener);
}

// Rank 1 connects to something else, which answers; without `answer`, with what it has said itself.
static void expect_no_rank_0(const char *answer, size_t size) {
    char said[1024];
    int port, listener = listen_here(&port), guest = -1;
    pid_t child = start(0, 1, 2, port, 30, add_up);
    while ((guest = socket_accept(listener)) < 0) usleep(1000);
    if (!answer) EXPECT(socket_read(guest, said, size, clock_s() + 5), "rank 1 says too little");
    EXPECT(socket_write(guest, answer ? answer : said, size, clock_s() + 5), "cannot answer");
    finish(&child, 1);
    expect_end(0, ERR_CONFIG, "is no rank 0 of trireme");
    close(guest);
    close(listener);
}

static void no_trireme_listens(void) {
    static const char page[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    expect_no_rank_0(page, sizeof page - 1);
    expect_no_rank_0(NULL, 16);
}

// The port that the system has given to a connection may be the one that it goes to.
static void connects_to_itself(void) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    int fd = socket(AF_INET, SOCK_STREAM, 0), port, listener = listen_here(&port);
    CHECK(!bind(fd, (struct sockaddr *)&here, size) && !getsockname(fd, (struct sockaddr *)&here, &size),
          "no port");
    CHECK(!connect(fd, (struct sockaddr *)&here, size), "cannot connect: %s", strerror(errno));
    EXPECT(socket_error(fd) == ECONNREFUSED, "it is connected to itself: %d", socket_error(fd));
    close(fd);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    here.sin_port = htons((uint16_t)port);
    CHECK(!connect(fd, (struct sockaddr *)&here, size), "cannot connect: %s", strerror(errno));
    EXPECT(!socket_error(fd), "another listens: %d", socket_error(fd));
    close(fd);
    close(listener);
}

// ---- strangers --------------------------------------------------------------------------------------------

// Connects as others do: silent, with a page request, with the first bytes of the right words, as a rank that it is not,
// and with noise. Most are silent: they stay.
static int knock(int port, int i) {
    Address to = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}, .port = (uint16_t)port};
    static const struct {
        const char *bytes;
        size_t size;
    } words[] = {{"", 0},
                 {"GET / HTTP/1.0\r\n\r\n", 18},
                 {"trireme\x01\0\0", 10},
                 {"trirpost0123456789abcdef\x01\0\0\0", 28}, // as rank 1, with a made-up secret
                 {"\xff\xff\xff", 3}};
    int fd = socket_connect(&to), kind = i < 100 ? i % 5 : 0;
    if (fd >= 0) socket_write(fd, words[kind].bytes, words[kind].size, clock_s() + 0.2);
    return fd;
}

static void at_the_meeting(void) {
    int port = new_port(), fds[STRANGERS];
    pid_t children[2] = {start(0, 0, 2, port, 60, add_up)};
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = knock(port, i);
        if (i == 0) usleep(200000); // rank 0 listens from here on
    }
    children[1] = start(1, 1, 2, port, 60, add_up);
    finish(children, 2);
    expect_end(0, OK, "");
    expect_end(1, OK, "");
    for (int i = 0; i < STRANGERS; i++)
        if (fds[i] >= 0) close(fds[i]);
}

// Rank 0 lets strangers in at every port at which this process listens, before another rank has connected to it.
static Status among_strangers(Comm *world, void *arg) {
    int fds[STRANGERS], listening = 0, count = 0;
    for (int fd = 3; comm_rank(world) == 0 && fd < 64; fd++) {
        int accepts = 0;
        socklen_t size = sizeof accepts;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) || !accepts) continue;
        listening++;
        while (count < STRANGERS) fds[count] = knock(socket_port(fd), count), count++;
    }
    if (comm_rank(world) == 0 && listening != 1)
        return fail(ERR_OTHER, "rank 0 listens at %d ports", listening);
    TRY(add_up(world, arg));
    comm_barrier(world);
    while (count) close(fds[--count]);
    return add_up(world, arg);
}

static void in_the_run(void) {
    int port = new_port();
    pid_t children[3];
    for (int i = 0; i < 3; i++) children[i] = start(i, i, 3, port, 60, among_strangers);
    finish(children, 3);
    for (int i = 0; i < 3; i++) expect_end(i, OK, "");
}

// The host waits for its device, which tells comm again and again; another rank is killed meanwhile.
static Status wait_for_device(Comm *world, void *arg) {
    double start_s = clock_s();
    (void)arg;
    comm_barrier(world);
    if (comm_rank(world) == 1) raise(SIGKILL);
    CHECK(freopen(harness_path("said"), "w", stderr), "no file");
    for (; clock_s() < start_s + 10; usleep(1000)) comm_watch(world, clock_s() - start_s);
    fprintf(stderr, "the end of rank 1 is not noticed\n");
    return OK;
}

static void killed_while_another_waits(void) {
    int port = new_port(), status = 0;
    char said[512] = "";
    harness_folder(); // of this process and its children
    pid_t zero = start(0, 0, 2, port, 60, wait_for_device), one = start(1, 1, 2, port, 60, wait_for_device);
    waitpid(zero, &status, 0);
    FILE *file = fopen(harness_path("said"), "r");
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == ERR_OS, "rank 0 ends with %x", (unsigned)status);
    EXPECT(file && fread(said, 1, sizeof said - 1, file) &&
               strstr(said, "[rank 0] rank 1 ended without saying why"),
           "rank 0 says: %s", said);
    if (file) fclose(file);
    waitpid(one, &status, 0);
    EXPECT(WIFSIGNALED(status), "rank 1 ends with %x", (unsigned)status);
}

// Its rank is told, and this job is not disturbed.
static void another_job(void) {
    int port = new_port();
    setenv("TORCHELASTIC_RUN_ID", "one", 1);
    pid_t zero = start(0, 0, 2, port, 60, add_up);
    setenv("TORCHELASTIC_RUN_ID", "two", 1);
    pid_t other = start(1, 1, 2, port, 60, add_up);
    finish(&other, 1);
    expect_end(1, ERR_CONFIG, "belongs to another job");
    setenv("TORCHELASTIC_RUN_ID", "one", 1);
    pid_t one = start(1, 1, 2, port, 60, add_up);
    finish((pid_t[]){zero, one}, 2);
    unsetenv("TORCHELASTIC_RUN_ID");
    expect_end(0, OK, "");
    expect_end(1, OK, "");
}

// ---- what launchers say -----------------------------------------------------------------------------------

static void expect_meeting(const char *nodes, const char *want) {
    char host[256] = "";
    uint16_t port, again;
    uint64_t job;
    setenv("SLURM_STEP_NODELIST", nodes, 1);
    EXPECT_OK(launcher_meeting(host, sizeof host, &port, &job));
    EXPECT(!strcmp(host, want), "%s begins with %s", nodes, host);
    EXPECT(port >= 20000 && port < 30000 && job, "port %u", (unsigned)port);
    setenv("SLURM_JOB_ID", "4243", 1);
    EXPECT_OK(launcher_meeting(host, sizeof host, &again, &job));
    EXPECT(again != port, "two jobs have one port");
    setenv("SLURM_JOB_ID", "4242", 1);
}

static void slurm(void) {
    setenv("SLURM_JOB_ID", "4242", 1);
    setenv("SLURM_STEP_ID", "1", 1);
    setenv("SLURM_PROCID", "3", 1);
    setenv("SLURM_NTASKS", "6", 1);
    EXPECT(launcher_rank() == 3 && launcher_ranks() == 6, "rank %d of %d", launcher_rank(), launcher_ranks());
    expect_meeting("gpu[07-09,12],cpu1", "gpu07");
    expect_meeting("gpu3", "gpu3");
    expect_meeting("a1,b2", "a1");
    expect_meeting("r[1-2]n[04,06]-ib,x", "r1n04-ib");
    expect_meeting("broken[12", "broken12");
    // Variables of its own come first.
    setenv("RANK", "1", 1), setenv("WORLD_SIZE", "2", 1);
    EXPECT(launcher_rank() == 1 && launcher_ranks() == 2, "rank %d of %d", launcher_rank(), launcher_ranks());
    EXPECT(!strcmp(comm_transport_here(), "tcp"), "by %s", comm_transport_here());
    char host[256];
    uint16_t port;
    uint64_t job;
    EXPECT(launcher_meeting(host, sizeof host, &port, &job) == ERR_CONFIG, "no address is needed");
    EXPECT(strstr(fail_message(), "MASTER_PORT does not say"), "got: %s", fail_message());
    setenv("MASTER_ADDR", "here", 1), setenv("MASTER_PORT", "77", 1);
    EXPECT_OK(launcher_meeting(host, sizeof host, &port, &job));
    EXPECT(!strcmp(host, "here") && port == 77, "%s:%u", host, (unsigned)port);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1); // torchrun itself listens at the port
    EXPECT_OK(launcher_meeting(host, sizeof host, &port, &job));
    EXPECT(port == 78, "port %u", (unsigned)port);
    setenv("MASTER_PORT", "65535", 1);
    EXPECT(launcher_meeting(host, sizeof host, &port, &job) == ERR_CONFIG, "torchrun leaves port %u",
           (unsigned)port);
    EXPECT(strstr(fail_message(), "MASTER_PORT=65535 is no port: use 1 to 65534"), "got: %s", fail_message());
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    EXPECT_OK(launcher_meeting(host, sizeof host, &port, &job));
    EXPECT(port == 65535, "port %u", (unsigned)port);
    static const char *const none[] = {"0", "-1", "65536", "http"};
    for (int i = 0; i < 4; i++) {
        setenv("MASTER_PORT", none[i], 1);
        EXPECT(launcher_meeting(host, sizeof host, &port, &job) == ERR_CONFIG, "%s is a port", none[i]);
        EXPECT(strstr(fail_message(), "is no port: use 1 to 65535"), "got: %s", fail_message());
    }
    setenv("WORLD_SIZE", "1", 1);
    EXPECT(launcher_ranks() == 6, "a world of one is a launch");
}

int main(int argc, char **argv) {
    ended = mmap(NULL, MAX_RANKS * sizeof *ended, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(ended != MAP_FAILED, "no memory");
    return harness_run((const Test[]){{"in_any_order", in_any_order},
                                      {"many_at_once", many_at_once},
                                      {"nobody_listens", nobody_listens},
                                      {"signals_stop", signals_stop},
                                      {"ranks_are_missing", ranks_are_missing},
                                      {"one_is_gone_again", one_is_gone_again},
                                      {"other_sizes_and_numbers", other_sizes_and_numbers},
                                      {"port_is_in_use", port_is_in_use},
                                      {"no_trireme_listens", no_trireme_listens},
                                      {"connects_to_itself", connects_to_itself},
                                      {"at_the_meeting", at_the_meeting},
                                      {"in_the_run", in_the_run},
                                      {"killed_while_another_waits", killed_while_another_waits},
                                      {"another_job", another_job},
                                      {"slurm", slurm},
                                      {0}},
                       argc, argv);
}
