#include "memory/lasting_buffers.h"

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "memory/assign_offsets.h"
#include "memory/live_ranges.h"

namespace braid {
namespace {

/// Adds buffers to the end of the arena of one program.
class ArenaExtension {
 public:
  ArenaExtension(const Program& program, StepPlan& step)
      : program_(program), step_(step), order_(program), ranges_(program, order_) {}

  void add(const std::vector<Lasting>& lasting) {
    std::map<DType, std::vector<int64_t>> sizes_by_dtype;
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& buffer = program_.buffers[i];
      if (lasting[i] == Lasting::kNot || !ranges_.is_used(i) ||
          buffer.placement == Placement::kHost) {
        continue;
      }
      if (lasting[i] == Lasting::kAlone) {
        place(i, aligned_bytes(buffer));
      } else {
        std::vector<int64_t>& sizes_bytes = sizes_by_dtype[buffer.dtype];
        sizes_bytes.resize(program_.buffers.size());
        sizes_bytes[i] = aligned_bytes(buffer);
      }
    }
    for (const auto& [dtype, sizes_bytes] : sizes_by_dtype) {
      place_together(sizes_bytes);
    }
  }

 private:
  void place(size_t buffer, int64_t num_bytes) {
    step_.offset_bytes[buffer] = step_.arena_bytes;
    step_.arena_bytes += num_bytes;
  }

  void place_together(const std::vector<int64_t>& sizes_bytes) {
    const Packing packing = assign_offsets(ranges_, sizes_bytes, /*lower_bound_bytes=*/0,
                                           /*budget_ns=*/0);
    for (size_t i = 0; i < sizes_bytes.size(); ++i) {
      if (sizes_bytes[i] > 0) {
        step_.offset_bytes[i] = step_.arena_bytes + packing.offset_bytes[i];
      }
    }
    step_.arena_bytes += packing.arena_bytes;
  }

  const Program& program_;
  StepPlan& step_;
  TaskOrder order_;
  LiveRanges ranges_;
};

}  // namespace

MemoryPlan with_lasting_buffers(const MemoryPlan& plan, std::span<const Program> programs,
                                std::span<const std::vector<Lasting>> lasting) {
  check(programs.size() == plan.programs.size() && lasting.size() == programs.size(),
        "{} programs, a plan of {}, and lasting buffers of {}", programs.size(),
        plan.programs.size(), lasting.size());
  MemoryPlan extended = plan;
  for (size_t i = 0; i < programs.size(); ++i) {
    check(lasting[i].size() == programs[i].buffers.size(), "{} buffers of {}, and {} that may last",
          programs[i].buffers.size(), programs[i].name, lasting[i].size());
    StepPlan& step = extended.programs[i];
    ArenaExtension(programs[i], step).add(lasting[i]);
    extended.step_bytes = std::max(extended.step_bytes, step.arena_bytes);
  }
  return extended;
}

}  // namespace braid
