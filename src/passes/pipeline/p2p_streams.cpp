#include "passes/pipeline/p2p_streams.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "ir/dependencies.h"
#include "ops/op.h"
#include "parallel/mesh.h"
#include "passes/analysis/job_spans.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline/early_start.h"
#include "passes/pipeline/stage_messages.h"
#include "passes/pipeline_options.h"

namespace braid {
namespace {

constexpr uint32_t kNone = JobSpans::kNone;

/// Group and member at the other end. Messages of one line and direction form one sequence.
using Line = std::pair<size_t, int64_t>;

Line line_of(const Program& program, const Task& task) {
  const OpSpec& spec = program.spec(task);
  const AttributeValue* peer = spec.find_attribute("peer");
  return {group_of(program, spec)->index(), peer == nullptr ? 0 : std::get<int64_t>(*peer)};
}

/// The rank at the other end. Members of the group are the ranks of a pipeline in order.
int peer_of(const Program& program, const Task& task) {
  const Line line = line_of(program, task);
  return program.groups[line.first].ranks[static_cast<size_t>(line.second)];
}

bool is_on_compute(const Program& program, const Task& task) {
  return program.streams[task.stream.index()].kind == StreamKind::kCompute;
}

/// Chooses where each `recv` begins, and adds the streams to the program.
class Receiver {
 public:
  Receiver(Program& program, const P2pStreamsOptions& options)
      : program_(program),
        options_(options),
        jobs_(program),
        dependencies_(build_dependencies(program)) {
    find_steady_phase();
  }

  std::vector<EarlyStart> starts() {
    std::vector<EarlyStart> starts;
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      const Task& it = program_.tasks[task];
      if (!communicates_as(program_.spec(it), CommOp::kRecv) || !is_stage_message(program_, it)) {
        continue;
      }
      uint32_t& earliest = earliest_[line_of(program_, it)];
      const uint32_t job = jobs_.job_of(task);
      if (!is_on_compute(program_, it) || job == kNone || !takes_early(job)) {
        earliest = task + 1;  // the next message of this line stays behind it
        continue;
      }
      const uint32_t before = std::min(task, std::max(earliest, place(task, job)));
      starts.push_back({TaskId(task), TaskId(before), stream(line_of(program_, it))});
      earliest = before;
    }
    return starts;
  }

 private:
  /// The steady phase includes the backward that follows the last forward. The two may be a pair
  /// (parallel/paired_jobs.h). In a pair a message must be awaited from the beginning: the forward
  /// may wait, through other blocked ranks, for the sender of this message.
  void find_steady_phase() {
    const auto& jobs = jobs_.jobs();
    while (first_steady_ < jobs.size() && !jobs[first_steady_].is_backward) {
      ++first_steady_;
    }
    end_steady_ = jobs.size();
    while (end_steady_ > first_steady_ && jobs[end_steady_ - 1].is_backward) {
      --end_steady_;
    }
    end_steady_ = std::min(end_steady_ + 1, jobs.size());
  }

  bool takes_early(uint32_t job) const {
    return options_.warmup_flush || (job >= first_steady_ && job < end_steady_);
  }

  /// The beginning of the job `jobs_ahead` before the reader's job, counted in its direction. Not
  /// before the tasks that the message depends on.
  uint32_t place(uint32_t task, uint32_t job) const {
    uint32_t before = options_.jobs_ahead == 0
                          ? task
                          : jobs_.jobs()[job_ahead_of(job, options_.jobs_ahead)].begin;
    for (const TaskId earlier : dependencies_.of(TaskId(task))) {
      before = std::max(before, earlier.value + 1);
    }
    return before;
  }

  /// The job `steps` before another one in its direction, or the first in that direction.
  uint32_t job_ahead_of(uint32_t job, int64_t steps) const {
    const auto& jobs = jobs_.jobs();
    uint32_t found = job;
    for (uint32_t earlier = job; steps > 0 && earlier-- > 0;) {
      if (jobs[earlier].is_backward == jobs[job].is_backward) {
        found = earlier;
        --steps;
      }
    }
    return found;
  }

  StreamId stream(Line line) {
    const auto [entry, is_new] = streams_.try_emplace(line);
    if (is_new) {
      const std::string& group = program_.groups[line.first].name;
      const auto same_group = std::ranges::count_if(
          streams_, [&](const auto& other) { return other.first.first == line.first; });
      const std::string name = same_group == 1 ? fmt::format("{}.recv", group)
                                               : fmt::format("{}.recv.{}", group, line.second);
      entry->second = StreamId(program_.streams.size());
      program_.streams.push_back({name, StreamKind::kComm, options_.priority});
    }
    return entry->second;
  }

  Program& program_;
  const P2pStreamsOptions& options_;
  JobSpans jobs_;
  DependencyGraph dependencies_;
  size_t first_steady_ = 0;  // jobs [first_steady_, end_steady_) are neither warm-up nor flush
  size_t end_steady_ = 0;
  std::map<Line, uint32_t> earliest_;  // earliest place for the next message of the line
  std::map<Line, StreamId> streams_;
};

/// The stream that computes.
StreamId compute_stream(const Program& program) {
  const auto found = std::ranges::find(program.streams, StreamKind::kCompute, &Stream::kind);
  return StreamId(static_cast<size_t>(found - program.streams.begin()));
}

/// Moves messages of the backward to an earlier rank to the compute stream. Returns how many change
/// streams. A stage without layers computes nothing, so its messages belong to no job.
int64_t send_on_compute(Program& program) {
  int64_t num_moved = 0;
  for (Task& it : program.tasks) {
    if (communicates_as(program.spec(it), CommOp::kSend) && is_stage_message(program, it) &&
        program.groups[group_of(program, program.spec(it))->index()].name == kBackwardGroup &&
        !is_on_compute(program, it) && peer_of(program, it) < program.rank) {
      it.stream = compute_stream(program);  // a job's first task may be on a copy stream
      ++num_moved;
    }
  }
  return num_moved;
}

OverlapChange messages(bool beside_compute, bool warmup_flush, bool backward) {
  return [=](OverlapConfig& overlap) {
    overlap.overlap_p2p_comm = beside_compute;
    overlap.overlap_p2p_comm_warmup_flush = warmup_flush;
    overlap.overlap_p2p_backward_on_comm_stream = backward;
  };
}

std::vector<OverlapAxis> message_axes(const RunConfig& config, const AxisLimits&) {
  if (config.parallel.pipeline == 1) {
    return {};
  }
  return {{"messages",
           {messages(false, false, false), messages(true, false, false),
            messages(true, true, false), messages(true, false, true), messages(true, true, true)},
           AxisPlace::kMessages}};
}

}  // namespace

PassResult p2p_streams(Program program, const P2pStreamsOptions& options) {
  if (!options.enabled) {
    return {std::move(program), {false, 0, "not asked for"}};
  }
  Receiver receiver(program, options);
  const std::vector<EarlyStart> starts = receiver.starts();
  const int64_t num_blocking = options.backward_on_comm_stream ? 0 : send_on_compute(program);
  const auto num_taken = static_cast<int64_t>(starts.size());
  const int64_t num_changes = num_taken + num_blocking;
  std::string summary = fmt::format("moved {} messages off the compute stream", num_taken);
  if (num_blocking > 0) {
    summary += fmt::format(", left {} messages on the compute stream", num_blocking);
  }
  if (num_blocking > 0) {
    clear_events(program);
  }
  return {start_early(std::move(program), starts),
          {num_changes > 0, num_changes, std::move(summary)}};
}

Pass p2p_streams_pass(const PipelineOptions& options) {
  return {.name = "p2p_streams",
          .summary =
              "Sends and receives messages between pipeline stages beside compute, early enough to "
              "hide them.",
          .run = run_of(p2p_streams, options),
          .only_overlaps = true,
          .keys = {"overlap.overlap_p2p_comm", "overlap.overlap_p2p_comm_warmup_flush",
                   "overlap.overlap_p2p_backward_on_comm_stream"},
          .read_keys =
              [](const OverlapConfig& overlap, PipelineOptions& its) {
                its.of<P2pStreamsOptions>() = {
                    .enabled = overlap.overlap_p2p_comm,
                    .warmup_flush = overlap.overlap_p2p_comm_warmup_flush,
                    .backward_on_comm_stream = overlap.overlap_p2p_backward_on_comm_stream};
              },
          .axes = message_axes};
}

}  // namespace braid
