// The insides of the simulated cuDNN: descriptors, which cudnn.cc makes and checks, and graphs of operations, which
// cudnn_graph.cc interprets.
#pragma once
#include "device/cuda/cudnn_api.h"
#include "device/cuda/sim/runtime.h"
#include <map>
#include <memory>
#include <vector>

struct SimNode;
using SimNodes = std::vector<std::shared_ptr<const SimNode>>;

// The value of an attribute: numbers of any type, addresses or characters as they were given, or descriptors.
struct SimAttribute {
    int64_t count = 0;
    std::vector<char> bytes;
    SimNodes nodes;
};

// A descriptor. Finalized, it does not change any more.
struct SimNode {
    cudnnBackendDescriptorType_t type;
    bool finalized = false;
    std::map<cudnnBackendAttributeName_t, SimAttribute> attributes;
    size_t workspace_bytes = 0; // of a plan

    bool has(cudnnBackendAttributeName_t name) const { return attributes.count(name) > 0; }
    const SimNode *node(cudnnBackendAttributeName_t name) const {
        const auto found = attributes.find(name);
        return found == attributes.end() ? nullptr : found->second.nodes.front().get();
    }
    // The values of an attribute; empty if it was not given.
    template <class T> std::vector<T> values(cudnnBackendAttributeName_t name) const {
        const auto found = attributes.find(name);
        if (found == attributes.end()) return {};
        const T *first = reinterpret_cast<const T *>(found->second.bytes.data());
        return std::vector<T>(first, first + found->second.count);
    }
    template <class T> T value(cudnnBackendAttributeName_t name, T otherwise) const {
        const auto all = values<T>(name);
        return all.empty() ? otherwise : all.front();
    }
};

// What is wrong with an operation, or NULL: shapes that do not fit, types that it does not have.
const char *sim_operation_error(const SimNode &operation);
// The same of a graph: an order in which nothing is read before it is made, and one writer for each tensor.
const char *sim_graph_error(const SimNode &graph);
size_t sim_graph_workspace(const SimNode &graph);
// What is wrong with the addresses of a graph's tensors, or NULL.
const char *sim_addresses_error(const SimNode &graph, const std::map<int64_t, void *> &addresses);
// Puts the operations on a stream, an entry for each. Numbers by value are read now.
void sim_graph_launch(const std::shared_ptr<const SimNode> &graph, const std::map<int64_t, void *> &addresses,
                      void *workspace, cudaStream_t stream);
