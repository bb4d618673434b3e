#include "plan/fold_ranks.h"

#include <bit>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/parallel_for.h"
#include "base/wide_hash.h"
#include "ops/op.h"
#include "plan/build_programs.h"

namespace braid {
namespace {

/// What is compared of a rank: outlines are too large to be kept.
using Outline = WideHash::Value;

/// Calls address members of these groups one by one, so it matters which one a rank is.
bool has_neighbours(GroupKind kind) {
  return kind == GroupKind::kPipeline || kind == GroupKind::kContext;
}

/// Adds one program to the outline of its rank.
class ProgramHasher {
 public:
  ProgramHasher(const Program& program, const CostModel& model, WideHash& hasher)
      : program_(program), model_(model), hasher_(hasher) {}

  void run() {
    for (const Group& group : program_.groups) {
      add_group(group);
    }
    for (const Buffer& buffer : program_.buffers) {
      add_buffer(buffer);
    }
    for (const Stream& stream : program_.streams) {
      hasher_.add(stream.name);
      hasher_.add(stream.kind);
      hasher_.add(static_cast<uint64_t>(stream.priority));
    }
    for (const std::string& site : program_.sites) {
      hasher_.add(site);
    }
    for (const OpSpec& spec : program_.specs.all()) {
      add_spec(spec);
    }
    for (const Task& task : program_.tasks) {
      add_task(task);
    }
  }

 private:
  /// Nodes and larger units of the network are numbered in order of first occurrence: place_group
  /// says no more about them.
  void add_group(const Group& group) {
    hasher_.add(group.name);
    hasher_.add(group.kind);
    hasher_.add(group.ranks.size());
    for (size_t level = 0; level < num_unit_levels(model_.cluster()); ++level) {
      std::map<int64_t, uint64_t> units;
      for (const int rank : group.ranks) {
        const int64_t unit = unit_of(model_.cluster(), rank, level);
        hasher_.add(units.try_emplace(unit, units.size()).first->second);
      }
    }
    for (size_t i = 0; i < group.ranks.size(); ++i) {
      if (has_neighbours(group.kind) && group.ranks[i] == program_.rank) {
        hasher_.add(i);
      }
    }
  }

  void add_buffer(const Buffer& buffer) {
    hasher_.add(buffer.name);
    hasher_.add(buffer.shape);
    hasher_.add(buffer.dtype);
    hasher_.add(buffer.role);
    hasher_.add(buffer.lifetime);
    hasher_.add(buffer.placement);
  }

  /// A measured price may be that of one part, so it is compared instead of the place of the part.
  void add_spec(const OpSpec& spec) {
    const std::string_view part_begin = find_op(spec.op).part_begin;
    hasher_.add(spec.op);
    for (const Attribute& attribute : spec.attributes) {
      hasher_.add(attribute.name);
      if (attribute.name == part_begin) {
        hasher_.add(static_cast<uint64_t>(model_.task_ns(spec)));
      } else {
        hasher_.add(attribute.value.index());
        std::visit([&](const auto& value) { add_value(value); }, attribute.value);
      }
    }
    for (const OperandSpec& operand : spec.operands) {
      hasher_.add(operand.dtype);
      hasher_.add(operand.access);
      hasher_.add(operand.shape);
    }
  }

  void add_value(bool value) { hasher_.add(static_cast<uint64_t>(value ? 1 : 0)); }
  void add_value(int64_t value) { hasher_.add(static_cast<uint64_t>(value)); }
  void add_value(double value) { hasher_.add(std::bit_cast<uint64_t>(value)); }
  void add_value(const std::string& value) { hasher_.add(value); }

  /// Specs, buffers, streams and sites are numbered in order of first use.
  void add_task(const Task& task) {
    hasher_.add(task.spec.value);
    hasher_.add(task.stream.value);
    hasher_.add(task.label.phase);
    hasher_.add(static_cast<uint64_t>(task.label.microbatch));
    hasher_.add(static_cast<uint64_t>(task.label.virtual_stage));
    hasher_.add(static_cast<uint64_t>(task.label.layer));
    hasher_.add(task.label.site.value);
    for (const BufferRange& range : program_.operands_of(task)) {
      hasher_.add(range.buffer.value);
      hasher_.add(static_cast<uint64_t>(range.begin));
      hasher_.add(static_cast<uint64_t>(range.end));
    }
  }

  const Program& program_;
  const CostModel& model_;
  WideHash& hasher_;
};

Outline outline_of(const RunSpec& run, int rank, const CostModel& model) {
  const ParameterLayout layout = make_rank_layout(run.model, run.mesh, rank, run.parallel);
  WideHash hasher;
  if (run.is_scheduled) {  // a rank follows the leading rank at its place
    hasher.add(static_cast<uint64_t>(run.mesh.position(rank).context));
  }
  for (const Program& program : build_programs(run, layout, rank, {.outline = true})) {
    ProgramHasher(program, model, hasher).run();
  }
  return hasher.value();
}

}  // namespace

FoldedRanks fold_ranks(const RunSpec& run, const std::vector<int>& ranks, const CostModel& model,
                       int num_threads) {
  std::vector<Outline> outlines(ranks.size());
  parallel_for(ranks.size(), num_threads,
               [&](size_t i) { outlines[i] = outline_of(run, ranks[i], model); });
  FoldedRanks folded;
  std::map<Outline, int> first_of;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto [first, is_new] = first_of.try_emplace(outlines[i], ranks[i]);
    if (is_new) {
      folded.planned.push_back(ranks[i]);
    } else {
      folded.stand_ins.push_back({.rank = ranks[i], .by = first->second});
    }
  }
  return folded;
}

}  // namespace braid
