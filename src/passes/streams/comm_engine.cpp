#include "passes/streams/comm_engine.h"

#include <fmt/core.h>

#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "config/choices.h"
#include "ops/collectives.h"
#include "ops/offload.h"
#include "ops/op.h"
#include "passes/gradients/reduction_parts.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline_options.h"
#include "passes/program_rewriter.h"
#include "sim/cost_model.h"

namespace braid {
namespace {

bool communicates(const OpSpec& spec) {
  return !does_nothing(spec) && find_op(spec.op).op_class == OpClass::kCommunication;
}

/// How copy engines could run a spec.
struct Copied {
  bool communicates = false;  ///< with other ranks
  bool is_one_task = false;
  bool has_nccl_copies = false;
  std::vector<ReductionParts> parts = {};

  bool is_possible() const { return is_one_task || !parts.empty(); }
};

Copied copied(const Program& program, const OpSpec& spec) {
  const std::optional<GroupId> group = group_of(program, spec);
  if (!group || !communicates(spec) || program.groups[group->index()].ranks.size() < 2) {
    return {};
  }
  const auto num_ranks = static_cast<int64_t>(program.groups[group->index()].ranks.size());
  return {.communicates = true,
          .is_one_task = copies_suffice(spec.op),
          .has_nccl_copies = nccl_copies_suffice(spec.op),
          .parts = reduction_parts(spec, num_ranks)};
}

std::vector<Copied> copied_specs(const Program& program) {
  std::vector<Copied> specs;
  for (const OpSpec& spec : program.specs.all()) {
    specs.push_back(copied(program, spec));
  }
  return specs;
}

/// Whether copy engines reach all ranks of the group. Without a model the ranks are assumed to be
/// on one node. Between nodes, copies and a sum would only send more.
bool reaches(const CostModel* model, const Group& group) {
  return model == nullptr || has_copy_engines(*model, place_group(model->cluster(), group.ranks));
}

/// Whether copy engines cost less than SMs, including what compute beside the SMs loses.
bool costs_less(const CostModel& model, const Program& program, const OpSpec& spec,
                const Group& group) {
  if (!has_copy_engines(model, place_group(model.cluster(), group.ranks))) {
    return false;
  }
  const Cost by_sms = comm_of(model, by_any_engine(spec), program.rank, group).cost;
  const Cost by_copies = comm_of(model, by_copy_engine(spec), program.rank, group).cost;
  const double lost = 1.0 - model.contention().gemm_and_sm_comm.compute;
  return static_cast<double>(by_copies.ns) <= static_cast<double>(by_sms.ns) * (1.0 + lost);
}

bool is_copied(const Program& program, const OpSpec& spec, const Copied& copied, CommEngine engine,
               const CostModel* model) {
  if (!copied.is_possible() || engine == CommEngine::kSm) {
    return false;
  }
  if (engine == CommEngine::kNcclCopy) {
    return copied.has_nccl_copies;
  }
  const Group& group = program.groups[group_of(program, spec)->index()];
  if (engine == CommEngine::kCopy) {
    return copied.is_one_task || reaches(model, group);
  }
  return copied.is_one_task && model != nullptr && costs_less(*model, program, spec, group);
}

/// Writes the program with the chosen engines.
class EngineWriter {
 public:
  EngineWriter(const Program& program, const std::vector<Copied>& copied)
      : program_(program), copied_(copied), writer_(program) {}

  Program run(std::span<const TaskEngine> engines) {
    check(engines.size() == program_.tasks.size(), "engines of {} tasks for a program of {}",
          engines.size(), program_.tasks.size());
    for (size_t i = 0; i < engines.size(); ++i) {
      const Task& task = program_.tasks[i];
      const Copied& copied = copied_[task.spec.index()];
      if (engines[i] == TaskEngine::kCopy && !copied.parts.empty()) {
        for (const ReductionParts& parts : copied.parts) {
          append_parts(parts, task);
        }
      } else if (engines[i] == TaskEngine::kCopy && copied.is_one_task) {
        writer_.append(by_copy_engine(program_.spec(task)), program_.operands_of(task), task);
      } else if (engines[i] == TaskEngine::kNcclCopy && copied.has_nccl_copies) {
        writer_.append(by_nccl_copies(program_.spec(task)), program_.operands_of(task), task);
      } else if (engines[i] == TaskEngine::kSm && copied.is_one_task) {
        writer_.append(by_any_engine(program_.spec(task)), program_.operands_of(task), task);
      } else {
        writer_.append(TaskId(i));
      }
    }
    return writer_.take();
  }

 private:
  void append_parts(const ReductionParts& parts, const Task& task) {
    const auto ranges = program_.operands_of(task);
    const BufferRange x = part_of(ranges.front(), parts.first_elem, parts.num_elems());
    const BufferRange y = part_of(ranges.back(), parts.first_elem, parts.num_results());
    const BufferRange received = add_buffer(x, "received", parts.exchange.operands.back());
    writer_.append(by_copy_engine(parts.exchange), std::array{x, received}, task);
    BufferRange sum = y;
    if (parts.gather) {
      sum = add_buffer(x, "sum", parts.gather->operands.front());
    }
    std::vector<BufferRange> blocks;
    for (int64_t i = 0; i < parts.num_ranks; ++i) {
      blocks.push_back(part_of(received, i * parts.block_elems, parts.block_elems));
    }
    blocks.push_back(sum);
    writer_.append(parts.sum, blocks, task);
    if (parts.gather) {
      writer_.append(by_copy_engine(*parts.gather), std::array{sum, y}, task);
    }
  }

  static BufferRange part_of(const BufferRange& range, int64_t first_elem, int64_t num_elems) {
    return {range.buffer, range.begin + first_elem, range.begin + first_elem + num_elems};
  }

  /// Adds the memory of one reduction, named after the buffer that is summed.
  BufferRange add_buffer(const BufferRange& x, std::string_view what, const OperandSpec& spec) {
    const std::string& name = program_.buffers[x.buffer.index()].name;
    const std::string base = fmt::format("{}.{}", name, what);
    const int64_t number = num_named_[base]++;
    const BufferId buffer =
        writer_.add_buffer({.name = number == 0 ? base : fmt::format("{}{}", base, number),
                            .dtype = spec.dtype,
                            .shape = spec.shape,
                            .role = BufferRole::kScratch,
                            .lifetime = Lifetime::kStep});
    return {buffer, 0, spec.shape.num_elems()};
  }

  const Program& program_;
  const std::vector<Copied>& copied_;  // by spec
  ProgramRewriter writer_;
  std::map<std::string, int64_t> num_named_;
};

struct Counts {
  int64_t tasks = 0;  // that communicate
  int64_t moved = 0;  // done by copy engines
  int64_t sums = 0;   // of these, reductions that became copies and a sum
};

Counts count(const Program& program, const std::vector<Copied>& copied,
             std::span<const TaskEngine> engines) {
  Counts counts;
  for (size_t i = 0; i < engines.size(); ++i) {
    const Copied& spec = copied[program.tasks[i].spec.index()];
    const bool is_copy = engines[i] == TaskEngine::kCopy;
    counts.tasks += spec.communicates ? 1 : 0;
    counts.moved += is_copy || engines[i] == TaskEngine::kNcclCopy ? 1 : 0;
    counts.sums += is_copy && !spec.parts.empty() ? 1 : 0;
  }
  return counts;
}

/// kHidden acts like kAuto here: what is hidden is known only after all ranks are planned.
CommEngine engine_of(EngineChoice choice) {
  switch (choice) {
    case EngineChoice::kCopy:
      return CommEngine::kCopy;
    case EngineChoice::kSm:
      return CommEngine::kSm;
    case EngineChoice::kNcclCopy:
      return CommEngine::kNcclCopy;
    case EngineChoice::kAuto:
    case EngineChoice::kHidden:
      return CommEngine::kAuto;
  }
  throw_internal_error("no engine");
}

bool leaves_engine_open(const OverlapConfig& overlap) {
  return choice<EngineChoice>(overlap.comm_engine) == EngineChoice::kAuto;
}

OverlapChange engine(const char* name) {
  return [name](OverlapConfig& overlap) { overlap.comm_engine = name; };
}

std::vector<OverlapAxis> engine_axes(const RunConfig& config, const AxisLimits& limits) {
  if (config.parallel.ranks == 1 || !limits.copy_engines || !leaves_engine_open(config.overlap)) {
    return {};
  }
  OverlapAxis axis{"engine", {engine("sm"), engine("auto")}, AxisPlace::kEngines};
  if (may_choose_engines(config, limits)) {
    axis.choices.push_back(engine("copy"));
  }
  return {axis};
}

}  // namespace

Program with_engines(const Program& program, std::span<const TaskEngine> engines) {
  const std::vector<Copied> copied = copied_specs(program);
  return EngineWriter(program, copied).run(engines);
}

PassResult comm_engine(Program program, const CommEngineOptions& options,
                       const PassContext& context) {
  const std::vector<Copied> copied = copied_specs(program);
  const TaskEngine by_copies =
      options.engine == CommEngine::kNcclCopy ? TaskEngine::kNcclCopy : TaskEngine::kCopy;
  std::vector<TaskEngine> of_specs;
  for (size_t i = 0; i < copied.size(); ++i) {
    of_specs.push_back(
        is_copied(program, program.specs.all()[i], copied[i], options.engine, context.cost_model)
            ? by_copies
            : TaskEngine::kAsIs);
  }
  std::vector<TaskEngine> engines;
  for (const Task& task : program.tasks) {
    engines.push_back(of_specs[task.spec.index()]);
  }
  const Counts counts = count(program, copied, engines);
  std::string summary =
      fmt::format("copy engines run {} of {} communication tasks{}{}", counts.moved, counts.tasks,
                  options.engine == CommEngine::kNcclCopy ? " through NCCL" : "",
                  counts.moved < counts.tasks ? ", SMs run the others" : "");
  if (counts.sums > 0) {
    summary +=
        fmt::format("; replaced {} reductions by copies and a sum on each rank", counts.sums);
  }
  if (counts.moved == 0) {
    return {std::move(program), {false, 0, std::move(summary)}};
  }
  Program changed = EngineWriter(program, copied).run(engines);
  return {std::move(changed), {true, counts.moved, std::move(summary)}};
}

bool may_choose_engines(const RunConfig& config, const AxisLimits& limits) {
  return limits.copy_engines && config.overlap.may_change_rounding &&
         leaves_engine_open(config.overlap);
}

Pass comm_engine_pass(const PipelineOptions& options) {
  return {
      .name = "comm_engine",
      .summary = "Chooses what moves the bytes of communication: multiprocessors or copy engines.",
      .run = run_of(comm_engine, options),
      .keys = {"overlap.comm_engine"},
      .read_keys =
          [](const OverlapConfig& overlap, PipelineOptions& its) {
            its.of<CommEngineOptions>().engine =
                engine_of(choice<EngineChoice>(overlap.comm_engine));
          },
      .reads_keys_in_every_mode = true,
      .axes = engine_axes};
}

}  // namespace braid
