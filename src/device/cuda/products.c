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
    X(cublasLtMatmulAlgoCheck)                                                                               \
    X(cublasLtMatmulAlgoCapGetAttribute)                                                                     \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                                  \
    X(cublasLtMatmul)                                                                                        \
    X(cublasLtGetVersion)

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
    return cuda_fail(d, call, status_text(d, status, text, sizeof text), ERR_OS);
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

PlanKey products_key(const JoinedProduct *product) {
    const Matmul *p = &product->matmul;
    _Static_assert(sizeof(PlanKey) == 6 * sizeof(int64_t) + 14 * sizeof(int32_t), "no byte is padding");
    return (PlanKey){
        .m = p->d.cols,
        .n = p->d.rows,
        .k = p->transpose_a ? p->a.rows : p->a.cols,
        .lda = p->b.cols,
        .ldb = p->a.cols,
        .ldd = p->d.cols,
        .transpose_a = p->transpose_b,
        .transpose_b = p->transpose_a,
        .factor_a = (int32_t)p->b.dtype,
        .factor_b = (int32_t)p->a.dtype,
        .result = (int32_t)p->d.dtype,
        .accumulate = p->accumulate,
        .has_bias = p->bias.data != NULL,
        .fast_sums = p->fast_sums,
        .join = (int32_t)product->join,
        .align_a = alignment_of(p->b.data),
        .align_b = alignment_of(p->a.data),
        .align_d = alignment_of(p->d.data),
        .align_bias = p->bias.data ? alignment_of(p->bias.data) : 0,
        .align_extra = product->join ? alignment_of(product->extra.data) : 0,
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
    switch (dtype) {
    case BF16: return CUDA_R_16BF;
    case F16: return CUDA_R_16F;
    case E4M3: return CUDA_R_8F_E4M3;
    case E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
    }
}

static bool has_scales(const PlanKey *key) { return dtype_is_float8((DType)key->factor_a); }

static void set_product(CudaDevice *d, const ProductPlan *plan, cublasLtMatmulDescAttributes_t attribute,
                        const void *value, size_t bytes) {
    LT(d, cublasLtMatmulDescSetAttribute(plan->product, attribute, value, bytes));
}

static uint32_t epilogue_of(const PlanKey *key) {
    switch (key->join) {
    case JOINS_SUMS: return CUBLASLT_EPILOGUE_BGRADB;
    case JOINS_GELU: return key->has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case JOINS_GELU_BACKWARD: return CUBLASLT_EPILOGUE_DGELU;
    default: return key->has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

// The bias, or the sums: cuBLASLt calls them the bias's gradient.
static void set_bias(CudaDevice *d, const ProductPlan *plan, const void *bias) {
    if (plan->key.has_bias || plan->key.join == JOINS_SUMS)
        set_product(d, plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

static void set_aux(CudaDevice *d, const ProductPlan *plan, const void *aux) {
    if (plan->key.join == JOINS_GELU || plan->key.join == JOINS_GELU_BACKWARD)
        set_product(d, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux);
}

// While an algorithm is sought, addresses say how they are aligned, and no more.
static void describe_epilogue(CudaDevice *d, const ProductPlan *plan) {
    const PlanKey *key = &plan->key;
    const int32_t type = (int32_t)type_of(key->result);
    const uint32_t epilogue = epilogue_of(key);
    if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) return;
    set_product(d, plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (key->has_bias || key->join == JOINS_SUMS)
        set_product(d, plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    if (key->join == JOINS_GELU || key->join == JOINS_GELU_BACKWARD)
        set_product(d, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &key->ldd, sizeof key->ldd);
    set_bias(d, plan, (const void *)(uintptr_t)(key->has_bias ? key->align_bias : key->align_extra));
    set_aux(d, plan, (const void *)(uintptr_t)key->align_extra);
}

static void set_scales(CudaDevice *d, const ProductPlan *plan, const void *a, const void *b) {
    set_product(d, plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &a, sizeof a);
    set_product(d, plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &b, sizeof b);
}

// While an algorithm is sought, scales are somewhere.
static void describe_scales(CudaDevice *d, const ProductPlan *plan) {
    const int8_t fast = (int8_t)plan->key.fast_sums;
    const void *somewhere = (const void *)(uintptr_t)PRODUCT_ALIGNMENT;
    set_scales(d, plan, somewhere, somewhere);
    set_product(d, plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
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
    describe_epilogue(d, plan);
    if (has_scales(key)) describe_scales(d, plan);
    add_layout(d, &plan->a, key->factor_a, key->transpose_a, key->m, key->k, key->lda);
    add_layout(d, &plan->b, key->factor_b, key->transpose_b, key->k, key->n, key->ldb);
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

// Finds the algorithms that cuBLASLt proposes for a plan, `most` at most, the one that it thinks fastest first. Sets
// how many there are.
static cublasStatus_t find_algorithms(CudaDevice *d, const ProductPlan *plan, int most,
                                      cublasLtMatmulAlgo_t *algorithms, int *count) {
    const Functions *lt = &d->products->lt;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t results[MAX_ALGORITHMS];
    int found = 0;
    *count = 0;
    memset(results, 0, sizeof results);
    LT(d, cublasLtMatmulPreferenceCreate(&preference));
    set_preferences(d, preference, &plan->key);
    cublasStatus_t status =
        lt->cublasLtMatmulAlgoGetHeuristic(d->products->handle, plan->product, plan->a, plan->b, plan->d,
                                           plan->d, preference, most, results, &found);
    if (status == CUBLAS_STATUS_SUCCESS && found) status = results[0].state;
    // Some versions say so of an epilogue that they do not have for these types.
    if (status == CUBLAS_STATUS_INVALID_VALUE && plan->key.join) status = CUBLAS_STATUS_NOT_SUPPORTED;
    LT(d, cublasLtMatmulPreferenceDestroy(preference));
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms[(*count)++] = results[i].algo;
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? CUBLAS_STATUS_SUCCESS : status;
}

// Factors in 8 bits: sizes that are not multiples of 16, and addresses that are aligned to less, are errors for
// cuBLASLt.
static bool is_even_for_8_bits(const PlanKey *key) {
    const int64_t sizes[] = {key->m, key->n, key->k, key->lda, key->ldb, key->ldd};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] % 16) return false;
    return key->align_a >= 16 && key->align_b >= 16 && key->align_d >= 16;
}

// cuBLASLt takes no empty sums, no bias of another type than d's, which in products of 8 bits is not F32, and no aux
// whose rows are not multiples of 8 elements.
static bool is_for_cublaslt(const PlanKey *key) {
    if (has_scales(key) && !is_even_for_8_bits(key)) return false;
    const bool takes_bias = has_scales(key) ? key->result != F32 : key->factor_a == key->result;
    const bool has_aux = key->join == JOINS_GELU || key->join == JOINS_GELU_BACKWARD;
    return key->k > 0 && (!key->has_bias || takes_bias) && (!has_aux || key->ldd % 8 == 0);
}

// A plan without an algorithm.
static ProductPlan *describe_plan(CudaDevice *d, const PlanKey *key) {
    ProductPlan *plan = calloc(1, sizeof *plan);
    CHECK(plan, "no memory for a plan of products");
    plan->key = *key;
    plan->is_plain = true;
    if (is_for_cublaslt(key)) describe_product(d, plan);
    return plan;
}

// Leaves `plan` alone where cuBLASLt fails.
static cublasStatus_t make_plan(CudaDevice *d, const PlanKey *key, ProductPlan **plan) {
    ProductPlan *made = describe_plan(d, key);
    int found = 0;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (is_for_cublaslt(key)) status = find_algorithms(d, made, 1, &made->algorithm, &found);
    made->is_plain = !found;
    if (status == CUBLAS_STATUS_SUCCESS)
        *plan = made;
    else
        destroy_plan(d, made);
    return status;
}

// The place of a plan with this key, with room for one more.
static ProductPlan **find_place(CudaProducts *p, const PlanKey *key) {
    if (2 * p->num_plans >= p->capacity) grow(p);
    return place_of(p->plans, p->capacity, key);
}

static cublasStatus_t find_plan(CudaDevice *d, const JoinedProduct *product, const ProductPlan **plan) {
    CudaProducts *p = d->products;
    const PlanKey key = products_key(product);
    ProductPlan **place = find_place(p, &key);
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (!*place) {
        status = make_plan(d, &key, place);
        p->num_plans += status == CUBLAS_STATUS_SUCCESS;
    }
    *plan = *place;
    return status;
}

// The one call that may fail for other reasons than memory.
static const char CHOOSES[] = "cublasLtMatmulAlgoGetHeuristic()";

const ProductPlan *products_plan(CudaDevice *d, const JoinedProduct *product) {
    const ProductPlan *plan;
    check(d, CHOOSES, find_plan(d, product, &plan));
    return plan;
}

Status products_prepare(CudaDevice *d, const JoinedProduct *product, const ProductPlan **plan) {
    return products_status(d, CHOOSES, find_plan(d, product, plan));
}

// ---- computing -------------------------------------------------------------------------------------------

void products_multiply(const Exec *exec, const ProductPlan *plan, const JoinedProduct *product) {
    CudaDevice *d = exec->state;
    const Matmul *p = &product->matmul;
    const float alpha = 1, beta = p->accumulate ? 1 : 0;
    set_bias(d, plan, p->bias.data ? p->bias.data : product->extra.data);
    set_aux(d, plan, product->extra.data);
    if (p->scale_a.data) set_scales(d, plan, p->scale_b.data, p->scale_a.data);
    LT(d, cublasLtMatmul(d->products->handle, plan->product, &alpha, p->b.data, plan->a, p->a.data, plan->b,
                         &beta, p->d.data, plan->d, p->d.data, plan->d, &plan->algorithm, exec->workspace,
                         PRODUCT_WORKSPACE, stream_of(exec)));
}

bool products_compute(const Exec *exec, const JoinedProduct *product) {
    const ProductPlan *plan = products_plan(exec->state, product);
    if (!plan->is_plain) products_multiply(exec, plan, product);
    return !plan->is_plain;
}

// ---- algorithms that others choose ------------------------------------------------------------------------

size_t products_version(const CudaDevice *d) { return d->products->lt.cublasLtGetVersion(); }

int products_candidates(CudaDevice *d, const PlanKey *key, cublasLtMatmulAlgo_t algorithms[MAX_ALGORITHMS]) {
    if (!is_for_cublaslt(key)) return 0;
    ProductPlan *plan = describe_plan(d, key);
    int count;
    check(d, CHOOSES, find_algorithms(d, plan, MAX_ALGORITHMS, algorithms, &count));
    destroy_plan(d, plan);
    return count;
}

// Whether the algorithm may run where addresses are aligned as the key says. One that does not know what it needs is a
// damaged one.
static bool bears_alignment(const CudaDevice *d, const ProductPlan *plan) {
    const struct {
        cublasLtMatmulAlgoCapAttributes_t attribute;
        int32_t have;
    } needs[] = {{CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES, plan->key.align_a},
                 {CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES, plan->key.align_b},
                 {CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES, plan->key.align_d},
                 {CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES, plan->key.align_d}};
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        uint32_t bytes = 0;
        size_t written = 0;
        if (d->products->lt.cublasLtMatmulAlgoCapGetAttribute(&plan->algorithm, needs[i].attribute, &bytes,
                                                              sizeof bytes,
                                                              &written) != CUBLAS_STATUS_SUCCESS ||
            bytes > (uint32_t)needs[i].have)
            return false;
    }
    return true;
}

// Partial sums meet nowhere, or in fp32 in the workspace: see set_preferences.
static bool adds_in_order(const CudaDevice *d, const ProductPlan *plan) {
    uint32_t scheme = 0;
    size_t written = 0;
    return d->products->lt.cublasLtMatmulAlgoConfigGetAttribute(
               &plan->algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &written) ==
               CUBLAS_STATUS_SUCCESS &&
           (scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

// Says why a plan cannot have its algorithm, or NULL.
static const char *refuse_algorithm(const CudaDevice *d, const ProductPlan *plan) {
    cublasLtMatmulHeuristicResult_t result;
    memset(&result, 0, sizeof result);
    if (d->products->lt.cublasLtMatmulAlgoCheck(d->products->handle, plan->product, plan->a, plan->b, plan->d,
                                                plan->d, &plan->algorithm, &result) != CUBLAS_STATUS_SUCCESS)
        return "cuBLASLt has no such algorithm for this product";
    if (result.workspaceSize > PRODUCT_WORKSPACE) return "the algorithm needs more workspace than there is";
    if (!bears_alignment(d, plan)) return "the algorithm needs addresses of larger alignment";
    if (!adds_in_order(d, plan)) return "the algorithm adds partial sums in no fixed order";
    return NULL;
}

const char *products_take(CudaDevice *d, const PlanKey *key, const cublasLtMatmulAlgo_t *algorithm) {
    CudaProducts *p = d->products;
    ProductPlan **place = find_place(p, key);
    if (*place) return "an earlier row is of the same product";
    if (!is_for_cublaslt(key)) return "cuBLASLt makes no such products";
    ProductPlan *plan = describe_plan(d, key);
    plan->algorithm = *algorithm;
    plan->is_plain = false;
    const char *why = refuse_algorithm(d, plan);
    if (why) {
        destroy_plan(d, plan);
        return why;
    }
    *place = plan;
    p->num_plans++;
    return NULL;
}

ProductPlan *products_trial(CudaDevice *d, const PlanKey *key, const cublasLtMatmulAlgo_t *algorithm) {
    ProductPlan *trial = describe_plan(d, key);
    trial->algorithm = *algorithm;
    trial->is_plain = false;
    return trial;
}

void products_trial_end(CudaDevice *d, ProductPlan *trial) { destroy_plan(d, trial); }

// ---- the operation ----------------------------------------------------------------------------------------

size_t cuda_matmul_workspace(const Matmul *args) {
    (void)args;
    return PRODUCT_WORKSPACE;
}

void cuda_matmul(const Exec *exec, const Matmul *p) {
    if (tensor_count(p->d) && !products_compute(exec, &(JoinedProduct){.matmul = *p}))
        cuda_matmul_plain(exec, p);
}
