// Matrix products by cuBLASLt: its functions, plans by key, and the one place where an algorithm is chosen.
#include "device/cuda/products.h"
#include "base/rank.h"
#include "device/cuda/libraries.h"
#include <stdlib.h>
#include <string.h>

// ---- the library ------------------------------------------------------------------------------------------

#define FUNCTIONS(X)                                                                                         \
    X(cublasLtCreate)                                                                                        \
    X(cublasLtDestroy)                                                                                       \
    X(cublasLtGetStatusName)                                                                                 \
    X(cublasLtGetStatusString)                                                                               \
    X(cublasLtMatmulDescCreate)                                                                              \
    X(cublasLtMatmulDescDestroy)                                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                            \
    X(cublasLtMatrixLayoutDestroy)                                                                           \
    X(cublasLtMatmulPreferenceCreate)                                                                        \
    X(cublasLtMatmulPreferenceDestroy)                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                  \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                        \
    X(cublasLtMatmul)

// Pointers to the functions, of the types in the library's header.
typedef struct {
#define X(name) __typeof__(name) *name;
    FUNCTIONS(X)
#undef X
} Functions;

#define X(name) #name,
static const char *const FUNCTION_NAMES[] = {FUNCTIONS(X)};
#undef X
enum { NUM_FUNCTIONS = sizeof FUNCTION_NAMES / sizeof *FUNCTION_NAMES };
_Static_assert(sizeof(Functions) == NUM_FUNCTIONS * sizeof(void *), "library_load fills it");

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)
static const CudaLibrary LIBRARY = {
    .name = "cuBLASLt",
    .file = "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR),
    .install =
        "NVIDIA's package libcublas-" TEXT(CUBLAS_VER_MAJOR) "-* or the Python wheel nvidia-cublas brings it",
    .functions = FUNCTION_NAMES,
    .num_functions = NUM_FUNCTIONS,
};

struct CudaProducts {
    Functions lt;
    cublasLtHandle_t handle;
    ProductPlan **plans;     // by the hash of their keys, with free places in between
    int num_plans, capacity; // a power of 2
};

// A call of cuBLASLt; the job ends if it fails.
#define LT(device, call) check(device, #call, (device)->products->lt.call)

static const char *status_text(const CudaDevice *d, cublasStatus_t status, char *text, size_t bytes) {
    const Functions *lt = &d->products->lt;
    snprintf(text, bytes, "%s, %s", lt->cublasLtGetStatusName(status), lt->cublasLtGetStatusString(status));
    return text;
}

static void check(const CudaDevice *d, const char *call, cublasStatus_t status) {
    char text[256];
    if (status != CUBLAS_STATUS_SUCCESS)
        cuda_fault(d, call, status_text(d, status, text, sizeof text),
                   status == CUBLAS_STATUS_ALLOC_FAILED ? ERR_OS : ERR_BUG);
}

Status products_status(const CudaDevice *d, const char *call, cublasStatus_t status) {
    char text[256];
    if (status == CUBLAS_STATUS_SUCCESS) return OK;
    return cuda_fail(d, call, status_text(d, status, text, sizeof text));
}

static Status load_functions(Functions *functions) {
    void *found[NUM_FUNCTIONS];
    TRY(library_load(&LIBRARY, found));
    memcpy(functions, found, sizeof found);
    return OK;
}

Status products_available(void) { return load_functions(&(Functions){0}); }

Status products_open(CudaDevice *d) {
    CudaProducts *p = d->products = calloc(1, sizeof *p);
    if (!p) return fail(ERR_OS, "no memory for the products of a device");
    TRY(load_functions(&p->lt));
    return products_status(d, "cublasLtCreate()", p->lt.cublasLtCreate(&p->handle));
}

static void destroy_plan(CudaDevice *d, ProductPlan *plan) {
    if (plan->product) LT(d, cublasLtMatmulDescDestroy(plan->product));
    if (plan->a) LT(d, cublasLtMatrixLayoutDestroy(plan->a));
    if (plan->b) LT(d, cublasLtMatrixLayoutDestroy(plan->b));
    if (plan->d) LT(d, cublasLtMatrixLayoutDestroy(plan->d));
    free(plan);
}

void products_close(CudaDevice *d) {
    CudaProducts *p = d->products;
    if (!p) return;
    for (int i = 0; i < p->capacity; i++)
        if (p->plans[i]) destroy_plan(d, p->plans[i]);
    free(p->plans);
    if (p->handle) LT(d, cublasLtDestroy(p->handle));
    free(p);
}

// ---- keys -------------------------------------------------------------------------------------------------

static int32_t alignment_of(const void *address) {
    const int all = (int)((uintptr_t)address % PRODUCT_ALIGNMENT);
    return all ? all & -all : PRODUCT_ALIGNMENT;
}

static PlanKey key_of(const Matmul *p) {
    _Static_assert(sizeof(PlanKey) == 6 * sizeof(int64_t) + 10 * sizeof(int32_t), "no byte is padding");
    return (PlanKey){
        .m = p->d.cols,
        .n = p->d.rows,
        .k = p->transpose_a ? p->a.rows : p->a.cols,
        .lda = p->b.cols,
        .ldb = p->a.cols,
        .ldd = p->d.cols,
        .transpose_a = p->transpose_b,
        .transpose_b = p->transpose_a,
        .factors = (int32_t)p->a.dtype,
        .result = (int32_t)p->d.dtype,
        .accumulate = p->accumulate,
        .has_bias = p->bias.data != NULL,
        .align_a = alignment_of(p->b.data),
        .align_b = alignment_of(p->a.data),
        .align_d = alignment_of(p->d.data),
        .align_bias = p->bias.data ? alignment_of(p->bias.data) : 0,
    };
}

// FNV-1a (Fowler, Noll, Vo), a word at a time.
static uint64_t hash_of(const PlanKey *key) {
    uint64_t words[sizeof *key / sizeof(uint64_t)], hash = 0xcbf29ce484222325u;
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) hash = (hash ^ words[i]) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

// The place of a plan with this key, or the free place for it.
static ProductPlan **place_of(ProductPlan **plans, int capacity, const PlanKey *key) {
    uint64_t i = hash_of(key);
    for (;; i++) {
        ProductPlan **place = &plans[i & (uint64_t)(capacity - 1)];
        if (!*place || memcmp(&(*place)->key, key, sizeof *key) == 0) return place;
    }
}

static void grow(CudaProducts *p) {
    const int capacity = p->capacity ? 2 * p->capacity : 64;
    ProductPlan **plans = calloc((size_t)capacity, sizeof *plans);
    CHECK(plans, "no memory for %d plans of products", capacity);
    for (int i = 0; i < p->capacity; i++)
        if (p->plans[i]) *place_of(plans, capacity, &p->plans[i]->key) = p->plans[i];
    free(p->plans);
    p->plans = plans;
    p->capacity = capacity;
}

// ---- plans ------------------------------------------------------------------------------------------------

static cudaDataType type_of(int32_t dtype) {
    return dtype == BF16 ? CUDA_R_16BF : dtype == F16 ? CUDA_R_16F : CUDA_R_32F;
}

static void set_product(CudaDevice *d, const ProductPlan *plan, cublasLtMatmulDescAttributes_t attribute,
                        const void *value, size_t bytes) {
    LT(d, cublasLtMatmulDescSetAttribute(plan->product, attribute, value, bytes));
}

// While an algorithm is sought, the address of the bias says how it is aligned, and no more.
static void describe_bias(CudaDevice *d, const ProductPlan *plan) {
    const int32_t type = (int32_t)type_of(plan->key.result);
    const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const void *aligned = (const void *)(uintptr_t)plan->key.align_bias;
    set_product(d, plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    set_product(d, plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    set_product(d, plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned, sizeof aligned);
}

static void add_layout(CudaDevice *d, cublasLtMatrixLayout_t *layout, int32_t dtype, bool transpose,
                       int64_t rows, int64_t cols, int64_t ld) {
    const uint64_t height = (uint64_t)(transpose ? cols : rows), width = (uint64_t)(transpose ? rows : cols);
    LT(d, cublasLtMatrixLayoutCreate(layout, type_of(dtype), height, width, ld));
}

// fp32 has all its bits: CUBLAS_COMPUTE_32F makes no TF32 of it.
static void describe_product(CudaDevice *d, ProductPlan *plan) {
    const PlanKey *key = &plan->key;
    const int32_t op_a = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                  op_b = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT(d, cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set_product(d, plan, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    set_product(d, plan, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    if (key->has_bias) describe_bias(d, plan);
    add_layout(d, &plan->a, key->factors, key->transpose_a, key->m, key->k, key->lda);
    add_layout(d, &plan->b, key->factors, key->transpose_b, key->k, key->n, key->ldb);
    add_layout(d, &plan->d, key->result, false, key->m, key->n, key->ldd);
}

static void prefer(CudaDevice *d, cublasLtMatmulPreference_t preference,
                   cublasLtMatmulPreferenceAttributes_t attribute, uint32_t value) {
    LT(d, cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

// Partial sums may only meet in the workspace, in fp32: those in the output have no fixed order, and those of the
// output's type are rounded to it.
static void set_preferences(CudaDevice *d, cublasLtMatmulPreference_t preference, const PlanKey *key) {
    const uint64_t bytes = PRODUCT_WORKSPACE;
    LT(d, cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                               sizeof bytes));
    prefer(d, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    prefer(d, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->align_a);
    prefer(d, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->align_b);
    prefer(d, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->align_d);
    prefer(d, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->align_d);
}

// Sets the algorithm of a plan to the one that cuBLASLt thinks fastest. False: it has none.
static bool choose_algorithm(CudaDevice *d, ProductPlan *plan) {
    const Functions *lt = &d->products->lt;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best = {0};
    int found = 0;
    LT(d, cublasLtMatmulPreferenceCreate(&preference));
    set_preferences(d, preference, &plan->key);
    cublasStatus_t status = lt->cublasLtMatmulAlgoGetHeuristic(
        d->products->handle, plan->product, plan->a, plan->b, plan->d, plan->d, preference, 1, &best, &found);
    if (status == CUBLAS_STATUS_SUCCESS && found) status = best.state;
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(d, "cublasLtMatmulAlgoGetHeuristic()", status);
    LT(d, cublasLtMatmulPreferenceDestroy(preference));
    plan->algorithm = best.algo;
    return status == CUBLAS_STATUS_SUCCESS && found;
}

// cuBLASLt takes no empty sums, and no bias of another type than d's.
static bool is_for_cublaslt(const PlanKey *key) {
    return key->k > 0 && (!key->has_bias || key->factors == key->result);
}

static ProductPlan *make_plan(CudaDevice *d, const PlanKey *key) {
    ProductPlan *plan = calloc(1, sizeof *plan);
    CHECK(plan, "no memory for a plan of products");
    plan->key = *key;
    plan->is_plain = true;
    if (!is_for_cublaslt(key)) return plan;
    describe_product(d, plan);
    plan->is_plain = !choose_algorithm(d, plan);
    return plan;
}

const ProductPlan *products_plan(CudaDevice *d, const Matmul *args) {
    CudaProducts *p = d->products;
    const PlanKey key = key_of(args);
    if (2 * p->num_plans >= p->capacity) grow(p);
    ProductPlan **place = place_of(p->plans, p->capacity, &key);
    if (!*place) {
        *place = make_plan(d, &key);
        p->num_plans++;
    }
    return *place;
}

// ---- the operation ----------------------------------------------------------------------------------------

size_t cuda_matmul_workspace(const Matmul *args) {
    (void)args;
    return PRODUCT_WORKSPACE;
}

static void multiply(const Exec *exec, const ProductPlan *plan, const Matmul *p) {
    CudaDevice *d = exec->state;
    const float alpha = 1, beta = p->accumulate ? 1 : 0;
    if (p->bias.data)
        set_product(d, plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias.data, sizeof p->bias.data);
    LT(d, cublasLtMatmul(d->products->handle, plan->product, &alpha, p->b.data, plan->a, p->a.data, plan->b,
                         &beta, p->d.data, plan->d, p->d.data, plan->d, &plan->algorithm, exec->workspace,
                         PRODUCT_WORKSPACE, stream_of(exec)));
}

void cuda_matmul(const Exec *exec, const Matmul *p) {
    if (!tensor_count(p->d)) return;
    const ProductPlan *plan = products_plan(exec->state, p);
    if (plan->is_plain)
        cuda_matmul_plain(exec, p);
    else
        multiply(exec, plan, p);
}
