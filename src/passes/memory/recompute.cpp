#include "passes/memory/recompute.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "passes/analysis/step_values.h"
#include "passes/analysis/twins.h"
#include "passes/memory/recompute_plan.h"
#include "passes/pipeline_options.h"

namespace braid {
namespace {

/// Writes the program with the repeated tasks of the plan.
class Rewriter {
 public:
  Rewriter(const Program& program, const StepValues& values, const Twins& twins,
           const RecomputePlan& plan)
      : program_(program),
        values_(values),
        twins_(twins),
        plan_(plan),
        result_(program),
        is_repeated_(program.tasks.size(), false),
        is_remade_(program.buffers.size(), false),
        copies_(program.buffers.size()),
        replay_specs_(program.specs.size()) {
    clear_events(result_);
    result_.tasks.clear();
    result_.operands.clear();
    result_.tasks.reserve(program.tasks.size());
    result_.operands.reserve(program.operands.size());
  }

  Program run() {
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      if (!values_.is_forward(task)) {
        remake_inputs_of(task);
      }
      append(task);
    }
    return std::move(result_);
  }

  int64_t num_repeated() const { return num_repeated_; }
  double added_flops() const { return added_flops_; }

 private:
  std::span<const BufferRange> ranges_of(uint32_t task) const {
    return program_.operands_of(program_.tasks[task]);
  }
  const OpSpec& spec_of(uint32_t task) const { return program_.spec(program_.tasks[task]); }
  bool is_recomputed_in(uint32_t block, BufferId buffer) const {
    return plan_.is_recomputed[buffer.index()] && values_.value(buffer).block == block;
  }

  /// Appends the tasks to repeat before a backward task.
  void remake_inputs_of(uint32_t task) {
    const uint32_t block = values_.block_of(task);
    needed_.clear();
    for (const BufferRange& range : ranges_of(task)) {
      if (is_recomputed_in(block, range.buffer)) {
        need(range.buffer, task);
      }
    }
    std::sort(needed_.begin(), needed_.end());
    for (const uint32_t repeated : needed_) {
      append_repeated(repeated, task);
    }
  }

  /// Adds to `needed_` all tasks that must be repeated to make the buffer again and are not
  /// repeated yet.
  void need(BufferId buffer, uint32_t for_task) {
    pending_.assign(1, buffer);
    while (!pending_.empty()) {
      const BufferId next = pending_.back();
      pending_.pop_back();
      if (is_remade_[next.index()]) {
        continue;
      }
      is_remade_[next.index()] = true;
      for (const uint32_t writer : values_.writers(next)) {
        need_task(writer, for_task);
      }
    }
  }

  void need_task(uint32_t task, uint32_t for_task) {
    if (is_repeated_[task]) {
      return;
    }
    is_repeated_[task] = true;
    needed_.push_back(task);
    const auto ranges = ranges_of(task);
    for_each_repeated_operand(spec_of(task), plan_.redo[task], [&](size_t operand, bool is_result) {
      const BufferId buffer = ranges[operand].buffer;
      if (is_result) {
        need_what_it_adds_to(task, buffer, for_task);
      } else if (is_recomputed_in(values_.block_of(task), buffer) &&
                 twin_of(buffer, task, for_task) == Twins::kNone) {
        pending_.push_back(buffer);
      }
    });
  }

  /// Needs the tasks that write the buffer before `task` continues it.
  void need_what_it_adds_to(uint32_t task, BufferId buffer, uint32_t for_task) {
    for (const uint32_t writer : values_.writers(buffer)) {
      if (writer < task) {
        need_task(writer, for_task);
      }
    }
  }

  uint32_t twin_of(BufferId buffer, uint32_t reader, uint32_t for_task) const {
    const auto& block = values_.blocks()[values_.block_of(reader)];
    return twins_.find(buffer, block.forward_end, for_task);
  }

  /// Appends the task itself. A backward task reads recomputed copies.
  void append(uint32_t task) {
    const auto ranges = ranges_of(task);
    const bool is_backward = !values_.is_forward(task);
    Task copy = program_.tasks[task];
    copy.operands_begin = static_cast<uint32_t>(result_.operands.size());
    copy.record = EventId();
    copy.waits_begin = 0;
    copy.num_waits = 0;
    for (BufferRange range : ranges) {
      if (is_backward && is_recomputed_in(values_.block_of(task), range.buffer)) {
        range.buffer = copies_[range.buffer.index()];
      }
      result_.operands.push_back(range);
    }
    result_.tasks.push_back(copy);
  }

  void append_repeated(uint32_t task, uint32_t for_task) {
    Task repeated = program_.tasks[task];
    repeated.spec = repeated_spec_of(repeated.spec, plan_.redo[task]);
    repeated.operands_begin = static_cast<uint32_t>(result_.operands.size());
    repeated.record = EventId();
    repeated.waits_begin = 0;
    repeated.num_waits = 0;
    if (repeated.label.phase == Phase::kForward) {
      repeated.label.phase = Phase::kDgrad;
    }
    const auto ranges = ranges_of(task);
    for_each_repeated_operand(spec_of(task), plan_.redo[task], [&](size_t operand, bool is_result) {
      BufferRange range = ranges[operand];
      range.buffer = is_result ? copy_of(range.buffer) : source_of(task, range.buffer, for_task);
      result_.operands.push_back(range);
    });
    result_.tasks.push_back(repeated);
    ++num_repeated_;
    added_flops_ += spec_cost(result_.spec(repeated)).flops;
  }

  /// The buffer in which a repeated task finds what the original read.
  BufferId source_of(uint32_t task, BufferId buffer, uint32_t for_task) {
    if (const uint32_t twin = twin_of(buffer, task, for_task); twin != Twins::kNone) {
      return twins_.result_of(twin);
    }
    const auto writers = values_.writers(buffer);
    const bool goes_on =
        plan_.redo[task] == Redo::kTask && std::binary_search(writers.begin(), writers.end(), task);
    return goes_on || is_recomputed_in(values_.block_of(task), buffer) ? copy_of(buffer) : buffer;
  }

  BufferId copy_of(BufferId buffer) {
    BufferId& copy = copies_[buffer.index()];
    if (!copy.valid()) {
      Buffer made = program_.buffers[buffer.index()];
      made.name += ".recomputed";
      copy = BufferId(result_.buffers.size());
      result_.buffers.push_back(std::move(made));
    }
    return copy;
  }

  SpecId repeated_spec_of(SpecId spec, Redo redo) {
    if (redo != Redo::kReplay) {
      return has_tally(program_.specs[spec])
                 ? result_.specs.intern(without_tally(program_.specs[spec]))
                 : spec;
    }
    SpecId& replay = replay_specs_[spec.index()];
    if (!replay.valid()) {
      replay = result_.specs.intern(replay_spec(program_.specs[spec]));
    }
    return replay;
  }

  const Program& program_;
  const StepValues& values_;
  const Twins& twins_;
  const RecomputePlan& plan_;
  Program result_;
  std::vector<bool> is_repeated_;     // by task
  std::vector<bool> is_remade_;       // by buffer: all its writers are repeated, or in needed_
  std::vector<BufferId> copies_;      // by buffer: its recomputed copy
  std::vector<SpecId> replay_specs_;  // by spec
  std::vector<uint32_t> needed_;
  std::vector<BufferId> pending_;
  int64_t num_repeated_ = 0;
  double added_flops_ = 0;
};

double flops_of(const Program& program) {
  std::vector<double> of_spec(program.specs.size(), -1.0);
  double flops = 0;
  for (const Task& task : program.tasks) {
    double& cost = of_spec[task.spec.index()];
    if (cost < 0) {
      cost = spec_cost(program.spec(task)).flops;
    }
    flops += cost;
  }
  return flops;
}

}  // namespace

PassResult recompute(Program program, const RecomputeOptions& options) {
  if (options.policy == Recompute::kNone) {
    return {std::move(program), {false, 0, "keeps all activations"}};
  }
  const StepValues values(program);
  const Twins twins(program, values);
  const RecomputePlan plan = plan_recompute(program, values, twins, options);
  Rewriter rewriter(program, values, twins, plan);
  Program result = rewriter.run();
  if (rewriter.num_repeated() == 0) {
    return {std::move(program), {false, 0, "found nothing to recompute"}};
  }
  const double before = flops_of(program);
  std::string summary = fmt::format(
      "recomputes {} of {} tasks: saves {} per microbatch for {:.3g} FLOP more ({:.1f} %)",
      rewriter.num_repeated(), program.tasks.size(),
      format_bytes(plan.bytes_kept_less / values.num_backwards()), rewriter.added_flops(),
      before > 0 ? 100.0 * rewriter.added_flops() / before : 0.0);
  return {std::move(result), {true, rewriter.num_repeated(), std::move(summary)}};
}

Pass recompute_pass(const PipelineOptions& options) {
  return {.name = "recompute",
          .summary =
              "Computes activations again in the backward instead of keeping them from the "
              "forward.",
          .run = run_of(recompute, options),
          .keys = {"memory.recompute", "memory.recompute_layers"}};
}

}  // namespace braid
