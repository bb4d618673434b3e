#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "backends/cuda/task_observer.h"

namespace braid {

/// Finds the graph nodes that each task adds while its streams are captured.
///
/// Between two tasks, the nodes on which the next node of a stream will depend are known
/// (cudaStreamGetCaptureInfo). A task's nodes start after those known before it and end in those
/// known after it. A walk back from the latter along dependencies, until the former or nodes of
/// earlier tasks, finds all nodes of the task. This includes nodes that a library added on its own
/// forked and joined streams.
class CapturedNodes : public TaskObserver {
 public:
  void start_task(size_t task, cudaStream_t stream) override;
  void end_task(size_t task, cudaStream_t stream) override;

  struct Node {
    cudaGraphNode_t node = nullptr;
    uint32_t task = 0;
  };
  /// The kernels, copies and fills, in no particular order: the nodes that leave records on the
  /// device.
  std::vector<Node> nodes_with_work() const;

 private:
  std::unordered_map<cudaGraphNode_t, uint32_t> task_of_;
  std::vector<cudaGraphNode_t> before_;  // the last nodes before the task being captured
};

}  // namespace braid
