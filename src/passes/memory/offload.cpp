#include "passes/memory/offload.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "ops/offload.h"
#include "ops/op.h"
#include "passes/analysis/step_values.h"
#include "passes/pipeline_options.h"

namespace braid {
namespace {

/// A value to offload, and the positions of the tasks that move it. Each of these tasks stands in
/// front of the task at its position in program order.
struct Move {
  BufferId buffer;
  uint32_t offload_at = 0;
  uint32_t release_at = 0;
  uint32_t reload_at = 0;
  uint32_t first_use = 0;
};

/// Consecutive tasks of one layer in one direction; "layers ahead" counts these. Tasks that move
/// values, and tasks without a microbatch (reductions of gradients), belong to the segment before
/// them.
class Segments {
 public:
  Segments(const Program& program, const StepValues& values) : of_task_(program.tasks.size()) {
    uint32_t block = StepValues::kNone;
    bool forward = false;
    for (uint32_t task = 0; task < program.tasks.size(); ++task) {
      const bool counts =
          program.tasks[task].label.microbatch >= 0 && !moves_value(program, program.tasks[task]);
      const bool is_next =
          counts && (values.block_of(task) != block || values.is_forward(task) != forward);
      if (is_next || begins_.empty()) {
        begins_.push_back(task);
        block = values.block_of(task);
        forward = values.is_forward(task);
      }
      of_task_[task] = static_cast<uint32_t>(begins_.size() - 1);
    }
  }

  /// First task of the segment `distance` segments after the task's own; kNone if there is none.
  uint32_t begin_after(uint32_t task, int64_t distance) const {
    const int64_t index = of_task_[task] + distance;
    return index < 0 || index >= static_cast<int64_t>(begins_.size())
               ? StepValues::kNone
               : begins_[static_cast<size_t>(index)];
  }

 private:
  std::vector<uint32_t> of_task_;
  std::vector<uint32_t> begins_;
};

/// True if one task writes the whole buffer, so that it can be copied as a whole.
bool is_written_whole(const Program& program, const StepValues& values, BufferId id) {
  const Buffer& buffer = program.buffers[id.index()];
  for (const uint32_t task : values.writers(id)) {
    const auto ranges = program.operands_of(program.tasks[task]);
    if (std::any_of(ranges.begin(), ranges.end(), [&](const BufferRange& range) {
          return range.buffer == id && range.begin == 0 && range.end == buffer.num_elems();
        })) {
      return true;
    }
  }
  return false;
}

bool is_candidate(const Program& program, const StepValues& values, BufferId id,
                  const OffloadOptions& options) {
  const Buffer& buffer = program.buffers[id.index()];
  const StepValues::Value& value = values.value(id);
  if (!value.is_kept() || buffer.placement != Placement::kDevice ||
      buffer.role != BufferRole::kActivation ||
      buffer.size_bytes() < std::max<int64_t>(1, options.min_bytes)) {
    return false;
  }
  const int32_t layer = values.blocks()[value.block].layer;
  return layer >= 0 && layer < options.num_layers && is_written_whole(program, values, id);
}

struct Choice {
  std::vector<Move> moves;  ///< in the order in which values are offloaded
  int64_t num_staying = 0;  ///< candidates that would be reloaded before their copy out ends
};

Choice choose_moves(const Program& program, const StepValues& values,
                    const OffloadOptions& options) {
  const Segments segments(program, values);
  Choice choice;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const BufferId id(i);
    if (!is_candidate(program, values, id, options)) {
      continue;
    }
    const StepValues::Value& value = values.value(id);
    const Move move{
        .buffer = id,
        .offload_at = value.last_forward + 1,
        .release_at = segments.begin_after(value.last_forward, 1 + options.prefetch_layers),
        .reload_at = segments.begin_after(value.first_backward, -options.prefetch_layers),
        .first_use = value.first_backward};
    if (move.reload_at != StepValues::kNone && move.release_at < move.reload_at &&
        move.release_at <= values.blocks()[value.block].first_dgrad) {
      choice.moves.push_back(move);
    } else {
      ++choice.num_staying;
    }
  }
  std::stable_sort(choice.moves.begin(), choice.moves.end(),
                   [](const Move& a, const Move& b) { return a.offload_at < b.offload_at; });
  return choice;
}

/// Writes the program with the tasks that move values added.
class Rewriter {
 public:
  Rewriter(const Program& program, const StepValues& values, std::span<const Move> moves)
      : program_(program),
        values_(values),
        moves_(moves),
        result_(program),
        on_host_(program.buffers.size()),
        restored_(program.buffers.size()),
        new_tasks_(program.tasks.size() + 1) {
    clear_events(result_);
    result_.tasks.clear();
    result_.operands.clear();
  }

  Program run() {
    for (const Move& move : moves_) {
      on_host_[move.buffer.index()] = add_buffer(move.buffer, ".host", Placement::kHost);
      restored_[move.buffer.index()] = add_buffer(move.buffer, ".restored", Placement::kDevice);
    }
    place_tasks();
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      append_new(task);
      append(task);
    }
    append_new(static_cast<uint32_t>(program_.tasks.size()));
    return std::move(result_);
  }

 private:
  enum class Kind { kOffload, kRelease, kTake, kReload };
  struct NewTask {
    Kind kind;
    const Move* move;
  };

  BufferId add_buffer(BufferId like, const char* suffix, Placement placement) {
    Buffer buffer = program_.buffers[like.index()];
    buffer.name += suffix;
    buffer.placement = placement;
    result_.buffers.push_back(std::move(buffer));
    return BufferId(result_.buffers.size() - 1);
  }

  /// `undefine`s come latest value first, and reloads in the order of use. So the first wait of a
  /// stream covers the others.
  void place_tasks() {
    std::vector<const Move*> by_use;
    for (const Move& move : moves_) {
      new_tasks_[move.offload_at].push_back({Kind::kOffload, &move});
      by_use.push_back(&move);
    }
    for (size_t i = moves_.size(); i-- > 0;) {
      new_tasks_[moves_[i].release_at].push_back({Kind::kRelease, &moves_[i]});
    }
    std::stable_sort(by_use.begin(), by_use.end(),
                     [](const Move* a, const Move* b) { return a->first_use < b->first_use; });
    for (size_t i = by_use.size(); i-- > 0;) {
      new_tasks_[by_use[i]->reload_at].push_back({Kind::kTake, by_use[i]});
    }
    for (const Move* move : by_use) {
      new_tasks_[move->reload_at].push_back({Kind::kReload, move});
    }
  }

  void append_new(uint32_t position) {
    for (const NewTask& task : new_tasks_[position]) {
      const BufferId buffer = task.move->buffer;
      const BufferId host = on_host_[buffer.index()];
      const BufferId restored = restored_[buffer.index()];
      switch (task.kind) {
        case Kind::kOffload:
          append_transfer(kOffloadOp, *task.move, buffer, host);
          break;
        case Kind::kRelease:
          append_undefine(*task.move, buffer, /*is_forward=*/true);
          break;
        case Kind::kTake:
          append_undefine(*task.move, restored, /*is_forward=*/false);
          break;
        case Kind::kReload:
          append_transfer(kReloadOp, *task.move, host, restored);
          break;
      }
    }
  }

  void append_transfer(const OpDefinition& op, const Move& move, BufferId from, BufferId to) {
    OperandSpec x = whole_of(from);
    OperandSpec y = whole_of(to);
    y.access = Access::kWrite;
    const bool is_forward = to == on_host_[move.buffer.index()];
    append({std::string(op.name), {}, {x, y}}, std::array{from, to}, move, is_forward);
  }

  void append_undefine(const Move& move, BufferId buffer, bool is_forward) {
    append(undefine_spec(result_.buffers[buffer.index()]), std::array{buffer}, move, is_forward);
  }

  OperandSpec whole_of(BufferId id) const {
    const Buffer& buffer = result_.buffers[id.index()];
    return {.dtype = buffer.dtype, .access = Access::kRead, .shape = buffer.shape};
  }

  /// Appends a task on the stream of the value's writer, or of its first reader in the backward.
  /// Its site is the writer's.
  void append(const OpSpec& spec, std::span<const BufferId> buffers, const Move& move,
              bool is_forward) {
    const Task& writer = program_.tasks[values_.writers(move.buffer).back()];
    const Task& near = is_forward ? writer : program_.tasks[move.first_use];
    Task task;
    task.spec = result_.specs.intern(spec);
    task.stream = near.stream;
    task.operands_begin = static_cast<uint32_t>(result_.operands.size());
    task.label = near.label;
    task.label.phase = is_forward ? Phase::kForward : Phase::kDgrad;
    task.label.site = writer.label.site;
    for (const BufferId buffer : buffers) {
      result_.operands.push_back({buffer, 0, result_.buffers[buffer.index()].num_elems()});
    }
    result_.tasks.push_back(task);
  }

  void append(uint32_t position) {
    Task task = program_.tasks[position];
    const auto ranges = program_.operands_of(task);
    task.operands_begin = static_cast<uint32_t>(result_.operands.size());
    task.record = EventId();
    task.waits_begin = 0;
    task.num_waits = 0;
    const bool is_backward = !values_.is_forward(position);
    for (BufferRange range : ranges) {
      if (is_backward && restored_[range.buffer.index()].valid()) {
        range.buffer = restored_[range.buffer.index()];
      }
      result_.operands.push_back(range);
    }
    result_.tasks.push_back(task);
  }

  const Program& program_;
  const StepValues& values_;
  std::span<const Move> moves_;
  Program result_;
  std::vector<BufferId> on_host_;                // by buffer
  std::vector<BufferId> restored_;               // by buffer
  std::vector<std::vector<NewTask>> new_tasks_;  // by the position they are inserted in front of
};

}  // namespace

PassResult offload(Program program, const OffloadOptions& options) {
  if (options.num_layers == 0) {
    return {std::move(program), {false, 0, "not asked for"}};
  }
  const StepValues values(program);
  const auto [moves, num_staying] = choose_moves(program, values, options);
  const std::string staying =
      num_staying == 0 ? "" : fmt::format("; kept {} that would be reloaded at once", num_staying);
  if (moves.empty()) {
    return {std::move(program), {false, 0, "found nothing to offload" + staying}};
  }
  int64_t bytes = 0;
  for (const Move& move : moves) {
    bytes += program.buffers[move.buffer.index()].size_bytes();
  }
  const auto num_moves = static_cast<int64_t>(moves.size());
  Program result = Rewriter(program, values, moves).run();
  return {std::move(result),
          {true, num_moves,
           fmt::format("offloaded {} activations, {} per microbatch{}", num_moves,
                       format_bytes(bytes / values.num_backwards()), staying)}};
}

Pass offload_pass(const PipelineOptions& options) {
  return {.name = "offload",
          .summary =
              "Moves activations to the host after the forward and back before the backward reads "
              "them.",
          .run = run_of(offload, options),
          .keys = {"memory.offload_layers", "memory.offload_prefetch_layers",
                   "memory.offload_min_bytes"}};
}

}  // namespace braid
