// Simulates the interface of cuDNN: handles and descriptors. It knows the attributes that the program uses, and is as
// strict with them as the documentation allows; the library itself lets some mistakes pass. A mistake gives a status,
// and a word on standard error.
//
//   TRIREME_SIM_CUDNN=NNNNN      its version; 91900 if unset, 0: there is no such library
//   TRIREME_SIM_FAIL=NAME:COUNT  the COUNT-th call fails: cudnnCreate, cudnnBackendCreateDescriptor,
//                                cudnnBackendExecute; "plan": no engine takes a graph, "workspace": a plan wants a lot
//                                of it
#include "device/cuda/sim/cudnn.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

struct cudnnContext {
    int device;
    cudaStream_t stream;
};

// ---- errors, objects --------------------------------------------------------------------------------------

static thread_local std::string last_error;

static const struct {
    cudnnStatus_t status;
    const char *name;
} STATUSES[] = {
#define X(name) {name, #name},
    X(CUDNN_STATUS_SUCCESS) X(CUDNN_STATUS_NOT_INITIALIZED) X(CUDNN_STATUS_BAD_PARAM)
        X(CUDNN_STATUS_BAD_PARAM_NULL_POINTER) X(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER)
            X(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED) X(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND)
                X(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT) X(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH)
                    X(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES) X(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE)
                        X(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE) X(CUDNN_STATUS_NOT_SUPPORTED)
                            X(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN) X(CUDNN_STATUS_NOT_SUPPORTED_SHAPE)
                                X(CUDNN_STATUS_INTERNAL_ERROR) X(CUDNN_STATUS_EXECUTION_FAILED)
#undef X
};

const char *cudnnGetErrorString(cudnnStatus_t status) {
    for (const auto &row : STATUSES)
        if (row.status == status) return row.name;
    return "CUDNN_STATUS_UNKNOWN";
}

void cudnnGetLastErrorString(char *message, size_t max_size) {
    snprintf(message, max_size, "%s", last_error.c_str());
    last_error.clear();
}

size_t cudnnGetVersion() {
    const char *text = getenv("TRIREME_SIM_CUDNN");
    return text ? strtoul(text, nullptr, 10) : 91900;
}

static cudnnStatus_t refuse(cudnnStatus_t status, const std::string &what) {
    last_error = what;
    return status;
}

// An error of the caller.
static cudnnStatus_t misuse(cudnnStatus_t status, const char *call, const std::string &what) {
    fprintf(stderr, "simulated GPU: %s: %s\n", call, what.c_str());
    return refuse(status, what);
}

// What exists of handles and descriptors. It lives as long as the process.
struct CudnnObjects {
    std::mutex lock;
    std::set<cudnnHandle_t> handles;
    std::map<cudnnBackendDescriptor_t, std::shared_ptr<SimNode>> nodes;
};

static CudnnObjects &objects() {
    static CudnnObjects *const all = new CudnnObjects;
    return *all;
}

size_t sim_num_cudnn_objects() {
    std::lock_guard<std::mutex> lock(objects().lock);
    return objects().handles.size() + objects().nodes.size();
}

static bool is_handle(cudnnHandle_t handle) {
    std::lock_guard<std::mutex> lock(objects().lock);
    return objects().handles.count(handle) > 0;
}

static std::shared_ptr<SimNode> find(cudnnBackendDescriptor_t descriptor) {
    std::lock_guard<std::mutex> lock(objects().lock);
    const auto found = objects().nodes.find(descriptor);
    return found == objects().nodes.end() ? nullptr : found->second;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    if (sim_fails("cudnnCreate")) return refuse(CUDNN_STATUS_NOT_INITIALIZED, "");
    *handle = new cudnnContext{sim_gpu(), nullptr};
    std::lock_guard<std::mutex> lock(objects().lock);
    objects().handles.insert(*handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    std::lock_guard<std::mutex> lock(objects().lock);
    if (!objects().handles.erase(handle))
        return misuse(CUDNN_STATUS_BAD_PARAM, "cudnnDestroy", "a handle that does not exist");
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    if (!is_handle(handle))
        return misuse(CUDNN_STATUS_BAD_PARAM, "cudnnSetStream", "a handle that does not exist");
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

// ---- attributes -------------------------------------------------------------------------------------------

// The attributes of each kind of descriptor: their types, how many values they have, whether they are needed. One that
// is a descriptor says of which kind; `result`: it is read, and never set.
static const struct AttributeRow {
    cudnnBackendDescriptorType_t of;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t least, most;
    bool needed;
    int kind; // of descriptors; -1: any operation, or it is none
    bool result;
} ROWS[] = {
#define TENSOR(name, type, most, needed)                                                                     \
    {                                                                                                        \
        CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_##name, CUDNN_TYPE_##type, 1, most, needed, -1,   \
            false                                                                                            \
    }
    TENSOR(DATA_TYPE, DATA_TYPE, 1, true),
    TENSOR(DIMENSIONS, INT64, 8, true),
    TENSOR(STRIDES, INT64, 8, true),
    TENSOR(UNIQUE_ID, INT64, 1, true),
    TENSOR(BYTE_ALIGNMENT, INT64, 1, true),
    TENSOR(IS_VIRTUAL, BOOLEAN, 1, false),
    TENSOR(IS_BY_VALUE, BOOLEAN, 1, false),
#undef TENSOR
#define ONE(of, name, type, needed)                                                                          \
    { CUDNN_BACKEND_##of##_DESCRIPTOR, CUDNN_ATTR_##name, CUDNN_TYPE_##type, 1, 1, needed, -1, false }
    ONE(POINTWISE, POINTWISE_MODE, POINTWISE_MODE, true),
    ONE(POINTWISE, POINTWISE_MATH_PREC, DATA_TYPE, true),
    ONE(POINTWISE, POINTWISE_AXIS, INT64, false),
    ONE(MATMUL, MATMUL_COMP_TYPE, DATA_TYPE, true),
    ONE(REDUCTION, REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, true),
    ONE(REDUCTION, REDUCTION_COMP_TYPE, DATA_TYPE, true),
    ONE(OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, HANDLE, true),
    ONE(ENGINEHEUR, ENGINEHEUR_MODE, HEUR_MODE, true),
    ONE(EXECUTION_PLAN, EXECUTION_PLAN_HANDLE, HANDLE, true),
    ONE(VARIANT_PACK, VARIANT_PACK_WORKSPACE, VOID_PTR, true),
#undef ONE
#define NODE(of, name, kind, needed)                                                                         \
    {                                                                                                        \
        CUDNN_BACKEND_##of##_DESCRIPTOR, CUDNN_ATTR_##name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, needed,     \
            CUDNN_BACKEND_##kind##_DESCRIPTOR, false                                                         \
    }
    NODE(OPERATION_POINTWISE, OPERATION_POINTWISE_PW_DESCRIPTOR, POINTWISE, true),
    NODE(OPERATION_POINTWISE, OPERATION_POINTWISE_XDESC, TENSOR, true),
    NODE(OPERATION_POINTWISE, OPERATION_POINTWISE_BDESC, TENSOR, false),
    NODE(OPERATION_POINTWISE, OPERATION_POINTWISE_TDESC, TENSOR, false),
    NODE(OPERATION_POINTWISE, OPERATION_POINTWISE_YDESC, TENSOR, true),
    NODE(OPERATION_MATMUL, OPERATION_MATMUL_DESC, MATMUL, true),
    NODE(OPERATION_MATMUL, OPERATION_MATMUL_ADESC, TENSOR, true),
    NODE(OPERATION_MATMUL, OPERATION_MATMUL_BDESC, TENSOR, true),
    NODE(OPERATION_MATMUL, OPERATION_MATMUL_CDESC, TENSOR, true),
    NODE(OPERATION_REDUCTION, OPERATION_REDUCTION_DESC, REDUCTION, true),
    NODE(OPERATION_REDUCTION, OPERATION_REDUCTION_XDESC, TENSOR, true),
    NODE(OPERATION_REDUCTION, OPERATION_REDUCTION_YDESC, TENSOR, true),
    NODE(OPERATION_RESHAPE, OPERATION_RESHAPE_XDESC, TENSOR, true),
    NODE(OPERATION_RESHAPE, OPERATION_RESHAPE_YDESC, TENSOR, true),
    NODE(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, OPERATIONGRAPH, true),
    NODE(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, ENGINECFG, true),
#undef NODE
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
     100, true, -1, false},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, 100,
     true, -1, false},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1,
     100, true, -1, false},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
     100, false, -1, true},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
     1, false, -1, true},
};

static const AttributeRow *row_of(const SimNode &node, cudnnBackendAttributeName_t name, bool result) {
    for (const auto &row : ROWS)
        if (row.of == node.type && row.name == name && row.result == result) return &row;
    return nullptr;
}

static bool is_operation(const SimNode &node) {
    return node.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ||
           node.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
           node.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ||
           node.type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
}

static size_t bytes_of(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4;
    }
}

// ---- descriptors ------------------------------------------------------------------------------------------

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *descriptor) {
    bool known = type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    for (const auto &row : ROWS) known |= row.of == type;
    if (!known || !descriptor)
        return misuse(CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendCreateDescriptor",
                      "a kind that is not simulated");
    if (sim_fails("cudnnBackendCreateDescriptor")) return refuse(CUDNN_STATUS_INTERNAL_ERROR, "no memory");
    auto node = std::make_shared<SimNode>();
    node->type = type;
    *descriptor = node.get();
    std::lock_guard<std::mutex> lock(objects().lock);
    objects().nodes[*descriptor] = node;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    std::lock_guard<std::mutex> lock(objects().lock);
    if (!objects().nodes.erase(descriptor))
        return misuse(CUDNN_STATUS_BAD_PARAM, "cudnnBackendDestroyDescriptor",
                      "a descriptor that does not exist");
    return CUDNN_STATUS_SUCCESS;
}

// Adds the descriptors at `elements` to an attribute.
static cudnnStatus_t take_nodes(const AttributeRow &row, SimAttribute *attribute, const void *elements) {
    const char *call = "cudnnBackendSetAttribute";
    for (int64_t i = 0; i < attribute->count; i++) {
        const auto node = find(static_cast<const cudnnBackendDescriptor_t *>(elements)[i]);
        if (!node) return misuse(CUDNN_STATUS_BAD_PARAM, call, "a descriptor that does not exist");
        if (row.kind >= 0 ? node->type != row.kind : !is_operation(*node))
            return misuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, call, "a descriptor of another kind");
        if (!node->finalized)
            return misuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, call, "a descriptor that is not finalized");
        attribute->nodes.push_back(node);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *elements) {
    const char *call = "cudnnBackendSetAttribute";
    const auto node = find(descriptor);
    if (!node) return misuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, call, "a descriptor that does not exist");
    if (node->finalized) return misuse(CUDNN_STATUS_BAD_PARAM, call, "a descriptor that is finalized");
    const AttributeRow *row = row_of(*node, name, false);
    if (!row) return misuse(CUDNN_STATUS_BAD_PARAM, call, "an attribute that it does not have");
    if (type != row->type)
        return misuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, call, "a value of another type");
    if (count < row->least || count > row->most || !elements)
        return misuse(CUDNN_STATUS_BAD_PARAM, call, "another number of values");
    SimAttribute attribute;
    attribute.count = count;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        const cudnnStatus_t status = take_nodes(*row, &attribute, elements);
        if (status) return status;
    } else {
        const char *first = static_cast<const char *>(elements);
        attribute.bytes.assign(first, first + static_cast<size_t>(count) * bytes_of(type));
    }
    node->attributes[name] = attribute;
    return CUDNN_STATUS_SUCCESS;
}

// ---- finalizing -------------------------------------------------------------------------------------------

static const char *tensor_error(const SimNode &tensor) {
    const auto dims = tensor.values<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
               strides = tensor.values<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    const auto alignment = tensor.value<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0);
    if (dims.size() != 4 || strides.size() != 4) return "a tensor without four dimensions and strides";
    for (size_t i = 0; i < 4; i++)
        if (dims[i] < 1 || strides[i] < 1) return "a tensor with a dimension or stride below 1";
    if (alignment < 1 || alignment & (alignment - 1)) return "an alignment that is no power of 2";
    return nullptr;
}

static const char *pack_error(const SimNode &pack) {
    const auto ids = pack.values<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto addresses = pack.values<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    if (ids.size() != addresses.size()) return "not one address for each id";
    return std::set<int64_t>(ids.begin(), ids.end()).size() == ids.size() ? nullptr : "an id twice";
}

static bool has_handle(const SimNode &node, cudnnBackendAttributeName_t name) {
    return is_handle(node.value<cudnnHandle_t>(name, nullptr));
}

// What is wrong with the values of a descriptor, or NULL.
static const char *error_of(const SimNode &node) {
    if (node.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) return tensor_error(node);
    if (node.type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) return pack_error(node);
    if (is_operation(node)) return sim_operation_error(node);
    if (node.type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
        return has_handle(node, CUDNN_ATTR_OPERATIONGRAPH_HANDLE) ? sim_graph_error(node)
                                                                  : "a handle that does not exist";
    if (node.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        return has_handle(node, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) ? nullptr : "a handle that does not exist";
    if (node.type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) return "an engine that no heuristic has chosen";
    return nullptr;
}

static const SimNode *graph_of(const SimNode &plan) {
    return plan.node(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->node(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    const char *call = "cudnnBackendFinalize";
    const auto node = find(descriptor);
    if (!node) return misuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, call, "a descriptor that does not exist");
    if (node->finalized) return misuse(CUDNN_STATUS_BAD_PARAM, call, "a descriptor that is finalized");
    for (const auto &row : ROWS)
        if (row.of == node->type && row.needed && !node->has(row.name))
            return misuse(CUDNN_STATUS_BAD_PARAM, call,
                          "attribute " + std::to_string(row.name) + " is missing");
    if (const char *error = error_of(*node)) return misuse(CUDNN_STATUS_BAD_PARAM, call, error);
    if (node->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        if (sim_fails("plan"))
            return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no engine for this graph");
        node->workspace_bytes =
            sim_graph_workspace(*graph_of(*node)) + (sim_fails("workspace") ? 1 << 30 : 0);
    }
    node->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

// The one engine of the simulation: an ENGINECFG that holds the graph.
static cudnnStatus_t engines_for(const SimNode &heuristic, int64_t *count, void *elements) {
    const auto engine = find(static_cast<cudnnBackendDescriptor_t *>(elements)[0]);
    if (!engine || engine->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR || engine->finalized)
        return misuse(CUDNN_STATUS_BAD_PARAM, "cudnnBackendGetAttribute", "no engine configuration to fill");
    engine->attributes = heuristic.attributes;
    engine->finalized = true;
    *count = 1;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most, int64_t *count,
                                       void *elements) {
    const char *call = "cudnnBackendGetAttribute";
    const auto node = find(descriptor);
    if (!node) return misuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, call, "a descriptor that does not exist");
    if (!node->finalized) return misuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, call, "it is not finalized");
    const AttributeRow *row = row_of(*node, name, true);
    if (!row) return misuse(CUDNN_STATUS_BAD_PARAM, call, "an attribute that it does not have");
    if (type != row->type)
        return misuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, call, "a value of another type");
    if (most < 1 || !count || !elements) return misuse(CUDNN_STATUS_BAD_PARAM, call, "no room for the value");
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) return engines_for(*node, count, elements);
    *count = 1;
    *static_cast<int64_t *>(elements) = static_cast<int64_t>(node->workspace_bytes);
    return CUDNN_STATUS_SUCCESS;
}

// ---- executing --------------------------------------------------------------------------------------------

static cudnnStatus_t workspace_error(const SimNode &plan, void *workspace) {
    const char *call = "cudnnBackendExecute";
    if (reinterpret_cast<uintptr_t>(workspace) % 16)
        return misuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, call, "a workspace that is not aligned");
    if (plan.workspace_bytes && !sim_is_device(workspace, plan.workspace_bytes))
        return misuse(CUDNN_STATUS_BAD_PARAM, call, "a workspace that is not the GPU's memory");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_descriptor,
                                  cudnnBackendDescriptor_t pack_descriptor) {
    const char *call = "cudnnBackendExecute";
    const auto plan = find(plan_descriptor), pack = find(pack_descriptor);
    if (!is_handle(handle) || handle->device != sim_gpu())
        return misuse(CUDNN_STATUS_BAD_PARAM, call, "a handle that does not exist, or of another GPU");
    if (!plan || plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !pack ||
        pack->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        return misuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, call, "no plan, or no variant pack");
    if (!plan->finalized || !pack->finalized)
        return misuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, call, "a descriptor that is not finalized");
    const auto &config = plan->attributes.at(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).nodes.front();
    const auto &graph = config->attributes.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).nodes.front();
    const auto ids = pack->values<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto given = pack->values<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    std::map<int64_t, void *> addresses;
    for (size_t i = 0; i < ids.size(); i++) addresses[ids[i]] = given[i];
    if (const char *error = sim_addresses_error(*graph, addresses))
        return misuse(CUDNN_STATUS_BAD_PARAM, call, error);
    auto *workspace = pack->value<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
    const cudnnStatus_t status = workspace_error(*plan, workspace);
    if (status) return status;
    if (sim_fails("cudnnBackendExecute")) return refuse(CUDNN_STATUS_EXECUTION_FAILED, "a launch has failed");
    sim_graph_launch(graph, addresses, plan->workspace_bytes ? workspace : nullptr, handle->stream);
    return CUDNN_STATUS_SUCCESS;
}
