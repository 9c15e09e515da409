// Matrix products by oneDNN, 2.x or 3.x: of fp32 by its BLAS-like call; of bf16 by the one like it that the
// library exports without declaring it, or where there is none by its matmul primitive, which takes some
// microseconds more a call.
#include "device/cpu.h"
#include <dnnl.h>
#include <omp.h>

void cpu_products_alone(void) { omp_set_num_threads(1); }

// Without a unit for bf16 its products run at 40 % of the speed of fp32's; where oneDNN has none they fail.
bool cpu_multiplies_bf16(void) {
    unsigned unit = dnnl_cpu_isa_avx512_core_bf16;
    return ((unsigned)dnnl_get_effective_cpu_isa() & unit) == unit;
}

DType cpu_factor_type(DType element) { return element == BF16 && cpu_multiplies_bf16() ? BF16 : F32; }

#ifdef TRIREME_HAVE_BF16_GEMM

dnnl_status_t dnnl_gemm_bf16bf16f32(char transpose_a, char transpose_b, dnnl_dim_t rows, dnnl_dim_t cols,
                                    dnnl_dim_t inner, float alpha, const void *a, dnnl_dim_t stride_a,
                                    const void *b, dnnl_dim_t stride_b, float beta, float *c,
                                    dnnl_dim_t stride);

static dnnl_status_t product_of_bf16(int64_t rows, int64_t cols, int64_t inner, Factor a, Factor b, bool adds,
                                     float *c, int64_t stride) {
    return dnnl_gemm_bf16bf16f32(a.transpose ? 'T' : 'N', b.transpose ? 'T' : 'N', rows, cols, inner, 1,
                                 a.data, a.stride, b.data, b.stride, adds ? 1 : 0, c, stride);
}

#else

// A matrix as oneDNN is told of it; 3.x hides the description, which then has to be destroyed.
typedef struct {
    dnnl_memory_desc_t shape;
    dnnl_memory_t memory;
} Matrix;

static dnnl_status_t matrix_open(Matrix *m, dnnl_engine_t engine, int64_t rows, int64_t cols,
                                 dnnl_data_type_t type, int64_t stride, bool transpose, const void *data) {
    const dnnl_dims_t dims = {rows, cols}, strides = {transpose ? 1 : stride, transpose ? stride : 1};
    void *place = (void *)(uintptr_t)data; // oneDNN writes to the destination only
#if DNNL_VERSION_MAJOR >= 3
    dnnl_status_t status = dnnl_memory_desc_create_with_strides(&m->shape, 2, dims, type, strides);
    return status == dnnl_success ? dnnl_memory_create(&m->memory, m->shape, engine, place) : status;
#else
    dnnl_status_t status = dnnl_memory_desc_init_by_strides(&m->shape, 2, dims, type, strides);
    return status == dnnl_success ? dnnl_memory_create(&m->memory, &m->shape, engine, place) : status;
#endif
}

static void matrix_close(Matrix *m) {
    dnnl_memory_destroy(m->memory);
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_destroy(m->shape);
#endif
}

// d = a b, or d += a b.
typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    Matrix a, b, d;
    dnnl_post_ops_t additions;
    dnnl_primitive_attr_t attributes;
    dnnl_primitive_desc_t how;
    dnnl_primitive_t product;
} Primitive;

// oneDNN keeps what it generated for a product, so that only the first of its shape takes long.
static dnnl_status_t describe(Primitive *p) {
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(&p->how, p->engine, p->a.shape, p->b.shape, NULL, p->d.shape,
                                             p->attributes);
#else
    dnnl_matmul_desc_t shapes;
    dnnl_status_t status = dnnl_matmul_desc_init(&shapes, &p->a.shape, &p->b.shape, NULL, &p->d.shape);
    if (status != dnnl_success) return status;
    return dnnl_primitive_desc_create(&p->how, &shapes, p->attributes, p->engine, NULL);
#endif
}

static dnnl_status_t append_sum(dnnl_post_ops_t additions) {
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_post_ops_append_sum(additions, 1, 0, dnnl_data_type_undef);
#else
    return dnnl_post_ops_append_sum(additions, 1);
#endif
}

static dnnl_status_t primitive_run(Primitive *p, bool adds) {
    dnnl_status_t status = dnnl_post_ops_create(&p->additions);
    if (status == dnnl_success && adds) status = append_sum(p->additions);
    if (status == dnnl_success) status = dnnl_primitive_attr_create(&p->attributes);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(p->attributes, p->additions);
    if (status == dnnl_success) status = describe(p);
    if (status == dnnl_success) status = dnnl_primitive_create(&p->product, p->how);
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->a.memory}, {DNNL_ARG_WEIGHTS, p->b.memory}, {DNNL_ARG_DST, p->d.memory}};
    if (status == dnnl_success) status = dnnl_primitive_execute(p->product, p->stream, 3, args);
    return status == dnnl_success ? dnnl_stream_wait(p->stream) : status;
}

// oneDNN takes NULL where something was never made.
static void primitive_close(Primitive *p) {
    dnnl_primitive_destroy(p->product);
    dnnl_primitive_desc_destroy(p->how);
    dnnl_primitive_attr_destroy(p->attributes);
    dnnl_post_ops_destroy(p->additions);
    matrix_close(&p->d), matrix_close(&p->b), matrix_close(&p->a);
    dnnl_stream_destroy(p->stream);
    dnnl_engine_destroy(p->engine);
}

static dnnl_status_t product_of_bf16(int64_t rows, int64_t cols, int64_t inner, Factor a, Factor b, bool adds,
                                     float *c, int64_t stride) {
    Primitive p = {0};
    dnnl_status_t status = dnnl_engine_create(&p.engine, dnnl_cpu, 0);
    if (status == dnnl_success) status = dnnl_stream_create(&p.stream, p.engine, dnnl_stream_default_flags);
    if (status == dnnl_success)
        status = matrix_open(&p.a, p.engine, rows, inner, dnnl_bf16, a.stride, a.transpose, a.data);
    if (status == dnnl_success)
        status = matrix_open(&p.b, p.engine, inner, cols, dnnl_bf16, b.stride, b.transpose, b.data);
    if (status == dnnl_success) status = matrix_open(&p.d, p.engine, rows, cols, dnnl_f32, stride, false, c);
    if (status == dnnl_success) status = primitive_run(&p, adds);
    primitive_close(&p);
    return status;
}

#endif

void cpu_product(int64_t rows, int64_t cols, int64_t inner, Factor a, Factor b, bool adds, float *c,
                 int64_t stride) {
    dnnl_status_t status =
        a.dtype == F32 ? dnnl_sgemm(a.transpose ? 'T' : 'N', b.transpose ? 'T' : 'N', rows, cols, inner, 1,
                                    a.data, a.stride, b.data, b.stride, adds ? 1 : 0, c, stride)
                       : product_of_bf16(rows, cols, inner, a, b, adds, c, stride);
    CHECK(status == dnnl_success, "oneDNN's %s product [%lld, %lld, %lld] returned %d", dtype_name(a.dtype),
          (long long)rows, (long long)cols, (long long)inner, (int)status);
}
