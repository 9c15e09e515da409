// Finds cuDNN, and builds its graphs, plans and variant packs from descriptors.
#include "device/cuda/cudnn.h"
#include "device/cuda/libraries.h"
#include <stdio.h>
#include <string.h>

// ---- the library ------------------------------------------------------------------------------------------

#define X(name) #name,
static const char *const FUNCTION_NAMES[] = {CUDNN_FUNCTIONS(X)};
#undef X
enum { NUM_FUNCTIONS = sizeof FUNCTION_NAMES / sizeof *FUNCTION_NAMES };
_Static_assert(sizeof(Cudnn) == NUM_FUNCTIONS * sizeof(void *), "library_load fills it");

static const CudaLibrary LIBRARY = {
    .name = CUDNN_NAME,
    .file = CUDNN_FILE,
    .wanted_by = "attention by cuDNN",
    .install = CUDNN_INSTALL,
    .functions = FUNCTION_NAMES,
    .num_functions = NUM_FUNCTIONS,
};

static CudnnVersion version_of(size_t number) {
    CudnnVersion version;
    snprintf(version.text, sizeof version.text, "%zu.%zu.%zu", number / 10000, number / 100 % 100,
             number % 100);
    return version;
}

CudnnVersion cudnn_version(const Cudnn *cudnn) { return version_of(cudnn->cudnnGetVersion()); }

Status cudnn_load(Cudnn *cudnn) {
    void *found[NUM_FUNCTIONS];
    TRY(library_load(&LIBRARY, found));
    memcpy(cudnn, found, sizeof found);
    if (cudnn->cudnnGetVersion() >= CUDNN_FIRST_VERSION) return OK;
    return fail(ERR_UNAVAILABLE, "attention by cuDNN needs its release %s or later, and %s is %s: %s",
                version_of(CUDNN_FIRST_VERSION).text, LIBRARY.file, cudnn_version(cudnn).text,
                LIBRARY.install);
}

CudnnError cudnn_error(const Cudnn *cudnn, cudnnStatus_t status) {
    CudnnError error;
    char last[384] = "";
    cudnn->cudnnGetLastErrorString(last, sizeof last);
    last[sizeof last - 1] = 0;
    last[strcspn(last, "\n")] = 0;
    snprintf(error.text, sizeof error.text, "%s%s%s", cudnn->cudnnGetErrorString(status), *last ? ", " : "",
             last);
    return error;
}

// ---- descriptors ------------------------------------------------------------------------------------------

// Notes the first failure.
static bool went_well(CudnnGraph *g, const char *call, cudnnStatus_t status) {
    if (status == CUDNN_STATUS_SUCCESS) return true;
    if (g->status == CUDNN_STATUS_SUCCESS) {
        g->status = status;
        g->call = call;
        g->error = cudnn_error(g->cudnn, status);
    }
    return false;
}

static bool is_sound(const CudnnGraph *g) { return g->status == CUDNN_STATUS_SUCCESS; }

static CudnnNode create(CudnnGraph *g, cudnnBackendDescriptorType_t type) {
    CudnnNode node = NULL;
    CHECK(g->num_nodes < CUDNN_MAX_NODES, "a graph with too many descriptors");
    if (is_sound(g) &&
        went_well(g, "cudnnBackendCreateDescriptor", g->cudnn->cudnnBackendCreateDescriptor(type, &node)))
        g->nodes[g->num_nodes++] = node;
    return node;
}

static void set_some(CudnnGraph *g, CudnnNode node, cudnnBackendAttributeName_t name,
                     cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    if (is_sound(g))
        went_well(g, "cudnnBackendSetAttribute",
                  g->cudnn->cudnnBackendSetAttribute(node, name, type, count, values));
}

static void set(CudnnGraph *g, CudnnNode node, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, const void *value) {
    set_some(g, node, name, type, 1, value);
}

static void set_node(CudnnGraph *g, CudnnNode node, cudnnBackendAttributeName_t name, CudnnNode value) {
    set(g, node, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value);
}

static void finalize(CudnnGraph *g, CudnnNode node) {
    if (is_sound(g)) went_well(g, "cudnnBackendFinalize", g->cudnn->cudnnBackendFinalize(node));
}

void cudnn_graph_destroy(CudnnGraph *g) {
    while (g->num_nodes > 0) g->cudnn->cudnnBackendDestroyDescriptor(g->nodes[--g->num_nodes]);
    g->num_operations = 0;
}

// ---- tensors ----------------------------------------------------------------------------------------------

static CudnnNode tensor(CudnnGraph *g, cudnnDataType_t type, CudnnShape shape, int64_t id, bool is_virtual,
                        bool by_value) {
    const int64_t alignment = 16;
    CudnnNode node = create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(g, node, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
    set_some(g, node, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.dims);
    set_some(g, node, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape.strides);
    set(g, node, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id);
    set(g, node, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
    set(g, node, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &is_virtual);
    if (by_value) set(g, node, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &by_value);
    finalize(g, node);
    return node;
}

CudnnNode cudnn_tensor(CudnnGraph *g, cudnnDataType_t type, CudnnShape shape, int64_t id) {
    return tensor(g, type, shape, id, false, false);
}

CudnnNode cudnn_scalar(CudnnGraph *g, int64_t id) {
    return tensor(g, CUDNN_DATA_FLOAT, (CudnnShape){{1, 1, 1, 1}, {1, 1, 1, 1}}, id, false, true);
}

CudnnNode cudnn_virtual(CudnnGraph *g, cudnnDataType_t type, CudnnShape shape) {
    return tensor(g, type, shape, CUDNN_FIRST_VIRTUAL + g->num_virtual++, true, false);
}

// ---- operations -------------------------------------------------------------------------------------------

static void add_operation(CudnnGraph *g, CudnnNode operation) {
    CHECK(g->num_operations < CUDNN_MAX_OPERATIONS, "a graph with too many operations");
    finalize(g, operation);
    g->operations[g->num_operations++] = operation;
}

// `axis` below 0: none. Absent operands are NULL.
static void pointwise(CudnnGraph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision, int64_t axis,
                      CudnnNode x, CudnnNode b, CudnnNode t, CudnnNode y) {
    CudnnNode how = create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode);
    set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &precision);
    if (axis >= 0) set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &axis);
    finalize(g, how);
    CudnnNode operation = create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_node(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_node(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) set_node(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t) set_node(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_node(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_operation(g, operation);
}

void cudnn_pointwise(CudnnGraph *g, cudnnPointwiseMode_t mode, CudnnNode x, CudnnNode b, CudnnNode y) {
    pointwise(g, mode, CUDNN_DATA_FLOAT, -1, x, b, NULL, y);
}

void cudnn_index(CudnnGraph *g, int64_t axis, CudnnNode x, CudnnNode y) {
    pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, axis, x, NULL, NULL, y);
}

void cudnn_not_below(CudnnGraph *g, CudnnNode x, CudnnNode b, CudnnNode y) {
    pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, x, b, NULL, y);
}

void cudnn_select(CudnnGraph *g, CudnnNode x, CudnnNode b, CudnnNode t, CudnnNode y) {
    pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, x, b, t, y);
}

void cudnn_reduce(CudnnGraph *g, cudnnReduceTensorOp_t by, CudnnNode x, CudnnNode y) {
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    CudnnNode how = create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &precision);
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &by);
    finalize(g, how);
    CudnnNode operation = create(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_node(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_node(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_node(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_operation(g, operation);
}

void cudnn_matmul(CudnnGraph *g, CudnnNode a, CudnnNode b, CudnnNode c) {
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    CudnnNode how = create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &precision);
    finalize(g, how);
    CudnnNode operation = create(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_node(g, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_node(g, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_node(g, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_node(g, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    add_operation(g, operation);
}

void cudnn_reshape(CudnnGraph *g, CudnnNode x, CudnnNode y) {
    CudnnNode operation = create(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_node(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_node(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_operation(g, operation);
}

// ---- plans ------------------------------------------------------------------------------------------------

CudnnNode cudnn_properties(CudnnGraph *g, const char *json) {
    CudnnNode properties = create(g, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set_some(g, properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(json),
             json);
    finalize(g, properties);
    return properties;
}

static CudnnNode operation_graph(CudnnGraph *g, cudnnHandle_t handle) {
    CudnnNode whole = create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set_some(g, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->num_operations,
             g->operations);
    if (handle) set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &handle);
    finalize(g, whole);
    return whole;
}

enum { MAX_ENGINES = 16 };

// Sets `engines` to what the heuristic proposes, the best first. Returns how many there are.
static int64_t find_engines(CudnnGraph *g, cudnnHandle_t handle, CudnnNode properties,
                            CudnnNode (*engines)[MAX_ENGINES]) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    CudnnNode whole = operation_graph(g, handle), heuristic = create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t count = 0;
    set_node(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
    set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
    if (!handle) set_node(g, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, properties);
    finalize(g, heuristic);
    for (int i = 0; i < MAX_ENGINES; i++) (*engines)[i] = create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!is_sound(g)) return 0;
    cudnnStatus_t status =
        g->cudnn->cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                           CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_ENGINES, &count, *engines);
    return went_well(g, "cudnnBackendGetAttribute", status) ? count : 0;
}

// A plan by one engine; NULL with its status if that does not take the graph.
static CudnnNode plan_by(CudnnGraph *g, cudnnHandle_t handle, CudnnNode properties, CudnnNode engine) {
    CudnnNode plan = create(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (handle) set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &handle);
    if (!handle) set_node(g, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, properties);
    set_node(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine);
    finalize(g, plan);
    return is_sound(g) ? plan : NULL;
}

static bool is_not_supported(cudnnStatus_t status) {
    return status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000;
}

CudnnNode cudnn_plan(CudnnGraph *g, cudnnHandle_t handle, CudnnNode properties, int64_t *workspace_bytes) {
    CudnnNode engines[MAX_ENGINES], plan = NULL;
    int64_t num_engines = find_engines(g, handle, properties, &engines), count = 0;
    if (is_sound(g) && !num_engines)
        went_well(g, "cudnnBackendGetAttribute", CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
    for (int64_t i = 0; !plan && i < num_engines && i < MAX_ENGINES; i++) {
        if (is_not_supported(g->status)) g->status = CUDNN_STATUS_SUCCESS; // the next engine may take it
        plan = plan_by(g, handle, properties, engines[i]);
    }
    if (!plan) return NULL;
    cudnnStatus_t status = g->cudnn->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                              CUDNN_TYPE_INT64, 1, &count, workspace_bytes);
    return went_well(g, "cudnnBackendGetAttribute", status) ? plan : NULL;
}

// The library's own objects; it gives no way to use one variant pack twice with other addresses.
cudnnStatus_t cudnn_execute(const Cudnn *cudnn, cudnnHandle_t handle, CudnnNode plan, const int64_t *ids,
                            void *const *addresses, int count, void *workspace) {
    CudnnNode pack = NULL;
    cudnnStatus_t status = cudnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status) return status;
    status = cudnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                             count, ids);
    if (!status)
        status = cudnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                                 CUDNN_TYPE_VOID_PTR, count, addresses);
    if (!status)
        status = cudnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
                                                 1, &workspace);
    if (!status) status = cudnn->cudnnBackendFinalize(pack);
    if (!status) status = cudnn->cudnnBackendExecute(handle, plan, pack);
    cudnn->cudnnBackendDestroyDescriptor(pack);
    return status;
}
