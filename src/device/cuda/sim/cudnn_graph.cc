// Interprets a graph of the simulated cuDNN with plain loops in fp32, operation by operation, as dimensions, strides
// and types of its tensors say. It knows nothing of what a graph is for.
//
// A virtual tensor lives in the process, rounded to its type. A real one is read and written where its address and its
// strides say. A product whose result is real, in fp32 and next copied by an identity is made by atomic additions: onto
// what is there, and in another order each time. cuDNN's own workspace is overwritten before the first operation.
#include "base/half.h"
#include "device/cuda/sim/cudnn.h"
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <set>

using Dims = std::array<int64_t, 4>;

// ---- tensors ----------------------------------------------------------------------------------------------

struct TensorFacts {
    int64_t id;
    Dims dims, strides;
    cudnnDataType_t type;
    bool is_virtual, by_value;
    int64_t alignment;
};

static Dims four(const SimNode &tensor, cudnnBackendAttributeName_t name) {
    const auto values = tensor.values<int64_t>(name);
    Dims dims = {};
    std::copy(values.begin(), values.end(), dims.begin());
    return dims;
}

static TensorFacts facts_of(const SimNode &t) {
    return {t.value<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0),
            four(t, CUDNN_ATTR_TENSOR_DIMENSIONS),
            four(t, CUDNN_ATTR_TENSOR_STRIDES),
            t.value<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT),
            t.value<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false),
            t.value<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false),
            t.value<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1)};
}

static int64_t count_of(const Dims &d) { return d[0] * d[1] * d[2] * d[3]; }

static int64_t bytes_of(cudnnDataType_t type) {
    return type == CUDNN_DATA_BOOLEAN ? 1 : type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16 ? 2 : 4;
}

// From the first element to the last.
static size_t bytes_of(const TensorFacts &t) {
    int64_t last = 0;
    for (size_t i = 0; i < 4; i++) last += (t.dims[i] - 1) * t.strides[i];
    return static_cast<size_t>((last + 1) * bytes_of(t.type));
}

static Dims index_of(const Dims &dims, int64_t i) {
    Dims at;
    for (size_t axis = 4; axis-- > 0; i /= dims[axis]) at[axis] = i % dims[axis];
    return at;
}

// The number of an element in a dense tensor; where a dimension is 1, all indices mean the one.
static size_t number_of(const Dims &dims, const Dims &at) {
    int64_t number = 0;
    for (size_t axis = 0; axis < 4; axis++) number = number * dims[axis] + (dims[axis] == 1 ? 0 : at[axis]);
    return static_cast<size_t>(number);
}

static float load(cudnnDataType_t type, const void *x, int64_t i) {
    if (type == CUDNN_DATA_FLOAT) return static_cast<const float *>(x)[i];
    const uint16_t bits = static_cast<const uint16_t *>(x)[i];
    return type == CUDNN_DATA_BFLOAT16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

static void store(cudnnDataType_t type, void *x, int64_t i, float value) {
    if (type == CUDNN_DATA_FLOAT)
        static_cast<float *>(x)[i] = value;
    else
        static_cast<uint16_t *>(x)[i] = type == CUDNN_DATA_BFLOAT16 ? bf16_of_f32(value) : f16_of_f32(value);
}

static float rounded(cudnnDataType_t type, float value) {
    if (type != CUDNN_DATA_HALF && type != CUDNN_DATA_BFLOAT16) return value;
    uint16_t room;
    store(type, &room, 0, value);
    return load(type, &room, 0);
}

// ---- operations -------------------------------------------------------------------------------------------

struct OperationFacts {
    std::vector<const SimNode *> read;
    const SimNode *written;
};

static OperationFacts operands_of(const SimNode &op) {
    const auto x = [&op](cudnnBackendAttributeName_t name) { return op.node(name); };
    OperationFacts facts = {};
    switch (op.type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        facts = {{x(CUDNN_ATTR_OPERATION_POINTWISE_XDESC), x(CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
                  x(CUDNN_ATTR_OPERATION_POINTWISE_TDESC)},
                 x(CUDNN_ATTR_OPERATION_POINTWISE_YDESC)};
        break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        facts = {{x(CUDNN_ATTR_OPERATION_MATMUL_ADESC), x(CUDNN_ATTR_OPERATION_MATMUL_BDESC)},
                 x(CUDNN_ATTR_OPERATION_MATMUL_CDESC)};
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        facts = {{x(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)}, x(CUDNN_ATTR_OPERATION_REDUCTION_YDESC)};
        break;
    default: facts = {{x(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)}, x(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)};
    }
    return facts;
}

static cudnnPointwiseMode_t mode_of(const SimNode &op) {
    return op.node(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
        ->value<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_IDENTITY);
}

// How many operands each mode has; 0: it is not simulated.
static int operands_of(cudnnPointwiseMode_t mode) {
    switch (mode) {
    case CUDNN_POINTWISE_BINARY_SELECT: return 3;
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_CMP_GE: return 2;
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_IDENTITY:
    case CUDNN_POINTWISE_GEN_INDEX: return 1;
    }
    return 0;
}

// Whether `x` repeated along dimensions of 1 has the dimensions of `y`.
static bool repeats_to(const Dims &x, const Dims &y) {
    for (size_t i = 0; i < 4; i++)
        if (x[i] != 1 && x[i] != y[i]) return false;
    return true;
}

static const char *pointwise_error(const SimNode &op, const OperationFacts &facts) {
    const auto mode = mode_of(op);
    const auto *how = op.node(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto y = facts_of(*facts.written);
    const bool compares = mode == CUDNN_POINTWISE_CMP_GE, counts = mode == CUDNN_POINTWISE_GEN_INDEX;
    int given = 0;
    for (const auto *x : facts.read) {
        given += x != nullptr;
        if (x && !repeats_to(facts_of(*x).dims, y.dims)) return "an operand that does not fit the result";
    }
    if (!operands_of(mode)) return "a mode that is not simulated";
    if (given != operands_of(mode)) return "another number of operands than the mode has";
    if ((y.type == CUDNN_DATA_BOOLEAN) != compares) return "booleans that are none, or the other way round";
    if ((y.type == CUDNN_DATA_INT32) != counts) return "indices that are none, or the other way round";
    if (how->has(CUDNN_ATTR_POINTWISE_AXIS) != counts)
        return "an axis for another mode than indices, or none";
    if (counts && (how->value<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, 0) & ~3))
        return "an axis that there is not";
    if (given == 3 && facts_of(*facts.read[2]).type != CUDNN_DATA_BOOLEAN) return "a choice by no booleans";
    return nullptr;
}

static const char *matmul_error(const OperationFacts &facts) {
    const auto a = facts_of(*facts.read[0]), b = facts_of(*facts.read[1]), c = facts_of(*facts.written);
    if (a.dims[2] != c.dims[2] || b.dims[3] != c.dims[3] || a.dims[3] != b.dims[2])
        return "factors that do not fit each other or the product";
    for (size_t i = 0; i < 2; i++)
        if ((a.dims[i] != c.dims[i] && a.dims[i] != 1) || (b.dims[i] != c.dims[i] && b.dims[i] != 1))
            return "factors of other batches than the product";
    return nullptr;
}

// Which of the last two axes follows memory.
static int contiguous_axis(const TensorFacts &t) { return t.strides[3] == 1 ? 3 : t.strides[2] == 1 ? 2 : 0; }

// The elements keep their order in memory: what was contiguous along one axis is so along the other.
static bool transposes(const TensorFacts &x, const TensorFacts &y) {
    return contiguous_axis(x) != contiguous_axis(y);
}

static const char *reshape_error(const OperationFacts &facts) {
    const auto x = facts_of(*facts.read[0]), y = facts_of(*facts.written);
    Dims wanted = x.dims;
    if (!contiguous_axis(x) || !contiguous_axis(y)) return "a reshape of a tensor that is not contiguous";
    if (transposes(x, y)) std::swap(wanted[2], wanted[3]);
    return wanted == y.dims ? nullptr : "a reshape to dimensions that are not simulated";
}

const char *sim_operation_error(const SimNode &op) {
    const auto facts = operands_of(op);
    for (const auto *x : facts.read)
        if (x == facts.written) return "a result that is an operand";
    if (facts_of(*facts.written).by_value) return "a result that is a number by value";
    if (op.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) return pointwise_error(op, facts);
    if (op.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) return matmul_error(facts);
    if (op.type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR) return reshape_error(facts);
    return repeats_to(facts_of(*facts.written).dims, facts_of(*facts.read[0]).dims)
               ? nullptr
               : "a reduction to other dimensions than 1";
}

// ---- graphs -----------------------------------------------------------------------------------------------

static const SimNodes &operations_of(const SimNode &graph) {
    return graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes;
}

const char *sim_graph_error(const SimNode &graph) {
    std::set<int64_t> written, read;
    for (const auto &op : operations_of(graph)) {
        const auto facts = operands_of(*op);
        for (const auto *x : facts.read) {
            if (!x) continue;
            const auto t = facts_of(*x);
            if (t.is_virtual && !written.count(t.id))
                return "a virtual tensor that is read before it is made";
            read.insert(t.id);
        }
        const auto y = facts_of(*facts.written);
        if (!written.insert(y.id).second) return "a tensor that two operations make";
        if (read.count(y.id)) return "a tensor that is read before it is made";
    }
    for (const auto &op : operations_of(graph)) {
        const auto y = facts_of(*operands_of(*op).written);
        if (y.is_virtual && !read.count(y.id)) return "a virtual tensor that nothing reads";
    }
    return nullptr;
}

// Whether the next operation only copies what this product makes in fp32.
static bool is_by_atomics(const SimNodes &operations, size_t i) {
    if (operations[i]->type != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR || i + 1 == operations.size())
        return false;
    const auto &next = *operations[i + 1];
    const auto c = facts_of(*operands_of(*operations[i]).written);
    return !c.is_virtual && c.type == CUDNN_DATA_FLOAT &&
           next.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR &&
           mode_of(next) == CUDNN_POINTWISE_IDENTITY;
}

// As cuDNN 9.19 has it for Hopper: where a graph transposes weights and makes no product by atomics, these weights lie
// in memory in 16 bits, in whole tiles.
size_t sim_graph_workspace(const SimNode &graph) {
    const auto &operations = operations_of(graph);
    int64_t weights = 0;
    for (size_t i = 0; i < operations.size(); i++) {
        if (is_by_atomics(operations, i)) return 256;
        const auto y = facts_of(*operands_of(*operations[i]).written);
        if (operations[i]->type != CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR || y.dims[2] != y.dims[3])
            continue;
        weights = 2 * y.dims[0] * y.dims[1] * ((y.dims[2] + 63) / 64 * 64) * ((y.dims[2] + 127) / 128 * 128);
    }
    return static_cast<size_t>(256 + weights);
}

static std::vector<TensorFacts> tensors_of(const SimNode &graph) {
    std::vector<TensorFacts> all;
    for (const auto &op : operations_of(graph)) {
        auto facts = operands_of(*op);
        facts.read.push_back(facts.written);
        for (const auto *x : facts.read)
            if (x) all.push_back(facts_of(*x));
    }
    return all;
}

const char *sim_addresses_error(const SimNode &graph, const std::map<int64_t, void *> &addresses) {
    for (const auto &t : tensors_of(graph)) {
        const auto found = addresses.find(t.id);
        if (t.is_virtual) {
            if (found != addresses.end()) return "an address for a virtual tensor";
            continue;
        }
        if (found == addresses.end() || !found->second) return "a tensor without an address";
        if (t.by_value) {
            if (sim_is_device(found->second, 4)) return "a number by value that is the GPU's memory";
            continue;
        }
        if (reinterpret_cast<uintptr_t>(found->second) % static_cast<uintptr_t>(t.alignment))
            return "an address that is aligned to less than was promised";
        if (!sim_is_device(found->second, bytes_of(t))) return "a tensor that is not the GPU's memory";
    }
    return nullptr;
}

// ---- computing --------------------------------------------------------------------------------------------

using Values = std::vector<float>;

// One execution of a graph.
struct GraphRun {
    std::shared_ptr<const SimNode> graph; // keeps it alive
    std::map<int64_t, void *> addresses;
    std::map<int64_t, float> numbers; // by value
    std::map<int64_t, Values> made;   // of virtual tensors, dense
};

static Values values_of(const GraphRun &run, const TensorFacts &t) {
    if (t.is_virtual) return run.made.at(t.id);
    if (t.by_value) return {run.numbers.at(t.id)};
    Values values(static_cast<size_t>(count_of(t.dims)));
    for (size_t i = 0; i < values.size(); i++) {
        const Dims at = index_of(t.dims, static_cast<int64_t>(i));
        int64_t offset = 0;
        for (size_t axis = 0; axis < 4; axis++) offset += at[axis] * t.strides[axis];
        values[i] = load(t.type, run.addresses.at(t.id), offset);
    }
    return values;
}

static void keep_values(GraphRun *run, const TensorFacts &t, Values values) {
    if (t.is_virtual) {
        for (float &x : values) x = rounded(t.type, x);
        run->made[t.id] = std::move(values);
        return;
    }
    for (size_t i = 0; i < values.size(); i++) {
        const Dims at = index_of(t.dims, static_cast<int64_t>(i));
        int64_t offset = 0;
        for (size_t axis = 0; axis < 4; axis++) offset += at[axis] * t.strides[axis];
        store(t.type, run->addresses.at(t.id), offset, values[i]);
    }
}

static float apply(cudnnPointwiseMode_t mode, float x, float b, float t) {
    switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_EXP: return std::exp(x);
    case CUDNN_POINTWISE_LOG: return std::log(x);
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    case CUDNN_POINTWISE_IDENTITY:
    case CUDNN_POINTWISE_GEN_INDEX: break;
    }
    return x;
}

static Values pointwise(const GraphRun &run, const SimNode &op, const OperationFacts &facts,
                        const TensorFacts &y) {
    const auto mode = mode_of(op);
    const auto axis = static_cast<size_t>(
        op.node(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)->value<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, 0));
    Values out(static_cast<size_t>(count_of(y.dims))), operands[3];
    Dims dims[3] = {};
    for (size_t k = 0; k < 3 && mode != CUDNN_POINTWISE_GEN_INDEX; k++)
        if (facts.read[k])
            operands[k] = values_of(run, facts_of(*facts.read[k])), dims[k] = facts_of(*facts.read[k]).dims;
    for (size_t i = 0; i < out.size(); i++) {
        const Dims at = index_of(y.dims, static_cast<int64_t>(i));
        float v[3] = {};
        for (size_t k = 0; k < 3; k++)
            if (!operands[k].empty()) v[k] = operands[k][number_of(dims[k], at)];
        out[i] =
            mode == CUDNN_POINTWISE_GEN_INDEX ? static_cast<float>(at[axis]) : apply(mode, v[0], v[1], v[2]);
    }
    return out;
}

// Sums begin with the product number `first` along the inner axis.
static Values matmul(const GraphRun &run, const OperationFacts &facts, const TensorFacts &c, int64_t first) {
    const auto a_facts = facts_of(*facts.read[0]), b_facts = facts_of(*facts.read[1]);
    const Values a = values_of(run, a_facts), b = values_of(run, b_facts);
    const int64_t rows = c.dims[2], cols = c.dims[3], inner = a_facts.dims[3];
    Values out(static_cast<size_t>(count_of(c.dims)));
    for (int64_t batch = 0; batch < c.dims[0] * c.dims[1]; batch++) {
        const Dims at = {batch / c.dims[1], batch % c.dims[1], 0, 0};
        const float *x = &a[number_of(a_facts.dims, at)], *w = &b[number_of(b_facts.dims, at)];
        float *y = &out[static_cast<size_t>(batch * rows * cols)];
        for (int64_t i = 0; i < rows; i++)
            for (int64_t done = 0; done < inner; done++) {
                const int64_t k = (first + done) % inner;
                const float factor = x[i * inner + k];
                for (int64_t j = 0; j < cols; j++) y[i * cols + j] += factor * w[k * cols + j];
            }
    }
    return out;
}

static Values reduce(const GraphRun &run, const SimNode &op, const OperationFacts &facts,
                     const TensorFacts &y) {
    const auto by =
        op.node(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
            ->value<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_REDUCE_TENSOR_ADD);
    const auto x_facts = facts_of(*facts.read[0]);
    const Values x = values_of(run, x_facts);
    const bool adds = by == CUDNN_REDUCE_TENSOR_ADD;
    Values out(static_cast<size_t>(count_of(y.dims)), adds ? 0.0f : -INFINITY);
    for (size_t i = 0; i < x.size(); i++) {
        float &to = out[number_of(y.dims, index_of(x_facts.dims, static_cast<int64_t>(i)))];
        to = adds ? to + x[i] : std::max(to, x[i]);
    }
    return out;
}

static Values reshape(const GraphRun &run, const OperationFacts &facts, const TensorFacts &y) {
    const auto x_facts = facts_of(*facts.read[0]);
    Values x = values_of(run, x_facts), out(x.size());
    if (!transposes(x_facts, y)) return x;
    for (size_t i = 0; i < out.size(); i++) {
        Dims at = index_of(y.dims, static_cast<int64_t>(i));
        std::swap(at[2], at[3]);
        out[i] = x[number_of(x_facts.dims, at)];
    }
    return out;
}

static void compute(GraphRun *run, size_t number, int64_t turn) {
    const auto &operations = operations_of(*run->graph);
    const SimNode &op = *operations[number];
    const auto facts = operands_of(op);
    const auto y = facts_of(*facts.written);
    const bool adds = is_by_atomics(operations, number);
    Values values;
    switch (op.type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: values = pointwise(*run, op, facts, y); break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        values = matmul(*run, facts, y, adds ? 1 + turn : 0);
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: values = reduce(*run, op, facts, y); break;
    default: values = reshape(*run, facts, y);
    }
    if (adds) {
        const Values there = values_of(*run, y);
        for (size_t i = 0; i < values.size(); i++) values[i] += there[i];
    }
    keep_values(run, y, std::move(values));
}

void sim_graph_launch(const std::shared_ptr<const SimNode> &graph, const std::map<int64_t, void *> &addresses,
                      void *workspace, cudaStream_t stream) {
    static std::atomic<int64_t> turns;
    const int64_t turn = turns++ % 7;
    const auto run = std::make_shared<GraphRun>();
    run->graph = graph;
    run->addresses = addresses;
    for (const auto &t : tensors_of(*graph))
        if (t.by_value) run->numbers[t.id] = *static_cast<const float *>(addresses.at(t.id));
    const size_t bytes = workspace ? sim_graph_workspace(*graph) : 0;
    sim_launch(stream, "cudnnBackendExecute", [workspace, bytes] {
        if (bytes) memset(workspace, 0xFF, bytes);
    });
    for (size_t i = 0; i < operations_of(*graph).size(); i++)
        sim_launch(stream, "cudnnBackendExecute", [run, i, turn] { compute(run.get(), i, turn); });
}
