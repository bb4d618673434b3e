#include "passes/streams/assign_streams.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <vector>

#include "ir/dependencies.h"
#include "model/expert_shard.h"
#include "ops/offload.h"
#include "passes/gradients/gradient_tasks.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline_options.h"
#include "passes/program_rewriter.h"
#include "passes/rearrange.h"

namespace braid {
namespace {

/// The stream with that name and kind. Adds it if missing.
StreamId stream_like(Program& program, Stream wanted) {
  const auto found = std::ranges::find_if(program.streams, [&](const Stream& stream) {
    return stream.kind == wanted.kind && stream.name == wanted.name;
  });
  if (found != program.streams.end()) {
    return StreamId(static_cast<size_t>(found - program.streams.begin()));
  }
  program.streams.push_back(std::move(wanted));
  return StreamId(program.streams.size() - 1);
}

// ---- copies

/// The stream of a copy to or from the host; null for other tasks.
const char* copy_stream(const Program& program, const Task& task) {
  const auto ranges = program.operands_of(task);
  const auto& specs = program.spec(task).operands;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (program.buffers[ranges[i].buffer.index()].placement == Placement::kHost) {
      return writes(specs[i].access) ? "copy.out" : "copy.in";
    }
  }
  return nullptr;
}

struct Moved {
  int64_t num_found = 0;
  int64_t num_moved = 0;
};

Moved move_copies(Program& program, int priority) {
  Moved moved;
  for (Task& task : program.tasks) {
    if (const char* name = copy_stream(program, task)) {
      const StreamId stream = stream_like(program, {name, StreamKind::kCopy, priority});
      ++moved.num_found;
      moved.num_moved += task.stream != stream ? 1 : 0;
      task.stream = stream;
    }
  }
  return moved;
}

// ---- communication

bool lives_for_a_step(const Buffer& buffer) {
  return buffer.lifetime == Lifetime::kPersistent ||
         (buffer.role != BufferRole::kActivation && buffer.role != BufferRole::kGathered &&
          buffer.role != BufferRole::kGrad);
}

bool has_long_lived_operands(const Program& program, const Task& task) {
  return std::ranges::all_of(program.operands_of(task), [&](const BufferRange& range) {
    return lives_for_a_step(program.buffers[range.buffer.index()]);
  });
}

bool is_on_compute(const Program& program, const Task& task) {
  return program.streams[task.stream.index()].kind == StreamKind::kCompute;
}

/// Kinds of groups whose results the next compute needs: other passes put work in between.
bool is_exchange_kind(GroupKind kind) {
  return kind == GroupKind::kContext || kind == GroupKind::kExpert;
}

/// Kinds of groups whose tasks earlier passes have placed.
bool may_hand_memory_over(GroupKind kind) {
  return kind == GroupKind::kData || is_exchange_kind(kind);
}

/// Decides which tasks leave the compute stream.
class Leaving {
 public:
  explicit Leaving(const Program& program)
      : program_(program),
        dependencies_(build_dependencies(program)),
        leaves_(program.tasks.size()) {
    choose_groups();
    for (size_t i = 0; i < leaves_.size(); ++i) {
      leaves_[i] = communication_leaves(program.tasks[i]) || follows_what_leaves(i);
    }
  }

  const std::vector<bool>& tasks() const { return leaves_; }

 private:
  bool is_communication(const Task& task) const {
    return task.label.phase == Phase::kComm && is_on_compute(program_, task);
  }

  void choose_groups() {
    const size_t num_groups = program_.groups.size();
    std::vector<bool> is_short_lived(num_groups);  // or a task is on another stream already
    std::vector<bool> runs_beside(num_groups);
    const std::vector<uint32_t> next = next_compute_tasks();
    for (size_t i = 0; i < program_.tasks.size(); ++i) {
      const Task& task = program_.tasks[i];
      const std::optional<GroupId> group = group_of(program_, program_.spec(task));
      if (!group || task.label.phase != Phase::kComm) {
        continue;
      }
      if (!is_on_compute(program_, task) || !has_long_lived_operands(program_, task)) {
        is_short_lived[group->index()] = true;
      }
      if (next[i] != BufferUses::kNone && !depends_on(next[i], i)) {
        runs_beside[group->index()] = true;
      }
    }
    group_leaves_.resize(num_groups);
    for (size_t group = 0; group < num_groups; ++group) {
      group_leaves_[group] =
          !is_short_lived[group] ||
          (may_hand_memory_over(program_.groups[group].kind) && runs_beside[group]);
    }
  }

  /// By task: the next task that computes and stays on the compute stream.
  std::vector<uint32_t> next_compute_tasks() const {
    std::vector<uint32_t> next(program_.tasks.size());
    uint32_t computes = BufferUses::kNone;
    for (size_t i = next.size(); i-- > 0;) {
      next[i] = computes;
      const Task& task = program_.tasks[i];
      if (is_on_compute(program_, task) && task.label.phase != Phase::kComm &&
          !does_nothing(program_.spec(task)) && !converts_gradients(program_, task)) {
        computes = static_cast<uint32_t>(i);
      }
    }
    return next;
  }

  bool depends_on(size_t task, size_t earlier) const {
    return std::ranges::binary_search(dependencies_.of(TaskId(task)), TaskId(earlier));
  }

  bool communication_leaves(const Task& task) const {
    if (!is_communication(task)) {
      return false;
    }
    const std::optional<GroupId> group = group_of(program_, program_.spec(task));
    return group ? group_leaves_[group->index()] : has_long_lived_operands(program_, task);
  }

  bool follows_what_leaves(size_t task) const {
    return is_on_compute(program_, program_.tasks[task]) &&
           converts_gradients(program_, program_.tasks[task]) &&
           std::ranges::any_of(dependencies_.of(TaskId(task)), [&](TaskId earlier) {
             const Task& on = program_.tasks[earlier.index()];
             return leaves_[earlier.index()] &&
                    (communicates_gradients(program_, on) || converts_gradients(program_, on));
           });
  }

  const Program& program_;
  DependencyGraph dependencies_;
  std::vector<bool> group_leaves_;
  std::vector<bool> leaves_;
};

/// By task. For communication between context or expert ranks: the first later task that stays and
/// depends on it. For other tasks, or if there is no such task: the next task.
std::vector<uint32_t> first_waits(const Program& program, const std::vector<bool>& leaves) {
  std::vector<uint32_t> waits(program.tasks.size());
  std::iota(waits.begin(), waits.end(), 1);
  const DependencyGraph dependencies = build_dependencies(program);
  for (size_t i = waits.size(); i-- > 0;) {
    for (const TaskId earlier : dependencies.of(TaskId(i))) {
      const std::optional<GroupId> group =
          group_of(program, program.spec(program.tasks[earlier.index()]));
      if (!leaves[i] && group && is_exchange_kind(program.groups[group->index()].kind)) {
        waits[earlier.index()] = static_cast<uint32_t>(i);
      }
    }
  }
  return waits;
}

/// Finds where short-lived buffers pass between compute and tasks that leave. Compute takes a
/// buffer back where it waits for the communication anyway.
std::vector<HandOver> find_hand_overs(const Program& program, const std::vector<bool>& leaves) {
  const BufferUses uses = find_uses(program);
  const std::vector<uint32_t> waits = first_waits(program, leaves);
  std::vector<HandOver> hand_overs;
  const auto add = [&](BufferId buffer, uint32_t position, const Task& task) {
    hand_overs.push_back({buffer, position, task.stream, hand_over_label(program, position, task)});
  };
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    if (lives_for_a_step(program.buffers[i]) || uses.first[i] == BufferUses::kNone) {
      continue;
    }
    const bool begins_there = leaves[uses.first[i]];
    const bool ends_there = leaves[uses.last[i]];
    if (begins_there && ends_there) {
      continue;  // compute never owns it
    }
    if (begins_there) {
      add(BufferId(i), uses.first[i], program.tasks[uses.first[i]]);
    }
    if (ends_there) {
      add(BufferId(i), waits[uses.last[i]], program.tasks[uses.last[i]]);
    }
  }
  return hand_overs;
}

/// Ranks of a host exchange rows while those of a rail do: over other links.
std::string stream_name(const Program& program, std::optional<GroupId> group) {
  if (!group) {
    return "comm";
  }
  const Group& its = program.groups[group->index()];
  return its.name == kExpertRailGroup ? fmt::format("comm.{}", its.name)
                                      : fmt::format("comm.{}", group_kind_name(its.kind));
}

StreamId comm_stream(Program& program, const Task& task, const AssignStreamsOptions& options) {
  const std::optional<GroupId> group = group_of(program, program.spec(task));
  const bool is_exchange = group && is_exchange_kind(program.groups[group->index()].kind);
  return stream_like(program, {stream_name(program, group), StreamKind::kComm,
                               is_exchange ? options.exchange_priority : options.comm_priority});
}

/// The stream of the communication whose result the task adds or widens.
StreamId stream_before(const Program& program, const DependencyGraph& dependencies, size_t task,
                       const std::vector<bool>& leaves) {
  StreamId stream;
  for (const TaskId earlier : dependencies.of(TaskId(task))) {
    if (leaves[earlier.index()]) {
      stream = program.tasks[earlier.index()].stream;
    }
  }
  return stream;
}

/// Moves the tasks that leave to their streams.
Moved place(Program& program, const std::vector<bool>& leaves,
            const AssignStreamsOptions& options) {
  Moved moved;
  const DependencyGraph dependencies = build_dependencies(program);
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    Task& task = program.tasks[i];
    moved.num_found += task.label.phase == Phase::kComm ? 1 : 0;
    if (leaves[i]) {
      const bool communicates = task.label.phase == Phase::kComm;
      task.stream = communicates ? comm_stream(program, task, options)
                                 : stream_before(program, dependencies, i, leaves);
      moved.num_moved += communicates ? 1 : 0;
    }
  }
  return moved;
}

std::optional<BufferRange> written_range(const Program& program, const Task& task) {
  const auto ranges = program.operands_of(task);
  const auto& specs = program.spec(task).operands;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (writes(specs[i].access)) {
      return ranges[i];
    }
  }
  return std::nullopt;
}

bool gathers_weights(const Program& program, const Task& task) {
  const std::optional<BufferRange> result = written_range(program, task);
  const BufferRole role =
      result ? program.buffers[result->buffer.index()].role : BufferRole::kActivation;
  return role == BufferRole::kGathered || role == BufferRole::kParam;
}

/// Whether the task must not run beside compute.
bool blocks(const Program& program, const Task& task, const AssignStreamsOptions& options) {
  const std::optional<GroupId> group = group_of(program, program.spec(task));
  if (group && program.groups[group->index()].kind == GroupKind::kContext) {
    return options.context_blocks;
  }
  if (group && program.groups[group->index()].kind == GroupKind::kExpert) {
    return options.experts_block;
  }
  if (communicates_gradients(program, task) || converts_gradients(program, task)) {
    return options.gradients_block;
  }
  return options.parameters_block && gathers_weights(program, task);
}

/// Keeps tasks that block from running beside compute. A run of such tasks on one stream waits for
/// compute before it, and compute behind it for the run.
class Blocker {
 public:
  Blocker(const Program& program, const std::vector<bool>& leaves, StreamId compute,
          const AssignStreamsOptions& options)
      : program_(program), compute_(compute), blocks_(leaves.size()), writer_(program) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      blocks_[i] = leaves[i] && blocks(program, program.tasks[i], options);
    }
  }

  Program run() {
    std::optional<BufferRange> computed;
    for (size_t i = 0; i < program_.tasks.size(); ++i) {
      const Task& task = program_.tasks[i];
      if (blocks_[i] && !(i > 0 && is_one_run(i - 1, i))) {
        add_await(computed, task, task.stream);
      }
      writer_.append(TaskId(i));
      if (blocks_[i] && !is_one_run(i, i + 1)) {
        add_await(written_range(program_, task), task, compute_);
      }
      note_computed(task, computed);
    }
    return writer_.take();
  }

 private:
  bool is_one_run(size_t first, size_t second) const {
    return second < blocks_.size() && blocks_[first] && blocks_[second] &&
           program_.tasks[first].stream == program_.tasks[second].stream;
  }

  /// Follows what compute wrote last. Nothing, if another stream has written there since: who waits
  /// for the range would wait for that stream too.
  void note_computed(const Task& task, std::optional<BufferRange>& computed) const {
    const std::optional<BufferRange> result = written_range(program_, task);
    if (task.stream == compute_ && result && !does_nothing(program_.spec(task))) {
      computed = result;
    } else if (computed && result && result->buffer == computed->buffer) {
      computed.reset();
    }
  }

  void add_await(const std::optional<BufferRange>& range, const Task& of, StreamId stream) {
    if (range) {
      Task waits = of;
      waits.stream = stream;
      const Buffer& buffer = program_.buffers[range->buffer.index()];
      writer_.append(await_spec(buffer, range->end - range->begin), std::array{*range}, waits);
    }
  }

  const Program& program_;
  StreamId compute_;
  std::vector<bool> blocks_;
  ProgramRewriter writer_;
};

Moved move_communication(Program& program, const AssignStreamsOptions& options) {
  const std::vector<bool> before = Leaving(program).tasks();
  if (const auto hand_overs = find_hand_overs(program, before); !hand_overs.empty()) {
    std::vector<TaskId> order;
    for (size_t i = 0; i < program.tasks.size(); ++i) {
      order.emplace_back(i);
    }
    program = rearrange(std::move(program), order, hand_overs);
  }
  const std::vector<bool> leaves = Leaving(program).tasks();
  const auto first = std::ranges::find(leaves, true) - leaves.begin();
  if (first == std::ssize(leaves)) {
    return place(program, leaves, options);
  }
  const StreamId compute = program.tasks[static_cast<size_t>(first)].stream;
  const Moved moved = place(program, leaves, options);
  if (options.gradients_block || options.parameters_block || options.context_blocks ||
      options.experts_block) {
    program = Blocker(program, leaves, compute, options).run();
  }
  return moved;
}

}  // namespace

PassResult assign_streams(Program program, const AssignStreamsOptions& options) {
  const Moved comm = move_communication(program, options);
  const Moved copies = move_copies(program, options.copy_priority);
  const int64_t num_moved = comm.num_moved + copies.num_moved;
  if (num_moved > 0) {
    clear_events(program);
  }
  std::string summary =
      fmt::format("moved {} of {} communication tasks", comm.num_moved, comm.num_found);
  if (copies.num_found > 0) {
    summary += fmt::format(" and {} of {} copies", copies.num_moved, copies.num_found);
  }
  return {std::move(program), {num_moved > 0, num_moved, summary + " to streams of their own"}};
}

// A search does not try to disable this pass. Without it communication stays between the compute
// tasks, and no other pass can gain anything.
Pass assign_streams_pass(const PipelineOptions& options) {
  return {
      .name = "assign_streams",
      .summary = "Places communication, and copies to and from the host, on streams of their own.",
      .run = run_of(assign_streams, options),
      .only_overlaps = true,
      .keys = {"overlap.overlap_grad_reduce", "overlap.overlap_param_gather",
               "overlap.overlap_context_comm", "overlap.overlap_moe_expert_parallel_comm"},
      .read_keys =
          [](const OverlapConfig& overlap, PipelineOptions& its) {
            AssignStreamsOptions& streams = its.of<AssignStreamsOptions>();
            streams.gradients_block = !overlap.overlap_grad_reduce;
            streams.parameters_block = !overlap.overlap_param_gather;
            streams.context_blocks = !overlap.overlap_context_comm;
            streams.experts_block = !overlap.overlap_moe_expert_parallel_comm;
          },
      .axes = no_axes};
}

}  // namespace braid
