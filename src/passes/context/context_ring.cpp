#include "passes/context/context_ring.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ir/dependencies.h"
#include "ops/offload.h"
#include "ops/op.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline_options.h"
#include "passes/rearrange.h"

namespace braid {
namespace {

constexpr uint32_t kNone = BufferUses::kNone;

/// A transfer x -> y of two whole step buffers.
struct Transfer {
  uint32_t task = 0;
  BufferId x;
  BufferId y;
};

/// Tasks that compute and touch a buffer, and all that write it: positions, ascending.
class Accesses {
 public:
  explicit Accesses(const Program& program)
      : computes_(program.buffers.size()), writes_(program.buffers.size()) {
    for (uint32_t task = 0; task < program.tasks.size(); ++task) {
      const Task& it = program.tasks[task];
      const bool computes = it.label.phase != Phase::kComm && !does_nothing(program.spec(it));
      const auto ranges = program.operands_of(it);
      for (size_t i = 0; i < ranges.size(); ++i) {
        if (computes) {
          computes_[ranges[i].buffer.index()].push_back(task);
        }
        if (writes(program.spec(it).operands[i].access)) {
          writes_[ranges[i].buffer.index()].push_back(task);
        }
      }
    }
  }

  /// First task behind that one that computes with the buffer; kNone if there is none.
  uint32_t next_compute(BufferId buffer, uint32_t task) const {
    const std::vector<uint32_t>& all = computes_[buffer.index()];
    const auto found = std::ranges::upper_bound(all, task);
    return found == all.end() ? kNone : *found;
  }
  /// Tasks that write the buffer, in front of that one.
  std::span<const uint32_t> writers_before(BufferId buffer, uint32_t task) const {
    const std::vector<uint32_t>& all = writes_[buffer.index()];
    return {all.begin(), std::ranges::lower_bound(all, task)};
  }
  size_t num_writers(BufferId buffer) const { return writes_[buffer.index()].size(); }

 private:
  std::vector<std::vector<uint32_t>> computes_;
  std::vector<std::vector<uint32_t>> writes_;
};

bool is_context_communication(const Program& program, const Task& task) {
  const std::optional<GroupId> group = group_of(program, program.spec(task));
  return task.label.phase == Phase::kComm && group &&
         program.groups[group->index()].kind == GroupKind::kContext;
}

bool communicates_in_context(const Program& program) {
  return std::ranges::any_of(
      program.tasks, [&](const Task& task) { return is_context_communication(program, task); });
}

PassReport report_of(int64_t num_changes, int64_t num_early, int64_t num_transfers) {
  return {num_changes > 0, num_changes,
          fmt::format("started {} of {} transfers between context ranks early", num_early,
                      num_transfers)};
}

/// Decides where transfers start and where memory changes hands.
class Planner {
 public:
  explicit Planner(const Program& program)
      : program_(program),
        dependencies_(build_dependencies(program)),
        accesses_(program),
        uses_(find_uses(program)),
        place_(program.tasks.size(), kNone),
        taken_(program.tasks.size()),
        released_(program.tasks.size()) {
    for (uint32_t task = 0; task < program.tasks.size(); ++task) {
      if (const auto transfer = transfer_at(task)) {
        plan(*transfer);
      }
    }
    for (uint32_t task = 0; task < place_.size(); ++task) {
      if (moves(task)) {
        moved_.push_back(task);
      }
    }
    std::ranges::stable_sort(moved_, {}, [&](uint32_t task) { return place_[task]; });
    write_order();
  }

  PassReport report() const {
    return report_of(std::ssize(moved_) + std::ssize(hand_overs_), num_early_, num_transfers_);
  }

  /// `program` is that of the constructor.
  Program arranged(Program program) const {
    return rearrange(std::move(program), order_, hand_overs_, dependencies_);
  }

 private:
  std::optional<Transfer> transfer_at(uint32_t task) {
    const Task& it = program_.tasks[task];
    if (!is_context_communication(program_, it) ||
        program_.streams[it.stream.index()].kind != StreamKind::kCompute) {
      return std::nullopt;
    }
    ++num_transfers_;
    const auto ranges = program_.operands_of(it);
    const auto& specs = program_.spec(it).operands;
    if (ranges.size() != 2 || specs[0].access != Access::kRead ||
        specs[1].access != Access::kWrite || !is_whole_step_buffer(ranges[0]) ||
        !is_whole_step_buffer(ranges[1]) || uses_.first[ranges[1].buffer.index()] != task ||
        accesses_.num_writers(ranges[1].buffer) != 1) {
      return std::nullopt;
    }
    return Transfer{task, ranges[0].buffer, ranges[1].buffer};
  }

  bool is_whole_step_buffer(const BufferRange& range) const {
    const Buffer& buffer = program_.buffers[range.buffer.index()];
    return buffer.lifetime == Lifetime::kStep && range.begin == 0 &&
           range.end == buffer.num_elems();
  }

  void plan(const Transfer& transfer) {
    const auto writers = accesses_.writers_before(transfer.x, transfer.task);
    const uint32_t used = accesses_.next_compute(transfer.y, transfer.task);
    if (writers.empty() || used == kNone) {
      return;
    }
    const uint32_t writer = writers.back();
    const bool is_shift =
        communicates_as(program_.spec(program_.tasks[transfer.task]), CommOp::kRingShift);
    if (writers.size() == 1 && is_packing(writer)) {
      start_with_packing(transfer, writer);
    } else if (is_shift) {
      const bool was_brought = is_context_communication(program_, program_.tasks[writer]);
      start(transfer.task, was_brought ? accesses_.next_compute(transfer.x, writer) : writer + 1);
    } else {
      return;
    }
    num_early_ += moves(transfer.task) ? 1 : 0;
    taken_[place_of(transfer.task)].push_back(transfer);
    give_back(transfer, used);
  }

  /// Returns the memory that a transfer has sent, before the first use of what it receives.
  void give_back(const Transfer& transfer, uint32_t used) {
    const bool is_last_use = uses_.last[transfer.x.index()] < used &&
                             std::ranges::none_of(released_[used], [&](const Transfer& other) {
                               return other.x == transfer.x;
                             });
    if (is_last_use) {
      released_[used].push_back(transfer);
    }
  }

  bool is_packing(uint32_t task) const {
    return has_role(program_.spec(program_.tasks[task]), OpRole::kPackKv);
  }

  /// In a backward, moves both before the two matrix products in front of the packing.
  void start_with_packing(const Transfer& transfer, uint32_t packing) {
    if (uses_.first[transfer.x.index()] == packing) {
      start(packing, place_before_matrix_products(packing));
    }
    start(transfer.task, std::max(place_of(packing), moves(packing) ? 0 : packing + 1));
  }

  uint32_t place_before_matrix_products(uint32_t packing) const {
    const Label& own = program_.tasks[packing].label;
    uint32_t place = packing;
    for (uint32_t task = packing, products = 0; task-- > 0 && products < 2;) {
      const Task& it = program_.tasks[task];
      const Label& label = it.label;
      if (label.microbatch != own.microbatch || label.virtual_stage != own.virtual_stage) {
        continue;  // gradient communication, or a job interleaved with this one
      }
      const bool is_of_layer = label.layer == own.layer && label.phase != Phase::kForward;
      if (!is_of_layer) {
        break;
      }
      const OpSpec& spec = program_.spec(it);
      if (has_role(spec, OpRole::kProductDgrad) || has_role(spec, OpRole::kProductWgrad)) {
        ++products;
        place = task;
      }
    }
    return place;
  }

  /// Moves the task to that place, or as near to it as its dependencies allow.
  void start(uint32_t task, uint32_t wanted) {
    uint32_t place = std::min(wanted, task);
    for (const TaskId earlier : dependencies_.of(TaskId(task))) {
      place = std::max(place, moves(earlier.value) ? place_[earlier.index()] : earlier.value + 1);
    }
    place_[task] = place;
  }

  bool moves(uint32_t task) const { return place_[task] != kNone && place_[task] < task; }
  uint32_t place_of(uint32_t task) const { return moves(task) ? place_[task] : task; }

  void write_order() {
    auto next = moved_.begin();
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      for (const Transfer& transfer : released_[task]) {
        hand_over(transfer.x, transfer, task);
      }
      for (const Transfer& transfer : taken_[task]) {
        hand_over(transfer.y, transfer, task);
      }
      for (; next != moved_.end() && place_[*next] == task; ++next) {
        order_.emplace_back(*next);
      }
      if (!moves(task)) {
        order_.emplace_back(task);
      }
    }
  }

  void hand_over(BufferId buffer, const Transfer& transfer, uint32_t place) {
    const Task& it = program_.tasks[transfer.task];
    hand_overs_.push_back({buffer, static_cast<uint32_t>(order_.size()), it.stream,
                           hand_over_label(program_, place, it)});
  }

  const Program& program_;
  DependencyGraph dependencies_;
  Accesses accesses_;
  BufferUses uses_;
  std::vector<uint32_t> place_;                  // by task: in front of which it is to start
  std::vector<std::vector<Transfer>> taken_;     // by task: y is handed over in front of it
  std::vector<std::vector<Transfer>> released_;  // by task: x comes back in front of it
  std::vector<uint32_t> moved_;
  std::vector<TaskId> order_;
  std::vector<HandOver> hand_overs_;
  int64_t num_transfers_ = 0;
  int64_t num_early_ = 0;
};

std::vector<OverlapAxis> context_axes(const RunConfig& config, const AxisLimits&) {
  if (config.parallel.context == 1) {
    return {};
  }
  return {{"context",
           {[](OverlapConfig& overlap) { overlap.overlap_context_comm = false; },
            [](OverlapConfig& overlap) { overlap.overlap_context_comm = true; }},
           AxisPlace::kContext}};
}

}  // namespace

PassResult context_ring(Program program) {
  if (!communicates_in_context(program)) {
    return {std::move(program), report_of(0, 0, 0)};
  }
  const Planner planner(program);
  PassReport report = planner.report();
  if (!report.changed) {
    return {std::move(program), std::move(report)};
  }
  return {planner.arranged(std::move(program)), std::move(report)};
}

Pass context_ring_pass() {
  return {.name = "context_ring",
          .summary =
              "Sends keys and values to the next context rank while attention reads those that "
              "have already arrived.",
          .run = run_of(context_ring),
          .only_overlaps = true,
          .keys = {"overlap.overlap_context_comm"},
          .is_wanted = [](const OverlapConfig& overlap) { return overlap.overlap_context_comm; },
          .axes = context_axes};
}

}  // namespace braid
