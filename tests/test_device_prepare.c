// Preparing a device: which calls are of one kind, and that the CUDA device makes for each the plans that it then takes.
// The simulated GPU's objects are part of this program.
#include "cuda_fixture.h"
#include "device/prepare.h"
#include <stdlib.h>

// ---- kinds of calls -----------------------------------------------------------------------------------------

static Tensor at(uintptr_t address, int64_t rows, int64_t cols, DType dtype) {
    return (Tensor){(void *)address, rows, cols, dtype};
}

// Notes a call; returns how many kinds there are then.
static int note(DeviceCalls *calls, DeviceOp op, const void *args) {
    device_calls_note(calls, op, args, (OpCount){0});
    return calls->count;
}

static void kinds_of_products(void) {
    DeviceCalls calls = {0};
    Matmul p = {.a = at(4096, 4, 8, BF16), .b = at(8192, 8, 6, BF16), .d = at(512, 4, 6, BF16)};
    EXPECT(note(&calls, OP_MATMUL, &p) == 1, "the first");
    p.a.data = (void *)(uintptr_t)65536;
    EXPECT(note(&calls, OP_MATMUL, &p) == 1, "elsewhere it is another kind");
    p.a.data = (void *)(uintptr_t)65544;
    EXPECT(note(&calls, OP_MATMUL, &p) == 2, "another alignment");
    p.d.dtype = F32;
    EXPECT(note(&calls, OP_MATMUL, &p) == 3, "another type");
    p.accumulate = true;
    EXPECT(note(&calls, OP_MATMUL, &p) == 4, "added to");
    p.bias = at(256, 1, 6, BF16);
    EXPECT(note(&calls, OP_MATMUL, &p) == 5, "a bias");
    p.fast_sums = true;
    EXPECT(note(&calls, OP_MATMUL, &p) == 6, "fast sums");
    p.transpose_a = true;
    EXPECT(note(&calls, OP_MATMUL, &p) == 7, "transposed");
    MatmulSums sums = {.a = p.a, .b = p.b, .d = p.d, .sums = at(256, 1, 8, F32)};
    EXPECT(note(&calls, OP_MATMUL_SUMS, &sums) == 8, "another operation");
    sums.accumulate_sums = true;
    EXPECT(note(&calls, OP_MATMUL_SUMS, &sums) == 9 && note(&calls, OP_MATMUL_SUMS, &sums) == 9,
           "sums that are added to");
    device_calls_free(&calls);
}

// A kind is noted with its alignment; that of an absent tensor is absent.
static void kinds_keep_alignment(void) {
    DeviceCalls calls = {0};
    const Matmul p = {.a = at(65544, 4, 8, F32), .b = at(8192, 8, 6, F32), .d = at(512, 4, 6, F32)};
    note(&calls, OP_MATMUL, &p);
    const Matmul *kept = &calls.items[0].args.matmul;
    EXPECT((uintptr_t)kept->a.data % 16 == 8 && (uintptr_t)kept->b.data % 256 == 0 && kept->b.data,
           "alignment");
    EXPECT(!kept->bias.data, "a bias");
    device_calls_free(&calls);
}

static void kinds_of_attention(void) {
    DeviceCalls calls = {0};
    AttentionForward p = {.qkv = at(4096, 8, 96, BF16),
                          .out = at(8192, 8, 32, BF16),
                          .stats = at(512, 8, 4, F32),
                          .shape = {2, 4, 4, 4, 8, 0, 0, 0, 0, 0},
                          .dropout = {.samples = 2}};
    EXPECT(note(&calls, OP_ATTENTION_FORWARD, &p) == 1, "the first");
    p.shape.first_head = 4, p.dropout.key = rng_key(1, "attention", 3), p.dropout.first_sample = 6;
    EXPECT(note(&calls, OP_ATTENTION_FORWARD, &p) == 1, "another layer, rank and microbatch");
    p.dropout.probability = 0.1f;
    EXPECT(note(&calls, OP_ATTENTION_FORWARD, &p) == 2, "dropout");
    const AttentionBackward q = {.dout = p.out,
                                 .qkv = p.qkv,
                                 .out = p.out,
                                 .stats = p.stats,
                                 .dqkv = p.qkv,
                                 .shape = p.shape,
                                 .dropout = p.dropout};
    EXPECT(note(&calls, OP_ATTENTION_BACKWARD, &q) == 3, "the other pass");
    device_calls_free(&calls);
}

static void others_are_left_out(void) {
    DeviceCalls calls = {0};
    const Add add = {.x = at(4096, 1, 4, F32), .y = at(8192, 1, 4, F32)};
    EXPECT(note(&calls, OP_ADD, &add) == 0, "add has no plan");
    device_calls_free(&calls);
}

// More kinds than there is room for at first.
static void many_kinds(void) {
    DeviceCalls calls = {0};
    for (int turn = 0; turn < 2; turn++)
        for (int64_t n = 1; n <= 100; n++)
            note(&calls, OP_MATMUL,
                 &(Matmul){.a = at(256, 4, 8, F32), .b = at(256, 8, n, F32), .d = at(256, 4, n, F32)});
    EXPECT(calls.count == 100 && !calls.incomplete, "%d kinds", calls.count);
    EXPECT(calls.items[99].args.matmul.d.cols == 100, "the last kind");
    device_calls_free(&calls);
}

// ---- plans of products; those of attention are in test_device_sdpa.c ----------------------------------------

// The plans of a call that joins, and of those that are made where cuBLASLt does not join, as for rows of 9 elements.
static void prepared_plans_are_those_of_the_calls(void) {
    Gpu gpu = gpu_open();
    gpu.exec.workspace = gpu_take(&gpu, 2 * PRODUCT_WORKSPACE);
    for (int64_t cols = 9; cols <= 16; cols += 7) {
        const Tensor x = gpu_tensor(&gpu, BF16, 8, 16, 0), w = gpu_tensor(&gpu, BF16, cols, 16, 0),
                     y = gpu_tensor(&gpu, BF16, 8, cols, 0), aux = gpu_tensor(&gpu, BF16, 8, cols, 4);
        const MatmulGelu gelu = {.a = x, .b = w, .d = y, .aux = aux};
        const MatmulGeluBackward slope = {
            .a = x, .b = gpu_tensor(&gpu, BF16, 16, cols, 0), .d = y, .aux = aux};
        const MatmulSums sums = {.a = y,
                                 .b = x,
                                 .d = gpu_tensor(&gpu, F32, cols, 16, 0),
                                 .sums = gpu_tensor(&gpu, F32, 1, cols, 4),
                                 .accumulate_sums = true};
        const size_t before = sim_num_objects_made();
        EXPECT_OK(gpu.backend->prepare(gpu.device, OP_MATMUL_GELU, &gelu));
        EXPECT_OK(gpu.backend->prepare(gpu.device, OP_MATMUL_GELU_BACKWARD, &slope));
        EXPECT_OK(gpu.backend->prepare(gpu.device, OP_MATMUL_SUMS, &sums));
        const size_t made = sim_num_objects_made();
        cuda_matmul_gelu(&gpu.exec, &gelu);
        cuda_matmul_gelu_backward(&gpu.exec, &slope);
        cuda_matmul_sums(&gpu.exec, &sums);
        EXPECT(made > before && sim_num_objects_made() == made, "%d columns: %zu objects, %zu, %zu",
               (int)cols, before, made, sim_num_objects_made());
    }
    gpu_close(&gpu);
}

static void refusal_is_a_status(void) {
    Gpu gpu = gpu_open();
    const Matmul product = {.a = at(4096, 8, 8, BF16), .b = at(4096, 8, 8, BF16), .d = at(4096, 8, 8, BF16)};
    setenv("TRIREME_SIM_FAIL", "cublasLtMatmulAlgoGetHeuristic:1", 1);
    EXPECT(gpu.backend->prepare(gpu.device, OP_MATMUL, &product) == ERR_OS, "the status");
    unsetenv("TRIREME_SIM_FAIL");
    EXPECT(strstr(fail_message(),
                  "cublasLtMatmulAlgoGetHeuristic failed on GPU 0 (simulated GPU): CUBLAS_STATUS_INTERNAL"),
           "%s", fail_message());
    EXPECT_OK(gpu.backend->prepare(gpu.device, OP_MATMUL, &product)); // nothing is left of the first time
    EXPECT(!products_plan(gpu.device, &(JoinedProduct){.matmul = product})->is_plain, "the plan");
    gpu_close(&gpu);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"kinds_of_products", kinds_of_products},
                       {"kinds_keep_alignment", kinds_keep_alignment},
                       {"kinds_of_attention", kinds_of_attention},
                       {"others_are_left_out", others_are_left_out},
                       {"many_kinds", many_kinds},
                       {"prepared_plans_are_those_of_the_calls", prepared_plans_are_those_of_the_calls},
                       {"refusal_is_a_status", refusal_is_a_status},
                       {0}},
        argc, argv);
}
