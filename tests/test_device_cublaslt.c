// The simulated cuBLASLt: it finds the mistakes of a caller, and shows the choices that a caller should not allow.
#include "base/half.h"
#include "cuda_fixture.h"
#include <stdlib.h>

// What a caller of the library makes of a product in bf16: d [M, N] of a [M, K] and b [K, N], column by column.
enum { M = 8, N = 16, K = 100 };
typedef struct {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    void *a_data, *b_data, *d_data, *workspace;
    size_t workspace_bytes;
} Caller;

static void expect_success(cublasStatus_t status) { EXPECT(!status, "%s", cublasLtGetStatusName(status)); }

static void prefer(Caller *c, int attribute, uint32_t value) {
    expect_success(cublasLtMatmulPreferenceSetAttribute(
        c->preference, (cublasLtMatmulPreferenceAttributes_t)attribute, &value, sizeof value));
}

static void set_product(Caller *c, cublasLtMatmulDescAttributes_t attribute, int32_t value) {
    expect_success(cublasLtMatmulDescSetAttribute(c->product, attribute, &value, sizeof value));
}

static void set_layout(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows, uint64_t cols,
                       int64_t ld) {
    if (*layout) expect_success(cublasLtMatrixLayoutDestroy(*layout));
    expect_success(cublasLtMatrixLayoutCreate(layout, type, rows, cols, ld));
}

static void *bf16_numbers(Gpu *gpu, int64_t count) {
    uint16_t *x = gpu_tensor(gpu, BF16, 1, count, 0).data;
    for (int64_t i = 0; i < count; i++)
        x[i] = bf16_of_f32((float)((uint64_t)(i + count) * 2654435761u >> 7 & 0xFF) / 96);
    return x;
}

static Caller caller_open(Gpu *gpu) {
    Caller c = {.workspace = gpu->exec.workspace, .workspace_bytes = PRODUCT_WORKSPACE};
    const uint64_t bytes = PRODUCT_WORKSPACE;
    expect_success(cublasLtCreate(&c.handle));
    expect_success(cublasLtMatmulDescCreate(&c.product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set_layout(&c.a, CUDA_R_16BF, M, K, M);
    set_layout(&c.b, CUDA_R_16BF, K, N, K);
    set_layout(&c.c, CUDA_R_16BF, M, N, M);
    set_layout(&c.d, CUDA_R_16BF, M, N, M);
    expect_success(cublasLtMatmulPreferenceCreate(&c.preference));
    expect_success(cublasLtMatmulPreferenceSetAttribute(
        c.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    prefer(&c, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    for (int i = 0; i < 4; i++) prefer(&c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i, 16);
    c.a_data = bf16_numbers(gpu, M * K);
    c.b_data = bf16_numbers(gpu, K * N);
    c.d_data = gpu_tensor(gpu, BF16, N, M, 0).data;
    return c;
}

static void caller_close(const Caller *c) {
    expect_success(cublasLtMatmulPreferenceDestroy(c->preference));
    expect_success(cublasLtMatrixLayoutDestroy(c->d));
    expect_success(cublasLtMatrixLayoutDestroy(c->c));
    expect_success(cublasLtMatrixLayoutDestroy(c->b));
    expect_success(cublasLtMatrixLayoutDestroy(c->a));
    expect_success(cublasLtMatmulDescDestroy(c->product));
    expect_success(cublasLtDestroy(c->handle));
}

static cublasStatus_t choose(Caller *c) {
    int count;
    return cublasLtMatmulAlgoGetHeuristic(c->handle, c->product, c->a, c->b, c->c, c->d, c->preference, 1,
                                          &c->found, &count);
}

static cublasStatus_t multiply(const Caller *c, const Gpu *gpu) {
    const float alpha = 1, beta = 0;
    return cublasLtMatmul(c->handle, c->product, &alpha, c->a_data, c->a, c->b_data, c->b, &beta, c->d_data,
                          c->c, c->d_data, c->d, &c->found.algo, c->workspace, c->workspace_bytes,
                          stream_of(&gpu->exec));
}

// ---- mistakes ---------------------------------------------------------------------------------------------

static void *behind(void *address, size_t bytes) { return (char *)address + bytes; }

static void short_columns(Caller *c) { set_layout(&c->a, CUDA_R_16BF, M, K, M - 1); }
static void no_columns(Caller *c) { set_layout(&c->b, CUDA_R_16BF, K, 0, K); }
static void wrong_transposition(Caller *c) { set_product(c, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T); }
static void wrong_sum(Caller *c) { set_layout(&c->b, CUDA_R_16BF, K + 1, N, K + 1); }
static void other_c(Caller *c) { set_layout(&c->c, CUDA_R_32F, M, N, M); }
static void destroyed(Caller *c) { expect_success(cublasLtMatmulDescDestroy(c->product)); }
static void default_preference(Caller *c) {
    expect_success(cublasLtMatmulPreferenceDestroy(c->preference));
    expect_success(cublasLtMatmulPreferenceCreate(&c->preference));
}
static void no_handle(Caller *c) { c->handle = NULL; }

static void no_algorithm(Caller *c) { memset(&c->found.algo, 0, sizeof c->found.algo); }
static void algorithm_of_another(Caller *c) {
    set_product(c, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
}

// GELU_AUX: c's aux lies behind d.
static void set_aux(Caller *c, void *aux, int64_t ld) {
    expect_success(cublasLtMatmulDescSetAttribute(c->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux,
                                                  sizeof aux));
    expect_success(
        cublasLtMatmulDescSetAttribute(c->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld));
    set_product(c, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_AUX);
}
static void with_aux(Caller *c) { set_aux(c, behind(c->d_data, M * N * 2), M); }
static void aux_between(Caller *c) { set_aux(c, behind(c->d_data, M * N * 2 + 8), M); }
static void aux_over_d(Caller *c) { set_aux(c, c->d_data, M); }
static void aux_beyond_memory(Caller *c) { set_aux(c, behind(c->a_data, GPU_BYTES), M); }
static void with_sums(Caller *c) { set_product(c, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADB); }

static void address_between(Caller *c) { c->b_data = behind(c->b_data, 8); }
static void address_by_128(Caller *c) { c->a_data = behind(c->a_data, 128); }
static void beyond_memory(Caller *c) { c->a_data = behind(c->a_data, GPU_BYTES - 256); }
static void on_the_host(Caller *c) {
    static _Alignas(GPU_ALIGNMENT) char memory[M * N * 2];
    c->d_data = memory;
}
static void over_a(Caller *c) { c->d_data = behind(c->a_data, M * K * 2 - 16); }
static void small_workspace(Caller *c) { c->workspace_bytes = M * N * sizeof(float) - 1; }
static void no_workspace(Caller *c) { c->workspace = NULL; }
static void workspace_between(Caller *c) { c->workspace = behind(c->workspace, 4), c->workspace_bytes -= 4; }
static void other_gpu(Caller *c) {
    (void)c;
    cudaSetDevice(1);
}
static void nothing(Caller *c) { (void)c; }

static const struct {
    void (*before)(Caller *), (*after)(Caller *); // an algorithm is chosen
    const char *words;
} MISTAKES[] = {
    {short_columns, nothing, "a layout without elements, or with overlapping columns"},
    {no_columns, nothing, "a layout without elements, or with overlapping columns"},
    {wrong_transposition, nothing, "op(a) or op(b) does not fit d"},
    {wrong_sum, nothing, "op(a) does not fit op(b)"},
    {other_c, nothing, "c and d differ in layout"},
    {no_handle, nothing, "a handle that does not exist"},
    {destroyed, nothing, "a descriptor or a layout that does not exist"},
    {nothing, destroyed, "a descriptor or a layout that does not exist"},
    {nothing, no_handle, "a handle that does not exist"},
    {nothing, other_gpu, "a handle of another GPU"},
    {nothing, no_algorithm, "an algorithm for another product"},
    {nothing, algorithm_of_another, "an algorithm for another product"},
    {with_aux, aux_between, "an aux that is aligned to less than was promised"},
    {with_aux, aux_over_d, "d overlaps aux"},
    {with_aux, aux_beyond_memory, "an aux that is not the GPU's memory"},
    {with_sums, nothing, "a bias that is not the GPU's memory"},
    {nothing, address_between, "an address that is aligned to less than was promised"},
    {default_preference, address_by_128, "an address that is aligned to less than was promised"},
    {nothing, beyond_memory, "a or b that is not the GPU's memory"},
    {nothing, on_the_host, "c or d that is not the GPU's memory"},
    {nothing, over_a, "d overlaps a or b"},
    {nothing, small_workspace, "less workspace than the algorithm needs"},
    {nothing, no_workspace, "a workspace that is not the GPU's memory"},
    {nothing, workspace_between, "a workspace that is not aligned"},
};
enum { NUM_MISTAKES = sizeof MISTAKES / sizeof *MISTAKES };

// Makes a mistake, with standard error in a file. Returns the status; `said` becomes the file's contents.
static cublasStatus_t status_of(int mistake, Gpu *gpu, char *said, size_t bytes) {
    Caller right = caller_open(gpu), c = right;
    const Said file = said_begin();
    MISTAKES[mistake].before(&c);
    cublasStatus_t status = choose(&c);
    MISTAKES[mistake].after(&c);
    if (!status) status = multiply(&c, gpu);
    said_end(&file, said, bytes);
    cudaSetDevice(0);
    c.handle = right.handle;
    if (MISTAKES[mistake].before == destroyed || MISTAKES[mistake].after == destroyed)
        expect_success(cublasLtMatmulDescCreate(&c.product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    caller_close(&c);
    return status;
}

static void mistakes_are_named(void) {
    setenv("TRIREME_SIM_GPUS", "2", 1);
    for (int i = 0; i < NUM_MISTAKES; i++) {
        Gpu gpu = gpu_open();
        char said[1024];
        EXPECT(status_of(i, &gpu, said, sizeof said) == CUBLAS_STATUS_INVALID_VALUE, "mistake %d: the status",
               i);
        EXPECT(strstr(said, MISTAKES[i].words), "mistake %d: \"%s\" in: %s", i, MISTAKES[i].words, said);
        gpu_close(&gpu);
    }
    unsetenv("TRIREME_SIM_GPUS");
}

// ---- choices ----------------------------------------------------------------------------------------------

// The number of elements that are not those of sums in fp32 along k, rounded once, when such reductions are allowed.
static int wrong_elements(Gpu *gpu, uint32_t reductions) {
    Caller c = caller_open(gpu);
    const uint16_t *a = c.a_data, *b = c.b_data, *d = c.d_data;
    int wrong = 0;
    prefer(&c, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    expect_success(choose(&c));
    expect_success(multiply(&c, gpu));
    gpu_wait(gpu);
    for (int i = 0; i < M * N; i++) {
        float sum = 0;
        for (int k = 0; k < K; k++) sum += bf16_to_f32(a[k * M + i % M]) * bf16_to_f32(b[i / M * K + k]);
        wrong += bf16_of_f32(sum) != d[i];
    }
    caller_close(&c);
    return wrong;
}

// Whether a product to fp32 has the same bits twice, when such reductions are allowed.
static bool repeats(Gpu *gpu, uint32_t reductions) {
    Caller c = caller_open(gpu);
    float got[2][M * N];
    set_layout(&c.c, CUDA_R_32F, M, N, M);
    set_layout(&c.d, CUDA_R_32F, M, N, M);
    c.d_data = gpu_tensor(gpu, F32, N, M, 0).data;
    prefer(&c, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    expect_success(choose(&c));
    for (int time = 0; time < 2; time++) {
        expect_success(multiply(&c, gpu));
        gpu_wait(gpu);
        memcpy(got[time], c.d_data, sizeof got[time]);
    }
    caller_close(&c);
    return memcmp(got[0], got[1], sizeof got[0]) == 0;
}

static void choices_show(void) {
    Gpu gpu = gpu_open();
    EXPECT(wrong_elements(&gpu, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) == 0, "reduced in the workspace");
    EXPECT(wrong_elements(&gpu, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) > 0, "reduced in the type of d");
    EXPECT(repeats(&gpu, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), "reduced in the workspace");
    EXPECT(!repeats(&gpu, CUBLASLT_REDUCTION_SCHEME_MASK), "reduced in place");
    gpu_close(&gpu);
}

// ---- factors in 8 bits ------------------------------------------------------------------------------------

typedef struct {
    const char *what;
    int m, n, k;
    cudaDataType a, b, d;
    cublasOperation_t op_a, op_b;
    uint32_t alignment;
    const char *capability;
    cublasStatus_t status;
} Float8;

static cublasStatus_t choose_float8(Gpu *gpu, const Float8 *f) {
    Caller c = caller_open(gpu);
    const uint64_t m = (uint64_t)f->m, n = (uint64_t)f->n, k = (uint64_t)f->k;
    set_product(&c, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)f->op_a);
    set_product(&c, CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)f->op_b);
    set_layout(&c.a, f->a, f->op_a ? k : m, f->op_a ? m : k, f->op_a ? f->k : f->m);
    set_layout(&c.b, f->b, f->op_b ? n : k, f->op_b ? k : n, f->op_b ? f->n : f->k);
    set_layout(&c.c, f->d, m, n, f->m);
    set_layout(&c.d, f->d, m, n, f->m);
    prefer(&c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, f->alignment);
    setenv("TRIREME_SIM_CAPABILITY", f->capability, 1);
    cublasStatus_t status = choose(&c);
    unsetenv("TRIREME_SIM_CAPABILITY");
    caller_close(&c);
    return status;
}

// What the library says of them on Ada and Hopper.
static void what_8_bits_are_for(void) {
    static const cudaDataType x = CUDA_R_8F_E4M3, g = CUDA_R_8F_E5M2, h = CUDA_R_16BF, s = CUDA_R_32F;
    static const cublasOperation_t t = CUBLAS_OP_T, o = CUBLAS_OP_N;
    const cublasStatus_t yes = CUBLAS_STATUS_SUCCESS, no = CUBLAS_STATUS_NOT_SUPPORTED,
                         wrong = CUBLAS_STATUS_INVALID_VALUE;
    const Float8 rows[] = {{"e4m3", 16, 32, 48, x, x, h, t, o, 16, "90", yes},
                           {"to fp32", 16, 32, 48, x, x, s, t, o, 16, "89", yes},
                           {"e5m2 first", 16, 32, 48, g, x, s, t, o, 16, "90", yes},
                           {"e5m2 second", 16, 32, 48, x, g, h, t, o, 16, "90", yes},
                           {"both e5m2", 16, 32, 48, g, g, h, t, o, 16, "90", no},
                           {"with bf16", 16, 32, 48, x, h, h, t, o, 16, "90", no},
                           {"a as it is", 16, 32, 48, x, x, h, o, o, 16, "90", no},
                           {"b transposed", 16, 32, 48, x, x, h, t, t, 16, "90", no},
                           {"m", 24, 32, 48, x, x, h, t, o, 16, "90", wrong},
                           {"n", 16, 24, 48, x, x, h, t, o, 16, "90", wrong},
                           {"k", 16, 32, 40, x, x, h, t, o, 16, "90", wrong},
                           {"an address", 16, 32, 48, x, x, h, t, o, 8, "90", wrong},
                           {"Ampere", 16, 32, 48, x, x, h, t, o, 16, "86", no}};
    Gpu gpu = gpu_open();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char said[1024];
        const Said file = said_begin();
        cublasStatus_t status = choose_float8(&gpu, &rows[i]);
        said_end(&file, said, sizeof said);
        EXPECT(status == rows[i].status, "%s: %s", rows[i].what, cublasLtGetStatusName(status));
        EXPECT(!*said == (status != wrong), "%s: said \"%s\"", rows[i].what, said);
        gpu.used = 0;
    }
    gpu_close(&gpu);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"mistakes_are_named", mistakes_are_named},
                                      {"choices_show", choices_show},
                                      {"what_8_bits_are_for", what_8_bits_are_for},
                                      {0}},
                       argc, argv);
}
