// The laws of communication: messages, groups, agreement, and long, many and mixed operations, on every transport of
// comm_transports (test_comm_collectives.c has the laws of each collective). Started alone it tests those whose ranks
// start in the process, under mpirun the one that TRIREME_TEST_TRANSPORT names (also _CHECK, _ANY_ORDER).
#include "base/rng.h"
#include "comm_values.h"
#include <math.h>
#include <unistd.h>

static const int counts[] = {1, 3, 1000, 4096, 100003};
enum { NUM_COUNTS = sizeof counts / sizeof *counts };

// ---- messages -----------------------------------------------------------------------------------------

enum { CHANNELS = 3, DEPTH = 4, MESSAGE = 2000 };

static int message_length(int channel, int k) { return 1 + (channel * 977 + k * 331) % MESSAGE; }

typedef struct {
    CommRequest *request;
    Tensor x;
    int peer, channel, k;
    bool receives;
} Letter;

// Every rank sends DEPTH messages to every rank, itself included, on every channel; the order in which a rank
// posts is random but for the order within a channel.
static int write_letters(const Comm *world, Letter *letters) {
    int n = 0;
    for (int k = 0; k < DEPTH; k++)
        for (int peer = 0; peer < comm_size(world); peer++)
            for (int channel = 0; channel < CHANNELS; channel++)
                for (int way = 0; way < 2; way++) {
                    Tensor x = tensor_new(message_length(channel, k), F32);
                    if (way == 0) fill(x, comm_rank(world) * 64 + peer, channel * DEPTH + k);
                    letters[n++] =
                        (Letter){.x = x, .peer = peer, .channel = channel, .k = k, .receives = way};
                }
    return n;
}

static bool same_channel(const Letter *a, const Letter *b) {
    return a->peer == b->peer && a->channel == b->channel && a->receives == b->receives;
}

static void shuffle(Letter *letters, int n, int seed) {
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(rng_word(rng_key((uint64_t)seed, "shuffle", 0), 0, (uint64_t)i) % (uint32_t)(i + 1));
        Letter swap = letters[i];
        letters[i] = letters[j], letters[j] = swap;
    }
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            if (same_channel(&letters[i], &letters[j]) && letters[j].k < letters[i].k) {
                Letter swap = letters[i];
                letters[i] = letters[j], letters[j] = swap;
            }
}

static void post_letter(Comm *world, Letter *l) {
    if (l->receives)
        l->request = comm_recv(world, NULL, l->x, l->peer, l->channel);
    else
        l->request = comm_send(world, NULL, l->x, l->peer, l->channel);
}

static void law_messages(Comm *world) {
    Letter *letters = calloc((size_t)comm_size(world) * DEPTH * CHANNELS * 2, sizeof *letters);
    int n = write_letters(world, letters), me = comm_rank(world);
    shuffle(letters, n, me);
    for (int i = 0; i < n; i++) post_letter(world, &letters[i]);
    for (int i = n - 1; i >= 0; i--) {
        Letter *l = &letters[i];
        if (i % 3)
            comm_wait(world, NULL, &l->request);
        else
            while (!comm_done(world, &l->request)) comm_poll(world);
        EXPECT(!l->request, "a request that is done is NULL");
        int64_t bad = 0;
        for (int64_t e = 0; l->receives && e < l->x.cols; e++)
            bad += get(l->x, e) != (double)(float)value(l->peer * 64 + me, e, l->channel * DEPTH + l->k);
        EXPECT(!bad, "message %d on channel %d from %d: %lld wrong", l->k, l->channel, l->peer,
               (long long)bad);
        free(l->x.data);
    }
    free(letters);
}

// More and longer messages than a sender has room for, received in another order.
static void law_many_messages(Comm *world) {
    enum { MANY = 9 };
    int size = comm_size(world), to = (comm_rank(world) + 1) % size,
        from = (comm_rank(world) + size - 1) % size;
    Tensor out[MANY], in[MANY];
    CommRequest *sends[MANY], *recvs[MANY];
    for (int i = 0; i < MANY; i++) {
        out[i] = tensor_new(i == 1 ? long_count(700001) : i == 2 ? 0 : 20001, F32);
        in[i] = tensor_new(out[i].cols, F32);
        fill(out[i], comm_rank(world), 80 + i);
        sends[i] = comm_send(world, NULL, out[i], to, i);
    }
    for (int i = MANY - 1; i >= 0; i--) recvs[i] = comm_recv(world, NULL, in[i], from, i);
    for (int i = 0; i < MANY; i++) {
        int64_t bad = 0;
        comm_wait(world, NULL, &recvs[i]);
        comm_wait(world, NULL, &sends[i]);
        for (int64_t e = 0; e < in[i].cols; e++)
            bad += get(in[i], e) != as_stored(value(from, e, 80 + i), F32);
        EXPECT(!bad, "message %d of many: %lld wrong", i, (long long)bad);
        free(out[i].data);
        free(in[i].data);
    }
}

// In shared memory a message leaves when its receiver does something else.
static void law_sender_needs_nobody(Comm *world) {
    const char *transport = getenv("TRIREME_TEST_TRANSPORT");
    if (!transport || strcmp(transport, "mpi") != 0 || comm_size(world) < 2 || comm_rank(world) > 1) return;
    Comm *pair;
    EXPECT_OK(comm_split(world, "pair", (const int[]){0, 1}, 2, &pair));
    Tensor x = tensor_new(400000, F32);
    CommRequest *request = NULL;
    if (comm_rank(pair) == 0) request = comm_send(pair, NULL, x, 1, 0);
    while (!comm_done(pair, &request)) continue;
    comm_barrier(pair);
    if (comm_rank(pair) == 1) request = comm_recv(pair, NULL, x, 0, 0);
    comm_wait(pair, NULL, &request);
    free(x.data);
    comm_close(pair);
}

// Rank 0 hears everybody's text, one after another.
static void law_host_messages(Comm *world) {
    char text[3000];
    for (int from = 1; from < comm_size(world); from++) {
        size_t size = (size_t)from * 321, got = 0;
        if (comm_rank(world) == from) {
            memset(text, 'a' + from % 26, size);
            comm_send_host(world, &size, sizeof size, 0);
            comm_send_host(world, text, size, 0);
        }
        if (comm_rank(world) != 0) continue;
        comm_recv_host(world, &got, sizeof got, from);
        EXPECT(got == size, "%zu bytes of rank %d", got, from);
        comm_recv_host(world, text, size, from);
        EXPECT(text[0] == 'a' + from % 26 && text[size - 1] == text[0], "the text of rank %d", from);
    }
}

// ---- groups -------------------------------------------------------------------------------------------

static double group_sum(Comm *group, int my_value) {
    double sum = my_value;
    comm_all_reduce_host(group, &sum, 1, REDUCE_SUM);
    return sum;
}

// A 2 x 2 x 2 grid: rank = tp + 2 (dp + 2 pp). Each axis' group holds the two ranks that differ in that bit.
static void law_grid(Comm *world) {
    if (comm_size(world) != 8) return;
    static const char *const names[] = {"tp", "dp", "pp"};
    int me = comm_rank(world);
    Comm *axes[3];
    for (int a = 0; a < 3; a++) {
        int ranks[2] = {me & ~(1 << a), me | 1 << a};
        EXPECT_OK(comm_split(world, names[a], ranks, 2, &axes[a]));
    }
    for (int a = 0; a < 3; a++) {
        EXPECT(comm_rank(axes[a]) == (me >> a & 1), "%s rank %d of %d", comm_name(axes[a]),
               comm_rank(axes[a]), me);
        double sum = group_sum(axes[a], me), expected = 2 * (me & ~(1 << a)) + (1 << a);
        EXPECT(sum == expected, "%s of rank %d: %g, expected %g", names[a], me, sum, expected);
    }
    for (int a = 2; a >= 0; a--) comm_close(axes[a]);
}

// Groups may list ranks in any order, overlap, and be split again.
static void law_split(Comm *world) {
    int size = comm_size(world), me = comm_rank(world), backwards[64], evens[64], n = 0;
    Comm *reversed, *half;
    for (int i = 0; i < size; i++) backwards[i] = size - 1 - i;
    EXPECT_OK(comm_split(world, "reversed", backwards, size, &reversed));
    EXPECT(comm_rank(reversed) == size - 1 - me, "rank %d in reverse is %d", me, comm_rank(reversed));
    for (int i = me % 2; i < size; i += 2) evens[n++] = size - 1 - i;
    EXPECT_OK(comm_split(reversed, "half", evens, n, &half));
    EXPECT(comm_size(half) == n && comm_rank(half) == me / 2, "rank %d of %d", comm_rank(half),
           comm_size(half));
    double expected = n * (me % 2) + n * (n - 1);
    EXPECT(group_sum(half, me) == expected, "the sum over a half of a reversed group, expected %g", expected);
    comm_close(half);
    comm_close(reversed);
}

// Started reductions on two groups, messages and a blocking reduction in between, all awaited backwards.
static void law_interleaved(Comm *world) {
    enum { STARTED = 12 };
    int size = comm_size(world), me = comm_rank(world), all[64];
    for (int i = 0; i < size; i++) all[i] = i;
    Comm *twin;
    EXPECT_OK(comm_split(world, "twin", all, size, &twin));
    Tensor x[STARTED], token = tensor_new(1, F32), got = tensor_new(1, F32);
    CommRequest *requests[STARTED];
    for (int i = 0; i < STARTED; i++) {
        x[i] = tensor_new(counts[(i + 2) % NUM_COUNTS], F32);
        fill(x[i], me, 20 + i);
        requests[i] = comm_all_reduce_start(i % 3 ? world : twin, NULL, x[i], REDUCE_SUM);
        set(token, 0, 100 * me + i);
        CommRequest *recv = comm_recv(world, NULL, got, (me + size - 1) % size, i % 2);
        CommRequest *send = comm_send(world, NULL, token, (me + 1) % size, i % 2);
        comm_wait(world, NULL, &recv);
        comm_wait(world, NULL, &send);
        EXPECT(get(got, 0) == 100 * ((me + size - 1) % size) + i, "token %g in round %d", get(got, 0), i);
        if (i % 4 == 1) EXPECT(group_sum(twin, 1) == size, "a blocking reduction among started ones");
    }
    for (int i = STARTED - 1; i >= 0; i--) {
        comm_wait(world, NULL, &requests[i]);
        expect_reduced(world, x[i], 0, 20 + i, REDUCE_SUM, "started reduction");
        free(x[i].data);
    }
    free(token.data);
    free(got.data);
    comm_close(twin);
}

// More reductions in flight than a group has slots in shared memory.
static void law_burst(Comm *world) {
    enum { BURST = 40 };
    Tensor x[BURST];
    CommRequest *requests[BURST];
    for (int i = 0; i < BURST; i++) {
        x[i] = tensor_new(17, F32);
        fill(x[i], comm_rank(world), 60 + i);
        requests[i] = comm_all_reduce_start(world, NULL, x[i], REDUCE_SUM);
    }
    for (int i = BURST - 1; i >= 0; i--) {
        comm_wait(world, NULL, &requests[i]);
        expect_reduced(world, x[i], 0, 60 + i, REDUCE_SUM, "reduction of a burst");
        free(x[i].data);
    }
}

// More than fits into one segment, more in flight than there are workspaces, a barrier and a reduce-scatter.
static void law_long(Comm *world) {
    enum { STARTED = 3 };
    int size = comm_size(world), me = comm_rank(world);
    int64_t part = long_count(300007);
    Tensor x[STARTED], in = tensor_new(part * size, F32), out = tensor_new(part, F32);
    CommRequest *requests[STARTED];
    fill(in, me, 33);
    for (int i = 0; i < STARTED; i++) {
        x[i] = tensor_new(i < 2 ? long_count(600007) : 5, F64);
        fill(x[i], me, 30 + i);
        requests[i] = comm_all_reduce_start(world, NULL, x[i], REDUCE_SUM);
    }
    comm_reduce_scatter(world, NULL, in, out, REDUCE_SUM);
    comm_barrier(world);
    for (int i = STARTED - 1; i >= 0; i--) {
        comm_wait(world, NULL, &requests[i]);
        expect_reduced(world, x[i], 0, 30 + i, REDUCE_SUM, "long reduction");
        free(x[i].data);
    }
    expect_reduced(world, out, me * part, 33, REDUCE_SUM, "long reduce_scatter");
    free(in.data);
    free(out.data);
}

// A moment before the barrier on any rank is before a moment after it on any other.
static void law_barrier(Comm *world) {
    for (int round = 0; round < 20; round++) {
        if (round % comm_size(world) == comm_rank(world)) usleep(1000);
        double times[2] = {clock_s(), 0};
        comm_barrier(world);
        times[1] = -clock_s();
        comm_all_reduce_host(world, times, 2, REDUCE_MAX);
        EXPECT(times[0] <= -times[1], "barrier %d: one left %g s before the last came", round,
               times[0] + times[1]);
    }
}

// Sums in an order of the library's choice: within what fp32 can lose.
static Status any_order(Comm *world, void *arg) {
    (void)arg;
    Tensor x = tensor_new(600007, F32);
    for (int started = 0; started < 2; started++) {
        fill(x, comm_rank(world), 70);
        CommRequest *request = NULL;
        if (started)
            request = comm_all_reduce_start(world, NULL, x, REDUCE_SUM);
        else
            comm_all_reduce(world, NULL, x, REDUCE_SUM);
        comm_wait(world, NULL, &request);
        for (int64_t i = 0, bad = 0; i < x.cols && !bad; i++) {
            double magnitude = 0, error = get(x, i) - reduced(comm_size(world), i, 70, F32, REDUCE_SUM);
            for (int r = 0; r < comm_size(world); r++) magnitude += fabs(value(r, i, 70));
            bad = !(fabs(error) <= 1e-6 * magnitude);
            EXPECT(!bad, "element %lld is off by %g", (long long)i, error);
        }
    }
    double nan = comm_rank(world) ? 1 : (double)NAN;
    comm_all_reduce_host(world, &nan, 1, REDUCE_MAX);
    EXPECT(isnan(nan), "NaN became %g", nan);
    Tensor half = tensor_part((Tensor){x.data, 1, x.cols, F16}, 0, 1000);
    fill(half, comm_rank(world), 71);
    comm_all_reduce(world, NULL, half, REDUCE_SUM);
    expect_reduced(world, half, 0, 71, REDUCE_SUM, "no type of the library's");
    free(x.data);
    return OK;
}

static void law_agree(Comm *world) {
    int me = comm_rank(world), size = comm_size(world);
    EXPECT(comm_agree(world, OK) == OK, "all are well");
    if (size < 3) return;
    Status mine = me == 1 ? fail(ERR_DATA, "a bad file") : me == 2 ? fail(ERR_CONFIG, "a bad option") : OK;
    const char *agreed = "[rank 1] a bad file (and 1 other rank failed)";
    EXPECT(comm_agree(world, mine) == ERR_CONFIG, "the worst status");
    EXPECT(!strcmp(fail_message(), agreed), "got: %s", fail_message());
    EXPECT(rank_current()->blamed == 1 + 1, "rank %d is blamed", rank_current()->blamed - 1);
    EXPECT(comm_agree(world, ERR_CONFIG) == ERR_CONFIG, "an agreed error stays as it is");
    EXPECT(!strcmp(fail_message(), agreed), "got: %s", fail_message());
}

static void law_counts(Comm *world) {
    Comm *group;
    int all[64];
    for (int i = 0; i < comm_size(world); i++) all[i] = i;
    EXPECT_OK(comm_split(world, "counted", all, comm_size(world), &group));
    Tensor x = tensor_new(10, F32);
    comm_all_reduce(group, NULL, x, REDUCE_SUM);
    comm_all_reduce(group, NULL, x, REDUCE_SUM);
    comm_barrier(group);
    const CommCount *c = comm_counts(group), sums = c[COMM_ALL_REDUCE];
    EXPECT(sums.calls == 2 && sums.bytes == 80, "%lld calls of %g bytes", (long long)sums.calls, sums.bytes);
    EXPECT(c[COMM_BARRIER].calls == 1 && c[COMM_SEND].calls == 0, "one barrier, no send");
    free(x.data);
    comm_close(group);
}

typedef struct {
    int calls;
    double bytes;
    const Comm *group; // of the last call, and what it was
    CommOp op;
    DType dtype;
} Heard;

static void hear(void *self, const Comm *group, CommOp op, DType dtype, size_t bytes) {
    Heard *heard = self;
    heard->calls++;
    heard->bytes += (double)bytes;
    heard->group = group, heard->op = op, heard->dtype = dtype;
}

// A listener of the world hears of each group what the group counts.
static void law_listening(Comm *world) {
    Comm *alone;
    Heard heard = {0};
    int me = comm_rank(world);
    EXPECT_OK(comm_split(world, "alone", &me, 1, &alone));
    Tensor x = tensor_new(10, BF16);
    double all = comm_counts(world)[COMM_ALL_REDUCE].bytes;
    comm_on_call(world, hear, &heard);
    comm_all_reduce(world, NULL, x, REDUCE_SUM);
    EXPECT(heard.group == world && heard.op == COMM_ALL_REDUCE && heard.dtype == BF16, "heard of a %s of %s",
           comm_op_name(heard.op), comm_name(heard.group));
    EXPECT(heard.bytes == comm_counts(world)[COMM_ALL_REDUCE].bytes - all, "%g bytes", heard.bytes);
    CommRequest *gather = comm_all_gather_start(alone, NULL, x, x);
    EXPECT(heard.group == alone && heard.op == COMM_ALL_GATHER, "heard of a %s", comm_op_name(heard.op));
    EXPECT(heard.bytes == 60 && heard.calls == 2, "%g bytes in %d calls", heard.bytes, heard.calls);
    comm_wait(alone, NULL, &gather);
    comm_on_call(world, NULL, NULL);
    comm_barrier(world);
    EXPECT(heard.calls == 2, "heard after it was taken back");
    free(x.data);
    comm_close(alone);
}

// The tests run on one machine.
static void law_ranks_of_a_machine(Comm *world) {
    EXPECT(comm_rank_here(world) == comm_rank(world), "rank %d is number %d here", comm_rank(world),
           comm_rank_here(world));
}

static Status all_laws(Comm *world, void *arg) {
    (void)arg;
    law_messages(world);
    law_many_messages(world);
    law_sender_needs_nobody(world);
    law_host_messages(world);
    law_grid(world);
    law_split(world);
    law_interleaved(world);
    law_burst(world);
    law_long(world);
    law_barrier(world);
    law_agree(world);
    law_counts(world);
    law_listening(world);
    law_ranks_of_a_machine(world);
    return OK;
}

// ---- where they are run -------------------------------------------------------------------------------

// The laws of every transport whose ranks start in this process; CTest runs those of the launched ones.
static void run_in_process(const int *sizes, bool check) {
    int count;
    const CommTransport *transports = comm_transports(&count);
    for (int t = 0; t < count; t++)
        for (int i = 0; sizes[i] && !transports[t].launched && transports[t].moves_data;
             i += harness_short() ? 2 : 1)
            EXPECT_OK(comm_launch(options_for(transports[t].name, sizes[i], check), all_laws, NULL));
}

static void in_process(void) { run_in_process((const int[]){1, 3, 2, 4, 7, 8, 0}, false); }

static void checked(void) { run_in_process((const int[]){1, 2, 3, 4, 0}, true); }

static Status many(Comm *world, void *arg) {
    (void)arg;
    for (int round = 0; round < 5; round++) {
        double n = group_sum(world, 1);
        EXPECT(n == comm_size(world), "%g ranks", n);
    }
    law_split(world);
    law_barrier(world);
    return OK;
}

static void sixty_four_threads(void) {
    CommOptions options = options_for("threads", 64, false);
    options.cores = 1;
    EXPECT_OK(comm_launch(options, many, NULL));
}

// A transport that moves nothing counts all calls.
static Status alone(Comm *world, void *arg) {
    (void)arg;
    EXPECT(comm_rank(world) == 5 && comm_size(world) == 8, "rank %d of %d", comm_rank(world),
           comm_size(world));
    Tensor nowhere = {(void *)256, 1000, 1000, F32};
    CommRequest *request = comm_recv(world, NULL, nowhere, 4, 1);
    comm_all_reduce(world, NULL, nowhere, REDUCE_SUM);
    comm_wait(world, NULL, &request);
    EXPECT(comm_counts(world)[COMM_RECV].bytes == 4e6, "%g bytes", comm_counts(world)[COMM_RECV].bytes);
    Comm *pair;
    EXPECT_OK(comm_split(world, "pair", (const int[]){1, 5}, 2, &pair));
    EXPECT(comm_rank(pair) == 1 && comm_size(pair) == 2, "rank %d of %d", comm_rank(pair), comm_size(pair));
    EXPECT(comm_agree(pair, OK) == OK && comm_agree(pair, ERR_DATA) == ERR_DATA, "agreement with nobody");
    comm_close(pair);
    return OK;
}

static void nothing_moves(void) {
    int count;
    const CommTransport *transports = comm_transports(&count);
    Rank caller = {.rank = 3, .size = 4};
    rank_enter(&caller);
    for (int t = 0; t < count; t++) {
        CommOptions options = {.transport = transports[t].name, .ranks = 8, .null_rank = 5, .timeout_s = 1};
        if (!transports[t].moves_data) EXPECT_OK(comm_launch(options, alone, NULL));
    }
    EXPECT(rank_current() == &caller, "the caller speaks as another rank");
    rank_enter(NULL);
}

static void unknown_transport(void) {
    EXPECT(comm_launch((CommOptions){.transport = "pigeons"}, alone, NULL) == ERR_CONFIG, "not known");
    EXPECT(strstr(fail_message(), "pigeons"), "got: %s", fail_message());
    int count;
    const CommTransport *transports = comm_transports(&count);
    for (int t = 0; t < count; t++)
        EXPECT(strstr(fail_message(), transports[t].name), "%s: %s", transports[t].name, fail_message());
}

static void launched(void) {
    const char *transport = getenv("TRIREME_TEST_TRANSPORT");
    CommOptions options = options_for(transport ? transport : "mpi", 0, getenv("TRIREME_TEST_CHECK"));
    options.deterministic = !getenv("TRIREME_TEST_ANY_ORDER");
    EXPECT_OK(comm_launch(options, options.deterministic ? all_laws : any_order, NULL));
}

int main(int argc, char **argv) {
    static const Test under_mpirun[] = {{"launched", launched}, {0}};
    static const Test alone[] = {{"in_process", in_process},
                                 {"checked", checked},
                                 {"sixty_four_threads", sixty_four_threads},
                                 {"nothing_moves", nothing_moves},
                                 {"unknown_transport", unknown_transport},
                                 {0}};
    return harness_run(launcher_ranks() > 0 ? under_mpirun : alone, argc, argv);
}
