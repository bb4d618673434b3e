#include "plan/unit_memory.h"

#include <fmt/core.h>

#include <map>
#include <set>
#include <tuple>

#include "base/text.h"
#include "ops/op.h"

namespace braid {
namespace {

/// Numbers units and their buckets by the labels of the tasks that communicate them.
class UnitNumbers {
 public:
  explicit UnitNumbers(const Program& program) : program_(program) {}

  void add(BufferId buffer, const Label& label) {
    if (!seen_.insert(buffer.index()).second) {
      return;
    }
    // Layers are units; what lies outside of them is one per place.
    const std::pair place(label.layer, label.layer < 0 ? site(label) : "");
    const auto unit = static_cast<uint32_t>(units_.emplace(place, units_.size()).first->second);
    const Buffer& it = program_.buffers[buffer.index()];
    const std::tuple key(unit, site(label), it.dtype, it.num_elems());
    const auto bucket = static_cast<uint32_t>(buckets_.emplace(key, buckets_.size()).first->second);
    uses_.push_back({.buffer = buffer, .unit = unit, .bucket = bucket});
  }
  bool contains(BufferId buffer) const { return seen_.contains(buffer.index()); }
  std::vector<UnitUse> take() { return std::move(uses_); }

 private:
  std::string site(const Label& label) const {
    return label.site.valid() ? program_.sites[label.site.index()] : "";
  }

  const Program& program_;
  std::set<size_t> seen_;
  std::map<std::pair<int32_t, std::string>, size_t> units_;
  std::map<std::tuple<uint32_t, std::string, DType, int64_t>, size_t> buckets_;
  std::vector<UnitUse> uses_;
};

bool is_step_buffer(const Program& program, BufferId buffer, BufferRole role) {
  const Buffer& it = program.buffers[buffer.index()];
  return it.role == role && it.lifetime == Lifetime::kStep && it.placement == Placement::kDevice;
}

/// Calls `visit(label, buffer, writes)` for the step buffers of the role that the task touches.
template <class Visit>
void for_each_buffer(const Program& program, const Task& task, BufferRole role,
                     const Visit& visit) {
  const auto ranges = program.operands_of(task);
  const auto& specs = program.spec(task).operands;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (is_step_buffer(program, ranges[i].buffer, role)) {
      visit(ranges[i].buffer, writes(specs[i].access));
    }
  }
}

}  // namespace

std::vector<UnitUse> gathered_weights(const Program& program) {
  UnitNumbers numbers(program);
  for (const Task& task : program.tasks) {
    if (communicates_as(program.spec(task), CommOp::kAllGather)) {
      for_each_buffer(program, task, BufferRole::kGathered, [&](BufferId buffer, bool is_written) {
        if (is_written) {
          numbers.add(buffer, task.label);
        }
      });
    }
  }
  return numbers.take();
}

std::vector<UnitUse> unreduced_gradients(const Program& program) {
  UnitNumbers numbers(program);
  for (const Task& task : program.tasks) {
    if (communicates_as(program.spec(task), CommOp::kReduceScatter)) {
      for_each_buffer(program, task, BufferRole::kGrad, [&](BufferId buffer, bool is_written) {
        if (!is_written) {
          numbers.add(buffer, task.label);
        }
      });
    }
  }
  // What a reduction in another dtype reads is rounded from the gradient of the unit.
  for (const Task& task : program.tasks) {
    BufferId from;
    bool rounds = false;
    for_each_buffer(program, task, BufferRole::kGrad, [&](BufferId buffer, bool is_written) {
      rounds = rounds || (is_written && numbers.contains(buffer));
      from = is_written ? from : buffer;
    });
    if (rounds && from.valid()) {
      numbers.add(from, task.label);
    }
  }
  return numbers.take();
}

std::vector<UnitMemory> unit_memory(const Program& program) {
  std::vector<UnitMemory> found;
  const auto add = [&](std::string_view what, const std::vector<UnitUse>& uses) {
    if (!uses.empty()) {
      found.push_back({what, compare_unit_pools(program, uses)});
    }
  };
  add("gathered weights", gathered_weights(program));
  add("unreduced gradients", unreduced_gradients(program));
  return found;
}

std::string describe_unit_memory(const std::vector<UnitMemory>& memory) {
  std::string text;
  for (const auto& [what, pools] : memory) {
    text += fmt::format(
        "{} alone {} ({:.3f} x the bytes live at once); MaxPool {} ({} copies), a pool per kind "
        "{}, a buffer per unit {}\n",
        what, format_bytes(pools.planned_bytes),
        static_cast<double>(pools.planned_bytes) / static_cast<double>(pools.live_bytes),
        format_bytes(pools.max_pool_bytes), pools.max_pool_copies,
        format_bytes(pools.kind_pools_bytes), format_bytes(pools.own_bytes));
  }
  return text;
}

}  // namespace braid
