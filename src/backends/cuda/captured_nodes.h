#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "backends/cuda/task_observer.h"

namespace braid {

/// Which nodes of a graph each task added to it, while its streams are captured.
///
/// Between two tasks, the nodes that the next node of a stream will depend on are known
/// (cudaStreamGetCaptureInfo). What a task adds starts after those that were there before it and
/// ends in those that are there after it, so the way back from the latter, along dependencies, up
/// to the former, or to nodes of earlier tasks, is what it added: also what a library put on
/// streams of its own that it forked and joined.
class CapturedNodes : public TaskObserver {
 public:
  void start_task(size_t task, cudaStream_t stream) override;
  void end_task(size_t task, cudaStream_t stream) override;

  struct Node {
    cudaGraphNode_t node = nullptr;
    uint32_t task = 0;
  };
  /// The kernels, copies and fills, in no order; those are what leaves a trace on the device.
  std::vector<Node> nodes_with_work() const;

 private:
  std::unordered_map<cudaGraphNode_t, uint32_t> task_of_;
  std::vector<cudaGraphNode_t> before_;  // of the task that is being captured
};

}  // namespace braid
