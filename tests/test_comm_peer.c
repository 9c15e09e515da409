// Tensors of GPUs between the ranks of one process, on simulated GPUs that do their work late and in a drawn order: the
// values are those of a plain loop, bit for bit, whoever comes first, and memory may be used again after a wait.
#include "base/rng.h"
#include "comm_values.h"
#include <math.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMORY = 1 << 21, NOISE = 300 };

typedef struct {
    Comm *world;
    Device *device;
    Stream *stream, *second;
    Arena arena;
    int rank, size;
    uint64_t drawn;
} Place;

// A number below `limit`, another one for each rank and call.
static int draw(Place *p, int limit) {
    RngKey key = rng_key((uint64_t)p->rank, "peer", 0);
    return (int)(rng_word(key, 0, p->drawn++) % (uint32_t)limit);
}

static Tensor take(Place *p, int64_t count, DType dtype) {
    return tensor_take(&p->arena, "tensor", 1, count, dtype);
}

// Values of this rank, which the stream gets to late: behind other work.
static void write_late(Place *p, Stream *stream, Tensor x, int salt) {
    Tensor values = tensor_new(tensor_count(x), x.dtype), kept = take(p, tensor_count(x), x.dtype),
           noise = take(p, NOISE, F32);
    fill(values, p->rank, salt);
    device_upload(p->device, stream, kept, values.data);
    for (int i = draw(p, 4); i > 0; i--) device_zero(p->device, stream, noise);
    device_copy(p->device, stream, x, kept);
    free(values.data);
}

// What the stream finds in x now. Then it overwrites x.
static Tensor read_and_spoil(Place *p, Stream *stream, Tensor x) {
    Tensor values = tensor_new(tensor_count(x), x.dtype), kept = take(p, tensor_count(x), x.dtype);
    device_copy(p->device, stream, kept, x);
    device_zero(p->device, stream, x);
    device_download(p->device, stream, values.data, kept);
    return values;
}

// ---- collectives ------------------------------------------------------------------------------------------

typedef struct {
    int64_t count;
    DType dtype;
    bool in_place, started;
    int64_t skip; // elements before the tensor: it is not aligned
    int salt;
} Kind;

static Tensor take_part(Place *p, const Kind *k, int64_t count) {
    return tensor_part(take(p, count + k->skip, k->dtype), k->skip, count);
}

static void finish(Place *p, CommRequest *request) {
    Tensor noise = take(p, NOISE, F32);
    for (int i = draw(p, 3); i > 0; i--) device_zero(p->device, p->stream, noise);
    if (draw(p, 4) == 0)
        while (!comm_done(p->world, &request)) comm_poll(p->world);
    comm_wait(p->world, p->stream, &request);
}

static void all_reduce(Place *p, const Kind *k, ReduceOp op) {
    Tensor x = take_part(p, k, k->count);
    write_late(p, p->stream, x, k->salt);
    if (k->started)
        finish(p, comm_all_reduce_start(p->world, p->stream, x, op));
    else
        comm_all_reduce(p->world, p->stream, x, op);
    Tensor got = read_and_spoil(p, p->stream, x);
    expect_reduced(p->world, got, 0, k->salt, op, "all_reduce");
    free(got.data);
}

static void reduce_scatter(Place *p, const Kind *k) {
    Tensor in = take_part(p, k, k->count * p->size), out = take(p, k->count, k->dtype);
    if (k->in_place) out = tensor_part(in, p->rank * k->count, k->count);
    write_late(p, p->stream, in, k->salt);
    if (k->started)
        finish(p, comm_reduce_scatter_start(p->world, p->stream, in, out, REDUCE_SUM));
    else
        comm_reduce_scatter(p->world, p->stream, in, out, REDUCE_SUM);
    Tensor got = read_and_spoil(p, p->stream, out);
    device_zero(p->device, p->stream, in);
    expect_reduced(p->world, got, p->rank * k->count, k->salt, REDUCE_SUM, "reduce_scatter");
    free(got.data);
}

static void all_gather(Place *p, const Kind *k) {
    Tensor out = take_part(p, k, k->count * p->size), in = take(p, k->count, k->dtype);
    if (k->in_place) in = tensor_part(out, p->rank * k->count, k->count);
    write_late(p, p->stream, in, k->salt);
    if (k->started)
        finish(p, comm_all_gather_start(p->world, p->stream, in, out));
    else
        comm_all_gather(p->world, p->stream, in, out);
    int bad = 0;
    Tensor got = read_and_spoil(p, p->stream, out);
    device_zero(p->device, p->stream, in);
    for (int64_t i = 0; i < got.cols; i++)
        bad += get(got, i) != as_stored(value((int)(i / k->count), i % k->count, k->salt), k->dtype);
    EXPECT(!bad, "all_gather of %lld: %d wrong", (long long)k->count, bad);
    free(got.data);
}

static void all_to_all(Place *p, const Kind *k) {
    Tensor in = take_part(p, k, k->count * p->size), out = take(p, k->count * p->size, k->dtype);
    write_late(p, p->stream, in, k->salt);
    if (k->started)
        finish(p, comm_all_to_all_start(p->world, p->stream, in, out));
    else
        comm_all_to_all(p->world, p->stream, in, out);
    int bad = 0;
    Tensor got = read_and_spoil(p, p->stream, out);
    device_zero(p->device, p->stream, in);
    for (int64_t i = 0; i < got.cols; i++)
        bad += get(got, i) !=
               as_stored(value((int)(i / k->count), p->rank * k->count + i % k->count, k->salt), k->dtype);
    EXPECT(!bad, "all_to_all of %lld: %d wrong", (long long)k->count, bad);
    free(got.data);
}

static void broadcast(Place *p, const Kind *k, int root) {
    Tensor x = take_part(p, k, k->count);
    write_late(p, p->stream, x, k->salt);
    comm_broadcast(p->world, p->stream, x, root);
    int bad = 0;
    Tensor got = read_and_spoil(p, p->stream, x);
    for (int64_t i = 0; i < got.cols; i++) bad += get(got, i) != as_stored(value(root, i, k->salt), k->dtype);
    EXPECT(!bad, "broadcast of %lld: %d wrong", (long long)k->count, bad);
    free(got.data);
}

static void collectives(Place *p) {
    static const DType types[] = {F32, F64, BF16, F16};
    static const int64_t counts[] = {1, 257, 700, 64, 0};
    for (int i = 0; i < 40; i++) {
        Kind k = {.count = counts[i % 5],
                  .dtype = types[i / 2 % 4],
                  .in_place = i % 3 == 0,
                  .started = i % 2,
                  .skip = i % 7 < 3 ? i % 7 : 0,
                  .salt = i};
        all_reduce(p, &k, i % 4 == 3 ? REDUCE_MAX : REDUCE_SUM);
        if (can_add_in_tree(p->size)) all_reduce(p, &k, REDUCE_TREE);
        reduce_scatter(p, &k);
        all_gather(p, &k);
        all_to_all(p, &k);
        broadcast(p, &k, i % p->size);
        arena_release(&p->arena, (ArenaMark){0});
    }
}

// A rank's NaN is everybody's, and the bits of a sum are those of its order, whoever ends first.
static void keeps_nan(Place *p) {
    float values[3] = {1, p->rank == 1 ? NAN : -1, INFINITY};
    Tensor x = take(p, 3, F32);
    for (ReduceOp op = 0; op <= REDUCE_MAX; op++) {
        device_upload(p->device, p->stream, x, values);
        comm_all_reduce(p->world, p->stream, x, op);
        float got[3];
        device_download(p->device, p->stream, got, x);
        EXPECT(got[0] == (op == REDUCE_MAX ? 1 : (float)p->size) && (got[1] != got[1]) == (p->size > 1) &&
                   got[2] == INFINITY,
               "reduction %d: %g %g %g", (int)op, (double)got[0], (double)got[1], (double)got[2]);
    }
}

// More started sums than a group has room for, awaited backwards, on another stream than they started on, and after a sum
// that nobody waits for longer.
static void many_started(Place *p) {
    enum { MANY = 20, COUNT = 130 };
    Tensor x[MANY];
    CommRequest *requests[MANY];
    for (int i = 0; i < MANY; i++) {
        x[i] = take(p, COUNT, F32);
        write_late(p, p->stream, x[i], 100 + i);
        requests[i] = comm_all_reduce_start(p->world, p->stream, x[i], REDUCE_SUM);
    }
    Tensor own = take(p, COUNT, F32);
    write_late(p, p->stream, own, 200);
    comm_all_reduce(p->world, p->stream, own, REDUCE_SUM);
    Tensor kept = read_and_spoil(p, p->stream, own);
    expect_reduced(p->world, kept, 0, 200, REDUCE_SUM, "a sum behind many");
    free(kept.data);
    for (int i = MANY; i-- > 0;) {
        comm_wait(p->world, p->second, &requests[i]);
        Tensor got = read_and_spoil(p, p->second, x[i]);
        expect_reduced(p->world, got, 0, 100 + i, REDUCE_SUM, "many sums");
        free(got.data);
    }
}

// ---- messages ---------------------------------------------------------------------------------------------

enum { COUNT = 500, CHANNELS = 2, MAX_RANKS = 4, MANY = MAX_RANKS * CHANNELS, MESSAGE_ROUNDS = 12 };

static int message_salt(int round, int to, int channel) { return 1000 * round + 10 * to + channel; }

// Posts a round of messages to all ranks, itself included: sends or receives first.
static void post_round(Place *p, int round, const Tensor *out, const Tensor *in, CommRequest **sends,
                       CommRequest **recvs) {
    bool sends_first = draw(p, 2);
    for (int way = 0; way < 2; way++)
        for (int i = 0; i < p->size * CHANNELS; i++) {
            int peer = i / CHANNELS, channel = i % CHANNELS;
            if ((way == 0) == sends_first) {
                write_late(p, p->stream, out[i], message_salt(round, peer, channel));
                sends[i] = comm_send(p->world, p->stream, out[i], peer, channel);
            } else {
                recvs[i] = comm_recv(p->world, p->stream, in[i], peer, channel);
            }
        }
}

static void expect_message(Place *p, int round, int i, Tensor got) {
    float values[COUNT];
    int bad = 0;
    device_download(p->device, p->stream, values, got);
    for (int64_t e = 0; e < COUNT; e++)
        bad += values[e] != (float)value(i / CHANNELS, e, message_salt(round, p->rank, i % CHANNELS));
    EXPECT(!bad, "round %d, message of rank %d on channel %d: %d wrong", round, i / CHANNELS, i % CHANNELS,
           bad);
}

// The buffers are used again in each round. No host waits for its GPU before the end.
static void messages(Place *p) {
    int num = p->size * CHANNELS;
    Tensor out[MANY], in[MANY], got[MESSAGE_ROUNDS][MANY];
    for (int i = 0; i < num; i++) out[i] = take(p, COUNT, F32), in[i] = take(p, COUNT, F32);
    for (int round = 0; round < MESSAGE_ROUNDS; round++) {
        CommRequest *sends[MANY] = {0}, *recvs[MANY] = {0};
        post_round(p, round, out, in, sends, recvs);
        for (int i = 0; i < num; i++) {
            got[round][i] = take(p, COUNT, F32);
            comm_wait(p->world, p->stream, &recvs[i]);
            device_copy(p->device, p->stream, got[round][i], in[i]);
            device_zero(p->device, p->stream, in[i]);
            comm_wait(p->world, p->stream, &sends[i]);
            device_zero(p->device, p->stream, out[i]);
        }
    }
    for (int round = 0; round < MESSAGE_ROUNDS; round++)
        for (int i = 0; i < num; i++) expect_message(p, round, i, got[round][i]);
}

// ---- jobs -------------------------------------------------------------------------------------------------

typedef struct {
    void (*law)(Place *p);
    const char *transport;
} Job;

static void poll(void *world) { comm_poll(world); }
static void watch(void *world, double waited_s) { comm_watch(world, waited_s); }

static Status on_rank(Comm *world, void *arg) {
    const Job *job = arg;
    Place p = {.world = world, .rank = comm_rank(world), .size = comm_size(world)};
    EXPECT_OK(device_open(&p.device, (DeviceOptions){.kind = "cuda-sim", .threads = 1, .rank_here = p.rank}));
    EXPECT_OK(device_stream_open(p.device, "second", &p.second));
    p.stream = device_stream(p.device);
    EXPECT_OK(arena_open(&p.arena, "place", device_memory(p.device), MEMORY));
    device_on_launch(p.device, poll, world);
    device_on_wait(p.device, watch, world);
    EXPECT_OK(comm_use_device(world, p.device));
    const char *chosen = comm_device_transport(world);
    EXPECT(!job->transport || !strcmp(chosen, job->transport), "%s, not %s", chosen, job->transport);
    job->law(&p);
    EXPECT_OK(comm_use_device(world, NULL));
    arena_close(&p.arena);
    device_stream_close(p.device, p.second);
    device_close(p.device);
    return OK;
}

static void run(void (*law)(Place *p), int ranks, const char *transport, bool check) {
    Job job = {law, transport};
    CommOptions options = options_for("threads", ranks, check);
    options.device_transport = harness_device_transport() ? harness_device_transport() : transport;
    job.transport = options.device_transport;
    EXPECT_OK(comm_launch(options, on_rank, &job));
}

static void on_gpus(void (*law)(Place *p)) {
    static const struct {
        const char *gpus, *peers;
        int ranks;
        bool check;
    } rows[] = {{"1", "1", 2, false}, {"2", "1", 3, true}, {"3", "0", 3, false}, {"2", "1", 4, false}};
    int num = harness_short() ? 3 : 4;
    for (int i = 0; i < num; i++) {
        setenv("TRIREME_SIM_GPUS", rows[i].gpus, 1);
        setenv("TRIREME_SIM_PEERS", rows[i].peers, 1);
        run(law, rows[i].ranks, "peer", rows[i].check);
    }
    unsetenv("TRIREME_SIM_PEERS");
    unsetenv("TRIREME_SIM_GPUS");
}

static void law_collectives(void) { on_gpus(collectives); }
static void law_nan(void) { on_gpus(keeps_nan); }
static void law_many_started(void) { on_gpus(many_started); }
static void law_messages(void) { on_gpus(messages); }

// ---- hangs ------------------------------------------------------------------------------------------------

// A kernel of the other rank never ends: the hosts get as far as they wait for their GPUs.
static void stuck_gpu(Place *p) {
    Tensor x = take(p, 100, F32);
    device_zero(p->device, p->stream, x);
    rank_doing("R0");
    comm_all_reduce(p->world, p->stream, x, REDUCE_SUM);
    rank_doing("F1.0");
    device_sync(p->device, p->stream);
}

static void send_against_send(Place *p) {
    Tensor x = take(p, 100, F32);
    device_zero(p->device, p->stream, x);
    rank_doing("sf0");
    CommRequest *request = comm_send(p->world, p->stream, x, 1 - p->rank, 3);
    comm_wait(p->world, p->stream, &request);
}

static void without_rank_1(Place *p) {
    Tensor x = take(p, 100, F32);
    device_zero(p->device, p->stream, x);
    rank_doing(p->rank == 1 ? "a long rest" : "B2");
    for (int i = 0; p->rank == 1 && i < 6000; i++) usleep(10000);
    comm_all_reduce(p->world, p->stream, x, REDUCE_SUM);
}

// Runs the law in a child, which must end with ERR_HANG and say the words.
static void expect_hang(void (*law)(Place *p), bool check, const char *fails, const char *const *words) {
    int ends[2], state = 0;
    CHECK(pipe(ends) == 0, "no pipe");
    pid_t child = fork();
    CHECK(child >= 0, "no child");
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        if (fails) setenv("TRIREME_SIM_FAIL", fails, 1);
        CommOptions options = options_for("threads", 2, check);
        options.timeout_s = 1;
        options.device_transport = "peer";
        _exit((int)comm_launch(options, on_rank, &(Job){law, NULL}));
    }
    close(ends[1]);
    char text[16384];
    size_t length = 0;
    for (ssize_t got; length < sizeof text - 1; length += (size_t)got)
        if ((got = read(ends[0], text + length, sizeof text - 1 - length)) <= 0) break;
    text[length] = 0;
    close(ends[0]);
    CHECK(waitpid(child, &state, 0) == child, "no child to wait for");
    EXPECT(WIFEXITED(state) && WEXITSTATUS(state) == ERR_HANG, "wait status %#x: %s", (unsigned)state, text);
    for (; *words; words++) EXPECT(strstr(text, *words), "'%s' is not in: %s", *words, text);
}

static void hangs_are_named(void) {
    static const char *const stuck[] = {"at F1.0 for its device, for rank ",
                                        " in all_reduce of world, which was posted at R0 and does not end",
                                        "(limit 1 s; --distributed-timeout-minutes", NULL};
    static const char *const sends[] = {"at sf0 for rank 1 in send on channel 3 of world", NULL};
    static const char *const absent[] = {"[rank 0] has waited", "at B2 for rank 1 in all_reduce of world",
                                         "[rank 1] is at a long rest", NULL};
    expect_hang(stuck_gpu, false, "stuck:1", stuck);
    expect_hang(stuck_gpu, true, "stuck:2", stuck);
    expect_hang(send_against_send, true, NULL, sends);
    expect_hang(without_rank_1, false, NULL, absent);
}

// ---- choices ----------------------------------------------------------------------------------------------

typedef struct {
    const char *kind, *wanted, *chosen, *words;
} Choice;

static Status choose(Comm *world, void *arg) {
    const Choice *c = arg;
    Device *device;
    EXPECT_OK(
        device_open(&device, (DeviceOptions){.kind = c->kind, .threads = 1, .rank_here = comm_rank(world)}));
    Status status = comm_use_device(world, device);
    const char *chosen = comm_device_transport(world);
    EXPECT((status != OK) == (c->words != NULL), "%s on %s: %s", c->wanted, c->kind, fail_message());
    if (c->words) EXPECT(strstr(fail_message(), c->words), "%s: %s", c->words, fail_message());
    if (!c->words)
        EXPECT(c->chosen ? chosen && !strcmp(chosen, c->chosen) : !chosen, "%s on %s: %s", c->wanted, c->kind,
               chosen ? chosen : "none");
    EXPECT_OK(comm_use_device(world, NULL));
    device_close(device);
    return OK;
}

static void choices(void) {
    static const Choice rows[] = {{"cuda-sim", "auto", "peer", NULL},
                                  {"cuda-sim", NULL, "peer", NULL},
                                  {"cuda-sim", "peer", "peer", NULL},
                                  {"cuda-sim", "staged", "staged", NULL},
                                  {"cuda-sim", "pigeons", NULL, "device transport 'pigeons' is unknown"},
                                  {"cpu", "auto", NULL, NULL},
                                  {"null", "auto", NULL, NULL},
                                  {"cpu", "peer", NULL, "this device computes on the CPU"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CommOptions options = options_for("threads", 2, false);
        options.device_transport = rows[i].wanted;
        EXPECT_OK(comm_launch(options, choose, (void *)(uintptr_t)&rows[i]));
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"collectives", law_collectives},
                                      {"keeps_nan", law_nan},
                                      {"many_started", law_many_started},
                                      {"messages", law_messages},
                                      {"hangs_are_named", hangs_are_named},
                                      {"choices", choices},
                                      {0}},
                       argc, argv);
}
