#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "backends/device_activity.h"

namespace braid {

/// Why CUPTI cannot be used, in one line. No run fails because of it: the caller measures in
/// another way.
class CuptiError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ActivityRecording;

/// CUPTI, NVIDIA's profiling library, attached to this process: it records the kernels, copies and
/// fills of all devices with start and end. The library is loaded at run time, since a machine that
/// only runs programs may not have it. CUPTI serves one client in a process. So there is at most
/// one session at a time, which all executors share, and none if another profiler (for example
/// Nsight Systems) came first. While no session is open, CUPTI is completely inactive.
///
/// How a record finds its task:
///
///  - In a graph. A record has the id of the node that ran (graphNodeId), a node of the executable
///    graph: instantiation clones the captured nodes. For each clone CUPTI calls back with the
///    clone and its original (CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED), and cuptiGetGraphNodeId gives
///    the id of either; ids are unique in the process. So: nodes that a task captured
///    (captured_nodes.h) -> their ids -> ids of their clones -> records. NVIDIA's sample
///    cuda_graphs_trace maps records to the calls that made the nodes in this way. This requires
///    CUPTI to be active while the graph is instantiated, hence `clones_of`; it does not require
///    CUPTI while nodes are captured, nor an order of nodes or records.
///  - Task by task. While a number is pushed on a thread (cuptiActivityPushExternalCorrelationId),
///    CUPTI writes with each record of a call of the thread another record that maps the call to
///    the number. The record of a kernel names the call that enqueued it. Libraries call the
///    runtime or the driver, so the calls of both are recorded.
///
/// Thread-safe.
class CuptiSession {
 public:
  /// The session of this process; opens it if there is none. When the last owner releases it, it is
  /// closed and CUPTI is detached. Throws CuptiError.
  static std::shared_ptr<CuptiSession> open();
  ~CuptiSession();
  CuptiSession(const CuptiSession&) = delete;
  CuptiSession& operator=(const CuptiSession&) = delete;

  /// "CUPTI 13.0.1 (/usr/lib/libcupti.so.13)"
  std::string description() const;

  /// Until `leave_task`, work that this thread enqueues belongs to `task`.
  void enter_task(uint32_t task);
  void leave_task();

  /// Id of a node of a captured graph. Throws CuptiError.
  uint64_t node_id(cudaGraphNode_t node) const;
  /// Calls `instantiate` and returns the nodes that it cloned. Throws CuptiError, and what
  /// `instantiate` throws.
  std::vector<NodeClone> clones_of(const std::function<void()>& instantiate);

 private:
  friend class ActivityRecording;
  struct State;

  explicit CuptiSession(std::unique_ptr<State> state);
  void start(ActivityRecording& recording);
  void stop(ActivityRecording& recording);
  void forget(ActivityRecording& recording) noexcept;

  std::unique_ptr<State> state_;
};

enum class RecordedWork {
  kGraph,  ///< the launch of a graph
  kCalls,  ///< work that the host enqueues between enter_task and leave_task
};

/// Records the activities of a device from construction to `finish`, and those of other devices for
/// the graph.
class ActivityRecording {
 public:
  /// `nodes` of the launched graph, which must outlive `finish`; null for calls. Throws CuptiError.
  ActivityRecording(std::shared_ptr<CuptiSession> session, int device, RecordedWork work,
                    const TaskOfNode* nodes);
  ~ActivityRecording();
  ActivityRecording(const ActivityRecording&) = delete;
  ActivityRecording& operator=(const ActivityRecording&) = delete;

  /// Call after the device has finished the work. The records arrive when all recordings of the
  /// process have finished. Throws CuptiError.
  void finish();

  const ActivityLog& log() const { return log_; }

 private:
  friend class CuptiSession;

  void add(DeviceActivity activity, std::string_view name);

  std::shared_ptr<CuptiSession> session_;
  ActivityOwner owner_;
  RecordedWork work_;
  bool running_ = false;
  ActivityLog log_;
  std::map<std::string, uint32_t, std::less<>> name_index_;
};

}  // namespace braid
