// The simulated cuDNN: it finds the mistakes of a caller, in descriptors and in addresses, and computes what strides say.
#include "cuda_fixture.h"
#include "device/cuda/cudnn.h"
#include <math.h>
#include <stdlib.h>

// What a caller of the library makes of a product d [M, N] = a [M, K] b [K, N] in fp32.
enum { M = 4, N = 8, K = 6, A = 1, B, D };
typedef struct {
    Gpu *gpu;
    Cudnn cudnn;
    cudnnHandle_t handle;
    CudnnGraph graph;
    CudnnShape a, b, d;
    CudnnNode node; // of a mistake
    int64_t ids[3];
    void *addresses[3];
    int count;
    void *workspace;
} Caller;

static CudnnShape matrix(int64_t rows, int64_t cols, int64_t down, int64_t across) {
    return (CudnnShape){{1, 1, rows, cols}, {rows * cols, rows * cols, down, across}};
}

static Caller caller_open(Gpu *gpu) {
    Caller c = {.gpu = gpu, .ids = {A, B, D}, .count = 3, .workspace = gpu->exec.workspace};
    EXPECT_OK(cudnn_load(&c.cudnn));
    EXPECT(!c.cudnn.cudnnCreate(&c.handle), "no handle");
    EXPECT(!c.cudnn.cudnnSetStream(c.handle, stream_of(&gpu->exec)), "the stream");
    c.a = matrix(M, K, K, 1), c.b = matrix(K, N, N, 1), c.d = matrix(M, N, N, 1);
    const int64_t counts[] = {2 * M * K, 2 * K * N, 2 * M * N};
    for (int i = 0; i < 3; i++) {
        float *x = gpu_tensor(gpu, F32, 1, counts[i], 0).data;
        for (int64_t k = 0; i < 2 && k < counts[i]; k++) x[k] = (float)((k + i) % 7) - 2;
        c.addresses[i] = x;
    }
    return c;
}

static void caller_close(Caller *c) {
    c->graph.cudnn = &c->cudnn;
    cudnn_graph_destroy(&c->graph);
    EXPECT(!c->cudnn.cudnnDestroy(c->handle), "the handle");
}

// Builds, plans and executes; returns the first status that is no success.
static cudnnStatus_t multiply(Caller *c) {
    CudnnGraph *g = &c->graph;
    int64_t bytes;
    g->cudnn = &c->cudnn;
    CudnnNode a = cudnn_tensor(g, CUDNN_DATA_FLOAT, c->a, A), b = cudnn_tensor(g, CUDNN_DATA_FLOAT, c->b, B);
    cudnn_matmul(g, a, b, cudnn_tensor(g, CUDNN_DATA_FLOAT, c->d, D));
    CudnnNode plan = cudnn_plan(g, c->handle, NULL, &bytes);
    if (!plan) return g->status;
    return cudnn_execute(&c->cudnn, c->handle, plan, c->ids, c->addresses, c->count, c->workspace);
}

// ---- numbers ----------------------------------------------------------------------------------------------

static double at(const void *x, CudnnShape shape, int64_t row, int64_t col) {
    return (double)((const float *)x)[row * shape.strides[2] + col * shape.strides[3]];
}

static void strides_are_followed(void) {
    const CudnnShape a[] = {matrix(M, K, K, 1), matrix(M, K, 1, M), matrix(M, K, K + 3, 1)};
    const CudnnShape b[] = {matrix(K, N, N, 1), matrix(K, N, 1, K), matrix(K, N, N, 1)};
    for (int i = 0; i < 9; i++) {
        Gpu gpu = gpu_open();
        Caller c = caller_open(&gpu);
        c.a = a[i % 3], c.b = b[i / 3], c.d = i % 2 ? matrix(M, N, 1, M) : c.d;
        EXPECT(!multiply(&c), "%s: %s", c.graph.call, c.graph.error.text);
        gpu_wait(&gpu);
        for (int row = 0; row < M; row++)
            for (int col = 0; col < N; col++) {
                double sum = 0;
                for (int k = 0; k < K; k++)
                    sum += at(c.addresses[0], c.a, row, k) * at(c.addresses[1], c.b, k, col);
                EXPECT(at(c.addresses[2], c.d, row, col) == sum, "case %d: [%d, %d]", i, row, col);
            }
        caller_close(&c);
        gpu_close(&gpu);
    }
}

// ---- mistakes ---------------------------------------------------------------------------------------------

static CudnnNode created(Caller *c, cudnnBackendDescriptorType_t type) {
    CudnnNode node = NULL;
    EXPECT(!c->cudnn.cudnnBackendCreateDescriptor(type, &node), "no descriptor");
    c->graph.nodes[c->graph.num_nodes++] = node;
    return node;
}

static cudnnStatus_t set(Caller *c, CudnnNode node, int name, int type, int64_t count, const void *value) {
    return c->cudnn.cudnnBackendSetAttribute(node, (cudnnBackendAttributeName_t)name,
                                             (cudnnBackendAttributeType_t)type, count, value);
}

static CudnnNode finished(Caller *c) {
    c->graph.cudnn = &c->cudnn;
    return cudnn_tensor(&c->graph, CUDNN_DATA_FLOAT, c->a, A);
}

static const int64_t ONE = 1;

static cudnnStatus_t unknown_kind(Caller *c) {
    CudnnNode node; // a convolution
    return c->cudnn.cudnnBackendCreateDescriptor((cudnnBackendDescriptorType_t)1, &node);
}
static cudnnStatus_t no_descriptor(Caller *c) {
    return set(c, NULL, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &ONE);
}
static cudnnStatus_t foreign_attribute(Caller *c) {
    return set(c, created(c, CUDNN_BACKEND_TENSOR_DESCRIPTOR), CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1,
               &ONE);
}
static cudnnStatus_t wrong_type(Caller *c) {
    return set(c, created(c, CUDNN_BACKEND_TENSOR_DESCRIPTOR), CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_INT64,
               1, &ONE);
}
static cudnnStatus_t wrong_count(Caller *c) {
    return set(c, created(c, CUDNN_BACKEND_TENSOR_DESCRIPTOR), CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64,
               2, (const int64_t[]){1, 2});
}
static cudnnStatus_t no_value(Caller *c) {
    return set(c, created(c, CUDNN_BACKEND_TENSOR_DESCRIPTOR), CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64,
               1, NULL);
}
static cudnnStatus_t set_when_finalized(Caller *c) {
    return set(c, finished(c), CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &ONE);
}
static cudnnStatus_t finalized_twice(Caller *c) { return c->cudnn.cudnnBackendFinalize(finished(c)); }
static cudnnStatus_t nothing_set(Caller *c) {
    return c->cudnn.cudnnBackendFinalize(created(c, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
}
static cudnnStatus_t operand_not_finalized(Caller *c) {
    CudnnNode x = created(c, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
              y = created(c, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    return set(c, y, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
}
static cudnnStatus_t operand_of_another_kind(Caller *c) {
    CudnnNode x = finished(c), y = created(c, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    return set(c, y, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
}
static cudnnStatus_t factors_that_do_not_fit(Caller *c) {
    c->b = matrix(K + 1, N, N, 1);
    return multiply(c);
}
static cudnnStatus_t no_dimension(Caller *c) {
    c->a.dims[2] = 0;
    return multiply(c);
}
static cudnnStatus_t plan_without_engine(Caller *c) {
    CudnnNode plan = created(c, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    EXPECT(!set(c, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &c->handle), "the handle");
    return c->cudnn.cudnnBackendFinalize(plan);
}
static cudnnStatus_t result_too_early(Caller *c) {
    int64_t count, bytes;
    return c->cudnn.cudnnBackendGetAttribute(created(c, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR),
                                             CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                             &count, &bytes);
}
static cudnnStatus_t read_before_made(Caller *c) {
    CudnnGraph *g = &c->graph;
    int64_t bytes;
    g->cudnn = &c->cudnn;
    CudnnNode between = cudnn_virtual(g, CUDNN_DATA_FLOAT, c->d),
              d = cudnn_tensor(g, CUDNN_DATA_FLOAT, c->d, D);
    cudnn_pointwise(g, CUDNN_POINTWISE_EXP, between, NULL, d);
    cudnn_matmul(g, cudnn_tensor(g, CUDNN_DATA_FLOAT, c->a, A), cudnn_tensor(g, CUDNN_DATA_FLOAT, c->b, B),
                 between);
    return cudnn_plan(g, c->handle, NULL, &bytes) ? CUDNN_STATUS_SUCCESS : g->status;
}
static cudnnStatus_t one_operand_of_two(Caller *c) {
    CudnnGraph *g = &c->graph;
    g->cudnn = &c->cudnn;
    CudnnNode x = cudnn_tensor(g, CUDNN_DATA_FLOAT, c->d, A), y = cudnn_tensor(g, CUDNN_DATA_FLOAT, c->d, D);
    cudnn_pointwise(g, CUDNN_POINTWISE_MUL, x, NULL, y);
    return g->status;
}
static cudnnStatus_t reduction_to_other_sizes(Caller *c) {
    CudnnGraph *g = &c->graph;
    g->cudnn = &c->cudnn;
    CudnnNode x = cudnn_tensor(g, CUDNN_DATA_FLOAT, c->d, A);
    cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, x, cudnn_tensor(g, CUDNN_DATA_FLOAT, matrix(M, 2, 2, 1), D));
    return g->status;
}
static cudnnStatus_t address_that_is_missing(Caller *c) {
    c->count = 2;
    return multiply(c);
}
static cudnnStatus_t id_twice(Caller *c) {
    c->ids[2] = A;
    return multiply(c);
}
static cudnnStatus_t address_between(Caller *c) {
    c->addresses[0] = (char *)c->addresses[0] + 4;
    return multiply(c);
}
static cudnnStatus_t beyond_memory(Caller *c) {
    c->addresses[2] = (char *)c->gpu->memory + GPU_BYTES - 16;
    return multiply(c);
}
static cudnnStatus_t no_workspace(Caller *c) {
    c->workspace = NULL;
    return multiply(c);
}
static cudnnStatus_t workspace_between(Caller *c) {
    c->workspace = (char *)c->workspace + 8;
    return multiply(c);
}
static cudnnStatus_t other_gpu(Caller *c) {
    cudaSetDevice(1);
    return multiply(c);
}

static const struct {
    cudnnStatus_t (*make)(Caller *);
    cudnnStatus_t status;
    const char *words;
} MISTAKES[] = {
    {unknown_kind, CUDNN_STATUS_NOT_SUPPORTED, "a kind that is not simulated"},
    {no_descriptor, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a descriptor that does not exist"},
    {foreign_attribute, CUDNN_STATUS_BAD_PARAM, "an attribute that it does not have"},
    {wrong_type, CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "a value of another type"},
    {wrong_count, CUDNN_STATUS_BAD_PARAM, "another number of values"},
    {no_value, CUDNN_STATUS_BAD_PARAM, "another number of values"},
    {set_when_finalized, CUDNN_STATUS_BAD_PARAM, "a descriptor that is finalized"},
    {finalized_twice, CUDNN_STATUS_BAD_PARAM, "a descriptor that is finalized"},
    {nothing_set, CUDNN_STATUS_BAD_PARAM, "is missing"},
    {operand_not_finalized, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a descriptor that is not finalized"},
    {operand_of_another_kind, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "a descriptor of another kind"},
    {factors_that_do_not_fit, CUDNN_STATUS_BAD_PARAM, "factors that do not fit each other or the product"},
    {no_dimension, CUDNN_STATUS_BAD_PARAM, "a tensor with a dimension or stride below 1"},
    {plan_without_engine, CUDNN_STATUS_BAD_PARAM, "attribute 401 is missing"},
    {result_too_early, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "it is not finalized"},
    {read_before_made, CUDNN_STATUS_BAD_PARAM, "a virtual tensor that is read before it is made"},
    {one_operand_of_two, CUDNN_STATUS_BAD_PARAM, "another number of operands than the mode has"},
    {reduction_to_other_sizes, CUDNN_STATUS_BAD_PARAM, "a reduction to other dimensions than 1"},
    {address_that_is_missing, CUDNN_STATUS_BAD_PARAM, "a tensor without an address"},
    {id_twice, CUDNN_STATUS_BAD_PARAM, "an id twice"},
    {address_between, CUDNN_STATUS_BAD_PARAM, "an address that is aligned to less than was promised"},
    {beyond_memory, CUDNN_STATUS_BAD_PARAM, "a tensor that is not the GPU's memory"},
    {no_workspace, CUDNN_STATUS_BAD_PARAM, "a workspace that is not the GPU's memory"},
    {workspace_between, CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "a workspace that is not aligned"},
    {other_gpu, CUDNN_STATUS_BAD_PARAM, "a handle that does not exist, or of another GPU"},
};
enum { NUM_MISTAKES = sizeof MISTAKES / sizeof *MISTAKES };

// Makes a mistake, with standard error in a file. Returns the status; `said` becomes the file's contents.
static cudnnStatus_t status_of(int mistake, Caller *c, char *said, size_t bytes) {
    const Said file = said_begin();
    cudnnStatus_t status = MISTAKES[mistake].make(c);
    said_end(&file, said, bytes);
    cudaSetDevice(0);
    return status;
}

static void mistakes_are_named(void) {
    setenv("TRIREME_SIM_GPUS", "2", 1);
    for (int i = 0; i < NUM_MISTAKES; i++) {
        Gpu gpu = gpu_open();
        Caller c = caller_open(&gpu);
        char said[1024];
        const cudnnStatus_t status = status_of(i, &c, said, sizeof said);
        EXPECT(status == MISTAKES[i].status, "mistake %d: status %d", i, (int)status);
        EXPECT(strstr(said, MISTAKES[i].words), "mistake %d: \"%s\" in: %s", i, MISTAKES[i].words, said);
        caller_close(&c);
        gpu_close(&gpu);
    }
    unsetenv("TRIREME_SIM_GPUS");
}

static void statuses_have_names(void) {
    Cudnn cudnn;
    EXPECT_OK(cudnn_load(&cudnn));
    (void)cudnn_error(&cudnn, CUDNN_STATUS_SUCCESS); // what is said of the last error is said once
    EXPECT(!strcmp(cudnn_error(&cudnn, CUDNN_STATUS_INTERNAL_ERROR).text, "CUDNN_STATUS_INTERNAL_ERROR"),
           "%s", cudnn_error(&cudnn, CUDNN_STATUS_INTERNAL_ERROR).text);
    EXPECT(!strcmp(cudnn_error(&cudnn, (cudnnStatus_t)7).text, "CUDNN_STATUS_UNKNOWN"), "an unknown status");
    EXPECT(!strcmp(cudnn_version(&cudnn).text, "9.19.0"), "%s", cudnn_version(&cudnn).text);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"strides_are_followed", strides_are_followed},
                                      {"mistakes_are_named", mistakes_are_named},
                                      {"statuses_have_names", statuses_have_names},
                                      {0}},
                       argc, argv);
}
