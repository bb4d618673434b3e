#include "backends/cuda/step_tracer.h"

#include <chrono>
#include <optional>
#include <utility>

#include "backends/cuda/captured_nodes.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/cupti_session.h"
#include "backends/cuda/step_timer.h"
#include "backends/device_activity.h"
#include "backends/device_peaks.h"
#include "base/errors.h"
#include "trace/task_timeline.h"

namespace braid {
namespace {

constexpr const char* kSilent = "CUPTI reported nothing of a step";

/// Tags the host's calls for a task with the task's number.
class CallNumbers : public TaskObserver {
 public:
  explicit CallNumbers(CuptiSession& session) : session_(session) {}
  ~CallNumbers() override { leave(); }  // after a failed task
  CallNumbers(const CallNumbers&) = delete;
  CallNumbers& operator=(const CallNumbers&) = delete;

  void start_task(size_t task, cudaStream_t) override {
    session_.enter_task(static_cast<uint32_t>(task));
    inside_ = true;
  }
  void end_task(size_t, cudaStream_t) override { leave(); }

 private:
  void leave() {
    if (std::exchange(inside_, false)) {
      session_.leave_task();
    }
  }

  CuptiSession& session_;
  bool inside_ = false;
};

/// A program's graph, instantiated while CUPTI was active.
struct TracedGraph {
  CudaGraphExec graph;
  TaskOfNode task_of_node;
};

std::shared_ptr<const TracedGraph> make_traced_graph(const StepTracer::Step& step,
                                                     CuptiSession& session) {
  CapturedNodes captured;
  CudaCapture capture(step.stream);
  step.enqueue(captured);
  const CudaGraph graph = capture.end();
  std::vector<NodeOfTask> nodes;
  for (const CapturedNodes::Node& entry : captured.nodes_with_work()) {
    nodes.push_back({session.node_id(entry.node), entry.task});
  }
  auto traced = std::make_shared<TracedGraph>();
  const std::vector<NodeClone> clones =
      session.clones_of([&] { traced->graph = CudaGraphExec(graph, step.stream); });
  traced->task_of_node = tasks_of_nodes(nodes, clones);
  return traced;
}

/// The measurements of a finished step.
struct MeasuredStep {
  const Program* program = nullptr;
  bool by_cupti = false;
  std::vector<TaskTimes> times;                  // by events
  int64_t begin_ns = 0;                          // with events: approximate time 0
  std::unique_ptr<ActivityRecording> recording;  // with CUPTI, which fills it when all ranks are
                                                 // done
  ActivityLog log;                               // with CUPTI, after `recording` is gone
  TaskOfNode task_of_node;                       // with CUPTI, for a graph
  std::vector<HostTimedTask> host_timed;         // with CUPTI
  std::string remark;

  const ActivityLog& activities() const { return recording ? recording->log() : log; }
  bool is_silent() const {
    return by_cupti && activities().activities.empty() && !program->tasks.empty();
  }
  RankTimeline timeline_by_cupti() const {
    if (host_timed.empty()) {
      return timeline_of_activities(*program, activities(), task_of_node);
    }
    ActivityLog all = activities();
    add_host_timed(host_timed, "timed by the host", all);
    return timeline_of_activities(*program, all, task_of_node);
  }
  /// Releases the session.
  void settle() {
    if (recording) {
      log = recording->log();
      recording.reset();
    }
  }
};

/// The clock of CUPTI's times (the documentation of cuptiActivityRegisterTimestampCallback states
/// this for Linux).
int64_t host_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string gpu_name(int device) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    ignore_error(cudaGetLastError());
    return "";
  }
  return properties.name;
}

}  // namespace

struct StepTracer::State {
  int device;
  DevicePeaks peaks;
  bool enabled = false;
  std::shared_ptr<CuptiSession> session;  // null: times are taken with events
  std::string why_events;
  std::vector<std::shared_ptr<const TracedGraph>> graphs;  // by program
  std::vector<std::unique_ptr<StepTimer>> timers;          // by program

  int64_t begin_ns = 0;  // of `open`, on the host's clock
  std::optional<Step> open;
  std::unique_ptr<ActivityRecording> recording;  // of `open`, with CUPTI
  std::optional<MeasuredStep> last = {};

  State(int device_number, size_t num_programs)
      : device(device_number),
        peaks(gpu_peaks(gpu_name(device_number))),
        graphs(num_programs),
        timers(num_programs) {}

  void fall_back(const std::string& reason) {
    recording.reset();
    if (last) {
      last->settle();
    }
    for (auto& graph : graphs) {
      graph.reset();
    }
    session.reset();
    why_events = reason;
  }

  void prepare(const Step& step) {
    auto& graph = graphs[step.program_index];
    if (step.as_graph && !graph) {
      graph = make_traced_graph(step, *session);
    }
  }

  /// Calls `measure` if the session is open; if that fails, steps are timed by events.
  template <class Measure>
  void try_session(Measure&& measure) {
    if (session) {
      try {
        measure();
      } catch (const CuptiError& error) {
        fall_back(error.what());
      } catch (const DeviceError& error) {  // for example no memory for a second graph
        fall_back(error.what());
      }
    }
  }

  void begin_recording(const Step& step) {
    prepare(step);
    recording = std::make_unique<ActivityRecording>(
        session, device, step.as_graph ? RecordedWork::kGraph : RecordedWork::kCalls,
        step.as_graph ? &graphs[step.program_index]->task_of_node : nullptr);
  }

  StepTimer& timer(const Step& step) {
    auto& timer = timers[step.program_index];
    if (!timer) {
      timer = std::make_unique<StepTimer>(step.program->tasks.size());
    }
    return *timer;
  }

  void run() {
    const Step& step = *open;
    if (!recording) {
      StepTimer& by_events = timer(step);
      by_events.start_step(step.stream);
      step.enqueue(by_events);
    } else if (step.as_graph) {
      BRAID_CUDA_CHECK(cudaGraphLaunch(graphs[step.program_index]->graph, step.stream));
    } else {
      CallNumbers numbers(*session);
      step.enqueue(numbers);
    }
  }

  void finish() {
    const Step step = *std::exchange(open, std::nullopt);
    MeasuredStep measured;
    measured.program = step.program;
    if (recording) {
      measured.by_cupti = true;
      try {
        recording->finish();
      } catch (const CuptiError& error) {
        measured.remark = error.what();
      }
      measured.recording = std::move(recording);
      if (step.as_graph) {
        measured.task_of_node = graphs[step.program_index]->task_of_node;
      }
      if (step.host_timed) {
        measured.host_timed = step.host_timed();
      }
    } else {
      measured.times = timer(step).times();
      measured.begin_ns = begin_ns;
      measured.remark = why_events;
    }
    last = std::move(measured);
  }
};

StepTracer::StepTracer(int device, size_t num_programs)
    : state_(std::make_unique<State>(device, num_programs)) {}

StepTracer::~StepTracer() = default;

void StepTracer::enable() {
  if (std::exchange(state_->enabled, true)) {
    return;
  }
  try {
    state_->session = CuptiSession::open();
    state_->why_events.clear();
  } catch (const CuptiError& error) {
    state_->fall_back(error.what());
  }
}

void StepTracer::disable() {
  state_->enabled = false;
  state_->fall_back("");
}

bool StepTracer::enabled() const {
  return state_->enabled;
}

void StepTracer::prepare(const Step& step) {
  state_->try_session([&] { state_->prepare(step); });
}

void StepTracer::begin(Step step) {
  State& state = *state_;
  if (state.session && state.last && state.last->is_silent()) {
    state.fall_back(kSilent);
  }
  state.try_session([&] { state.begin_recording(step); });
  state.begin_ns = host_clock_ns();
  state.open = std::move(step);
}

void StepTracer::run() {
  state_->run();
}

void StepTracer::finish() {
  state_->finish();
}

bool StepTracer::is_open() const {
  return state_->open.has_value();
}

bool StepTracer::has_timeline() const {
  return state_->last.has_value();
}

RankTimeline StepTracer::timeline() const {
  check(has_timeline(), "no step was traced");
  const MeasuredStep& step = *state_->last;
  RankTimeline timeline =
      step.by_cupti ? step.timeline_by_cupti() : task_timeline(*step.program, step.times);
  timeline.method = step.by_cupti ? "CUPTI" : "events";
  if (!step.by_cupti) {
    timeline.clock_origin_ns = step.begin_ns;
  }
  timeline.device = state_->peaks;
  for (const std::string& remark : {step.remark, std::string(step.is_silent() ? kSilent : "")}) {
    if (!remark.empty()) {
      timeline.remark += (timeline.remark.empty() ? "" : "; ") + remark;
    }
  }
  return timeline;
}

TraceMethod find_trace_method() {
  try {
    return {.name = "CUPTI", .detail = CuptiSession::open()->description()};
  } catch (const CuptiError& error) {
    return {.name = "events", .detail = error.what()};
  }
}

}  // namespace braid
