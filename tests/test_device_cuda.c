// The host code of the CUDA device, on the simulated GPU: copies, streams, events, marks, host code that uses device
// memory, and what is said of errors. Kernels: test_device_ops.c.
#include "base/rank.h"
#include "device/survey.h"
#include "device_mistakes.h"
#include "sysfs_tree.h"

enum { TURNS = 60 };

static Stream *second_stream(Fixture *b) {
    Stream *stream;
    EXPECT_OK(device_stream_open(b->device, "second", &stream));
    return stream;
}

// ---- what the simulation is for ---------------------------------------------------------------------------

static void work_runs_late(void) {
    Fixture b = fixture_open("cuda-sim", 1);
    Tensor x = from_floats(&b, 1, 4, (const float[]){5, 5, 5, 5});
    const float *seen = device_address(b.device, x);
    device_sync(b.device, b.stream);
    device_zero(b.device, b.stream, x);
    EXPECT(seen[0] == 5, "%g before anything waits", (double)seen[0]);
    device_sync(b.device, b.stream);
    EXPECT(seen[0] == 0, "%g after a wait", (double)seen[0]);
    fixture_close(&b);
}

// y becomes x + 1 on one stream, and z becomes y on another. Returns how often z is wrong.
static int misses(bool waits) {
    Fixture b = fixture_open("cuda-sim", 1);
    Stream *second = second_stream(&b);
    Tensor one = from_floats(&b, 1, 1, (const float[]){1}), y = zeros_of(&b, F32, 1, 1), z = tensor(&b, 1, 1);
    device_sync(b.device, b.stream);
    int wrong = 0;
    for (int turn = 1; turn <= TURNS; turn++) {
        add(b.device, b.stream, (Add){one, y});
        if (waits) stream_wait(b.device, second, event_record(b.device, b.stream));
        device_copy(b.device, second, z, y);
        float got;
        device_download(b.device, second, &got, z);
        wrong += got != (float)turn;
        device_sync(b.device, b.stream);
    }
    device_stream_close(b.device, second);
    fixture_close(&b);
    return wrong;
}

static void missing_order_shows(void) {
    EXPECT(misses(false) > 0, "the streams are in order without an event");
    EXPECT(misses(true) == 0, "the event is not waited for");
}

// ---- copies -----------------------------------------------------------------------------------------------

// Up and down again, of sizes around those that go through pinned memory; more at once than there is such memory.
static void copies_keep_bytes(void) {
    static const int64_t counts[] = {1, 1000, (64 << 10) / 4, (64 << 10) / 4 + 1, 25000};
    for (int i = 0; i < 5; i++) {
        enum { AT_ONCE = 40 };
        Fixture b = fixture_open("cuda-sim", 1);
        int64_t count = counts[i];
        float *host = malloc((size_t)count * sizeof *host);
        Tensor x[AT_ONCE];
        CHECK(host, "no memory");
        for (int k = 0; k < AT_ONCE; k++) {
            for (int64_t at = 0; at < count; at++) host[at] = (float)(k + at);
            x[k] = tensor(&b, 1, count);
            device_upload(b.device, b.stream, x[k], host);
        }
        for (int k = 0; k < AT_ONCE; k++) {
            device_download(b.device, b.stream, host, x[k]);
            EXPECT(host[0] == (float)k && host[count - 1] == (float)(k + count - 1), "%d of %lld: %g, %g", k,
                   (long long)count, (double)host[0], (double)host[count - 1]);
        }
        free(host);
        fixture_close(&b);
    }
}

static void copies_may_overlap(void) {
    static const int64_t places[][2] = {{0, 1}, {1, 0}, {0, 7}, {7, 0}, {3, 3}, {0, 30}};
    Fixture b = fixture_open("cuda-sim", 1);
    for (int i = 0; i < 6; i++) {
        float values[50];
        for (int k = 0; k < 50; k++) values[k] = (float)k;
        Tensor x = from_floats(&b, 1, 50, values);
        device_copy(b.device, b.stream, tensor_part(x, places[i][1], 20), tensor_part(x, places[i][0], 20));
        memmove(values + places[i][1], values + places[i][0], 20 * sizeof *values);
        float *got = values_of(&b, x);
        EXPECT(memcmp(got, values, sizeof values) == 0, "from %d to %d", (int)places[i][0],
               (int)places[i][1]);
        free(got);
    }
    fixture_close(&b);
}

// ---- events, host code that uses device memory ------------------------------------------------------------

// More events than the device keeps, asked for late; and another stream waits for one of long ago.
static void old_events_are_done(void) {
    Fixture b = fixture_open("cuda-sim", 1);
    Stream *second = second_stream(&b);
    Tensor x = zeros_of(&b, F32, 1, 1);
    StreamEvent first = event_record(b.device, b.stream);
    for (int i = 0; i < 3000; i++) event_record(b.device, b.stream);
    stream_wait(b.device, second, first);
    EXPECT(event_done(b.device, first), "an event of long ago");
    EXPECT(*(float *)device_address(b.device, x) == 0, "its work");
    StreamEvent last = event_record(b.device, b.stream);
    event_wait(b.device, last);
    EXPECT(event_done(b.device, last), "the last event");
    device_stream_close(b.device, second);
    fixture_close(&b);
}

// The host reads what the stream has written before, and what the host writes is there for both streams.
static void host_code_is_in_order(void) {
    Fixture b = fixture_open("cuda-sim", 1);
    Stream *second = second_stream(&b);
    Tensor one = from_floats(&b, 1, 1, (const float[]){1}), x = zeros_of(&b, F32, 1, 3);
    Tensor middle = tensor_part(x, 1, 1);
    for (int turn = 0; turn < TURNS; turn++) {
        add(b.device, b.stream, (Add){one, middle});
        HostAccess access = device_access(b.device, b.stream, x, true, true, "message");
        while (!device_access_ready(b.device, &access)) event_wait_for(b.device, access.since, 1e-4);
        float *host = device_access_address(b.device, &access);
        EXPECT(host[1] == (float)(2 * turn + 1) && host[2] == (float)turn, "turn %d: %g, %g", turn,
               (double)host[1], (double)host[2]);
        host[1]++, host[2]++;
        device_access_end(b.device, &access);
        float got[3];
        device_download(b.device, turn % 2 ? second : b.stream, got, x);
        EXPECT(got[1] == (float)(2 * turn + 2) && got[0] == 0, "turn %d: %g after the host", turn,
               (double)got[1]);
    }
    device_stream_close(b.device, second);
    fixture_close(&b);
}

static void marks_tell_the_time(void) {
    Fixture b = fixture_open("cuda-sim", 1);
    Tensor x = zeros_of(&b, F32, 1, 4);
    double before = clock_s();
    DeviceMark marks[100];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++) {
            marks[i] = device_mark(b.device, b.stream);
            device_zero(b.device, b.stream, x);
        }
        for (int i = 99; i >= 0; i--) device_mark_read(b.device, &marks[i]);
        for (int i = 1; i < 100; i++) EXPECT(marks[i - 1].wall_s <= marks[i].wall_s, "mark %d", i);
    }
    EXPECT(marks[0].wall_s > before - 1e-3 && marks[99].wall_s < clock_s() + 1e-3, "the host's clock");
    fixture_close(&b);
}

// ---- survey -----------------------------------------------------------------------------------------------

// It runs a kernel on each GPU, and the memory that it takes is free again.
static void survey_tries_every_gpu(void) {
    static DeviceSurvey survey;
    Text module = {0};
    setenv("TRIREME_SIM_GPUS", "3", 1);
    setenv("TRIREME_SIM_MEMORY", "64", 1);
    for (int turn = 0; turn < 2; turn++) {
        EXPECT_OK(device_survey("cuda-sim", true, &survey, &module));
        EXPECT(survey.has_gpus && survey.num_gpus == 3 && survey.num_libraries > 0, "%d", survey.num_gpus);
        for (int i = 0; i < survey.num_gpus; i++) {
            const GpuSurvey *gpu = &survey.gpus[i];
            EXPECT(gpu->number == i && !*gpu->problem, "GPU %d: %s", i, gpu->problem);
            EXPECT(gpu->free_bytes == 64u << 20 && gpu->memory_bytes == 64u << 20, "%zu", gpu->free_bytes);
            EXPECT(strcmp(gpu->uuid, survey.gpus[!i].uuid) != 0, "%s twice", gpu->uuid);
        }
    }
    setenv("TRIREME_SIM_FAIL", "memory:2", 1); // of the second GPU
    EXPECT_OK(device_survey("cuda-sim", true, &survey, &module));
    for (int i = 0; i < 3; i++)
        EXPECT(!*survey.gpus[i].problem == (i != 1), "GPU %d: %s", i, survey.gpus[i].problem);
    unsetenv("TRIREME_SIM_FAIL");
    unsetenv("TRIREME_SIM_MEMORY");
    unsetenv("TRIREME_SIM_GPUS");
    EXPECT_OK(device_survey("cpu", true, &survey, &module));
    EXPECT(!survey.has_gpus && !survey.num_gpus, "the CPU has %d GPUs", survey.num_gpus);
    text_free(&module);
}

// Two sockets with four GPUs each, and a ninth of which the system says nothing.
static void gpus_have_places(void) {
    static DeviceSurvey survey;
    const char *root = harness_path("machine");
    Text module = {0};
    Cores near;
    setenv("TRIREME_SIM_GPUS", "9", 1);
    for (int i = 0; i < 9; i++) {
        char way[64];
        snprintf(way, sizeof way, "pcifffff:%02x/fffff:%02x:00.0", 0xa0 + i, 0xa0 + i);
        tree_device(root, way, i == 8 ? "-1" : i < 4 ? "0" : "1", i == 8 ? "0-15" : i < 4 ? "0-7" : "8-15");
    }
    tree_network(root, "net", "eth0", "pcifffff:a5/fffff:a5:00.0");
    EXPECT_OK(device_survey("cuda-sim", false, &survey, &module));
    for (int i = 0; i < 9; i++) {
        GpuSurvey *gpu = &survey.gpus[i];
        EXPECT(gpu->node == -1 && !*gpu->cores, "this machine has no such GPU: %s", gpu->pci);
        survey_place(gpu, root);
        EXPECT(gpu->node == (i == 8 ? -1 : i / 4), "GPU %d is on node %d", i, gpu->node);
        EXPECT(!strcmp(gpu->cores, i == 8 ? "" : i < 4 ? "0-7" : "8-15"), "GPU %d: %s", i, gpu->cores);
        EXPECT(!strcmp(gpu->network, i / 4 == 1 ? "eth0" : ""), "GPU %d: %s", i, gpu->network);
        for (int turn = 0; turn < 2; turn++) { // ranks take GPUs in turn
            device_near("cuda-sim", i + 9 * turn, root, &near);
            EXPECT(near.count == (i == 8 ? 0 : 8) && near.ids[0] == (i / 4 == 1 ? 8 : 0),
                   "rank %d: %d from %d", i + 9 * turn, near.count, near.ids[0]);
        }
    }
    device_near("cpu", 0, root, &near);
    EXPECT(!near.count, "the CPU has no GPU");
    setenv("TRIREME_SIM_GPUS", "0", 1);
    device_near("cuda-sim", 0, root, &near);
    EXPECT(!near.count, "there is no GPU");
    unsetenv("TRIREME_SIM_GPUS");
    text_free(&module);
}

static DeviceUnit unit_of(int rank_here) {
    Device *device;
    EXPECT_OK(
        device_open(&device, (DeviceOptions){.kind = "cuda-sim", .threads = 1, .rank_here = rank_here}));
    DeviceUnit unit = device_unit(device);
    device_close(device);
    return unit;
}

static void units_are_those_of_gpus(void) {
    setenv("TRIREME_SIM_GPUS", "2", 1);
    DeviceUnit first = unit_of(0), second = unit_of(1), again = unit_of(2);
    unsetenv("TRIREME_SIM_GPUS");
    EXPECT(memcmp(first.id, second.id, sizeof first.id) != 0, "two GPUs are one");
    EXPECT(memcmp(first.id, again.id, sizeof first.id) == 0, "one GPU is two");
    EXPECT(!strcmp(second.name, "GPU 1 (simulated GPU)"), "%s", second.name);
}

static void arithmetic_names_the_gpus(void) {
    Text text = {0};
    setenv("TRIREME_SIM_GPUS", "4", 1);
    device_arithmetic("cuda-sim", &text);
    unsetenv("TRIREME_SIM_GPUS");
    EXPECT(!strcmp(text_string(&text),
                   "CUDA 13.0 on simulated GPU (compute capability 9.0, 2 multiprocessors)"
                   ", cuDNN 9.19.0"),
           "%s", text_string(&text));
    text.size = 0;
    setenv("TRIREME_SIM_CUDNN", "0", 1);
    device_arithmetic("cuda-sim", &text);
    unsetenv("TRIREME_SIM_CUDNN");
    EXPECT(strstr(text_string(&text), "2 multiprocessors), no cuDNN"), "%s", text_string(&text));
    text_free(&text);
}

// ---- several GPUs, errors ---------------------------------------------------------------------------------

static void expect_refusal(DeviceOptions options, Status wanted, const char *words) {
    Device *device;
    options.kind = "cuda-sim", options.threads = 1;
    EXPECT(device_open(&device, options) == wanted, "the status, not %d", (int)wanted);
    EXPECT(!device && strstr(fail_message(), words), "\"%s\" in: %s", words, fail_message());
}

// Each failure once, and at the first call that can have it. Opening checks for a GPU first.
static void errors_at_opening_are_named(void) {
    setenv("TRIREME_SIM_DRIVER", "0", 1);
    expect_refusal((DeviceOptions){0}, ERR_UNAVAILABLE, "needs NVIDIA's driver, and there is none here");
    setenv("TRIREME_SIM_DRIVER", "12040", 1);
    expect_refusal((DeviceOptions){0}, ERR_UNAVAILABLE, "it knows CUDA up to 12.4");
    unsetenv("TRIREME_SIM_DRIVER");
    setenv("TRIREME_SIM_CAPABILITY", "75", 1);
    expect_refusal((DeviceOptions){0}, ERR_UNAVAILABLE, "has compute capability 7.5");
    unsetenv("TRIREME_SIM_CAPABILITY");
    setenv("TRIREME_SIM_FAIL", "device:2", 1);
    expect_refusal((DeviceOptions){0}, ERR_UNAVAILABLE, "cudaErrorNoDevice");
    setenv("TRIREME_SIM_FAIL", "library:1", 1);
    expect_refusal((DeviceOptions){0}, ERR_UNAVAILABLE, "needs cuBLASLt, and there is no libcublasLt.so");
    setenv("TRIREME_SIM_FAIL", "library:01", 1); // another text begins to count anew
    EXPECT(device_check("cuda-sim") == ERR_UNAVAILABLE, "the check of a device without cuBLASLt");
    setenv("TRIREME_SIM_FAIL", "memory:1", 1);
    setenv("TRIREME_SIM_GPUS", "3", 1);
    expect_refusal(
        (DeviceOptions){.workspace_bytes = 1 << 20, .rank_here = 5}, ERR_OS,
        "1.0 MiB wanted (cudaMalloc on GPU 2, simulated GPU: out of memory; 16.0 of its 16.0 GiB are free");
    unsetenv("TRIREME_SIM_GPUS");
    unsetenv("TRIREME_SIM_FAIL");
}

static void launch_what_fails(Fixture *b) {
    Tensor x = normals(b, 1, 4), y = normals(b, 1, 4);
    rank_doing("F3.1");
    add(b->device, b->stream, (Add){x, y});
    device_sync(b->device, b->stream);
}

static void multiply(Fixture *b) {
    Tensor x = normals(b, 4, 4), d = tensor(b, 4, 4);
    rank_doing("B2.0");
    matmul(b->device, b->stream, (Matmul){.a = x, .b = x, .d = d});
}

static void copy_from_nowhere(Fixture *b) {
    Tensor x = normals(b, 1, 4);
    x.cols = FIXTURE_BYTES;
    device_zero(b->device, b->stream, x);
}

static void faults_are_named(void) {
    setenv("TRIREME_SIM_FAIL", "launch:1", 1);
    expect_death_on("cuda-sim", launch_what_fails, ERR_BUG,
                    "cudaEventQuery failed on GPU 0 (simulated GPU) at F3.1: cudaErrorLaunchFailure");
    expect_death_on("cuda-sim", launch_what_fails, ERR_BUG, "add [1, 4]"); // among the last operations
    setenv("TRIREME_SIM_FAIL", "cublasLtMatmul:1", 1);
    expect_death_on(
        "cuda-sim", multiply, ERR_BUG,
        "cublasLtMatmul failed on GPU 0 (simulated GPU) at B2.0: CUBLAS_STATUS_EXECUTION_FAILED, the");
    setenv("TRIREME_SIM_FAIL", "cublasLtMatmulAlgoGetHeuristic:1", 1);
    expect_death_on(
        "cuda-sim", multiply, ERR_BUG,
        "cublasLtMatmulAlgoGetHeuristic failed on GPU 0 (simulated GPU) at B2.0: CUBLAS_STATUS_INTERNAL");
    unsetenv("TRIREME_SIM_FAIL");
    setenv("TRIREME_SIM_FAIL", "gone:1", 1);
    expect_death_on("cuda-sim", launch_what_fails, ERR_OS, "The GPU is broken or gone");
    unsetenv("TRIREME_SIM_FAIL");
    expect_death_on("cuda-sim", copy_from_nowhere, ERR_BUG, "cudaMemsetAsync: memory that is not the GPU's");
}

static void attend(Fixture *b) {
    const AttentionShape shape = {1, 4, 1, 1, 8, 0, 0, 0, 0, 0};
    Tensor qkv = normals(b, 4, 24), out = tensor(b, 4, 8), stats = tensor_f32(b, 1, 4);
    attention_forward(b->device, b->stream,
                      (AttentionForward){.qkv = qkv, .out = out, .stats = stats, .shape = shape});
}

static void attend_in_bf16(Fixture *b) {
    b->element = BF16;
    attend(b);
}

static void faults_of_attention_are_named(void) {
    setenv("TRIREME_SIM_FAIL", "cudnnBackendExecute:1", 1);
    expect_death_on("cuda-sim", attend_in_bf16, ERR_BUG,
                    "cudnnBackendExecute failed on GPU 0 (simulated GPU): CUDNN_STATUS_EXECUTION_FAILED");
    setenv("TRIREME_SIM_FAIL", "cudnnBackendCreateDescriptor:1", 1);
    expect_death_on("cuda-sim", attend_in_bf16, ERR_UNAVAILABLE,
                    "S 4, D 8; --attention-backend flash takes the kernels of the program.");
    setenv("TRIREME_SIM_FAIL", "workspace:1", 1);
    expect_death_on("cuda-sim", attend_in_bf16, ERR_UNAVAILABLE,
                    "cuDNN 9.19.0 wants 1073742080 bytes of workspace for attention forward in bf16");
    unsetenv("TRIREME_SIM_FAIL");
}

// ---- cuda-check -------------------------------------------------------------------------------------------

static void write_infinity(Fixture *b) {
    Tensor x = from_floats(b, 2, 2, (const float[]){1, 2, 3e38f, 4}), y = zeros_of(b, F32, 2, 2);
    rank_doing("F1.0");
    for (int i = 0; i < 2; i++) add(b->device, b->stream, (Add){x, y});
}

static void read_unwritten(Fixture *b) {
    Tensor y = zeros_of(b, F32, 1, 5);
    ArenaMark mark = arena_mark(&b->arena);
    zeros_of(b, BF16, 3, 5);
    arena_release(&b->arena, mark);
    Tensor x = tensor_of(b, BF16, 3, 5); // where the zeros were
    column_sum(b->device, b->stream, (ColumnSum){x, y});
}

static void write_beyond(Fixture *b) {
    char *end = (char *)b->arena.base + FIXTURE_BYTES;
    device_zero(b->device, b->stream, (Tensor){end + 8, 1, 4, F32});
}

static void write_before(Fixture *b) {
    Tensor x = normals(b, 1, 4), before = {(char *)b->arena.base - 16, 1, 4, F32};
    device_zero(b->device, b->stream, x);
    device_copy(b->device, b->stream, before, x);
}

static void checks_name_the_operation(void) {
    const char *const kind = "cuda-sim-check";
    setenv("TRIREME_SIM_FAIL", "launch:3",
           1); // the second addition: what looks at the numbers is a kernel, too
    expect_death_on(kind, write_infinity, ERR_BUG,
                    "add failed on GPU 0 (simulated GPU) at F1.0: cudaErrorLaunch");
    expect_death_on(kind, write_infinity, ERR_BUG, "It is the operation that failed");
    setenv("TRIREME_SIM_FAIL", "launch:1", 1);
    expect_death_on("cuda-sim", launch_what_fails, ERR_BUG, "with --device cuda-sim-check the run is slow");
    expect_death_on(kind, launch_what_fails, ERR_BUG, "add failed on GPU 0 (simulated GPU) at F3.1");
    unsetenv("TRIREME_SIM_FAIL");
    expect_death_on(kind, write_infinity, ERR_NUMERIC, "add wrote inf to y[1, 0] of [2, 2] while at F1.0");
    expect_death_on(kind, read_unwritten, ERR_NUMERIC, "nan to sum[0, 0] of [1, 5]");
    expect_death_on(kind, write_beyond, ERR_BUG,
                    "device_zero or what ran beside it wrote 9 bytes beyond the memory 'fixture'");
    expect_death_on(kind, write_before, ERR_BUG,
                    "device_copy or what ran beside it wrote 16 bytes before the memory 'fixture'");
}

// Waiting and looking change no number.
static void checks_change_no_bit(void) {
    double sums[2];
    for (int i = 0; i < 2; i++) {
        Fixture b = fixture_open(i ? "cuda-sim-check" : "cuda-sim", 1);
        Tensor x = normals(&b, 9, 70), w = normals(&b, 30, 70), d = tensor(&b, 9, 30),
               max = zeros_of(&b, F32, 1, 1);
        matmul(b.device, b.stream, (Matmul){.a = x, .b = w, .d = d, .transpose_b = true});
        abs_max(b.device, b.stream, (AbsMax){d, max});
        double *values = doubles_of(&b, d), *largest = doubles_of(&b, max);
        sums[i] = largest[0];
        for (int k = 0; k < 270; k++) sums[i] += values[k];
        free(values);
        free(largest);
        fixture_close(&b);
    }
    EXPECT(sums[0] == sums[1] && isfinite(sums[0]), "%.17g and %.17g", sums[0], sums[1]);
}

// To ThreadSanitizer the fibers that a child has from its parent are unordered: the test that forks comes before those that
// make fibers.
int main(int argc, char **argv) {
    return harness_run((const Test[]){{"checks_name_the_operation", checks_name_the_operation},
                                      {"work_runs_late", work_runs_late},
                                      {"missing_order_shows", missing_order_shows},
                                      {"copies_keep_bytes", copies_keep_bytes},
                                      {"copies_may_overlap", copies_may_overlap},
                                      {"old_events_are_done", old_events_are_done},
                                      {"host_code_is_in_order", host_code_is_in_order},
                                      {"marks_tell_the_time", marks_tell_the_time},
                                      {"survey_tries_every_gpu", survey_tries_every_gpu},
                                      {"gpus_have_places", gpus_have_places},
                                      {"units_are_those_of_gpus", units_are_those_of_gpus},
                                      {"arithmetic_names_the_gpus", arithmetic_names_the_gpus},
                                      {"errors_at_opening_are_named", errors_at_opening_are_named},
                                      {"faults_are_named", faults_are_named},
                                      {"faults_of_attention_are_named", faults_of_attention_are_named},
                                      {"checks_change_no_bit", checks_change_no_bit},
                                      {0}},
                       argc, argv);
}
