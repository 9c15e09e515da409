// Matrix products by oneDNN, 2.x or 3.x. Sums in fp32 are made by its BLAS-like calls; that for bf16 factors
// is exported, but in no header. Without it, and where the sum of a small product is rounded, matmul
// primitives make them. To make one takes longer than a small product, so each thread keeps its own.
#include "device/cpu.h"
#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>

void cpu_products_alone(void) { omp_set_num_threads(1); }

static bool may_use(unsigned units) { return ((unsigned)dnnl_get_effective_cpu_isa() & units) == units; }

// Without a unit for bf16 its products run at 40 % of the speed of fp32's; where oneDNN has none they fail.
bool cpu_multiplies_bf16(void) { return may_use(dnnl_cpu_isa_avx512_core_bf16); }

bool cpu_may_use_amx(void) { return may_use(dnnl_cpu_isa_avx512_core_amx); }

DType cpu_factor_type(DType element) { return element == BF16 && cpu_multiplies_bf16() ? BF16 : F32; }

static void must(dnnl_status_t status, const Product *p) {
    CHECK(status == dnnl_success, "oneDNN's %s product [%lld, %lld, %lld] returned %d",
          dtype_name(p->a.dtype), (long long)p->rows, (long long)p->cols, (long long)p->inner, (int)status);
}

// ---- what differs between the versions --------------------------------------------------------------------

// 3.x hides the description of a matrix, which then has to be destroyed.
#if DNNL_VERSION_MAJOR >= 3

static dnnl_status_t describe(dnnl_memory_desc_t *shape, const dnnl_dims_t dims, dnnl_data_type_t type,
                              const dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(shape, 2, dims, type, strides);
}

static void forget(dnnl_memory_desc_t *shape) { dnnl_memory_desc_destroy(*shape); }

static dnnl_status_t memory_of(dnnl_memory_t *memory, const dnnl_memory_desc_t *shape, dnnl_engine_t engine) {
    return dnnl_memory_create(memory, *shape, engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t matmul_of(dnnl_primitive_desc_t *how, dnnl_engine_t engine, const dnnl_memory_desc_t *a,
                               const dnnl_memory_desc_t *b, const dnnl_memory_desc_t *bias,
                               const dnnl_memory_desc_t *d, dnnl_primitive_attr_t attributes) {
    return dnnl_matmul_primitive_desc_create(how, engine, *a, *b, bias ? *bias : NULL, *d, attributes);
}

static dnnl_status_t append_sum(dnnl_post_ops_t additions) {
    return dnnl_post_ops_append_sum(additions, 1, 0, dnnl_data_type_undef);
}

#else

static dnnl_status_t describe(dnnl_memory_desc_t *shape, const dnnl_dims_t dims, dnnl_data_type_t type,
                              const dnnl_dims_t strides) {
    return dnnl_memory_desc_init_by_strides(shape, 2, dims, type, strides);
}

static void forget(dnnl_memory_desc_t *shape) { (void)shape; }

static dnnl_status_t memory_of(dnnl_memory_t *memory, const dnnl_memory_desc_t *shape, dnnl_engine_t engine) {
    return dnnl_memory_create(memory, shape, engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t matmul_of(dnnl_primitive_desc_t *how, dnnl_engine_t engine, const dnnl_memory_desc_t *a,
                               const dnnl_memory_desc_t *b, const dnnl_memory_desc_t *bias,
                               const dnnl_memory_desc_t *d, dnnl_primitive_attr_t attributes) {
    dnnl_matmul_desc_t shapes;
    dnnl_status_t status = dnnl_matmul_desc_init(&shapes, a, b, bias, d);
    return status == dnnl_success ? dnnl_primitive_desc_create(how, &shapes, attributes, engine, NULL)
                                  : status;
}

static dnnl_status_t append_sum(dnnl_post_ops_t additions) { return dnnl_post_ops_append_sum(additions, 1); }

#endif

// ---- the primitives that a thread keeps -------------------------------------------------------------------

enum { A, B, D, BIAS, NUM_OPERANDS }; // a bias may be absent
static const int ARGUMENTS[NUM_OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};

typedef struct {
    Product product; // the first of its kind
    dnnl_primitive_t primitive;
    dnnl_memory_t operands[NUM_OPERANDS];
} Kept;

// More than the kinds of products in a step of training; the oldest makes room.
enum { MOST_KEPT = 64 };

typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    Kept kept[MOST_KEPT]; // those without a primitive come last
    int oldest;
} Keeper;

static int num_operands(const Product *p) { return p->bias ? NUM_OPERANDS : BIAS; }

// All but the addresses.
static bool same_kind(const Product *x, const Product *y) {
    return x->rows == y->rows && x->cols == y->cols && x->inner == y->inner && x->a.stride == y->a.stride &&
           x->b.stride == y->b.stride && x->a.transpose == y->a.transpose &&
           x->b.transpose == y->b.transpose && x->stride == y->stride && x->dtype == y->dtype &&
           x->adds == y->adds && !x->bias == !y->bias;
}

static void describe_operands(const Product *p, dnnl_memory_desc_t shapes[NUM_OPERANDS]) {
    const struct {
        dnnl_dims_t dims;
        int64_t stride;
        bool transpose;
        DType dtype;
    } operands[NUM_OPERANDS] = {[A] = {{p->rows, p->inner}, p->a.stride, p->a.transpose, BF16},
                                [B] = {{p->inner, p->cols}, p->b.stride, p->b.transpose, BF16},
                                [D] = {{p->rows, p->cols}, p->stride, false, p->dtype},
                                [BIAS] = {{1, p->cols}, p->cols, false, BF16}};
    for (int i = 0; i < num_operands(p); i++) {
        int64_t stride = operands[i].stride;
        const dnnl_dims_t strides = {operands[i].transpose ? 1 : stride, operands[i].transpose ? stride : 1};
        must(
            describe(&shapes[i], operands[i].dims, operands[i].dtype == BF16 ? dnnl_bf16 : dnnl_f32, strides),
            p);
    }
}

static void make_primitive(Kept *k, dnnl_engine_t engine, const dnnl_memory_desc_t shapes[NUM_OPERANDS]) {
    const Product *p = &k->product;
    dnnl_post_ops_t additions;
    dnnl_primitive_attr_t attributes;
    dnnl_primitive_desc_t how;
    must(dnnl_post_ops_create(&additions), p);
    if (p->adds) must(append_sum(additions), p);
    must(dnnl_primitive_attr_create(&attributes), p);
    must(dnnl_primitive_attr_set_post_ops(attributes, additions), p);
    must(matmul_of(&how, engine, &shapes[A], &shapes[B], p->bias ? &shapes[BIAS] : NULL, &shapes[D],
                   attributes),
         p);
    must(dnnl_primitive_create(&k->primitive, how), p);
    dnnl_primitive_desc_destroy(how);
    dnnl_primitive_attr_destroy(attributes);
    dnnl_post_ops_destroy(additions);
}

static void kept_open(Kept *k, const Product *p, dnnl_engine_t engine) {
    dnnl_memory_desc_t shapes[NUM_OPERANDS];
    *k = (Kept){.product = *p};
    describe_operands(p, shapes);
    make_primitive(k, engine, shapes);
    for (int i = 0; i < num_operands(p); i++) {
        must(memory_of(&k->operands[i], &shapes[i], engine), p);
        forget(&shapes[i]);
    }
}

static void kept_close(Kept *k) {
    for (int i = 0; i < NUM_OPERANDS; i++) dnnl_memory_destroy(k->operands[i]); // of NULL: nothing
    dnnl_primitive_destroy(k->primitive);
}

// oneDNN fixes the number of threads with the primitive: those of a caller who is alone are for one.
static const Kept *kept_like(Keeper *keeper, const Product *p) {
    Kept *k = keeper->kept;
    for (int i = 0; i < MOST_KEPT && k[i].primitive; i++)
        if (same_kind(&k[i].product, p)) return &k[i];
    k = &keeper->kept[keeper->oldest];
    keeper->oldest = (keeper->oldest + 1) % MOST_KEPT;
    kept_close(k);
    kept_open(k, p, keeper->engine);
    return k;
}

static void keeper_close(void *self) {
    Keeper *keeper = self;
    for (int i = 0; i < MOST_KEPT; i++) kept_close(&keeper->kept[i]);
    dnnl_stream_destroy(keeper->stream);
    dnnl_engine_destroy(keeper->engine);
    free(keeper);
}

// A thread's keeper ends with the thread: ranks are threads, and so are OpenMP's, which no rank sees end.
static pthread_key_t keeper_key;
static void make_key(void) {
    CHECK(pthread_key_create(&keeper_key, keeper_close) == 0, "no key for what threads keep");
}

static Keeper *keeper_of_thread(const Product *p) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_key);
    Keeper *keeper = pthread_getspecific(keeper_key);
    if (keeper) return keeper;
    keeper = calloc(1, sizeof *keeper);
    CHECK(keeper && pthread_setspecific(keeper_key, keeper) == 0, "no memory for a thread's primitives");
    must(dnnl_engine_create(&keeper->engine, dnnl_cpu, 0), p);
    must(dnnl_stream_create(&keeper->stream, keeper->engine, dnnl_stream_default_flags), p);
    return keeper;
}

static void multiply_kept(const Product *p) {
    Keeper *keeper = keeper_of_thread(p);
    const Kept *k = kept_like(keeper, p);
    const void *const data[NUM_OPERANDS] = {p->a.data, p->b.data, p->d, p->bias};
    dnnl_exec_arg_t args[NUM_OPERANDS];
    for (int i = 0; i < num_operands(p); i++) {
        void *place = (void *)(uintptr_t)data[i]; // oneDNN writes to the destination only
        must(dnnl_memory_set_data_handle(k->operands[i], place), p);
        args[i] = (dnnl_exec_arg_t){ARGUMENTS[i], k->operands[i]};
    }
    must(dnnl_primitive_execute(k->primitive, keeper->stream, num_operands(p), args), p);
    must(dnnl_stream_wait(keeper->stream), p);
}

// ---- sums in fp32 -----------------------------------------------------------------------------------------

static char letter(Factor x) { return x.transpose ? 'T' : 'N'; }

static void multiply_f32(const Product *p) {
    must(dnnl_sgemm(letter(p->a), letter(p->b), p->rows, p->cols, p->inner, 1, p->a.data, p->a.stride,
                    p->b.data, p->b.stride, p->adds, p->d, p->stride),
         p);
}

#ifdef TRIREME_HAVE_BF16_GEMM

dnnl_status_t dnnl_gemm_bf16bf16f32(char transpose_a, char transpose_b, dnnl_dim_t rows, dnnl_dim_t cols,
                                    dnnl_dim_t inner, float alpha, const void *a, dnnl_dim_t stride_a,
                                    const void *b, dnnl_dim_t stride_b, float beta, float *c,
                                    dnnl_dim_t stride);

// Multiplications up to which a primitive is the faster one, rounding included.
static const int64_t SMALL_PRODUCT = 1 << 26;

static void multiply_bf16(const Product *p) {
    must(dnnl_gemm_bf16bf16f32(letter(p->a), letter(p->b), p->rows, p->cols, p->inner, 1, p->a.data,
                               p->a.stride, p->b.data, p->b.stride, p->adds, p->d, p->stride),
         p);
}

#else

static const int64_t SMALL_PRODUCT = INT64_MAX;

static void multiply_bf16(const Product *p) { multiply_kept(p); }

#endif

bool cpu_product_rounds(int64_t rows, int64_t cols, int64_t inner) {
    return rows * cols * inner <= SMALL_PRODUCT;
}

void cpu_product(const Product *p) {
    if (p->dtype == BF16)
        multiply_kept(p);
    else if (p->a.dtype == BF16)
        multiply_bf16(p);
    else
        multiply_f32(p);
}
