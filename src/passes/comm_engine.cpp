#include "passes/comm_engine.h"

#include <fmt/core.h>

#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ops/collectives.h"
#include "ops/offload.h"
#include "ops/op.h"
#include "passes/reduction_parts.h"
#include "passes/task_writer.h"
#include "sim/cost_model.h"

namespace braid {
namespace {

bool communicates(const OpSpec& spec) {
  return !does_nothing(spec) && find_op(spec.op).op_class == OpClass::kCommunication;
}

/// What is to become of a spec.
struct Choice {
  bool communicates = false;  ///< with other ranks
  bool by_copies = false;
  std::optional<ReductionParts> parts = std::nullopt;

  bool is_taken() const { return by_copies || parts.has_value(); }
};

/// By copy engines rather than by SMs, with what compute beside those loses.
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

Choice choose(const Program& program, const OpSpec& spec, CommEngine engine,
              const CostModel* model) {
  Choice choice;
  const std::optional<GroupId> id = group_of(program, spec);
  if (!id || !communicates(spec) || program.groups[id->index()].ranks.size() < 2) {
    return choice;
  }
  const Group& group = program.groups[id->index()];
  choice.communicates = true;
  if (engine == CommEngine::kCopy) {
    choice.by_copies = copies_suffice(spec.op);
    choice.parts = reduction_parts(spec, static_cast<int64_t>(group.ranks.size()));
  } else if (engine == CommEngine::kAuto && model != nullptr && copies_suffice(spec.op)) {
    choice.by_copies = costs_less(*model, program, spec, group);
  }
  return choice;
}

/// Writes the program anew.
class EngineWriter {
 public:
  EngineWriter(const Program& program, std::vector<Choice> choices)
      : program_(program), choices_(std::move(choices)), writer_(program) {}

  Program run() {
    for (size_t i = 0; i < program_.tasks.size(); ++i) {
      const Task& task = program_.tasks[i];
      const Choice& choice = choices_[task.spec.index()];
      if (choice.parts) {
        append_parts(*choice.parts, task);
      } else if (choice.by_copies) {
        writer_.append(by_copy_engine(program_.spec(task)), program_.operands_of(task), task);
      } else {
        writer_.append(TaskId(i));
      }
    }
    return writer_.take();
  }

 private:
  void append_parts(const ReductionParts& parts, const Task& task) {
    const auto ranges = program_.operands_of(task);
    const BufferRange received =
        add_buffer(ranges.front(), "received", parts.exchange.operands.back());
    writer_.append(by_copy_engine(parts.exchange), std::array{ranges.front(), received}, task);
    BufferRange sum = ranges.back();
    if (parts.gather) {
      sum = add_buffer(ranges.front(), "sum", parts.gather->operands.front());
    }
    std::vector<BufferRange> blocks;
    for (int64_t i = 0; i < parts.num_ranks; ++i) {
      blocks.push_back({received.buffer, i * parts.block_elems, (i + 1) * parts.block_elems});
    }
    blocks.push_back(sum);
    writer_.append(parts.sum, blocks, task);
    if (parts.gather) {
      writer_.append(by_copy_engine(*parts.gather), std::array{sum, ranges.back()}, task);
    }
  }

  /// Memory of one reduction, named after what is summed up.
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
  std::vector<Choice> choices_;  // by spec
  TaskWriter writer_;
  std::map<std::string, int64_t> num_named_;
};

struct Counts {
  int64_t tasks = 0;  // that communicate
  int64_t moved = 0;  // by copy engines
  int64_t sums = 0;   // of these, taken apart
};

Counts count(const Program& program, const std::vector<Choice>& choices) {
  Counts counts;
  for (const Task& task : program.tasks) {
    const Choice& choice = choices[task.spec.index()];
    counts.tasks += choice.communicates ? 1 : 0;
    counts.moved += choice.is_taken() ? 1 : 0;
    counts.sums += choice.parts ? 1 : 0;
  }
  return counts;
}

}  // namespace

PassResult comm_engine(Program program, const CommEngineOptions& options,
                       const PassContext& context) {
  std::vector<Choice> choices;  // by spec
  for (const OpSpec& spec : program.specs.all()) {
    choices.push_back(choose(program, spec, options.engine, context.cost_model));
  }
  const Counts counts = count(program, choices);
  std::string summary =
      fmt::format("copy engines do {} of {} communication tasks{}", counts.moved, counts.tasks,
                  counts.moved < counts.tasks ? ", SMs the others" : "");
  if (counts.sums > 0) {
    summary += fmt::format("; {} sums are copies and a sum on each rank", counts.sums);
  }
  if (counts.moved == 0) {
    return {std::move(program), {false, 0, std::move(summary)}};
  }
  Program changed = EngineWriter(program, std::move(choices)).run();
  return {std::move(changed), {true, counts.moved, std::move(summary)}};
}

}  // namespace braid
