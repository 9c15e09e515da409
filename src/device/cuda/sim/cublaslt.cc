// Simulates cuBLASLt: products by plain loops that follow what descriptors, layouts and addresses say, so that whatever
// is wrong with them gives wrong numbers, or ends the call with a word on standard error.
//
// Sums are in fp32 and go along k from the first product to the last, whatever else the product is. Two choices that a
// caller should not allow show: a reduction in place takes another order each time, and one in the type of the output
// rounds on its way. For a product with more than one addend there are three algorithms: the second and the third begin
// their sums at the second and the third addend. For some products of 16-bit types whose addresses or rows are aligned
// to less than 16 bytes there is no algorithm. Of 8-bit factors there is one for what cuBLASLt has them for on a GPU of
// compute capability 8.9 or 9.0: a transposed and b not, not both E5M2, each factor with a scale in the GPU's memory.
// Sizes and addresses that are no multiples of 16 are then an error of the caller. A product is two entries of its
// stream, with its sums in the workspace in between: two streams that share a workspace spoil each other's.
//
// TRIREME_SIM_CUBLASLT=VERSION: the library's version; unset: 130100.
// TRIREME_SIM_FAIL=cublasLtCreate:COUNT, and the same of cublasLtMatmulAlgoGetHeuristic and cublasLtMatmul.
#include "device/cuda/sim/cublaslt_algorithm.h"
#include "device/cuda/sim/cublaslt_problem.h"
#include "device/cuda/sim/runtime.h"
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cublasLt.h>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

enum { WORKSPACE_ALIGNMENT = 16, LOOSE = 16 };
static const uint32_t DEFAULT_ALIGNMENT = 256;

struct cublasLtContext {
    int device;
};

struct SimMatmulPreference {
    uint64_t workspace_bytes;
    uint32_t reductions;
    uint32_t alignment[4]; // of a, b, c, d
};

// ---- errors, objects --------------------------------------------------------------------------------------

// An error of the caller.
static cublasStatus_t misuse(const char *call, const char *what) {
    fprintf(stderr, "simulated GPU: %s: %s\n", call, what);
    return CUBLAS_STATUS_INVALID_VALUE;
}

// The handles, descriptors, layouts and preferences that exist.
struct Objects {
    std::mutex lock;
    std::set<const void *> alive;
    size_t made;
};

// It lives as long as the process.
static Objects &objects() {
    static Objects *const all = new Objects;
    return *all;
}

size_t sim_num_objects() {
    std::lock_guard<std::mutex> lock(objects().lock);
    return objects().alive.size();
}

static bool is_alive(const void *object) {
    std::lock_guard<std::mutex> lock(objects().lock);
    return objects().alive.count(object);
}

size_t sim_num_objects_made() {
    std::lock_guard<std::mutex> lock(objects().lock);
    return objects().made;
}

template <class T> static cublasStatus_t create(T **object, const T &value) {
    if (!object) return misuse("create", "nowhere to return it");
    *object = new T(value);
    std::lock_guard<std::mutex> lock(objects().lock);
    objects().alive.insert(*object);
    objects().made++;
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> static cublasStatus_t destroy(T *object) {
    std::lock_guard<std::mutex> lock(objects().lock);
    if (!objects().alive.erase(object)) return misuse("destroy", "an object that does not exist");
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() {
    const char *version = getenv("TRIREME_SIM_CUBLASLT");
    return version ? strtoul(version, nullptr, 10) : 130100;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    if (sim_fails("cublasLtCreate")) return CUBLAS_STATUS_NOT_INITIALIZED;
    return create(handle, cublasLtContext{sim_gpu()});
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

// ---- descriptors, layouts, preferences --------------------------------------------------------------------

template <class T> static cublasStatus_t set(T *field, const void *value, size_t bytes) {
    if (!value || bytes != sizeof(T)) return misuse("an attribute", "a value of the wrong size");
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return misuse("cublasLtMatmulDescCreate", "sums in another type than fp32");
    return create(product, SimMatmulDesc{CUBLAS_OP_N, CUBLAS_OP_N, -1, CUBLASLT_EPILOGUE_DEFAULT, nullptr,
                                         nullptr, nullptr, 0, nullptr, 0});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) { return destroy(product); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t bytes) {
    const char *call = "cublasLtMatmulDescSetAttribute";
    if (!is_alive(product)) return misuse(call, "a descriptor that does not exist");
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(&product->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(&product->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(&product->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(&product->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return set(&product->scale_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return set(&product->scale_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return set(&product->fast, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(&product->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(&product->aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(&product->bias_type, value, bytes);
    }
    return misuse(call, "an attribute that is not simulated");
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    return create(layout, SimMatrixLayout{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    const uint32_t all = DEFAULT_ALIGNMENT;
    return create(preference, SimMatmulPreference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {all, all, all, all}});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes) {
    const char *call = "cublasLtMatmulPreferenceSetAttribute";
    if (!is_alive(preference)) return misuse(call, "a preference that does not exist");
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(&preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(&preference->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                   bytes);
    }
    return misuse(call, "an attribute that is not simulated");
}

// ---- a product as its descriptors say ---------------------------------------------------------------------

// Describes the product; `c` has d's layout.
static cublasStatus_t describe(const char *call, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                               cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               Problem *problem) {
    for (const void *object :
         {static_cast<const void *>(product), static_cast<const void *>(a), static_cast<const void *>(b),
          static_cast<const void *>(c), static_cast<const void *>(d)})
        if (!is_alive(object)) return misuse(call, "a descriptor or a layout that does not exist");
    if (!is_same(*c, *d)) return misuse(call, "c and d differ in layout");
    *problem = {*product, *a, *b, *d, d->rows, d->cols, product->transpose_a ? a->rows : a->cols};
    if (const char *what = impossible(*problem)) return misuse(call, what);
    return CUBLAS_STATUS_SUCCESS;
}

// ---- choosing an algorithm --------------------------------------------------------------------------------

// FNV-1a, of numbers.
static uint64_t hash_of(const Problem &p) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t x : {p.m, p.n, p.k, p.a.ld, p.b.ld, p.d.ld, int64_t{p.a.type}, int64_t{p.b.type},
                      int64_t{p.d.type}, int64_t{p.product.fast}, int64_t{p.product.transpose_a},
                      int64_t{p.product.transpose_b}, int64_t{p.product.epilogue}, p.product.aux_ld})
        hash = (hash ^ static_cast<uint64_t>(x)) * 0x100000001b3u;
    return hash;
}

static uint32_t alignment_of(const void *address) {
    const auto number = reinterpret_cast<uintptr_t>(address);
    return static_cast<uint32_t>(
        std::min<uintptr_t>(number ? number & -number : DEFAULT_ALIGNMENT, DEFAULT_ALIGNMENT));
}

static bool is_loose(const SimMatrixLayout &x, uint32_t alignment) {
    return is_16_bit(x.type) && (alignment < LOOSE || x.ld * bytes_of(x.type) % LOOSE);
}

// A fixed rule, so that callers meet it now and then.
static bool lacks_algorithm(const Problem &p, const SimMatmulPreference &preference,
                            uint32_t bias_alignment) {
    const uint32_t *alignment = preference.alignment;
    for (const auto &[layout, bytes] :
         {std::pair{p.a, alignment[0]}, {p.b, alignment[1]}, {p.d, alignment[3]}})
        if (bytes < bytes_of(layout.type)) return true;
    const bool loose = is_loose(p.a, alignment[0]) || is_loose(p.b, alignment[1]) ||
                       is_loose(p.d, alignment[3]) || (adds_bias(p.product) && bias_alignment < LOOSE) ||
                       (has_aux(p.product) && alignment_of(p.product.aux) < LOOSE);
    return loose && (p.m + p.n + p.k) % 2;
}

// A caller's mistake decides first: a scheme that it allows and should not.
static uint32_t reduction_of(const SimMatmulPreference &preference, uint64_t workspace_bytes) {
    if (preference.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE) return CUBLASLT_REDUCTION_SCHEME_INPLACE;
    if (workspace_bytes > preference.workspace_bytes) return CUBLASLT_REDUCTION_SCHEME_NONE;
    if (preference.reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)
        return CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    return preference.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found) {
    const char *call = "cublasLtMatmulAlgoGetHeuristic";
    Problem p;
    if (!is_alive(handle)) return misuse(call, "a handle that does not exist");
    if (!is_alive(preference)) return misuse(call, "a preference that does not exist");
    if (wanted < 1 || !results || !found) return misuse(call, "no room for a result");
    *found = 0;
    if (sim_fails(call)) return CUBLAS_STATUS_INTERNAL_ERROR;
    const cublasStatus_t status = describe(call, product, a, b, c, d, &p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const uint32_t bias_alignment = alignment_of(p.product.bias), *alignment = preference->alignment;
    if (is_8_bit(p.a.type) && std::min({alignment[0], alignment[1], alignment[3]}) < LOOSE)
        return misuse(call, "factors in 8 bits, and an address that is aligned to less than 16 bytes");
    if (!is_supported(p) || lacks_algorithm(p, *preference, bias_alignment))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    Algorithm algorithm = {MAGIC,
                           hash_of(p),
                           static_cast<uint64_t>(p.m * p.n) * sizeof(float),
                           0,
                           {},
                           bias_alignment,
                           0,
                           alignment_of(p.product.aux)};
    algorithm.reduction = reduction_of(*preference, algorithm.workspace_bytes);
    if (!algorithm.reduction || algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE)
        algorithm.workspace_bytes = 0;
    memcpy(algorithm.alignment, preference->alignment, sizeof algorithm.alignment);
    for (; *found < wanted && *found < NUM_ALGORITHMS && (!*found || *found < p.k); ++*found) {
        algorithm.number = static_cast<uint32_t>(*found);
        results[*found] = {};
        memcpy(&results[*found].algo, &algorithm, sizeof algorithm);
        results[*found].workspaceSize = algorithm.workspace_bytes;
        results[*found].state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// ---- algorithms that come from elsewhere ------------------------------------------------------------------

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result) {
    const char *call = "cublasLtMatmulAlgoCheck";
    Problem p;
    Algorithm chosen;
    if (!is_alive(handle)) return misuse(call, "a handle that does not exist");
    if (!algorithm || !result) return misuse(call, "no algorithm, or no room for the result");
    const cublasStatus_t status = describe(call, product, a, b, c, d, &p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    memcpy(&chosen, algorithm, sizeof chosen);
    if (chosen.magic != MAGIC || chosen.problem != hash_of(p)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_supported(p) || chosen.number >= NUM_ALGORITHMS || (chosen.number && chosen.number >= p.k))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = chosen.workspace_bytes;
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- computing --------------------------------------------------------------------------------------------

// A product with its addresses and factors.
struct Call {
    Problem p;
    uint32_t reduction, number;
    const void *a, *b, *c;
    void *d;
    float alpha, beta;
    float *sums; // in the workspace, or in `own`
    std::shared_ptr<std::vector<float>> own;
};

static float rounded(cudaDataType type, float x) {
    uint32_t room;
    store(type, &room, 0, x);
    return load(type, &room, 0);
}

// Fast sums of factors in 8 bits keep some 14 bits along the way.
enum { FAST_TERMS = 32 };
static float with_fewer_bits(float x) { return float_of_bits(bits_of_float(x) & 0xfffffc00); }

// sums[j * m + i] is of row i of op(a) and column j of op(b).
static void add_products(const Call &call, int64_t first_k) {
    const auto &[product, a, b, d, m, n, k] = call.p;
    std::vector<float> rows(static_cast<size_t>(m * k)); // of op(a) transposed
    for (int64_t l = 0; l < k; l++)
        for (int64_t i = 0; i < m; i++)
            rows[static_cast<size_t>(l * m + i)] =
                load(a.type, call.a, product.transpose_a ? i * a.ld + l : l * a.ld + i);
    for (int64_t j = 0; j < n; j++) {
        float *sums = call.sums + j * m;
        std::fill(sums, sums + m, 0.0f);
        for (int64_t done = 0; done < k; done++) {
            const int64_t l = (first_k + done) % k;
            const float factor = load(b.type, call.b, product.transpose_b ? l * b.ld + j : j * b.ld + l);
            for (int64_t i = 0; i < m; i++) sums[i] += rows[static_cast<size_t>(l * m + i)] * factor;
            if (product.fast && done % FAST_TERMS == FAST_TERMS - 1)
                for (int64_t i = 0; i < m; i++) sums[i] = with_fewer_bits(sums[i]);
            if (call.reduction == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE && done == k / 2)
                for (int64_t i = 0; i < m; i++) sums[i] = rounded(d.type, sums[i]);
        }
    }
}

static float scale_of(const void *scale) { return scale ? *static_cast<const float *>(scale) : 1; }

static void finish(const Call &call) {
    const auto &[product, a, b, d, m, n, k] = call.p;
    const float scale_a = scale_of(product.scale_a), scale_b = scale_of(product.scale_b);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            const int64_t at = j * d.ld + i, aux = j * product.aux_ld + i;
            float x = call.alpha * (call.sums[j * m + i] * scale_a * scale_b);
            if (call.beta != 0) x += call.beta * load(d.type, call.c, at);
            if (adds_bias(product)) x += load(d.type, product.bias, i);
            if (writes_aux(product)) store(d.type, const_cast<void *>(product.aux), aux, x);
            if (writes_aux(product)) x = static_cast<float>(gelu(x));
            if (reads_aux(product)) x *= static_cast<float>(gelu_slope(load(d.type, product.aux, aux)));
            store(d.type, call.d, at, x);
        }
}

// The sums of the columns of op(b), which replace what is there.
static void add_columns(const Call &call) {
    const auto &[product, a, b, d, m, n, k] = call.p;
    for (int64_t j = 0; j < n; j++) {
        float sum = 0;
        for (int64_t l = 0; l < k; l++)
            sum += load(b.type, call.b, product.transpose_b ? l * b.ld + j : j * b.ld + l);
        store(d.type, const_cast<void *>(product.bias), j, sum);
    }
}

static bool overlap(const void *x, size_t x_bytes, const void *y, size_t y_bytes) {
    const auto a = reinterpret_cast<uintptr_t>(x), b = reinterpret_cast<uintptr_t>(y);
    return a < b + y_bytes && b < a + x_bytes;
}

// Returns what is wrong with the addresses of an epilogue, or NULL.
static const char *wrong_epilogue(const Call &call, const Algorithm &algorithm) {
    const Problem &p = call.p;
    const SimMatmulDesc &product = p.product;
    if (adds_bias(product) || sums_b(product)) {
        const int64_t count = sums_b(product) ? p.n : p.m;
        if (alignment_of(product.bias) < algorithm.bias_alignment)
            return "a bias that is aligned to less than was promised";
        if (!sim_is_device(product.bias, static_cast<size_t>(count * bytes_of(p.d.type))))
            return "a bias that is not the GPU's memory";
    }
    if (!has_aux(product)) return nullptr;
    const auto bytes = static_cast<size_t>(((p.n - 1) * product.aux_ld + p.m) * bytes_of(p.d.type));
    if (alignment_of(product.aux) < algorithm.aux_alignment)
        return "an aux that is aligned to less than was promised";
    if (!sim_is_device(product.aux, bytes)) return "an aux that is not the GPU's memory";
    return overlap(product.aux, bytes, call.d, bytes_of(p.d)) ? "d overlaps aux" : nullptr;
}

// Returns what is wrong with the addresses of a product, or NULL.
static const char *wrong_addresses(const Call &call, const Algorithm &algorithm) {
    const Problem &p = call.p;
    const void *addresses[] = {call.a, call.b, call.c, call.d};
    for (int i = 0; i < 4; i++)
        if (alignment_of(addresses[i]) < algorithm.alignment[i] && (i != 2 || call.beta != 0))
            return "an address that is aligned to less than was promised";
    if (!sim_is_device(call.a, bytes_of(p.a)) || !sim_is_device(call.b, bytes_of(p.b)))
        return "a or b that is not the GPU's memory";
    if (!sim_is_device(call.d, bytes_of(p.d)) || (call.beta != 0 && !sim_is_device(call.c, bytes_of(p.d))))
        return "c or d that is not the GPU's memory";
    if (overlap(call.d, bytes_of(p.d), call.a, bytes_of(p.a)) ||
        overlap(call.d, bytes_of(p.d), call.b, bytes_of(p.b)))
        return "d overlaps a or b";
    for (const void *scale : {p.product.scale_a, p.product.scale_b})
        if (scale && !sim_is_device(scale, sizeof(float))) return "a scale that is not the GPU's memory";
    return wrong_epilogue(call, algorithm);
}

static const char *wrong_workspace(const Algorithm &algorithm, const void *workspace, size_t bytes) {
    if (!algorithm.workspace_bytes) return nullptr;
    if (bytes < algorithm.workspace_bytes) return "less workspace than the algorithm needs";
    if (alignment_of(workspace) < WORKSPACE_ALIGNMENT) return "a workspace that is not aligned";
    return sim_is_device(workspace, bytes) ? nullptr : "a workspace that is not the GPU's memory";
}

// Other than on a GPU, the default stream computes at once.
static void launch(const Call &call, cudaStream_t stream) {
    static std::atomic<int64_t> turns;
    const bool in_place = call.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE;
    const int64_t first_k = in_place ? 1 + turns++ % 7 : call.number;
    sim_launch(stream, "cublasLtMatmul", [call, first_k] { add_products(call, first_k); });
    sim_launch(stream, "cublasLtMatmul", [call] { finish(call); });
    if (sums_b(call.p.product)) sim_launch(stream, "cublasLtMatmul", [call] { add_columns(call); });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    const char *name = "cublasLtMatmul";
    Algorithm chosen;
    Call call = {};
    if (!is_alive(handle)) return misuse(name, "a handle that does not exist");
    if (handle->device != sim_gpu()) return misuse(name, "a handle of another GPU");
    const cublasStatus_t status = describe(name, product, a_layout, b_layout, c_layout, d_layout, &call.p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (!alpha || !beta || !algorithm) return misuse(name, "no factors, or no algorithm");
    memcpy(&chosen, algorithm, sizeof chosen);
    if (chosen.magic != MAGIC || chosen.problem != hash_of(call.p))
        return misuse(name, "an algorithm for another product");
    call.reduction = chosen.reduction, call.number = chosen.number;
    call.a = a, call.b = b, call.c = c, call.d = d;
    memcpy(&call.alpha, alpha, sizeof call.alpha);
    memcpy(&call.beta, beta, sizeof call.beta);
    if (const char *what = wrong_addresses(call, chosen)) return misuse(name, what);
    if (const char *what = wrong_workspace(chosen, workspace, workspace_bytes)) return misuse(name, what);
    if (sim_fails(name)) return CUBLAS_STATUS_EXECUTION_FAILED;
    call.sums = static_cast<float *>(workspace);
    if (!chosen.workspace_bytes) {
        call.own = std::make_shared<std::vector<float>>(static_cast<size_t>(call.p.m * call.p.n));
        call.sums = call.own->data();
    }
    launch(call, stream);
    return CUBLAS_STATUS_SUCCESS;
}
