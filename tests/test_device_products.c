// Matrix products of the CUDA device: which plan a product gets, what is made without cuBLASLt, how the library is
// found, and what is said of its errors. The simulated GPU's objects are part of this program.
#include "base/float8.h"
#include "cuda_fixture.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

// ---- plans ------------------------------------------------------------------------------------------------

// Addresses need not be anywhere: a plan follows none.
static Matmul product_at(uintptr_t address, DType dtype, int64_t rows, int64_t cols, int64_t inner) {
    void *data = (void *)address;
    return (Matmul){
        .a = {data, rows, inner, dtype}, .b = {data, inner, cols, dtype}, .d = {data, rows, cols, dtype}};
}

static const ProductPlan *plan_of(Gpu *gpu, Matmul product) {
    return products_plan(gpu->device, &(JoinedProduct){.matmul = product});
}

static void same_kind_same_plan(void) {
    Gpu gpu = gpu_open();
    enum { KINDS = 1000 };
    const ProductPlan *plans[KINDS];
    for (int i = 0; i < KINDS; i++) {
        const Matmul product = product_at(4096, BF16, 8 + i % 10 * 8, 8 + i / 10 % 10 * 8, 8 + i / 100 * 8);
        plans[i] = plan_of(&gpu, product);
        EXPECT(!plans[i]->is_plain && plans[i]->key.n == product.d.rows, "plan %d", i);
        for (int k = 0; k < i; k++) EXPECT(plans[k] != plans[i], "plans %d and %d are one", k, i);
    }
    for (int i = 0; i < KINDS; i++) {
        const Matmul product = product_at(4096 + 16 * (uintptr_t)i, BF16, 8 * (1 + i % 10),
                                          8 * (1 + i / 10 % 10), 8 * (1 + i / 100));
        EXPECT(plan_of(&gpu, product) == plans[i], "another plan for %d, elsewhere in memory", i);
    }
    gpu_close(&gpu);
}

static void each_difference_counts(void) {
    Gpu gpu = gpu_open();
    enum { KINDS = 14 };
    Matmul kinds[KINDS];
    for (int i = 0; i < KINDS; i++) kinds[i] = product_at(4096, F32, 8, 8, 8);
    kinds[1].transpose_a = true;
    kinds[2].transpose_b = true;
    kinds[3].accumulate = true;
    kinds[4].bias = (Tensor){(void *)4096, 1, 8, F32};
    kinds[5] = product_at(4096, BF16, 8, 8, 8);
    kinds[6] = product_at(4096, F16, 8, 8, 8);
    kinds[7] = product_at(4096, BF16, 8, 8, 8);
    kinds[7].d.dtype = F32;
    kinds[8].a.data = kinds[9].b.data = kinds[10].d.data = (void *)4104;
    kinds[11].a.data = (void *)4100;
    kinds[12] = kinds[4];
    kinds[12].bias.data = (void *)4104;
    kinds[13] = product_at(4096, F32, 8, 8, 16);
    for (int i = 0; i < KINDS; i++)
        for (int k = 0; k < i; k++)
            EXPECT(plan_of(&gpu, kinds[i]) != plan_of(&gpu, kinds[k]), "one plan for %d and %d", i, k);
    gpu_close(&gpu);
}

// The operation that a product joins, and how its tensor is aligned, count as well.
static void what_is_joined_counts(void) {
    Gpu gpu = gpu_open();
    JoinedProduct kinds[6];
    for (int i = 0; i < 6; i++) kinds[i] = (JoinedProduct){.matmul = product_at(4096, F32, 8, 8, 8)};
    for (int i = 1; i < 4; i++) kinds[i].join = (ProductJoin)i, kinds[i].extra = kinds[i].matmul.d;
    kinds[4] = kinds[JOINS_GELU], kinds[4].extra.data = (void *)4104;
    kinds[5] = kinds[JOINS_GELU], kinds[5].matmul.bias = (Tensor){(void *)4096, 1, 8, F32};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < i; k++)
            EXPECT(products_plan(gpu.device, &kinds[i]) != products_plan(gpu.device, &kinds[k]),
                   "one plan for %d and %d", i, k);
    EXPECT(!products_plan(gpu.device, &kinds[JOINS_GELU])->is_plain, "GELU of whole rows");
    kinds[5].matmul = product_at(4096, F32, 8, 12, 8);
    EXPECT(products_plan(gpu.device, &kinds[5])->is_plain, "an aux whose rows are no multiples of 8");
    gpu_close(&gpu);
}

static bool is_plain(Gpu *gpu, Matmul product) { return plan_of(gpu, product)->is_plain; }

// The simulated library has no algorithm for 16-bit types whose addresses or rows are aligned to less than 16 bytes, if
// the sum of the sizes is odd. cuBLASLt has none for an empty sum, nor for a bias of another type than d's.
static void what_is_plain(void) {
    Gpu gpu = gpu_open();
    EXPECT(!is_plain(&gpu, product_at(4096, BF16, 8, 8, 8)), "aligned, even");
    EXPECT(!is_plain(&gpu, product_at(4096, BF16, 9, 8, 8)), "aligned, odd");
    EXPECT(!is_plain(&gpu, product_at(4098, BF16, 8, 8, 8)), "not aligned, even");
    EXPECT(is_plain(&gpu, product_at(4098, BF16, 9, 8, 8)), "not aligned, odd");
    EXPECT(is_plain(&gpu, product_at(4096, BF16, 8, 9, 8)), "rows that are not aligned, odd");
    EXPECT(!is_plain(&gpu, product_at(4100, F32, 9, 9, 9)), "fp32");
    EXPECT(is_plain(&gpu, product_at(4096, F32, 8, 8, 0)), "an empty sum");
    Matmul product = product_at(4096, BF16, 8, 8, 8);
    product.bias = (Tensor){(void *)4096, 1, 8, BF16};
    EXPECT(!is_plain(&gpu, product), "a bias");
    product.d.dtype = F32;
    EXPECT(is_plain(&gpu, product), "a bias of another type than d's");
    gpu_close(&gpu);
}

// ---- results ----------------------------------------------------------------------------------------------

// Numbers with few digits; their sums still round.
static Tensor numbers(Gpu *gpu, DType dtype, int64_t rows, int64_t cols, size_t offset) {
    Tensor x = gpu_tensor(gpu, dtype, rows, cols, offset);
    for (int64_t i = 0; i < rows * cols; i++) {
        const float value = (float)((uint64_t)(i + rows) * 2654435761u >> 7 & 0xFF) / 96 - 1;
        if (dtype == F32)
            ((float *)x.data)[i] = value;
        else
            ((uint16_t *)x.data)[i] = dtype == BF16 ? bf16_of_f32(value) : f16_of_f32(value);
    }
    return x;
}

typedef struct {
    DType factors, result;
    bool ta, tb, accumulate, bias;
    int64_t rows, cols, inner;
    size_t offset; // of addresses, in bytes
} Shape;

// The simulated library and the plain kernel add in the same order: their products have the same bits.
static bool agrees(Gpu *gpu, Shape s) {
    gpu->used = 0;
    Matmul p = {.transpose_a = s.ta, .transpose_b = s.tb, .accumulate = s.accumulate};
    p.a = numbers(gpu, s.factors, s.ta ? s.inner : s.rows, s.ta ? s.rows : s.inner, s.offset);
    p.b = numbers(gpu, s.factors, s.tb ? s.cols : s.inner, s.tb ? s.inner : s.cols, s.offset);
    if (s.bias) p.bias = numbers(gpu, s.factors, 1, s.cols, s.offset);
    p.d = s.accumulate ? numbers(gpu, s.result, s.rows, s.cols, s.offset)
                       : gpu_tensor(gpu, s.result, s.rows, s.cols, s.offset);
    Matmul plain = p;
    plain.d = gpu_tensor(gpu, s.result, s.rows, s.cols, s.offset);
    memcpy(plain.d.data, p.d.data, tensor_bytes(p.d));
    const bool was_plain = is_plain(gpu, p);
    cuda_matmul(&gpu->exec, &p);
    cuda_matmul_plain(&gpu->exec, &plain);
    gpu_wait(gpu);
    EXPECT(memcmp(p.d.data, plain.d.data, tensor_bytes(p.d)) == 0, "%s [%d, %d, %d]%s%s%s%s to %s, offset %d",
           dtype_name(s.factors), (int)s.rows, (int)s.cols, (int)s.inner, s.ta ? " ta" : "",
           s.tb ? " tb" : "", s.accumulate ? " accumulates" : "", s.bias ? " bias" : "", dtype_name(s.result),
           (int)s.offset);
    return !was_plain;
}

static void both_ways_agree(void) {
    static const int64_t sizes[][3] = {{24, 40, 16}, {17, 9, 31}, {1, 1, 1}, {8, 24, 0}, {5, 72, 130}};
    Gpu gpu = gpu_open();
    int by_library = 0, count = 0;
    for (int i = 0; i < 5 * 3 * 2 * 16; i++) {
        const int64_t *n = sizes[i % 5];
        const int way = i / 30;
        Shape s = {
            .rows = n[0], .cols = n[1], .inner = n[2], .factors = (DType[]){F32, BF16, F16}[i / 5 % 3]};
        s.offset = i / 15 % 2 ? 4 : 0;
        s.ta = way & 1, s.tb = way & 2, s.bias = (way & 12) == 4, s.accumulate = (way & 12) == 8;
        s.result = (way & 12) == 8 || (way & 12) == 12 ? F32 : s.factors;
        by_library += agrees(&gpu, s);
        count++;
    }
    EXPECT(by_library > count / 4 && by_library < count / 2, "%d of %d by the library", by_library, count);
    gpu_close(&gpu);
}

// A bias is added to the sum, and what d was is added last.
static void bias_and_accumulate(void) {
    Gpu gpu = gpu_open();
    Matmul p = {.a = numbers(&gpu, F32, 3, 4, 0), .b = numbers(&gpu, F32, 4, 5, 0), .accumulate = true};
    p.bias = numbers(&gpu, F32, 1, 5, 0);
    p.d = numbers(&gpu, F32, 3, 5, 0);
    const float *a = p.a.data, *b = p.b.data, *bias = p.bias.data, *d = p.d.data;
    float want[15];
    for (int i = 0; i < 15; i++) {
        want[i] = bias[i % 5] + d[i];
        for (int k = 0; k < 4; k++) want[i] += a[i / 5 * 4 + k] * b[k * 5 + i % 5];
    }
    cuda_matmul(&gpu.exec, &p);
    gpu_wait(&gpu);
    for (int i = 0; i < 15; i++)
        EXPECT(d[i] - want[i] < 1e-5f && want[i] - d[i] < 1e-5f, "element %d: %g, not %g", i, (double)d[i],
               (double)want[i]);
    gpu_close(&gpu);
}

// ---- factors in 8 bits ------------------------------------------------------------------------------------

static Matmul float8_at(uintptr_t address, int64_t rows, int64_t cols, int64_t inner) {
    Matmul p = product_at(address, E4M3, rows, cols, inner);
    p.b = (Tensor){p.b.data, cols, inner, E4M3};
    p.d.dtype = BF16;
    p.scale_a = p.scale_b = (Tensor){p.a.data, 1, 1, F32};
    p.transpose_b = true;
    return p;
}

// cuBLASLt has a bias where d has 16 bits; sizes and addresses that are no multiples of 16 it calls invalid.
static void what_is_plain_in_8_bits(void) {
    Gpu gpu = gpu_open();
    EXPECT(!is_plain(&gpu, float8_at(4096, 16, 32, 48)), "multiples of 16");
    EXPECT(is_plain(&gpu, float8_at(4096, 24, 32, 48)), "rows");
    EXPECT(is_plain(&gpu, float8_at(4096, 16, 40, 48)), "columns");
    EXPECT(is_plain(&gpu, float8_at(4096, 16, 32, 40)), "an inner size");
    EXPECT(is_plain(&gpu, float8_at(4104, 16, 32, 48)), "an address");
    Matmul p = float8_at(4096, 16, 32, 48);
    p.bias = (Tensor){(void *)4096, 1, 32, BF16};
    EXPECT(!is_plain(&gpu, p), "a bias");
    p.d.dtype = p.bias.dtype = F32;
    EXPECT(is_plain(&gpu, p), "a bias in fp32");
    Matmul kinds[5];
    for (int i = 0; i < 5; i++) kinds[i] = float8_at(4096, 16, 16, 16);
    kinds[1].a.dtype = E5M2, kinds[2].b.dtype = E5M2, kinds[3].fast_sums = true, kinds[4].d.dtype = F32;
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < i; k++)
            EXPECT(plan_of(&gpu, kinds[i]) != plan_of(&gpu, kinds[k]), "one plan for %d and %d", i, k);
    gpu_close(&gpu);
}

static Tensor codes(Gpu *gpu, DType dtype, int64_t rows, int64_t cols) {
    Tensor x = gpu_tensor(gpu, dtype, rows, cols, 0);
    for (int64_t i = 0; i < rows * cols; i++) // finite, of either sign
        ((uint8_t *)x.data)[i] = (uint8_t)((uint64_t)(i + rows) * 2654435761u >> 9 & 0xBF);
    return x;
}

static Tensor power(Gpu *gpu, float value) {
    Tensor x = gpu_tensor(gpu, F32, 1, 1, 0);
    *(float *)x.data = value;
    return x;
}

// Returns whether the library's product has the bits of the plain kernel's.
static bool agrees_in_8_bits(Gpu *gpu, DType a, DType b, DType d, bool fast) {
    gpu->used = 0;
    Matmul p = {
        .a = codes(gpu, a, 32, 96), .b = codes(gpu, b, 48, 96), .transpose_b = true, .fast_sums = fast};
    p.scale_a = power(gpu, 0.5f), p.scale_b = power(gpu, 0x1p-7f);
    p.d = gpu_tensor(gpu, d, 32, 48, 0);
    Matmul plain = p;
    plain.d = gpu_tensor(gpu, d, 32, 48, 0);
    EXPECT(!is_plain(gpu, p), "%s x %s is plain", dtype_name(a), dtype_name(b));
    cuda_matmul(&gpu->exec, &p);
    cuda_matmul_plain(&gpu->exec, &plain);
    gpu_wait(gpu);
    return memcmp(p.d.data, plain.d.data, tensor_bytes(p.d)) == 0;
}

static void both_ways_agree_in_8_bits(void) {
    Gpu gpu = gpu_open();
    EXPECT(agrees_in_8_bits(&gpu, E4M3, E4M3, F32, false), "to fp32");
    EXPECT(agrees_in_8_bits(&gpu, E4M3, E4M3, BF16, false), "to bf16");
    EXPECT(agrees_in_8_bits(&gpu, E5M2, E4M3, F32, false), "e5m2 and e4m3");
    EXPECT(agrees_in_8_bits(&gpu, E4M3, E5M2, BF16, false), "e4m3 and e5m2");
    EXPECT(!agrees_in_8_bits(&gpu, E4M3, E4M3, F32, true), "fast sums do not show");
    gpu_close(&gpu);
}

static Status open_for_float8(const char *capability) {
    void *state;
    setenv("TRIREME_SIM_CAPABILITY", capability, 1);
    Status status = trireme_device.backends[MODULE_PLAIN]->open(
        &state, &(DeviceOptions){.kind = trireme_device.backends[MODULE_PLAIN]->name, .float8 = true});
    unsetenv("TRIREME_SIM_CAPABILITY");
    if (status == OK) trireme_device.backends[MODULE_PLAIN]->close(state);
    return status;
}

static void old_gpus_are_refused(void) {
    EXPECT_OK(open_for_float8("89"));
    EXPECT_OK(open_for_float8("100"));
    EXPECT(open_for_float8("86") == ERR_UNAVAILABLE, "8.6");
    EXPECT(strstr(fail_message(),
                  "GPU 0 (simulated GPU) has compute capability 8.6, and --fp8-format needs 8.9"),
           "%s", fail_message());
}

// The sums and the GELU of cuBLASLt, and those of our kernels where it has none, as for rows of 9 elements.
static float sums_differ(Gpu *gpu, int64_t cols, bool adds) {
    gpu->used = 0;
    MatmulSums p = {.a = numbers(gpu, BF16, 40, cols, 0), .b = numbers(gpu, BF16, 40, 16, 0)};
    p.d = numbers(gpu, F32, cols, 16, 0), p.sums = numbers(gpu, F32, 1, cols, 0);
    p.accumulate = !adds, p.accumulate_sums = adds;
    float want[64], worst = 0, *sums = p.sums.data;
    for (int64_t c = 0; c < cols; c++) {
        want[c] = adds ? sums[c] : 0;
        for (int64_t row = 0; row < 40; row++)
            want[c] += bf16_to_f32(((const uint16_t *)p.a.data)[row * cols + c]);
    }
    cuda_matmul_sums(&gpu->exec, &p);
    gpu_wait(gpu);
    for (int64_t c = 0; c < cols; c++) {
        float error = sums[c] - want[c];
        if (error < 0) error = -error;
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

static void sums_are_written_or_added(void) {
    Gpu gpu = gpu_open();
    void *memory = gpu.exec.workspace;
    const MatmulSums largest = {.a = {NULL, 40, 64, BF16}, .sums = {NULL, 1, 64, F32}};
    gpu.exec.workspace = gpu_take(&gpu, cuda_matmul_sums_workspace(&largest));
    for (int way = 0; way < 4; way++) {
        float worst = sums_differ(&gpu, way & 1 ? 9 : 64, way & 2);
        EXPECT(worst < 1e-4f, "way %d: %g", way, (double)worst);
    }
    gpu.backend->give_back(gpu.device, gpu.exec.workspace, 0);
    gpu.exec.workspace = memory;
    gpu_close(&gpu);
}

// Products on two streams, which wait for nothing of each other. Returns how many are wrong.
static int wrong_products(bool share_workspace) {
    Gpu gpu = gpu_open();
    Exec second = gpu.exec;
    EXPECT_OK(gpu.backend->stream_open(gpu.device, "second", &second.queue));
    if (!share_workspace) second.workspace = gpu_take(&gpu, PRODUCT_WORKSPACE);
    Matmul p[2];
    for (int i = 0; i < 2; i++) {
        p[i] = (Matmul){.a = numbers(&gpu, F32, 4 + i, 8, 0), .b = numbers(&gpu, F32, 8, 4 + i, 0)};
        p[i].d = gpu_tensor(&gpu, F32, 4 + i, 4 + i, 0);
        cuda_matmul(&gpu.exec, &p[i]);
    }
    gpu_wait(&gpu);
    float want[2][25];
    int wrong = 0;
    for (int i = 0; i < 2; i++) memcpy(want[i], p[i].d.data, tensor_bytes(p[i].d));
    for (int turn = 0; turn < 50; turn++) {
        cuda_matmul(&gpu.exec, &p[0]);
        cuda_matmul(&second, &p[1]);
        gpu.backend->event_wait(&second, gpu.backend->event_record(&second), 1e3);
        gpu_wait(&gpu);
        for (int i = 0; i < 2; i++) wrong += memcmp(p[i].d.data, want[i], tensor_bytes(p[i].d)) != 0;
    }
    gpu.backend->stream_close(gpu.device, second.queue);
    if (!share_workspace) gpu.backend->give_back(gpu.device, second.workspace, PRODUCT_WORKSPACE);
    gpu_close(&gpu);
    return wrong;
}

static void a_workspace_is_of_one_stream(void) {
    EXPECT(wrong_products(true) > 0, "a workspace that two streams share does not show");
    EXPECT(wrong_products(false) == 0, "products on two streams");
}

// ---- the library ------------------------------------------------------------------------------------------

static void expect_opens(const char *where) {
    CudaDevice *device;
    Status status = gpu_try(&device);
    EXPECT(status == OK, "%s: %s", where, fail_message());
    if (status == OK) trireme_device.backends[MODULE_PLAIN]->close(device);
}

static void expect_refusal(Status wanted, const char *words) {
    CudaDevice *device;
    Status status = gpu_try(&device);
    EXPECT(status == wanted, "%d instead of %d: %s", (int)status, (int)wanted, fail_message());
    EXPECT(strstr(fail_message(), words), "\"%s\" in: %s", words, fail_message());
}

// The next name that the loader is asked for is not found. Another text each time begins to count anew.
static void lose_library(void) {
    static int times;
    char fault[64];
    snprintf(fault, sizeof fault, "library:%0*d", ++times, 1);
    setenv("TRIREME_SIM_FAIL", fault, 1);
}

static void forget_environment(void) {
    unsetenv("TRIREME_SIM_FAIL");
    unsetenv("TRIREME_CUDA_LIBS");
    unsetenv("VIRTUAL_ENV");
    unsetenv("CONDA_PREFIX");
}

// Makes a folder with the library's file and returns its path. The simulated loader does not read the file.
static const char *folder_with_library(const char *folder, const char *contents) {
    char path[4096];
    snprintf(path, sizeof path, "%s", harness_path(folder));
    for (char *end = path + strlen(harness_folder()) + 1; (end = strchr(end, '/')); *end++ = '/') {
        *end = 0;
        mkdir(path, 0700);
    }
    mkdir(path, 0700);
    strcat(path, "/libcublasLt.so.13");
    FILE *file = fopen(path, "w");
    CHECK(file, "no file %s", path);
    fputs(contents, file);
    fclose(file);
    return harness_path(folder);
}

static void missing_library_is_named(void) {
    static const char *const words[] = {
        "--device cuda-sim needs cuBLASLt, and there is no libcublasLt.so.13 in the folders of TRIREME_CUDA_LIBS (unset)",
        "looks (libcublasLt.so.13: cannot open shared object file: No such file or directory)",
        "Python environment (none is active); NVIDIA's package libcublas-13-* or the Python wheel nvidia-cublas"};
    forget_environment();
    lose_library();
    expect_refusal(ERR_UNAVAILABLE, words[0]);
    for (int i = 1; i < 3; i++)
        EXPECT(strstr(fail_message(), words[i]), "\"%s\" in: %s", words[i], fail_message());
    setenv("TRIREME_CUDA_LIBS", "/nowhere:relative", 1);
    setenv("CONDA_PREFIX", "/opt/conda", 1);
    lose_library();
    expect_refusal(ERR_UNAVAILABLE, "TRIREME_CUDA_LIBS (/nowhere:relative)");
    EXPECT(strstr(fail_message(), "environment (/opt/conda)"), "%s", fail_message());
    forget_environment();
}

static void library_is_found_where_it_is(void) {
    char folders[8192];
    forget_environment();
    expect_opens("where the loader looks");
    snprintf(folders, sizeof folders, "::/nowhere:%s", folder_with_library("libs", "present"));
    setenv("TRIREME_CUDA_LIBS", folders, 1);
    lose_library();
    expect_opens("TRIREME_CUDA_LIBS");
    forget_environment();
    folder_with_library("env/lib/python3.11/site-packages/nvidia/cu13/lib", "present");
    setenv("VIRTUAL_ENV", harness_path("env"), 1);
    lose_library();
    expect_opens("VIRTUAL_ENV");
    unsetenv("VIRTUAL_ENV");
    setenv("CONDA_PREFIX", harness_path("env"), 1);
    lose_library();
    expect_opens("CONDA_PREFIX");
    forget_environment();
}

// Another library is not taken in the place of one that a user has named.
static void damaged_library_is_named(void) {
    forget_environment();
    setenv("TRIREME_CUDA_LIBS", folder_with_library("damaged", ""), 1);
    expect_refusal(ERR_DATA, "needs cuBLASLt, and the library cannot be loaded");
    EXPECT(strstr(fail_message(), "damaged/libcublasLt.so.13: file too short"), "%s", fail_message());
    forget_environment();
    setenv("TRIREME_SIM_FAIL", "function:3", 1);
    expect_refusal(
        ERR_DATA,
        "another version of cuBLASLt (libcublasLt.so.13): it lacks the function cublasLtGetStatusName");
    forget_environment();
}

// ---- errors -----------------------------------------------------------------------------------------------

static void every_status_is_named(void) {
    static const struct {
        cublasStatus_t status;
        const char *name;
    } rows[] = {{CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED, "},
                {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED, "},
                {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE, "},
                {CUBLAS_STATUS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH, "},
                {CUBLAS_STATUS_MAPPING_ERROR, "CUBLAS_STATUS_MAPPING_ERROR, "},
                {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED, "},
                {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR, "},
                {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED, "},
                {CUBLAS_STATUS_LICENSE_ERROR, "CUBLAS_STATUS_LICENSE_ERROR, "},
                {(cublasStatus_t)2, "CUBLAS_STATUS_UNKNOWN, "}};
    Gpu gpu = gpu_open();
    EXPECT_OK(products_status(gpu.device, "cublasLtMatmul()", CUBLAS_STATUS_SUCCESS));
    for (int i = 0; i < 10; i++) {
        EXPECT(products_status(gpu.device, "cublasLtMatmul(handle)", rows[i].status) == ERR_OS, "the status");
        EXPECT(strstr(fail_message(), "cublasLtMatmul failed on GPU 0 (simulated GPU): ") == fail_message(),
               "%s", fail_message());
        EXPECT(strstr(fail_message(), rows[i].name), "\"%s\" in: %s", rows[i].name, fail_message());
    }
    gpu_close(&gpu);
}

static void library_that_does_not_start(void) {
    setenv("TRIREME_SIM_FAIL", "cublasLtCreate:1", 1);
    expect_refusal(ERR_OS, "cublasLtCreate failed on GPU 0 (simulated GPU): CUBLAS_STATUS_NOT_INITIALIZED");
    unsetenv("TRIREME_SIM_FAIL");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"same_kind_same_plan", same_kind_same_plan},
                                      {"each_difference_counts", each_difference_counts},
                                      {"what_is_joined_counts", what_is_joined_counts},
                                      {"sums_are_written_or_added", sums_are_written_or_added},
                                      {"what_is_plain", what_is_plain},
                                      {"both_ways_agree", both_ways_agree},
                                      {"bias_and_accumulate", bias_and_accumulate},
                                      {"what_is_plain_in_8_bits", what_is_plain_in_8_bits},
                                      {"both_ways_agree_in_8_bits", both_ways_agree_in_8_bits},
                                      {"old_gpus_are_refused", old_gpus_are_refused},
                                      {"a_workspace_is_of_one_stream", a_workspace_is_of_one_stream},
                                      {"missing_library_is_named", missing_library_is_named},
                                      {"library_is_found_where_it_is", library_is_found_where_it_is},
                                      {"damaged_library_is_named", damaged_library_is_named},
                                      {"every_status_is_named", every_status_is_named},
                                      {"library_that_does_not_start", library_that_does_not_start},
                                      {0}},
                       argc, argv);
}
