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

/// Which measure the timelines of this process can have.
struct TraceMethod {
  std::string name;    ///< "CUPTI" or "events"
  std::string detail;  ///< its version, or why it is not CUPTI
};

/// Tries CUPTI, and detaches it.
TraceMethod find_trace_method();

/// Times the tasks of steps of one executor.
///
/// By CUPTI if it can be had: a step is then launched as it is without tracing, as a graph or task
/// by task, and every kernel is timed by itself. The graph is an executable of its own of the same
/// capture (cupti_session.h says why), made by `prepare` or when a program is first traced, and
/// dropped by `disable`, so that steps which are not traced never launch anything that CUPTI has
/// touched. It and CUPTI take some device memory meanwhile.
///
/// Else by events around tasks, which the host enqueues one by one. The timeline says why.
class StepTracer {
 public:
  /// Enqueues all tasks of the step and tells the observer.
  using Enqueue = std::function<void(TaskObserver& observer)>;

  /// A step that is to be traced.
  struct Step {
    size_t program_index = 0;
    const Program* program = nullptr;  ///< must live as long as its timeline may be asked for
    bool as_graph = false;             ///< whether it may be launched as one graph
    cudaStream_t stream = nullptr;     ///< it starts and ends here
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
  /// Makes what tracing this step takes, so that `begin` need not. Ranks that communicate do it
  /// together, before any launches a step: making an executable graph may wait for all devices of
  /// the process, and so for a rank that waits for this one. Throws what capturing throws.
  void prepare(const Step& step);

  /// Everything that the device does from here until `finish` is of the step. May make the
  /// executable graph. Throws what capturing throws.
  void begin(Step step);
  /// Launches the step or enqueues its tasks.
  void run();
  /// After the device has finished the step. Throws DeviceError if events cannot be read.
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
