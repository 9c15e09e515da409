// Tables of cuBLASLt's algorithms (device/algorithms.h): their lines.
//
//   gpu NVIDIA H200
//   multiprocessors 132
//   cublaslt 130100
//   m 2304 n 16384 k 768 ... align_bias 0 algorithm 42000000...
//
// A row names every member of a PlanKey, then the 64 bytes of a cublasLtMatmulAlgo_t as hexadecimal digits, which
// NVIDIA allows to keep for the same version of the library. Lines that begin with # are for people.
#include "base/rank.h"
#include "device/cuda/products.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- rows -------------------------------------------------------------------------------------------------

//  X(member of PlanKey, its type, the least and the largest value that a row may have)
#define KEY_MEMBERS(X)                                                                                       \
    X(m, int64_t, 1, INT32_MAX)                                                                              \
    X(n, int64_t, 1, INT32_MAX)                                                                              \
    X(k, int64_t, 1, INT32_MAX)                                                                              \
    X(lda, int64_t, 1, INT32_MAX)                                                                            \
    X(ldb, int64_t, 1, INT32_MAX)                                                                            \
    X(ldd, int64_t, 1, INT32_MAX)                                                                            \
    X(transpose_a, int32_t, 0, 1)                                                                            \
    X(transpose_b, int32_t, 0, 1)                                                                            \
    X(factor_a, int32_t, 0, NUM_DTYPES - 1)                                                                  \
    X(factor_b, int32_t, 0, NUM_DTYPES - 1)                                                                  \
    X(result, int32_t, 0, NUM_DTYPES - 1)                                                                    \
    X(accumulate, int32_t, 0, 1)                                                                             \
    X(has_bias, int32_t, 0, 1)                                                                               \
    X(fast_sums, int32_t, 0, 1)                                                                              \
    X(join, int32_t, 0, JOINS_GELU_BACKWARD)                                                                 \
    X(align_a, int32_t, 1, PRODUCT_ALIGNMENT)                                                                \
    X(align_b, int32_t, 1, PRODUCT_ALIGNMENT)                                                                \
    X(align_d, int32_t, 1, PRODUCT_ALIGNMENT)                                                                \
    X(align_bias, int32_t, 0, PRODUCT_ALIGNMENT)                                                             \
    X(align_extra, int32_t, 0, PRODUCT_ALIGNMENT)

static void add_row(const PlanKey *key, const cublasLtMatmulAlgo_t *algorithm, Text *table) {
    unsigned char bytes[sizeof *algorithm];
    memcpy(bytes, algorithm, sizeof bytes);
#define X(member, type, least, most) text_add(table, "%s %" PRId64 " ", #member, (int64_t)key->member);
    KEY_MEMBERS(X)
#undef X
    text_add(table, "algorithm ");
    for (size_t i = 0; i < sizeof bytes; i++) text_add(table, "%02x", bytes[i]);
    text_add(table, "\n");
}

// Takes "NAME NUMBER " from the line; false: it begins with something else.
static bool take_number(const char **line, const char *name, int64_t least, int64_t most, int64_t *value) {
    const size_t length = strlen(name);
    char *end;
    if (strncmp(*line, name, length) != 0 || (*line)[length] != ' ') return false;
    if ((*line)[length + 1] < '0' || (*line)[length + 1] > '9') return false;
    *value = strtoll(*line + length + 1, &end, 10);
    if (*end != ' ' || *value < least || *value > most) return false;
    *line = end + 1;
    return true;
}

static bool take_key(const char **line, PlanKey *key) {
    int64_t value;
#define X(member, type, least, most)                                                                         \
    if (!take_number(line, #member, least, most, &value)) return false;                                      \
    key->member = (type)value;
    KEY_MEMBERS(X)
#undef X
    return true;
}

static int digit_of(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool take_algorithm(const char *line, cublasLtMatmulAlgo_t *algorithm) {
    static const char name[] = "algorithm ";
    unsigned char bytes[sizeof *algorithm];
    if (strncmp(line, name, sizeof name - 1) != 0) return false;
    line += sizeof name - 1;
    for (size_t i = 0; i < sizeof bytes; i++, line += 2) {
        const int high = digit_of(line[0]), low = high < 0 ? -1 : digit_of(line[1]);
        if (low < 0) return false;
        bytes[i] = (unsigned char)(16 * high + low);
    }
    memcpy(algorithm, bytes, sizeof bytes);
    return *line == '\n';
}

static bool is_power_of_2(int32_t x) { return (x & (x - 1)) == 0; }

// Returns whether a Matmul can have the types. Factors in 8 bits are not both E5M2, and lie along the sum.
static bool has_possible_types(const PlanKey *key) {
    const DType a = (DType)key->factor_a, b = (DType)key->factor_b, result = (DType)key->result;
    if (!dtype_is_element(result)) return false;
    if (dtype_is_element(a)) return b == a && (result == a || result == F32) && !key->fast_sums;
    return dtype_is_float8(a) && dtype_is_float8(b) && (a == E4M3 || b == E4M3) && key->transpose_a &&
           !key->transpose_b;
}

// Returns whether a product can do the work beside d that the key names: none with 8-bit factors, GELU in the type of
// the factors, and a bias only before the GELU.
static bool has_possible_join(const PlanKey *key) {
    if ((key->align_extra > 0) != (key->join > 0) || !is_power_of_2(key->align_extra)) return false;
    if (key->join == JOINS_NOTHING) return true;
    if (!dtype_is_element((DType)key->factor_a) || (key->has_bias && key->join != JOINS_GELU)) return false;
    return key->join == JOINS_SUMS || key->result == key->factor_a;
}

// Returns whether a Matmul can have the types and alignments, and its columns do not overlap.
static bool is_possible(const PlanKey *key) {
    return has_possible_types(key) && has_possible_join(key) && is_power_of_2(key->align_a) &&
           is_power_of_2(key->align_b) && is_power_of_2(key->align_d) && is_power_of_2(key->align_bias) &&
           (key->align_bias > 0) == (key->has_bias > 0) && key->lda >= (key->transpose_a ? key->k : key->m) &&
           key->ldb >= (key->transpose_b ? key->n : key->k) && key->ldd >= key->m;
}

// ---- which GPU, which library -----------------------------------------------------------------------------

static int multiprocessors(CudaDevice *d) {
    struct cudaDeviceProp properties;
    CUDA(d, cudaGetDeviceProperties(&properties, d->number));
    return properties.multiProcessorCount;
}

void cuda_algorithms_about(void *state, Text *table) {
    CudaDevice *d = state;
    text_add(table, "gpu %s\nmultiprocessors %d\ncublaslt %zu\n", d->name, multiprocessors(d),
             products_version(d));
}

// The lines that a table for this GPU and this library has behind its first one.
static Status check_about(CudaDevice *d, const char *file, const char **line, int *number) {
    Text about = {0};
    cuda_algorithms_about(d, &about);
    const char *want = text_string(&about);
    Status status = OK;
    while (*want && status == OK) {
        const int length = (int)strcspn(want, "\n"), found = (int)strcspn(*line, "\n");
        if (length != found || memcmp(want, *line, (size_t)length) != 0)
            status = fail(
                ERR_DATA,
                "%s:%d: '%.*s' is not '%.*s', as it is here: an algorithm is for one kind of GPU and one version "
                "of cuBLASLt; measure a table here (`trireme bench`), or leave out the option",
                file, *number, found < 80 ? found : 80, *line, length, want);
        want += length + 1;
        *line += found + ((*line)[found] != 0);
        ++*number;
    }
    text_free(&about);
    return status;
}

// ---- taking a table ---------------------------------------------------------------------------------------

static Status take_row(CudaDevice *d, const char *file, int number, const char *line) {
    PlanKey key;
    cublasLtMatmulAlgo_t algorithm;
    memset(&key, 0, sizeof key);
    if (!take_key(&line, &key) || !take_algorithm(line, &algorithm))
        return fail(ERR_DATA, "%s:%d: this is no row of a product and its algorithm", file, number);
    if (!is_possible(&key)) return fail(ERR_DATA, "%s:%d: the row's product is impossible", file, number);
    const char *why = products_take(d, &key, &algorithm);
    return why ? fail(ERR_DATA, "%s:%d: %s", file, number, why) : OK;
}

Status cuda_algorithms_take(void *state, const char *file, const char *text) {
    enum { MAX_ROWS = 4096 };
    CudaDevice *d = state;
    const char *line = strchr(text, '\n') + 1;
    int number = 2, rows = 0;
    TRY(check_about(d, file, &line, &number));
    for (; *line; line = strchr(line, '\n') + 1, number++) {
        if (*line == '#') continue;
        if (++rows > MAX_ROWS) return fail(ERR_DATA, "%s:%d: more than %d rows", file, number, MAX_ROWS);
        TRY(take_row(d, file, number, line));
    }
    return OK;
}

// ---- choosing by time -------------------------------------------------------------------------------------

enum { TURNS = 9 };

static int compare(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

// The median of some turns, after one that is not counted.
static double seconds_of(const Exec *exec, const JoinedProduct *product, const ProductPlan *plan) {
    DeviceMark marks[TURNS + 1];
    double seconds[TURNS];
    products_multiply(exec, plan, product);
    for (int i = 0; i <= TURNS; i++) {
        cuda_mark(exec, &marks[i]);
        if (i < TURNS) products_multiply(exec, plan, product);
    }
    for (int i = 0; i <= TURNS; i++) cuda_mark_read(exec->state, &marks[i]);
    for (int i = 0; i < TURNS; i++) seconds[i] = marks[i + 1].work_s - marks[i].work_s;
    qsort(seconds, TURNS, sizeof *seconds, compare);
    return seconds[TURNS / 2];
}

// Another algorithm than the library's first must be faster by more than clocks waver.
Status cuda_algorithms_time(const Exec *exec, const JoinedProduct *product, Text *table) {
    const double least_gain = 0.01;
    CudaDevice *d = exec->state;
    cublasLtMatmulAlgo_t algorithms[MAX_ALGORITHMS];
    const PlanKey key = products_key(product);
    const int count = products_candidates(d, &key, algorithms);
    double seconds[MAX_ALGORITHMS];
    int best = 0;
    if (count < 2) return OK;
    for (int i = 0; i < count; i++) {
        ProductPlan *trial = products_trial(d, &key, &algorithms[i]);
        seconds[i] = seconds_of(exec, product, trial);
        products_trial_end(d, trial);
        if (seconds[i] < seconds[best]) best = i;
    }
    if (seconds[best] > (1 - least_gain) * seconds[0]) best = 0;
    text_add(table, "# %.1f us, by number %d of %d; the library's first takes %.1f us\n", 1e6 * seconds[best],
             best, count, 1e6 * seconds[0]);
    add_row(&key, &algorithms[best], table);
    return OK;
}
