// Attention by cuDNN, on the simulated GPU: its numbers beside those of the kernels of the program, which calls it
// computes, its plans, its workspace, and what is said where it is missing or refuses. The simulated GPU's objects are
// part of this program.
#include "base/half.h"
#include "cuda_fixture.h"
#include "device/cuda/sdpa.h"
#include "device_fixture.h"

enum { IN_PLACE = 1, ANY_ORDER = 2, STORED = 4, LOOSE = 8 };

typedef struct {
    int64_t batch, sequence, heads, groups, size;
    DType dtype;
    unsigned ways; // IN_PLACE | ...
    float dropout;
} Job;

typedef struct {
    AttentionForward forward;
    AttentionBackward backward;
} Calls;

static Tensor numbers_of(Gpu *gpu, DType dtype, int64_t rows, int64_t cols, size_t offset) {
    Tensor x = gpu_tensor(gpu, dtype, rows, cols, offset);
    for (int64_t i = 0; i < rows * cols; i++)
        store(x, i, (double)((uint64_t)(i + cols) * 2654435761u >> 9 & 0xFF) / 96 - 1.3);
    return x;
}

static Calls calls_of(Gpu *gpu, const Job *job) {
    const AttentionShape shape = {job->batch, job->sequence, job->heads, job->groups, job->size, 0, 0, 0, 0,
                                  0};
    const int64_t rows = job->batch * job->sequence, width = job->heads * job->size,
                  wide = width + 2 * job->groups * job->size;
    const size_t offset = job->ways & LOOSE ? 8 : 0;
    const Dropout dropout = {.probability = job->dropout, .samples = job->batch};
    Tensor qkv = numbers_of(gpu, job->dtype, rows, wide, offset), stored = {0};
    Tensor dout = numbers_of(gpu, job->dtype, rows, width, 0);
    Tensor out = gpu_tensor(gpu, job->dtype, rows, width, 0);
    Tensor stats = gpu_tensor(gpu, F32, job->batch * job->heads, job->sequence, 0);
    Tensor dqkv = job->ways & IN_PLACE ? qkv : gpu_tensor(gpu, job->dtype, rows, wide, 0);
    if (job->ways & STORED)
        stored = gpu_tensor(gpu, job->dtype, job->batch * job->heads * job->sequence, job->sequence, 0);
    Calls calls = {
        .forward = {.qkv = qkv, .out = out, .stats = stats, .probabilities = stored, .shape = shape},
        .backward = {.dout = dout, .qkv = qkv, .out = out, .stats = stats, .probabilities = stored}};
    calls.forward.dropout = calls.backward.dropout = dropout;
    calls.backward.dqkv = dqkv, calls.backward.shape = shape;
    return calls;
}

static void run(const Gpu *gpu, const Calls *calls) {
    cuda_attention_forward(&gpu->exec, &calls->forward);
    cuda_attention_backward(&gpu->exec, &calls->backward);
    gpu_wait(gpu);
}

static Gpu gpu_for(const Job *job, AttentionKernels attention) {
    return gpu_open_with((DeviceOptions){.attention = attention, .any_order = job->ways & ANY_ORDER});
}

// ---- numbers ----------------------------------------------------------------------------------------------

// Of the largest value.
static double difference(Tensor x, Tensor y) {
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < tensor_count(x); i++) {
        const double off = fabs(load(x, i) - load(y, i));
        largest = fmax(largest, fabs(load(y, i)));
        worst = off <= worst ? worst : off;
        if (!isfinite(load(x, i))) worst = INFINITY;
    }
    return worst / largest;
}

static void expect_agreement(const Job *job) {
    Gpu cudnn = gpu_for(job, ATTENTION_CUDNN), own = gpu_for(job, ATTENTION_OWN);
    const Calls got = calls_of(&cudnn, job), wanted = calls_of(&own, job);
    const double unit = precision_of(job->dtype);
    EXPECT(cudnn.device->sdpa && !own.device->sdpa, "who computes");
    run(&cudnn, &got);
    run(&own, &wanted);
    const double off[] = {difference(got.forward.out, wanted.forward.out),
                          difference(got.forward.stats, wanted.forward.stats),
                          difference(got.backward.dqkv, wanted.backward.dqkv)};
    EXPECT(off[0] < 2 * unit && off[1] < 1e-5 && off[2] < 3 * unit,
           "%s, B %d, S %d, N %d, G %d, D %d, ways %u: out is off by %.2g, stats by %.2g, dqkv by %.2g",
           dtype_name(job->dtype), (int)job->batch, (int)job->sequence, (int)job->heads, (int)job->groups,
           (int)job->size, job->ways, off[0], off[1], off[2]);
    gpu_release(&own);
    gpu_close(&cudnn);
}

static void agrees_with_own_kernels(void) {
    static const Job jobs[] = {
        {2, 37, 3, 3, 8, BF16, 0, 0},
        {1, 130, 1, 1, 64, F16, IN_PLACE, 0},
        {2, 67, 6, 2, 16, BF16, IN_PLACE, 0},
        {3, 19, 4, 1, 24, F16, 0, 0},
        {1, 2, 2, 2, 128, BF16, 0, 0},
        {2, 33, 4, 2, 8, BF16, ANY_ORDER, 0},
        {1, 40, 2, 2, 16, F16, ANY_ORDER | IN_PLACE, 0},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        if (!harness_short() || i % 2 == 0) expect_agreement(&jobs[i]);
}

// Whether two calls leave the same bits: in dqkv, or in any order in the sums in fp32 from which dq is rounded. The
// simulation adds in another order each time where cuDNN would.
static bool repeats(const Job *job) {
    Gpu gpu = gpu_for(job, ATTENTION_CUDNN);
    const Calls calls = calls_of(&gpu, job);
    const SdpaKey key = {
        job->batch * job->groups, job->heads / job->groups, job->sequence, job->size, job->dtype, true,
        job->ways & ANY_ORDER};
    const char *sums = (char *)gpu.exec.workspace + sdpa_room(&key, false).dqueries,
               *watched = key.any_order ? sums : calls.backward.dqkv.data;
    const size_t bytes =
        (key.any_order ? 2 : 1) * tensor_bytes(key.any_order ? calls.forward.out : calls.backward.dqkv);
    void *first = malloc(bytes);
    CHECK(first, "no memory");
    run(&gpu, &calls);
    memcpy(first, watched, bytes);
    run(&gpu, &calls);
    const bool same = memcmp(first, watched, bytes) == 0;
    free(first);
    gpu_close(&gpu);
    return same;
}

static void bits_repeat_unless_told_otherwise(void) {
    EXPECT(repeats(&(Job){1, 67, 2, 1, 16, F16, 0, 0}), "the bits of dqkv");
    EXPECT(!repeats(&(Job){1, 67, 2, 1, 16, F16, ANY_ORDER, 0}), "the simulation adds in one order");
}

// ---- who computes -----------------------------------------------------------------------------------------

static const Job PLAIN = {1, 9, 2, 2, 8, BF16, 0, 0};

// Returns 1 if cuDNN computes both passes, 0 if neither, -1 if one.
static int by_cudnn(const Job *job, AttentionKernels attention) {
    Gpu gpu = gpu_for(job, attention);
    const Calls calls = calls_of(&gpu, job);
    const size_t before = sim_num_cudnn_objects();
    cuda_attention_forward(&gpu.exec, &calls.forward);
    const size_t between = sim_num_cudnn_objects();
    cuda_attention_backward(&gpu.exec, &calls.backward);
    const bool forward = between > before, backward = sim_num_cudnn_objects() > between; // plans are made
    gpu_close(&gpu);
    return forward && backward ? 1 : forward || backward ? -1 : 0;
}

static void calls_that_cudnn_takes(void) {
    static const struct {
        Job job;
        int by_cudnn;
    } rows[] = {
        {{1, 9, 2, 2, 8, BF16, 0, 0}, 1},         {{1, 9, 2, 2, 8, F16, 0, 0}, 1},
        {{1, 9, 4, 2, 128, F16, IN_PLACE, 0}, 1}, {{1, 9, 2, 2, 8, F32, 0, 0}, 0},
        {{1, 9, 2, 2, 12, BF16, 0, 0}, 0},        {{1, 9, 2, 2, 136, BF16, 0, 0}, 0},
        {{1, 1, 2, 2, 8, BF16, 0, 0}, 0},         {{1, 9, 2, 2, 8, BF16, STORED, 0}, 0},
        {{1, 9, 2, 2, 8, BF16, LOOSE, 0}, 0},     {{1, 9, 2, 2, 8, BF16, 0, 0.1f}, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int got = by_cudnn(&rows[i].job, ATTENTION_CUDNN);
        EXPECT(got == rows[i].by_cudnn, "call %zu: %d", i, got);
        EXPECT(by_cudnn(&rows[i].job, ATTENTION_OWN) == 0, "call %zu, by the program", i);
    }
}

// Whatever restricts a call beside causality is not cuDNN's; a window that hides nothing is none.
static void calls_with_rules_are_the_program_s(void) {
    static const struct {
        AttentionRules rules;
        bool documents, sinks;
        int by_cudnn;
    } rows[] = {{{.window = 8}, false, false, 0},        {{.window = 9}, false, false, 1},
                {{.scale = 1}, false, false, 0},         {{.cap = 1}, false, false, 0},
                {{.off_by_one = true}, false, false, 0}, {{.window = 0}, true, false, 0},
                {{.window = 0}, false, true, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Gpu gpu = gpu_for(&PLAIN, ATTENTION_CUDNN);
        Calls calls = calls_of(&gpu, &PLAIN);
        calls.forward.rules = calls.backward.rules = rows[i].rules;
        if (rows[i].documents) calls.forward.first_key = gpu_tensor(&gpu, I32, 1, 9, 0);
        if (rows[i].sinks) calls.forward.sinks = numbers_of(&gpu, BF16, 1, 2, 0);
        calls.backward.first_key = calls.forward.first_key, calls.backward.sinks = calls.forward.sinks;
        if (rows[i].documents) memset(calls.forward.first_key.data, 0, tensor_bytes(calls.forward.first_key));
        const size_t before = sim_num_cudnn_objects();
        run(&gpu, &calls);
        EXPECT((sim_num_cudnn_objects() > before) == rows[i].by_cudnn, "call %zu", i);
        gpu_close(&gpu);
    }
}

static AttentionKernels choice(AttentionKernels wanted) {
    return trireme_device.backends[MODULE_PLAIN]->choose_attention(&(DeviceOptions){.attention = wanted});
}

static void gpus_that_cudnn_is_for(void) {
    static const struct {
        const char *capability;
        int by_gpu;
    } rows[] = {{"80", 0}, {"86", 0}, {"89", 0}, {"90", 1}, {"100", 1}, {"103", 1}, {"120", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        setenv("TRIREME_SIM_CAPABILITY", rows[i].capability, 1);
        EXPECT(by_cudnn(&PLAIN, ATTENTION_BY_GPU) == rows[i].by_gpu, "compute capability %s",
               rows[i].capability);
        EXPECT(by_cudnn(&PLAIN, ATTENTION_CUDNN) == 1, "compute capability %s, forced", rows[i].capability);
        EXPECT(choice(ATTENTION_BY_GPU) == (rows[i].by_gpu ? ATTENTION_CUDNN_CHOSEN : ATTENTION_OWN),
               "compute capability %s, chosen", rows[i].capability);
    }
    unsetenv("TRIREME_SIM_CAPABILITY");
}

// What is chosen depends on the library, too; a device that has it chosen and does not find it opens all the same.
static void choice_falls_back(void) {
    EXPECT(choice(ATTENTION_OWN) == ATTENTION_OWN && choice(ATTENTION_CUDNN) == ATTENTION_CUDNN,
           "what is not open is chosen");
    EXPECT(by_cudnn(&PLAIN, ATTENTION_CUDNN_CHOSEN) == 1, "cuDNN is chosen and does not compute");
    setenv("TRIREME_SIM_CUDNN", "0", 1);
    EXPECT(choice(ATTENTION_BY_GPU) == ATTENTION_OWN, "a library that is missing is chosen");
    EXPECT(by_cudnn(&PLAIN, ATTENTION_CUDNN_CHOSEN) == 0, "there is no cuDNN");
    unsetenv("TRIREME_SIM_CUDNN");
    setenv("TRIREME_SIM_GPUS", "0", 1);
    EXPECT(choice(ATTENTION_BY_GPU) == ATTENTION_BY_GPU, "there is no GPU to choose");
    unsetenv("TRIREME_SIM_GPUS");
    setenv("TRIREME_SIM_FAIL", "function:1", 1);
    EXPECT(choice(ATTENTION_BY_GPU) == ATTENTION_CUDNN_CHOSEN, "a damaged library is not chosen");
    unsetenv("TRIREME_SIM_FAIL");
}

// ---- plans, workspace -------------------------------------------------------------------------------------

static void plans_are_kept(void) {
    Gpu gpu = gpu_open();
    const SdpaKey keys[] = {{2, 2, 9, 8, BF16, false, false}, {2, 2, 9, 8, BF16, true, false},
                            {2, 2, 9, 8, BF16, true, true},   {2, 2, 9, 8, F16, false, false},
                            {4, 2, 9, 8, BF16, false, false}, {2, 1, 9, 8, BF16, false, false},
                            {2, 2, 8, 8, BF16, false, false}, {2, 2, 9, 16, BF16, false, false}};
    enum { KEYS = sizeof keys / sizeof *keys };
    const SdpaPlan *plans[KEYS];
    for (int i = 0; i < KEYS; i++) {
        plans[i] = sdpa_plan(gpu.device, &keys[i]);
        EXPECT(plans[i]->plan, "plan %d: %s", i, plans[i]->graph.error.text);
        for (int k = 0; k < i; k++) EXPECT(plans[k] != plans[i], "plans %d and %d are one", k, i);
    }
    const size_t objects = sim_num_cudnn_objects();
    for (int i = 0; i < KEYS; i++) EXPECT(sdpa_plan(gpu.device, &keys[i]) == plans[i], "plan %d anew", i);
    EXPECT(sim_num_cudnn_objects() == objects, "objects are left behind");
    gpu_close(&gpu);
}

static void a_call_leaves_no_objects(void) {
    Gpu gpu = gpu_open();
    const Calls calls = calls_of(&gpu, &PLAIN);
    run(&gpu, &calls);
    const size_t objects = sim_num_cudnn_objects();
    run(&gpu, &calls);
    EXPECT(sim_num_cudnn_objects() == objects, "%zu objects are left behind",
           sim_num_cudnn_objects() - objects);
    gpu_close(&gpu);
}

static size_t workspace_of(const Calls *calls, DeviceOptions options, DeviceOp op) {
    return trireme_device.backends[MODULE_PLAIN]->workspace_bytes(
        &options, op, op == OP_ATTENTION_FORWARD ? (const void *)&calls->forward : &calls->backward);
}

// What the options and the arguments say is enough, and no byte behind it is touched.
static void expect_workspace(const Job *job) {
    enum { GUARD = 256 };
    Gpu gpu = gpu_for(job, ATTENTION_CUDNN);
    const Calls calls = calls_of(&gpu, job);
    const DeviceOptions options = {.attention = ATTENTION_CUDNN, .any_order = job->ways & ANY_ORDER};
    const size_t forward = workspace_of(&calls, options, OP_ATTENTION_FORWARD),
                 backward = workspace_of(&calls, options, OP_ATTENTION_BACKWARD),
                 most = forward > backward ? forward : backward;
    char *own = gpu.exec.workspace;
    EXPECT(most + GUARD <= PRODUCT_WORKSPACE, "a workspace of %zu bytes", most);
    memset(own, 0xFF, most);
    memset(own + most, 0x5A, GUARD);
    run(&gpu, &calls);
    for (int i = 0; i < GUARD; i++) EXPECT(own[most + (size_t)i] == 0x5A, "byte %d behind the workspace", i);
    for (int64_t i = 0; i < tensor_count(calls.backward.dqkv); i++)
        EXPECT(isfinite(load(calls.backward.dqkv, i)), "dqkv reads the workspace before it is written");
    gpu_close(&gpu);
}

static void workspace_is_enough(void) {
    static const Job jobs[] = {{1, 130, 2, 2, 8, BF16, IN_PLACE, 0},
                               {2, 19, 6, 2, 16, F16, 0, 0},
                               {2, 19, 6, 2, 16, BF16, IN_PLACE | ANY_ORDER, 0}};
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) expect_workspace(&jobs[i]);
}

// As long as it is open who computes there is room for either; options that say it take only theirs.
static void workspace_follows_the_options(void) {
    Gpu gpu = gpu_open();
    const Calls calls = calls_of(&gpu, &(Job){1, 300, 2, 1, 8, BF16, 0, 0});
    size_t bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] =
            workspace_of(&calls, (DeviceOptions){.attention = (AttentionKernels)i}, OP_ATTENTION_BACKWARD);
    EXPECT(bytes[ATTENTION_OWN] < bytes[ATTENTION_CUDNN] &&
               bytes[ATTENTION_BY_GPU] == bytes[ATTENTION_CUDNN] &&
               bytes[ATTENTION_CUDNN_CHOSEN] == bytes[ATTENTION_CUDNN],
           "%zu, %zu, %zu, %zu", bytes[0], bytes[1], bytes[2], bytes[3]);
    const size_t any = workspace_of(&calls, (DeviceOptions){.any_order = true}, OP_ATTENTION_BACKWARD);
    EXPECT(any < bytes[ATTENTION_CUDNN], "%zu without an order, %zu with one", any, bytes[ATTENTION_CUDNN]);
    gpu_close(&gpu);
}

// ---- what is missing --------------------------------------------------------------------------------------

static void expect_text(AttentionKernels attention, const char *words) {
    Text text = {0};
    trireme_device.backends[MODULE_PLAIN]->attention(&(DeviceOptions){.attention = attention}, &text);
    EXPECT(strstr(text_string(&text), words), "\"%s\" in: %s", words, text_string(&text));
    text_free(&text);
}

static void expect_no_cudnn(const char *words) {
    CudaDevice *device;
    Gpu gpu = gpu_open();
    EXPECT(!gpu.device->sdpa, "cuDNN is there");
    gpu_close(&gpu);
    expect_text(ATTENTION_BY_GPU, words);
    expect_text(ATTENTION_OWN, "by kernels of the program");
    EXPECT(gpu_try_with(&device, (DeviceOptions){.attention = ATTENTION_CUDNN}) == ERR_UNAVAILABLE,
           "the status");
    EXPECT(strstr(fail_message(), words), "\"%s\" in: %s", words, fail_message());
}

static void missing_library_is_said(void) {
    setenv("TRIREME_SIM_CUDNN", "0", 1);
    expect_no_cudnn("attention by cuDNN needs cuDNN, and there is no libcudnn.so.9");
    setenv("TRIREME_SIM_CUDNN", "90705", 1);
    expect_no_cudnn("needs its release 9.10.0 or later, and libcudnn.so.9 is 9.7.5");
    setenv("TRIREME_SIM_CUDNN", "92801", 1);
    expect_text(ATTENTION_BY_GPU, "by cuDNN 9.28.1");
    unsetenv("TRIREME_SIM_CUDNN");
    setenv("TRIREME_SIM_CAPABILITY", "80", 1);
    expect_text(ATTENTION_BY_GPU, "by kernels of the program");
    expect_text(ATTENTION_CUDNN, "by cuDNN 9.19.0");
    unsetenv("TRIREME_SIM_CAPABILITY");
}

static void library_that_does_not_start(void) {
    CudaDevice *device;
    setenv("TRIREME_SIM_FAIL", "cudnnCreate:1", 1);
    EXPECT(gpu_try(&device) == ERR_OS, "the status");
    EXPECT(
        strstr(fail_message(), "cudnnCreate failed on GPU 0 (simulated GPU): CUDNN_STATUS_NOT_INITIALIZED"),
        "%s", fail_message());
    unsetenv("TRIREME_SIM_FAIL");
}

// ---- what is refused --------------------------------------------------------------------------------------

static void refused_plan_is_computed_all_the_same(void) {
    const Said file = said_begin();
    char said[1024];
    setenv("TRIREME_SIM_FAIL", "plan:1", 1);
    Gpu gpu = gpu_open();
    const Calls calls = calls_of(&gpu, &PLAIN);
    run(&gpu, &calls);
    run(&gpu, &calls);
    unsetenv("TRIREME_SIM_FAIL");
    said_end(&file, said, sizeof said);
    EXPECT(strstr(said,
                  "CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, no engine for this graph, in cuDNN 9.19.0 for "
                  "attention forward in bf16, 2 samples and groups, 1 query heads each, S 9, D 8\n"),
           "%s", said);
    EXPECT(strchr(said, '\n') == strrchr(said, '\n'), "it is said twice: %s", said);
    EXPECT(isfinite(load(calls.forward.out, 0)), "out");
    gpu_close(&gpu);
}

// ---- before a run -----------------------------------------------------------------------------------------

static Status prepare(const Gpu *gpu, const Calls *calls) {
    TRY(gpu->backend->prepare(gpu->device, OP_ATTENTION_FORWARD, &calls->forward));
    return gpu->backend->prepare(gpu->device, OP_ATTENTION_BACKWARD, &calls->backward);
}

static void prepared_plans_are_those_of_the_calls(void) {
    Gpu gpu = gpu_open();
    const Calls calls = calls_of(&gpu, &PLAIN), longer = calls_of(&gpu, &(Job){1, 10, 2, 2, 8, BF16, 0, 0}),
                dropped = calls_of(&gpu, &(Job){1, 9, 2, 2, 8, BF16, 0, 0.1f});
    const size_t before = sim_num_cudnn_objects();
    EXPECT_OK(prepare(&gpu, &dropped));
    EXPECT(sim_num_cudnn_objects() == before, "a plan of calls that cuDNN does not take");
    EXPECT_OK(prepare(&gpu, &calls));
    const size_t objects = sim_num_cudnn_objects();
    EXPECT(objects > before, "no plans");
    run(&gpu, &calls);
    EXPECT(sim_num_cudnn_objects() == objects, "other plans than the prepared ones");
    run(&gpu, &longer); // nobody has announced it
    EXPECT(sim_num_cudnn_objects() > objects && isfinite(load(longer.forward.out, 0)),
           "no plan of other calls");
    gpu_close(&gpu);
}

// A refusal is a status; `words` are in its message.
static void expect_refusal(const char *failure, AttentionKernels attention, const char *words) {
    setenv("TRIREME_SIM_FAIL", failure, 1);
    Gpu gpu = gpu_for(&PLAIN, attention);
    const Calls calls = calls_of(&gpu, &PLAIN);
    EXPECT(prepare(&gpu, &calls) == ERR_UNAVAILABLE, "%s: the status", failure);
    EXPECT(strstr(fail_message(), words), "%s: \"%s\" in: %s", failure, words, fail_message());
    unsetenv("TRIREME_SIM_FAIL");
    gpu_close(&gpu);
}

static void refusals_before_a_run(void) {
    static const char wants[] =
        "cudnnBackendGetAttribute failed on GPU 0 (simulated GPU): cuDNN 9.19.0 wants ";
    expect_refusal("workspace:1", ATTENTION_CUDNN_CHOSEN, wants);
    expect_refusal("workspace:2", ATTENTION_CUDNN, "bytes of workspace for attention backward in bf16");
    expect_refusal("plan:1", ATTENTION_CUDNN,
                   "S 9, D 8; --attention-backend flash takes the kernels of the program");
    expect_refusal("cudnnBackendCreateDescriptor:1", ATTENTION_CUDNN_CHOSEN,
                   "--attention-backend flash takes");
}

static void chosen_falls_back_before_a_run(void) {
    const Said file = said_begin();
    char said[1024];
    setenv("TRIREME_SIM_FAIL", "plan:1", 1);
    Gpu gpu = gpu_for(&PLAIN, ATTENTION_CUDNN_CHOSEN);
    const Calls calls = calls_of(&gpu, &PLAIN);
    const Status status = prepare(&gpu, &calls);
    run(&gpu, &calls);
    unsetenv("TRIREME_SIM_FAIL");
    said_end(&file, said, sizeof said);
    EXPECT_OK(status);
    EXPECT(strstr(said, "warning: the kernels of the program compute what cuDNN does not") &&
               strchr(said, '\n') == strrchr(said, '\n'),
           "said: %s", said);
    EXPECT(isfinite(load(calls.forward.out, 0)), "out");
    gpu_close(&gpu);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"agrees_with_own_kernels", agrees_with_own_kernels},
                       {"bits_repeat_unless_told_otherwise", bits_repeat_unless_told_otherwise},
                       {"calls_that_cudnn_takes", calls_that_cudnn_takes},
                       {"calls with rules are the program's", calls_with_rules_are_the_program_s},
                       {"gpus_that_cudnn_is_for", gpus_that_cudnn_is_for},
                       {"choice_falls_back", choice_falls_back},
                       {"plans_are_kept", plans_are_kept},
                       {"a_call_leaves_no_objects", a_call_leaves_no_objects},
                       {"workspace_is_enough", workspace_is_enough},
                       {"workspace_follows_the_options", workspace_follows_the_options},
                       {"missing_library_is_said", missing_library_is_said},
                       {"library_that_does_not_start", library_that_does_not_start},
                       {"refused_plan_is_computed_all_the_same", refused_plan_is_computed_all_the_same},
                       {"prepared_plans_are_those_of_the_calls", prepared_plans_are_those_of_the_calls},
                       {"refusals_before_a_run", refusals_before_a_run},
                       {"chosen_falls_back_before_a_run", chosen_falls_back_before_a_run},
                       {0}},
        argc, argv);
}
