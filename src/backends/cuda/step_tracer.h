#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/task_observer.h"
#include "backends/device_activity.h"
#include "ir/program.h"
#include "trace/timeline.h"

namespace braid {

/// The method that measures the timelines of this process.
struct TraceMethod {
  std::string name;    ///< "CUPTI" or "events"
  std::string detail;  ///< its version, or why CUPTI is unavailable
};

/// Attaches CUPTI to test it, and detaches it.
TraceMethod find_trace_method();

/// Times the tasks of steps of one executor.
///
/// With CUPTI, if it is available: a step is launched as without tracing, as a graph or task by
/// task, and every kernel is timed. The graph is a separate executable of the same capture
/// (cupti_session.h explains why). `prepare` makes it, or the first trace of a program; `disable`
/// drops it, so that untraced steps never launch anything that CUPTI has touched. The graph and
/// CUPTI take some device memory meanwhile.
///
/// Otherwise with events around tasks, which the host enqueues one by one. The timeline gives the
/// reason.
class StepTracer {
 public:
  /// Enqueues all tasks of the step and notifies the observer.
  using Enqueue = std::function<void(TaskObserver& observer)>;

  /// A step to trace.
  struct Step {
    size_t program_index = 0;
    const Program* program = nullptr;  ///< must outlive the use of its timeline
    bool as_graph = false;             ///< whether it may be launched as one graph
    cudaStream_t stream = nullptr;     ///< the step starts and ends on it
    Enqueue enqueue = {};
    /// After the step: tasks whose times CUPTI does not know. Null: there are none.
    std::function<std::vector<HostTimedTask>()> host_timed = {};
  };

  StepTracer(int device, size_t num_programs);
  ~StepTracer();

  void enable();
  /// Keeps the last timeline.
  void disable();
  bool enabled() const;
  /// Allocates what tracing this step needs, so that `begin` does not. Ranks that communicate call
  /// it together, before any of them launches a step: making an executable graph may wait for all
  /// devices of the process, and so for a rank that waits for this one. Throws what capturing
  /// throws.
  void prepare(const Step& step);

  /// All later device work until `finish` belongs to the step. May make the executable graph.
  /// Throws what capturing throws.
  void begin(Step step);
  /// Launches the step or enqueues its tasks.
  void run();
  /// Call after the device has finished the step. Throws DeviceError if events cannot be read.
  void finish();

  /// Whether `begin` was called without `finish`.
  bool is_open() const;
  bool has_timeline() const;
  /// The last finished step; `step` is not set.
  RankTimeline timeline() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
