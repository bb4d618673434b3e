#include "passes/memory/recompute_plan.h"

#include <algorithm>
#include <span>

#include "ops/op.h"

namespace braid {
namespace {

using Block = StepValues::Block;
using KeptValue = StepValues::Value;

constexpr uint32_t kNone = StepValues::kNone;

/// One way to repeat a task, and how it changes the bytes kept.
struct Option {
  Redo redo = Redo::kNothing;
  int64_t saved_bytes = 0;  // results that the backward reads and that are no longer kept
  int64_t extra_bytes = 0;  // inputs that must be kept only for this

  int64_t net_bytes() const { return saved_bytes - extra_bytes; }
  bool is_worth_it() const {
    return redo != Redo::kNothing && (extra_bytes == 0 || net_bytes() > 0);
  }
};

class Planner {
 public:
  Planner(const Program& program, const StepValues& values, const Twins& twins,
          const RecomputeOptions& options)
      : program_(program),
        values_(values),
        twins_(twins),
        options_(options),
        op_of_spec_(program.specs.size(), nullptr),
        last_read_(program.buffers.size(), 0),
        kept_until_(program.buffers.size(), 0),
        open_(program.buffers.size(), kNone) {
    for (uint32_t task = 0; task < program.tasks.size(); ++task) {
      const auto& specs = spec_of(task).operands;
      for (size_t i = 0; i < specs.size(); ++i) {
        if (reads(specs[i].access)) {
          last_read_[ranges_of(task)[i].buffer.index()] = task;
        }
      }
    }
    plan_.redo.assign(program.tasks.size(), Redo::kNothing);
    plan_.is_recomputed.assign(program.buffers.size(), false);
  }

  RecomputePlan run() {
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      if (values_.is_forward(task) && is_enabled(values_.blocks()[values_.block_of(task)])) {
        decide(task);
      }
    }
    return std::move(plan_);
  }

 private:
  bool is_enabled(const Block& block) const {
    return block.layer >= 0 && block.first_dgrad != kNone &&
           (options_.num_layers == 0 || block.layer < options_.num_layers);
  }

  const OpDefinition& op_of(uint32_t task) {
    const Task& it = program_.tasks[task];
    const OpDefinition*& op = op_of_spec_[it.spec.index()];
    if (op == nullptr) {
      op = &find_op(program_.spec(it).op);
    }
    return *op;
  }

  void decide(uint32_t task) {
    const OpDefinition& op = op_of(task);
    if (op.recompute == Recompute::kNone || op.recompute > options_.policy) {
      return;
    }
    const Option whole = option(task, Redo::kTask);
    const Option replay = find_replay(spec_of(task)) ? option(task, Redo::kReplay) : Option{};
    // A replay reads less, so it is preferred where both save the same.
    if (replay.is_worth_it() && (!whole.is_worth_it() || replay.net_bytes() >= whole.net_bytes())) {
      take(task, replay);
    } else if (whole.is_worth_it()) {
      take(task, whole);
    } else if (whole.redo != Redo::kNothing && whole.saved_bytes == 0) {
      leave_open(task);
    }
  }

  /// The backward does not read the task's results, but those of a later task may be worth more
  /// than the inputs of both.
  void leave_open(uint32_t task) {
    const auto& specs = spec_of(task).operands;
    for (size_t i = 0; i < specs.size(); ++i) {
      const BufferId buffer = ranges_of(task)[i].buffer;
      if (writes(specs[i].access) && values_.writers(buffer).back() == task) {
        open_[buffer.index()] = task;
      }
    }
  }

  /// Whether a task made the buffer that is left open, in the block of the task that reads it.
  bool is_open(uint32_t task, BufferId buffer) const {
    const uint32_t maker = open_[buffer.index()];
    return maker != kNone && values_.block_of(maker) == values_.block_of(task);
  }

  /// Bytes to keep for the task's inputs, or to make an input again.
  int64_t bytes_to_have(uint32_t task, BufferId buffer) const {
    return is_open(task, buffer)
               ? std::min(bytes_of(buffer), option(open_[buffer.index()], Redo::kTask).extra_bytes)
               : bytes_of(buffer);
  }

  std::span<const BufferRange> ranges_of(uint32_t task) const {
    return program_.operands_of(program_.tasks[task]);
  }
  const OpSpec& spec_of(uint32_t task) const { return program_.spec(program_.tasks[task]); }
  int64_t bytes_of(BufferId buffer) const { return program_.buffers[buffer.index()].size_bytes(); }

  /// Whether only tasks of this block use the buffer, so that a copy can replace it. If an earlier
  /// task began to write the buffer, that task must be repeated as well.
  bool is_private(uint32_t task, BufferId buffer) const {
    const KeptValue& value = values_.value(buffer);
    if (value.block != values_.block_of(task) || value.is_shared ||
        program_.buffers[buffer.index()].placement != Placement::kDevice) {
      return false;
    }
    const auto writers = values_.writers(buffer);
    return std::all_of(writers.begin(), writers.end(), [&](uint32_t writer) {
      return writer >= task || plan_.redo[writer] == Redo::kTask;
    });
  }

  /// Whether the task is the last writer of the buffer, and the backward reads the buffer.
  bool completes_kept(uint32_t task, BufferId buffer) const {
    return values_.value(buffer).is_kept() && values_.writers(buffer).back() == task;
  }

  /// Evaluates one way to repeat the task. Returns Redo::kNothing if it is not possible.
  Option option(uint32_t task, Redo redo) const {
    Option option{.redo = redo};
    const auto ranges = ranges_of(task);
    for_each_repeated_operand(spec_of(task), redo, [&](size_t operand, bool is_result) {
      const BufferId buffer = ranges[operand].buffer;
      if (is_result && completes_kept(task, buffer)) {
        option.saved_bytes += bytes_of(buffer);
      }
      const bool possible = is_result ? is_private(task, buffer) : add_input(task, buffer, option);
      option.redo = possible ? option.redo : Redo::kNothing;
    });
    return option;
  }

  /// Adds the bytes of keeping an input for the backward. False if the input changes before that.
  bool add_input(uint32_t task, BufferId buffer, Option& option) const {
    const auto writers = values_.writers(buffer);
    if (std::binary_search(writers.begin(), writers.end(), task) &&
        values_.value(buffer).block == values_.block_of(task)) {
      // Written by this task: tasks repeated with it began it, or it is the result a replay reads.
      option.extra_bytes +=
          option.redo == Redo::kReplay && !is_kept_for(task, buffer) ? bytes_of(buffer) : 0;
      return true;
    }
    const Block& block = values_.blocks()[values_.block_of(task)];
    if (values_.is_written_between(buffer, task, block.last)) {
      return false;
    }
    const bool persistent = program_.buffers[buffer.index()].lifetime == Lifetime::kPersistent;
    option.extra_bytes += persistent || is_kept_for(task, buffer) ? 0 : bytes_to_have(task, buffer);
    return true;
  }

  /// Whether the backward of the block or a later task reads what the task reads, of a buffer that
  /// is not a value of StepValues: the message of an earlier stage.
  bool stays_until(const Block& block, uint32_t task, BufferId buffer) const {
    const uint32_t last = last_read_[buffer.index()];
    return last >= block.first_dgrad && !values_.is_written_between(buffer, task, last);
  }

  /// Whether the backward of the task's block has the content of a step buffer in any case.
  bool is_kept_for(uint32_t task, BufferId buffer) const {
    const uint32_t block_index = values_.block_of(task);
    const Block& block = values_.blocks()[block_index];
    const KeptValue& value = values_.value(buffer);
    const bool is_recomputed = plan_.is_recomputed[buffer.index()];
    return (is_recomputed && value.block == block_index) ||
           (!is_recomputed && value.is_kept() && value.last_backward >= block.first_dgrad) ||
           (!value.is_value() && stays_until(block, task, buffer)) ||
           kept_until_[buffer.index()] >= block.first_dgrad ||
           twins_.find(buffer, block.forward_end, block.last) != kNone;
  }

  void take(uint32_t task, const Option& option) {
    plan_.bytes_kept_less += option.net_bytes();
    repeat(task, option.redo);
  }

  void repeat(uint32_t task, Redo redo) {
    plan_.redo[task] = redo;
    const auto ranges = ranges_of(task);
    for_each_repeated_operand(spec_of(task), redo, [&](size_t operand, bool is_result) {
      const BufferId buffer = ranges[operand].buffer;
      if (!is_result) {
        keep_for(task, buffer);
      } else if (values_.writers(buffer).back() == task) {
        plan_.is_recomputed[buffer.index()] = true;
      }
    });
  }

  void keep_for(uint32_t task, BufferId buffer) {
    if (!is_kept_for(task, buffer)) {
      if (bytes_to_have(task, buffer) < bytes_of(buffer)) {
        return repeat(open_[buffer.index()], Redo::kTask);
      }
      uint32_t& until = kept_until_[buffer.index()];
      until = std::max(until, values_.blocks()[values_.block_of(task)].last);
    }
  }

  const Program& program_;
  const StepValues& values_;
  const Twins& twins_;
  const RecomputeOptions& options_;
  std::vector<const OpDefinition*> op_of_spec_;
  std::vector<uint32_t> last_read_;   // by buffer: last task that reads it
  std::vector<uint32_t> kept_until_;  // by buffer: last task that an input is kept for
  std::vector<uint32_t> open_;        // by buffer: the task that made it, if it was left open
  RecomputePlan plan_;
};

}  // namespace

RecomputePlan plan_recompute(const Program& program, const StepValues& values, const Twins& twins,
                             const RecomputeOptions& options) {
  return Planner(program, values, twins, options).run();
}

}  // namespace braid
