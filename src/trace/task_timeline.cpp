#include "trace/task_timeline.h"

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/errors.h"
#include "ops/op.h"
#include "ops/routed_rows.h"
#include "trace/call_sequences.h"

namespace braid {
namespace {

/// "op site", the name of a task in timelines.
std::string short_name(const Program& program, const Task& task) {
  const std::string& op = program.spec(task).op;
  const SiteId site = task.label.site;
  return site.value < program.sites.size() ? op + " " + program.sites[site.index()] : op;
}

/// Facts that all tasks of one spec share. Those of experts are for equal loads.
struct SpecFacts {
  TimelineOp op;
  bool communication = false;
  int64_t comm_bytes = 0;
};

SpecFacts facts_of(const OpSpec& spec) {
  const OpCost cost = spec_cost(spec);
  return {
      .op = {.name = spec.op, .flops = cost.flops, .bytes = cost.bytes_read + cost.bytes_written},
      .communication = find_op(spec.op).op_class == OpClass::kCommunication,
      .comm_bytes = static_cast<int64_t>(cost.comm_bytes)};
}

TimelineTask timeline_task(const Program& program, const Task& task, const SpecFacts& facts,
                           const TaskTimes& times) {
  TimelineTask entry{.stream = task.stream.value,
                     .phase = task.label.phase,
                     .microbatch = task.label.microbatch,
                     .virtual_stage = task.label.virtual_stage,
                     .layer = task.label.layer,
                     .start_ns = times.start_ns,
                     .end_ns = times.end_ns};
  if (facts.communication) {
    const std::optional<GroupId> group = group_of(program, program.spec(task));
    check(group.has_value(), "{} communicates in none of the {} groups", facts.op.name,
          program.groups.size());
    entry.bytes = facts.comm_bytes;
    entry.group = program.groups[group->index()].kind;
    entry.communication = true;
  }
  return entry;
}

/// Numbers keys in the order in which they first appear.
template <class Key>
class Numbers {
 public:
  /// {number, whether the key is new}
  std::pair<uint32_t, bool> of(const Key& key) {
    const auto [entry, is_new] = numbers_.emplace(key, static_cast<uint32_t>(numbers_.size()));
    return {entry->second, is_new};
  }

 private:
  std::unordered_map<Key, uint32_t> numbers_;
};

/// Builds the timeline of one program; place_ holds the position of each task in the timeline.
class TimelineBuilder {
 public:
  explicit TimelineBuilder(const Program& program)
      : program_(program),
        rows_(program),
        calls_(program),
        place_(program.tasks.size(), TimelineKernel::kNoTask) {
    timeline_.rank = program.rank;
    timeline_.streams = program.streams;
    timeline_.sequences = calls_.sequences();
  }

  void add_tasks(std::span<const TaskTimes> times) {
    std::vector<std::vector<size_t>> of_stream(program_.streams.size());
    for (size_t i = 0; i < program_.tasks.size(); ++i) {
      if (times[i].start_ns >= 0) {
        of_stream[program_.tasks[i].stream.index()].push_back(i);
      }
    }
    for (const std::vector<size_t>& tasks : of_stream) {
      for (const size_t task : tasks) {
        place_[task] = static_cast<uint32_t>(timeline_.tasks.size());
        add_task(task, times[task]);
      }
    }
  }

  RankTimeline finish(std::vector<TimelineKernel> kernels) {
    for (TimelineKernel& kernel : kernels) {
      kernel.task = kernel.task < place_.size() ? place_[kernel.task] : TimelineKernel::kNoTask;
    }
    timeline_.kernels = std::move(kernels);
    return std::move(timeline_);
  }

 private:
  void add_task(size_t position, const TaskTimes& times) {
    const Task& task = program_.tasks[position];
    const std::string name = short_name(program_, task);
    const auto [name_index, is_new_name] = names_.of(name);
    if (is_new_name) {
      timeline_.names.push_back(name);
    }
    const auto [op_index, is_new_op] = ops_.of(task.spec.value);
    if (is_new_op) {
      facts_.push_back(facts_of(rows_.priced(program_.spec(task))));
      timeline_.ops.push_back(facts_.back().op);
    }
    TimelineTask entry = timeline_task(program_, task, facts_[op_index], times);
    entry.name = name_index;
    entry.op = op_index;
    entry.task = static_cast<uint32_t>(position);
    entry.sequence = calls_.of(position).sequence;
    entry.call = calls_.of(position).call;
    timeline_.tasks.push_back(entry);
  }

  const Program& program_;
  RoutedRows rows_;
  CallSequences calls_;
  std::vector<uint32_t> place_;
  Numbers<std::string> names_;
  Numbers<uint32_t> ops_;
  std::vector<SpecFacts> facts_;  // by number of op
  RankTimeline timeline_;
};

}  // namespace

RankTimeline task_timeline(const Program& program, std::span<const TaskTimes> times,
                           std::vector<TimelineKernel> kernels) {
  check(times.size() == program.tasks.size(), "program {} has {} tasks, but times of {}",
        program.name, program.tasks.size(), times.size());
  TimelineBuilder builder(program);
  builder.add_tasks(times);
  return builder.finish(std::move(kernels));
}

}  // namespace braid
