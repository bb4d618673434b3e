#include "passes/gradients/gather_tables_again.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <vector>

#include "memory/memory_plan.h"
#include "passes/gradients/parameter_gathers.h"
#include "passes/program_rewriter.h"

namespace braid {
namespace {

/// The most bytes of two units in a row of those that are gathered between two tasks; 0 if there
/// are less than two.
int64_t most_of_two_units(const ParameterGathers& gathers, uint32_t from, uint32_t to) {
  const std::vector<ParameterGather>& list = gathers.list();
  const auto begin = std::ranges::upper_bound(list, from, {}, &ParameterGather::task);
  const auto end = std::ranges::lower_bound(list, to, {}, &ParameterGather::task);
  if (begin >= end || begin->group == std::prev(end)->group) {
    return 0;
  }
  int64_t most = 0;
  for (size_t group = begin->group; group < std::prev(end)->group; ++group) {
    most = std::max(most, gathers.group(group).bytes + gathers.group(group + 1).bytes);
  }
  return most;
}

/// Gathers to add, by the task in front of which they stand.
using AddedGathers = std::multimap<uint32_t, const ParameterGather*>;

AddedGathers gathers_to_add(const Program& program, const ParameterGathers& gathers,
                            int64_t budget_bytes) {
  AddedGathers added;
  for (const ParameterGather& gather : gathers.list()) {
    const auto accesses = gathers.accesses().of(gather.to);
    for (size_t i = 1; gather.is_step_buffer && !gather.is_of_step && i < accesses.size(); ++i) {
      const int64_t others = most_of_two_units(gathers, accesses[i - 1].task, accesses[i].task);
      const int64_t bytes = aligned_bytes(program.buffers[gather.to.index()]);
      if (others > 0 && bytes + others > budget_bytes) {
        added.emplace(accesses[i].task, &gather);
      }
    }
  }
  return added;
}

/// Copies a program and gives the readers behind each added gather its buffer.
class AddGathers {
 public:
  AddGathers(const Program& program, const AddedGathers& added)
      : program_(program), added_(added), writer_(program), now_in_(program.buffers.size()) {}

  Program run() {
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      const auto [begin, end] = added_.equal_range(task);
      for (auto it = begin; it != end; ++it) {
        add(*it->second);
      }
      copy(program_.tasks[task]);
    }
    return writer_.take();
  }

 private:
  void add(const ParameterGather& gather) {
    Buffer again = program_.buffers[gather.to.index()];
    again.name += fmt::format(".again{}", ++num_added_);
    const BufferRange whole{writer_.add_buffer(again), 0, again.num_elems()};
    now_in_[gather.to.index()] = whole.buffer;
    const Task& first = program_.tasks[gather.task];
    writer_.append(program_.spec(first), std::array{gather.from, whole}, first);
  }

  void copy(const Task& task) {
    const auto operands = program_.operands_of(task);
    std::vector<BufferRange> ranges(operands.begin(), operands.end());
    for (BufferRange& range : ranges) {
      const BufferId now = now_in_[range.buffer.index()];
      range.buffer = now.valid() ? now : range.buffer;
    }
    writer_.append(program_.spec(task), ranges, task);
  }

  const Program& program_;
  const AddedGathers& added_;
  ProgramRewriter writer_;
  std::vector<BufferId> now_in_;  // by buffer: where its data is; not valid: where it was
  int64_t num_added_ = 0;
};

}  // namespace

std::pair<Program, int64_t> gather_tables_again(Program program, int64_t budget_bytes) {
  const ParameterGathers gathers(program);
  const AddedGathers added = gathers_to_add(program, gathers, budget_bytes);
  if (added.empty()) {
    return {std::move(program), 0};
  }
  return {AddGathers(program, added).run(), static_cast<int64_t>(added.size())};
}

}  // namespace braid
