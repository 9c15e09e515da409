// Calls are stream-ordered: on a device whose streams run late, collectives and messages see what their stream computed
// before them. The check device finds a missing wait and a buffer that is used too early, and names both operations.
#include "comm/comm.h"
#include "device_fixture.h"
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, COUNT = 1000, ROUNDS = 20 };

typedef struct {
    Fixture *b;
    Comm *world;
    Stream *second;
} RankFixture;

typedef void Work(RankFixture *f);

static Status on_rank(Comm *world, void *arg) {
    Fixture b = fixture_open(harness_device("check"), 1);
    RankFixture f = {.b = &b, .world = world};
    EXPECT_OK(device_stream_open(b.device, "second", &f.second));
    EXPECT_OK(comm_use_device(world, b.device));
    (*(Work **)arg)(&f);
    EXPECT_OK(comm_use_device(world, NULL));
    device_stream_close(b.device, f.second);
    fixture_close(&b);
    return OK;
}

static Status run(Work *work) {
    CommOptions options = {.transport = "threads",
                           .ranks = RANKS,
                           .timeout_s = 60,
                           .device_transport = harness_device_transport(),
                           .deterministic = true};
    return comm_launch(options, on_rank, &work);
}

// ---- what is right ------------------------------------------------------------------------------------

static Tensor ones(Fixture *b) {
    float values[COUNT];
    for (int i = 0; i < COUNT; i++) values[i] = 1;
    return from_floats(b, 1, COUNT, values);
}

static void expect_all(const RankFixture *f, Tensor x, float wanted, const char *what) {
    float values[COUNT];
    int bad = 0;
    device_download(f->b->device, f->b->stream, values, x);
    for (int i = 0; i < COUNT; i++) bad += values[i] != wanted;
    EXPECT(!bad, "%s: %d elements are not %g", what, bad, (double)wanted);
}

// Doubled by an operation, then by the sum of both ranks; then passed to the other rank.
static void sums_and_messages(RankFixture *f) {
    Fixture *b = f->b;
    int other = 1 - comm_rank(f->world);
    Tensor x = ones(b), got = tensor(b, 1, COUNT);
    float wanted = 1;
    for (int i = 0; i < ROUNDS; i++, wanted *= 4) {
        CommRequest *recv = comm_recv(f->world, b->stream, got, other, 0);
        add(b->device, b->stream, (Add){copy_of(b, x), x});
        comm_all_reduce(f->world, b->stream, x, REDUCE_SUM);
        CommRequest *send = comm_send(f->world, b->stream, x, other, 0);
        comm_wait(f->world, b->stream, &recv);
        comm_wait(f->world, b->stream, &send);
        expect_all(f, got, 4 * wanted, "a message of sums");
    }
}

// A started sum on a second stream beside operations on the first.
static void two_streams(RankFixture *f) {
    Fixture *b = f->b;
    for (int i = 0; i < ROUNDS; i++) {
        Tensor x = ones(b), y = ones(b);
        stream_wait(b->device, f->second, event_record(b->device, b->stream));
        device_copy(b->device, f->second, x, x);
        CommRequest *sum = comm_all_reduce_start(f->world, f->second, x, REDUCE_SUM);
        add(b->device, b->stream, (Add){copy_of(b, y), y});
        comm_wait(f->world, b->stream, &sum);
        expect_all(f, x, RANKS, "a sum on another stream");
        expect_all(f, y, 2, "an operation beside it");
    }
}

// Each rank's halves of what an operation made, exchanged, and read by another operation.
static void slices(RankFixture *f) {
    Fixture *b = f->b;
    for (int i = 0; i < ROUNDS; i++) {
        Tensor x = ones(b), in = tensor(b, 1, RANKS * COUNT), out = tensor(b, 1, RANKS * COUNT);
        for (int r = 0; r < RANKS; r++) {
            add(b->device, b->stream, (Add){ones(b), x});
            device_copy(b->device, b->stream, tensor_part(in, r * COUNT, COUNT), x);
        }
        CommRequest *request = comm_all_to_all_start(f->world, b->stream, in, out);
        comm_wait(f->world, b->stream, &request);
        for (int r = 0; r < RANKS; r++)
            expect_all(f, tensor_part(out, r * COUNT, COUNT), (float)(2 + comm_rank(f->world)), "a slice");
    }
}

static void in_order(void) {
    EXPECT_OK(run(sums_and_messages));
    EXPECT_OK(run(two_streams));
    EXPECT_OK(run(slices));
}

// ---- planted faults -----------------------------------------------------------------------------------

// Runs the work in a child, which must end with ERR_BUG and say both texts.
static void expect_named(Work *work, const char *one, const char *other) {
    int ends[2], state = 0;
    CHECK(pipe(ends) == 0, "no pipe");
    pid_t child = fork();
    CHECK(child >= 0, "no child");
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        _exit((int)run(work));
    }
    close(ends[1]);
    char text[8192];
    size_t length = 0;
    for (ssize_t got; length < sizeof text - 1; length += (size_t)got)
        if ((got = read(ends[0], text + length, sizeof text - 1 - length)) <= 0) break;
    text[length] = 0;
    close(ends[0]);
    CHECK(waitpid(child, &state, 0) == child, "no child to wait for");
    EXPECT(WIFEXITED(state) && WEXITSTATUS(state) == ERR_BUG, "wait status %#x", (unsigned)state);
    EXPECT(strstr(text, one) && strstr(text, other), "\"%s\" and \"%s\" in: %s", one, other, text);
}

static void sum_of_unwaited_operation(RankFixture *f) {
    Tensor x = ones(f->b), y = ones(f->b);
    device_sync(f->b->device, f->b->stream);
    add(f->b->device, f->second, (Add){y, x});
    comm_all_reduce(f->world, f->b->stream, x, REDUCE_SUM);
}

static void write_while_sent(RankFixture *f) {
    Tensor x = ones(f->b);
    CommRequest *send = comm_send(f->world, f->b->stream, x, 1 - comm_rank(f->world), 0);
    add(f->b->device, f->b->stream, (Add){ones(f->b), x});
    comm_wait(f->world, f->b->stream, &send);
}

static void read_before_received(RankFixture *f) {
    Tensor x = ones(f->b), y = ones(f->b);
    CommRequest *recv = comm_recv(f->world, f->b->stream, x, 1 - comm_rank(f->world), 0);
    add(f->b->device, f->b->stream, (Add){x, y});
    comm_wait(f->world, f->b->stream, &recv);
}

static void read_while_summed(RankFixture *f) {
    Tensor x = ones(f->b), y = ones(f->b);
    CommRequest *sum = comm_all_reduce_start(f->world, f->b->stream, x, REDUCE_SUM);
    add(f->b->device, f->b->stream, (Add){x, y});
    comm_wait(f->world, f->b->stream, &sum);
}

static void sum_of_unwritten_memory(RankFixture *f) {
    comm_all_reduce(f->world, f->b->stream, tensor(f->b, 1, COUNT), REDUCE_SUM);
}

static void slices_of_unwritten_memory(RankFixture *f) {
    comm_all_to_all(f->world, f->b->stream, tensor(f->b, 1, COUNT), ones(f->b));
}

static void read_while_swapped(RankFixture *f) {
    Tensor x = ones(f->b), y = ones(f->b);
    CommRequest *request = comm_all_to_all_start(f->world, f->b->stream, x, y);
    add(f->b->device, f->b->stream, (Add){y, ones(f->b)});
    comm_wait(f->world, f->b->stream, &request);
}

static void swapped_in_place(RankFixture *f) {
    Tensor x = ones(f->b);
    comm_all_to_all(f->world, f->b->stream, x, x);
}

static void faults(void) {
    if (strcmp(harness_device("check"), "check") != 0) return;
    expect_named(sum_of_unwaited_operation, "add", "all_reduce of world");
    expect_named(sum_of_unwritten_memory, "all_reduce of world", "that nothing has written");
    expect_named(write_while_sent, "add", "send of world");
    expect_named(read_before_received, "add", "recv of world");
    expect_named(read_while_summed, "add", "all_reduce of world");
    expect_named(slices_of_unwritten_memory, "all_to_all of world", "that nothing has written");
    expect_named(read_while_swapped, "add", "all_to_all of world");
    expect_named(swapped_in_place, "all_to_all of group world", "in and out overlap");
}

// ---- the same on GPUs, where a fault gives wrong numbers ----------------------------------------------

// What two ranks of simulated GPUs do in a turn: with the wait that the fault leaves out, or without. Returns whether a
// number is wrong.
typedef bool Turn(RankFixture *f, bool waits);

static bool differs(const RankFixture *f, Stream *stream, Tensor x, float wanted) {
    float values[COUNT];
    bool bad = false;
    device_download(f->b->device, stream, values, x);
    for (int i = 0; i < COUNT; i++) bad |= values[i] != wanted;
    return bad;
}

static void order(const RankFixture *f, Stream *after, Stream *before) {
    stream_wait(f->b->device, after, event_record(f->b->device, before));
}

// A sum of what another stream computes.
static bool wait_before_sum(RankFixture *f, bool waits) {
    Fixture *b = f->b;
    Tensor x = ones(b), y = ones(b);
    order(f, f->second, b->stream);
    add(b->device, f->second, (Add){y, x});
    if (waits) order(f, b->stream, f->second);
    comm_all_reduce(f->world, b->stream, x, REDUCE_SUM);
    return differs(f, b->stream, x, 2 * RANKS);
}

// A sum that is read, while it may be under way.
static bool wait_after_sum(RankFixture *f, bool waits) {
    Fixture *b = f->b;
    Tensor x = ones(b), y = zeros_of(b, F32, 1, COUNT);
    CommRequest *sum = comm_all_reduce_start(f->world, b->stream, x, REDUCE_SUM);
    if (waits) comm_wait(f->world, b->stream, &sum);
    add(b->device, b->stream, (Add){x, y});
    bool bad = differs(f, b->stream, y, RANKS);
    if (!waits) comm_wait(f->world, b->stream, &sum);
    return bad;
}

// A message that is read, while it may be on its way.
static bool wait_after_message(RankFixture *f, bool waits) {
    Fixture *b = f->b;
    int other = 1 - comm_rank(f->world);
    Tensor x = ones(b), got = zeros_of(b, F32, 1, COUNT), y = zeros_of(b, F32, 1, COUNT);
    CommRequest *recv = comm_recv(f->world, b->stream, got, other, 0);
    CommRequest *send = comm_send(f->world, b->stream, x, other, 0);
    if (waits) comm_wait(f->world, b->stream, &recv);
    add(b->device, b->stream, (Add){got, y});
    bool bad = differs(f, b->stream, y, 1);
    if (!waits) comm_wait(f->world, b->stream, &recv);
    comm_wait(f->world, b->stream, &send);
    return bad;
}

typedef struct {
    Turn *turn;
    bool waits;
    double wrong;
} Turns;

static Status take_turns(Comm *world, void *arg) {
    Turns *turns = arg;
    double wrong = 0;
    Fixture b = fixture_open("cuda-sim", 1);
    RankFixture f = {.b = &b, .world = world};
    EXPECT_OK(device_stream_open(b.device, "second", &f.second));
    EXPECT_OK(comm_use_device(world, b.device));
    for (int i = 0; i < ROUNDS; i++) {
        wrong += turns->turn(&f, turns->waits);
        device_sync(b.device, f.second);
        device_sync(b.device, b.stream);
        comm_barrier(world);
        arena_release(&b.arena, (ArenaMark){0, 0});
    }
    comm_all_reduce_host(world, &wrong, 1, REDUCE_SUM);
    if (comm_rank(world) == 0) turns->wrong = wrong;
    EXPECT_OK(comm_use_device(world, NULL));
    device_stream_close(b.device, f.second);
    fixture_close(&b);
    return OK;
}

static int wrong_turns(Turn *turn, const char *transport, bool waits) {
    Turns turns = {turn, waits, 0};
    CommOptions options = {.transport = "threads",
                           .ranks = RANKS,
                           .timeout_s = 60,
                           .device_transport = transport,
                           .deterministic = true};
    EXPECT_OK(comm_launch(options, take_turns, &turns));
    return (int)turns.wrong;
}

// ThreadSanitizer would report the races that are wanted here.
static bool sees_races(void) {
#if defined(__SANITIZE_THREAD__)
    return true;
#else
    return false;
#endif
}

static void faults_on_gpus(void) {
    static const struct {
        const char *name, *transport;
        Turn *turn;
    } rows[] = {{"before a sum", "peer", wait_before_sum},
                {"after a sum", "peer", wait_after_sum},
                {"after a message", "peer", wait_after_message},
                {"before a sum", "staged", wait_before_sum}};
    if (strcmp(harness_device("check"), "check") != 0 || sees_races()) return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int with = wrong_turns(rows[i].turn, rows[i].transport, true),
            without = wrong_turns(rows[i].turn, rows[i].transport, false);
        EXPECT(with == 0, "%s, %s: %d turns are wrong", rows[i].transport, rows[i].name, with);
        EXPECT(without > 0, "%s, %s: no turn is wrong without the wait", rows[i].transport, rows[i].name);
    }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"in_order", in_order}, {"faults", faults}, {"faults_on_gpus", faults_on_gpus}, {0}},
        argc, argv);
}
