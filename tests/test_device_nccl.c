// The simulated NCCL: operations give what NVIDIA's give, in any order of the streams; it finds the mistakes of a caller.
#include "base/half.h"
#include "cuda_fixture.h"
#include <math.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

size_t sim_num_communicators(void);

enum { MOST_RANKS = 4, COUNT = 24, SLICES = COUNT * MOST_RANKS };

// A rank is a thread with a GPU of its own.
typedef struct {
    int rank, ranks;
    ncclUniqueId id, second_id;
    ncclComm_t comm;
    cudaStream_t stream, other;
    float *in, *out; // [SLICES], memory of the GPU; the host may follow addresses of the simulated one
    bool failed;     // a call said so, or the GPU
} Caller;

typedef void Part(Caller *caller);

static bool says(Caller *c, ncclResult_t result) {
    c->failed |= result != ncclSuccess && result != ncclInProgress;
    return !c->failed;
}

// Polls until the last call is done.
static ncclResult_t settle(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInvalidUsage;
        if (state == ncclInProgress) usleep(10);
    }
    return state;
}

static void make(Caller *c, ncclUniqueId id, ncclComm_t *comm) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = "test";
    if (says(c, ncclCommInitRankConfig(comm, c->ranks, id, c->rank, &config))) says(c, settle(*comm));
}

static void unmake(Caller *c, ncclComm_t comm) {
    if (!comm) return;
    if (c->failed || !says(c, ncclCommFinalize(comm)) || !says(c, settle(comm)))
        ncclCommAbort(comm);
    else
        says(c, ncclCommDestroy(comm));
}

static void wait_for(Caller *c, cudaStream_t stream) {
    if (!c->failed) c->failed = cudaStreamSynchronize(stream) != cudaSuccess;
}

// Number i of slice s of rank r.
static float value(int r, int s, int i) { return (float)(1 + r) + (float)(s * COUNT + i) / 64; }

static void open_caller(Caller *c) {
    EXPECT(cudaSetDevice(c->rank) == cudaSuccess, "GPU %d", c->rank);
    cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&c->other, cudaStreamNonBlocking);
    cudaMalloc((void **)&c->in, SLICES * sizeof(float));
    cudaMalloc((void **)&c->out, SLICES * sizeof(float));
    for (int i = 0; i < SLICES; i++) c->in[i] = value(c->rank, i / COUNT, i % COUNT), c->out[i] = NAN;
}

static void close_caller(Caller *c) {
    cudaStreamDestroy(c->other);
    cudaStreamDestroy(c->stream);
    cudaFree(c->in);
    cudaFree(c->out);
}

typedef struct {
    Caller caller;
    Part *part;
} Thread;

static void *thread_main(void *self) {
    Thread *t = self;
    open_caller(&t->caller);
    make(&t->caller, t->caller.id, &t->caller.comm);
    if (!t->caller.failed) t->part(&t->caller);
    unmake(&t->caller, t->caller.comm);
    close_caller(&t->caller);
    return NULL;
}

// Returns how many ranks failed.
static int run(int ranks, Part *part) {
    Thread threads[MOST_RANKS] = {0};
    pthread_t handles[MOST_RANKS];
    ncclUniqueId ids[2];
    int failed = 0;
    setenv("TRIREME_SIM_GPUS", "4", 1);
    for (int i = 0; i < 2; i++) EXPECT(ncclGetUniqueId(&ids[i]) == ncclSuccess, "an id");
    for (int r = 0; r < ranks; r++) {
        threads[r] = (Thread){{.rank = r, .ranks = ranks, .id = ids[0], .second_id = ids[1]}, part};
        pthread_create(&handles[r], NULL, thread_main, &threads[r]);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(handles[r], NULL);
        failed += threads[r].caller.failed;
    }
    return failed;
}

// ---- operations -------------------------------------------------------------------------------------------

static void end_group(Caller *c) {
    if (says(c, ncclGroupEnd())) says(c, settle(c->comm));
}

// Everybody's slice for rank r, in rank order.
static void all_to_all(Caller *c) {
    says(c, ncclGroupStart());
    for (int r = 0; r < c->ranks; r++) {
        says(c, ncclSend(c->in + r * COUNT, COUNT, ncclFloat32, r, c->comm, c->stream));
        says(c, ncclRecv(c->out + r * COUNT, COUNT, ncclFloat32, r, c->comm, c->stream));
    }
    end_group(c);
    wait_for(c, c->stream);
    for (int i = 0; i < c->ranks * COUNT && !c->failed; i++)
        EXPECT(c->out[i] == value(i / COUNT, c->rank, i % COUNT), "rank %d: %d", c->rank, i);
}

static void gather(Caller *c) {
    memcpy(c->out + c->rank * COUNT, c->in, COUNT * sizeof(float));
    says(c, ncclGroupStart());
    says(c, ncclAllGather(c->out + c->rank * COUNT, c->out, COUNT, ncclFloat32, c->comm, c->stream));
    end_group(c);
    wait_for(c, c->stream);
    for (int i = 0; i < c->ranks * COUNT && !c->failed; i++)
        EXPECT(c->out[i] == value(i / COUNT, 0, i % COUNT), "rank %d: %d", c->rank, i);
}

static void broadcast(Caller *c) {
    says(c, ncclGroupStart());
    says(c, ncclBroadcast(c->in, c->in, COUNT, ncclFloat32, 1, c->comm, c->stream));
    end_group(c);
    wait_for(c, c->stream);
    for (int i = 0; i < COUNT && !c->failed; i++)
        EXPECT(c->in[i] == value(1, 0, i), "rank %d: %d", c->rank, i);
}

// The next rank's slice 0 comes after a kernel that this rank's other stream waits for.
static void ring(Caller *c) {
    const int next = (c->rank + 1) % c->ranks, before = (c->rank + c->ranks - 1) % c->ranks;
    cudaEvent_t event;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    for (int hop = 0; hop < 3; hop++) {
        says(c, ncclGroupStart());
        says(c, ncclSend(hop ? c->out : c->in, COUNT, ncclFloat32, next, c->comm, c->stream));
        says(c, ncclRecv(c->out + COUNT, COUNT, ncclFloat32, before, c->comm, c->stream));
        end_group(c);
        cudaEventRecord(event, c->stream);
        cudaStreamWaitEvent(c->other, event, 0);
        cudaMemcpyAsync(c->out, c->out + COUNT, COUNT * sizeof(float), cudaMemcpyDeviceToDevice, c->other);
        cudaEventRecord(event, c->other);
        cudaStreamWaitEvent(c->stream, event, 0);
    }
    wait_for(c, c->stream);
    for (int i = 0; i < COUNT && !c->failed; i++)
        EXPECT(c->out[i] == value((c->rank + 3 * c->ranks - 3) % c->ranks, 0, i), "rank %d: %d", c->rank, i);
    cudaEventDestroy(event);
}

static void operations_move_data(void) {
    Part *const parts[] = {all_to_all, gather, broadcast, ring};
    for (int i = 0; i < 4; i++)
        for (int ranks = 2; ranks <= MOST_RANKS; ranks++)
            EXPECT(!run(ranks, parts[i]), "part %d of %d ranks fails", i, ranks);
    EXPECT(sim_num_communicators() == 0, "%zu communicators are left", sim_num_communicators());
}

// Sums of three ranks in bf16, and a maximum with a NaN: the library's, which nobody should take for those in rank order.
static void sums_of_its_own(Caller *c) {
    uint16_t *x = (uint16_t *)(void *)c->in, *y = (uint16_t *)(void *)c->out;
    const float numbers[] = {1, 1.0f / 256, 1.0f / 256};
    for (int i = 0; i < COUNT; i++) x[i] = bf16_of_f32(i ? numbers[c->rank] : c->rank ? 1 : NAN);
    says(c, ncclGroupStart());
    says(c, ncclAllReduce(x, y, COUNT, ncclBfloat16, ncclSum, c->comm, c->stream));
    end_group(c);
    wait_for(c, c->stream);
    if (c->failed) return;
    EXPECT(bf16_to_f32(y[1]) == 1.0078125f && bf16_to_f32(y[COUNT - 1]) == 1, "%g %g",
           (double)bf16_to_f32(y[1]), (double)bf16_to_f32(y[COUNT - 1]));
    says(c, ncclGroupStart());
    says(c, ncclAllReduce(x, y, COUNT, ncclBfloat16, ncclMax, c->comm, c->stream));
    end_group(c);
    wait_for(c, c->stream);
    EXPECT(c->failed || bf16_to_f32(y[0]) == 1, "a maximum of %g", (double)bf16_to_f32(y[0]));
    for (int i = 0; i < SLICES; i++) c->in[i] = value(c->rank, i / COUNT, i % COUNT);
    says(c, ncclGroupStart());
    says(c, ncclReduceScatter(c->in, c->out, COUNT, ncclFloat32, ncclSum, c->comm, c->stream));
    end_group(c);
    wait_for(c, c->stream);
    for (int i = 0; i < COUNT && !c->failed; i++)
        EXPECT(fabsf(c->out[i] - 3 * value(1, c->rank, i)) < 1e-4f, "rank %d: %d: %g", c->rank, i,
               (double)c->out[i]);
}

static void sums_are_the_librarys(void) { EXPECT(!run(3, sums_of_its_own), "a rank fails"); }

// Who asks lets the GPU make progress.
static void let_begin(cudaStream_t stream) {
    cudaEvent_t event;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, stream);
    for (int i = 0; i < 50; i++) cudaEventQuery(event);
    cudaEventDestroy(event);
}

// Two communicators whose kernels stand crosswise: rank 0 has the first one's on its GPU, rank 1 the second one's.
static void crosswise(Caller *c) {
    ncclComm_t comms[2] = {c->comm, NULL};
    make(c, c->second_id, &comms[1]);
    for (int k = 0; k < 2 && !c->failed; k++) {
        const int which = c->rank ? 1 - k : k;
        says(c, ncclGroupStart());
        says(c, ncclAllGather(c->in, c->out, COUNT, ncclFloat32, comms[which], k ? c->other : c->stream));
        if (says(c, ncclGroupEnd())) says(c, settle(comms[which]));
        let_begin(c->stream);
    }
    wait_for(c, c->stream);
    wait_for(c, c->other);
    unmake(c, comms[1]);
}

static void *run_and_exit(void *part) {
    run(2, *(Part **)part);
    _exit(0);
}

// Whether the part ends, in a process of its own.
static bool ends(Part *part, const char *resident) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        if (resident) setenv("TRIREME_SIM_RESIDENT", resident, 1);
        pthread_create(&thread, NULL, run_and_exit, &part);
        sleep(1);
        _exit(1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status == 0;
}

static void kernels_stay_until_all_have_come(void) {
    EXPECT(ends(crosswise, NULL), "any number of kernels");
    EXPECT(!ends(crosswise, "1"), "one kernel of a GPU at a time");
}

// ---- mistakes ---------------------------------------------------------------------------------------------

static void one(Caller *c, bool sends, size_t count, ncclDataType_t type) {
    says(c, ncclGroupStart());
    if (sends)
        says(c, ncclSend(c->in, count, type, 1 - c->rank, c->comm, c->stream));
    else
        says(c, ncclRecv(c->out, count, type, 1 - c->rank, c->comm, c->stream));
    end_group(c);
    wait_for(c, c->stream);
}

static void other_count(Caller *c) { one(c, c->rank == 0, c->rank ? 9 : 8, ncclFloat32); }
static void other_type(Caller *c) { one(c, c->rank == 0, 8, c->rank ? ncclInt32 : ncclFloat32); }
static void send_against_send(Caller *c) {
    one(c, true, 8, ncclFloat32);
    one(c, false, 8, ncclFloat32);
}
static void other_collective(Caller *c) {
    says(c, ncclGroupStart());
    if (c->rank)
        says(c, ncclAllGather(c->in, c->out, 8, ncclFloat32, c->comm, c->stream));
    else
        says(c, ncclBroadcast(c->in, c->out, 8, ncclFloat32, 0, c->comm, c->stream));
    end_group(c);
    wait_for(c, c->stream);
}
static void other_root(Caller *c) {
    says(c, ncclGroupStart());
    says(c, ncclBroadcast(c->in, c->out, 8, ncclFloat32, c->rank, c->comm, c->stream));
    end_group(c);
    wait_for(c, c->stream);
}
static void collective_against_send(Caller *c) {
    if (c->rank) {
        other_collective(c);
    } else {
        one(c, true, 8, ncclFloat32);
    }
}
static void on_the_host(Caller *c) {
    float numbers[8] = {0};
    says(c, ncclSend(numbers, 8, ncclFloat32, 1 - c->rank, c->comm, c->stream));
}
static void beyond_memory(Caller *c) {
    says(c, ncclAllGather(c->in, c->out, SLICES, ncclFloat32, c->comm, c->stream));
}
static void two_streams(Caller *c) {
    says(c, ncclGroupStart());
    says(c, ncclSend(c->in, 8, ncclFloat32, 1 - c->rank, c->comm, c->stream));
    says(c, ncclRecv(c->out, 8, ncclFloat32, 1 - c->rank, c->comm, c->other));
    says(c, ncclGroupEnd());
}
static void other_gpu(Caller *c) {
    cudaSetDevice(3);
    says(c, ncclAllGather(c->in, c->out, 8, ncclFloat32, c->comm, c->stream));
    cudaSetDevice(c->rank);
}
// Some communicator is in progress sooner or later.
static void no_poll(Caller *c) {
    for (int i = 0; i < 20; i++) {
        says(c, ncclGroupStart());
        says(c, ncclAllGather(c->in, c->out, 8, ncclFloat32, c->comm, c->stream));
        says(c, ncclGroupEnd());
    }
}
static void end_without_finalize(Caller *c) { says(c, ncclCommDestroy(c->comm)); }
static void end_of_no_group(Caller *c) { says(c, ncclGroupEnd()); }
static void joins_twice(Caller *c) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    config.blocking = 0;
    says(c, ncclCommInitRankConfig(&comm, c->ranks, c->id, c->rank, &config));
}

static const struct {
    Part *part;
    const char *words;
} MISTAKES[] = {
    {other_count, "that meet differ: rank 0: send to 1 of 8 x 4 bytes; rank 1: receive from 0 of 9 x 4"},
    {other_type, "'test' that meet differ"},
    {send_against_send, "'test' wait for each other: rank 0: send to 1 of 8 x 4 bytes; rank 1: send to 0"},
    {other_collective, "that meet differ: rank 0: broadcast of 8 x 4 bytes by 0; rank 1: all-gather"},
    {other_root, "broadcast of 8 x 4 bytes by 0; rank 1: broadcast of 8 x 4 bytes by 1"},
    {collective_against_send, "wait for each other: rank 0: send to 1 of 8 x 4 bytes; rank 1: all-gather"},
    {on_the_host, "memory to read that is not the GPU's"},
    {beyond_memory, "memory to write that is not the GPU's"},
    {two_streams, "several streams for one communicator in a group"},
    {other_gpu, "a communicator of another GPU"},
    {no_poll, "before the previous operation returned ncclSuccess"},
    {end_without_finalize, "a communicator that is in use"},
    {end_of_no_group, "there is no group"},
    {joins_twice, "two ranks with the same number"},
};
enum { NUM_MISTAKES = sizeof MISTAKES / sizeof *MISTAKES };

// A child of its own: a fault of the GPU stays.
static void mistakes_are_named(void) {
    for (int i = 0; i < NUM_MISTAKES; i++) {
        char said[2048];
        FILE *file = fopen(harness_path("said"), "w+");
        CHECK(file, "no file");
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            dup2(fileno(file), STDERR_FILENO);
            _exit(run(2, MISTAKES[i].part));
        }
        int status = 0;
        waitpid(child, &status, 0);
        rewind(file);
        said[fread(said, 1, sizeof said - 1, file)] = 0;
        fclose(file);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status), "mistake %d: no rank fails", i);
        EXPECT(strstr(said, MISTAKES[i].words), "mistake %d: \"%s\" in: %s", i, MISTAKES[i].words, said);
    }
}

// What goes on the stream right after a group lies before its kernel, unless the caller asked first.
static void unsettled(Caller *c) {
    says(c, ncclGroupStart());
    says(c, ncclAllGather(c->in, c->out, COUNT, ncclFloat32, c->comm, c->stream));
    const ncclResult_t result = ncclGroupEnd();
    cudaMemcpyAsync(c->in, c->out, COUNT * sizeof(float), cudaMemcpyDeviceToDevice, c->stream);
    if (result == ncclInProgress) says(c, settle(c->comm));
    wait_for(c, c->stream);
    c->failed |= c->in[0] != value(0, 0, 0);
}

static void kernels_may_come_late(void) {
    int late = 0;
    for (int i = 0; i < 8; i++) late += run(2, unsettled);
    EXPECT(late > 0, "no kernel was late");
}

// ---- errors of the world ----------------------------------------------------------------------------------

static void nothing(Caller *c) { (void)c; }

static void *shares(void *self) {
    Thread *t = self;
    cudaSetDevice(0);
    make(&t->caller, t->caller.id, &t->caller.comm);
    unmake(&t->caller, t->caller.comm);
    return NULL;
}

// Returns how many of two ranks on one GPU are refused.
static int refused_on_one_gpu(void) {
    Thread threads[2] = {0};
    pthread_t handles[2];
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    for (int r = 0; r < 2; r++) {
        threads[r] = (Thread){{.rank = r, .ranks = 2, .id = id}, nothing};
        pthread_create(&handles[r], NULL, shares, &threads[r]);
    }
    for (int r = 0; r < 2; r++) pthread_join(handles[r], NULL);
    return threads[0].caller.failed + threads[1].caller.failed;
}

static void ranks_share_no_gpu(void) {
    EXPECT(refused_on_one_gpu() == 2, "2.28");
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    EXPECT(refused_on_one_gpu() == 2, "2.28 knows no such variable");
    setenv("TRIREME_SIM_NCCL", "23007", 1);
    EXPECT(refused_on_one_gpu() == 0, "2.30 where it is allowed");
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    EXPECT(refused_on_one_gpu() == 2, "2.30");
    unsetenv("TRIREME_SIM_NCCL");
    EXPECT(sim_num_communicators() == 0, "%zu communicators are left", sim_num_communicators());
}

static void calls_can_fail(void) {
    static const char *const calls[] = {"ncclCommInitRankConfig:1", "ncclCommGetAsyncError:1",
                                        "ncclCommFinalize:1"};
    for (int i = 0; i < 3; i++) {
        setenv("TRIREME_SIM_FAIL", calls[i], 1);
        EXPECT(run(1, nothing) == 1, "%s", calls[i]);
    }
    unsetenv("TRIREME_SIM_FAIL");
    EXPECT(sim_num_communicators() == 0, "%zu communicators are left", sim_num_communicators());
}

// What the user has set stays.
static void environment_is_prepared(void) {
    static const char *const wanted[][2] = {{"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
                                            {"CUDA_MODULE_LOADING", "EAGER"},
                                            {"NCCL_RUNTIME_CONNECT", "0"}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const char *name = wanted[i][0];
        unsetenv(name);
        links_set_environment();
        EXPECT(getenv(name) && !strcmp(getenv(name), wanted[i][1]), "%s is not %s", name, wanted[i][1]);
        setenv(name, "the user's", 1);
        links_set_environment();
        EXPECT(!strcmp(getenv(name), "the user's"), "%s is replaced", name);
        unsetenv(name);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"operations_move_data", operations_move_data},
                                      {"sums_are_the_librarys", sums_are_the_librarys},
                                      {"kernels_stay_until_all_have_come", kernels_stay_until_all_have_come},
                                      {"mistakes_are_named", mistakes_are_named},
                                      {"kernels_may_come_late", kernels_may_come_late},
                                      {"ranks_share_no_gpu", ranks_share_no_gpu},
                                      {"calls_can_fail", calls_can_fail},
                                      {"environment_is_prepared", environment_is_prepared},
                                      {0}},
                       argc, argv);
}
