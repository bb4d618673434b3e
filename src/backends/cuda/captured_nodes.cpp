#include "backends/cuda/captured_nodes.h"

#include <algorithm>

#include "backends/cuda/cuda_error.h"
#include "base/errors.h"

namespace braid {
namespace {

using Nodes = std::vector<cudaGraphNode_t>;

// Edges may carry data (programmatic launches), and the plain queries then fail. CUDA 13 gave the
// queries with edge data the plain names.

cudaError_t capture_info(cudaStream_t stream, cudaStreamCaptureStatus* status,
                         const cudaGraphNode_t** nodes, size_t* num_nodes) {
  const cudaGraphEdgeData* edges = nullptr;
#if CUDART_VERSION >= 13000
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nodes, &edges, num_nodes);
#else
  return cudaStreamGetCaptureInfo_v3(stream, status, nullptr, nullptr, nodes, &edges, num_nodes);
#endif
}

cudaError_t get_dependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData* edges,
                             size_t* num_nodes) {
#if CUDART_VERSION >= 13000
  return cudaGraphNodeGetDependencies(node, nodes, edges, num_nodes);
#else
  return cudaGraphNodeGetDependencies_v2(node, nodes, edges, num_nodes);
#endif
}

/// The nodes on which the next node of a captured stream will depend.
Nodes last_nodes(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  size_t num_nodes = 0;
  BRAID_CUDA_CHECK(capture_info(stream, &status, &nodes, &num_nodes));
  check(status == cudaStreamCaptureStatusActive, "a stream is not being captured");
  return {nodes, nodes + num_nodes};
}

Nodes dependencies_of(cudaGraphNode_t node) {
  size_t num_nodes = 0;
  BRAID_CUDA_CHECK(get_dependencies(node, nullptr, nullptr, &num_nodes));
  Nodes nodes(num_nodes);
  std::vector<cudaGraphEdgeData> edges(num_nodes);
  if (num_nodes > 0) {
    BRAID_CUDA_CHECK(get_dependencies(node, nodes.data(), edges.data(), &num_nodes));
  }
  return nodes;
}

bool has_work(cudaGraphNode_t node) {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  if (cudaGraphNodeGetType(node, &type) != cudaSuccess) {
    ignore_error(cudaGetLastError());  // memory operations of a stream, which the runtime has no
    return false;                      // type for, take no time that a trace could show
  }
  return type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemcpy ||
         type == cudaGraphNodeTypeMemset;
}

}  // namespace

void CapturedNodes::start_task(size_t, cudaStream_t stream) {
  before_ = last_nodes(stream);
}

void CapturedNodes::end_task(size_t task, cudaStream_t stream) {
  Nodes open = last_nodes(stream);
  while (!open.empty()) {
    const cudaGraphNode_t node = open.back();
    open.pop_back();
    const bool is_older = std::find(before_.begin(), before_.end(), node) != before_.end();
    if (!is_older && task_of_.emplace(node, static_cast<uint32_t>(task)).second) {
      const Nodes more = dependencies_of(node);
      open.insert(open.end(), more.begin(), more.end());
    }
  }
}

std::vector<CapturedNodes::Node> CapturedNodes::nodes_with_work() const {
  std::vector<Node> nodes;
  for (const auto& [node, task] : task_of_) {
    if (has_work(node)) {
      nodes.push_back({node, task});
    }
  }
  return nodes;
}

}  // namespace braid
