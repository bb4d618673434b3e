#include "passes/gradients/overlap_grad_reduce.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/text.h"
#include "ir/dependencies.h"
#include "memory/memory_plan.h"
#include "ops/offload.h"
#include "ops/op.h"
#include "passes/gradients/gradient_tasks.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline_options.h"
#include "passes/rearrange.h"

namespace braid {
namespace {

/// Which tasks move, and the slot of each task. Slot 0 is before all tasks that stay; slot i + 1
/// begins with task i. A task that stays has its own slot. A task that moves has the slot of the
/// last task that it depends on. A task that does nothing has the slot of the last task before it
/// that stays.
struct Slots {
  std::vector<bool> communicates;
  std::vector<bool> is_reduced;  // a gradient communication, or moves and depends on one
  std::vector<bool> moves;
  std::vector<uint32_t> of_task;
};

bool is_late_partial_sum(const Program& program, const Task& task,
                         const std::vector<bool>& carries_activations, bool follows_another) {
  const std::optional<GroupId> group = group_of(program, program.spec(task));
  return follows_another && group && carries_activations[group->index()];
}

GroupKind kind_of(const Program& program, const Task& task) {
  const std::optional<GroupId> group = group_of(program, program.spec(task));
  return group ? program.groups[group->index()].kind : GroupKind::kWorld;
}

Slots find_slots(const Program& program) {
  const DependencyGraph dependencies = build_dependencies(program);
  const std::vector<bool> carries_activations = groups_with_activations(program);
  const size_t num_tasks = program.tasks.size();
  Slots slots{std::vector<bool>(num_tasks), std::vector<bool>(num_tasks),
              std::vector<bool>(num_tasks), std::vector<uint32_t>(num_tasks)};
  uint32_t last_slot = 0;
  uint32_t last_message = 0;  // its slot
  for (size_t i = 0; i < num_tasks; ++i) {
    const Task& task = program.tasks[i];
    if (does_nothing(program.spec(task))) {
      slots.of_task[i] = last_slot;
      continue;
    }
    const bool communicates = communicates_gradients(program, task);
    bool moves = communicates || converts_gradients(program, task);
    // Between stages: the other stage may start only after this stage's last message has reached
    // it.
    const bool waits_for_stage = communicates && kind_of(program, task) == GroupKind::kPipeline;
    uint32_t slot = waits_for_stage ? last_message : 0;
    bool follows_another = false;
    if (moves) {
      for (const TaskId predecessor : dependencies.of(TaskId(i))) {
        slot = std::max(slot, slots.of_task[predecessor.index()]);
        follows_another = follows_another || slots.is_reduced[predecessor.index()];
      }
      slots.is_reduced[i] = communicates || follows_another;
      moves = !is_late_partial_sum(program, task, carries_activations, follows_another);
    }
    slots.communicates[i] = communicates;
    slots.moves[i] = moves;
    last_slot = moves ? last_slot : static_cast<uint32_t>(i) + 1;
    slots.of_task[i] = moves ? slot : last_slot;
    last_message = is_message(program.spec(task)) ? slots.of_task[i] : last_message;
  }
  return slots;
}

/// Stable counting sort of the tasks by slot. The task that stays is the first of its slot, because
/// those that move into it depend on it, directly or not, and so stand behind it.
std::vector<TaskId> order_by_slot(const std::vector<uint32_t>& slots) {
  std::vector<uint32_t> next(slots.size() + 2);
  for (const uint32_t slot : slots) {
    ++next[slot + 1];
  }
  for (size_t i = 1; i < next.size(); ++i) {
    next[i] += next[i - 1];
  }
  std::vector<TaskId> order(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    order[next[slots[i]]++] = TaskId(i);
  }
  return order;
}

bool is_norm(const Program& program, TaskId task) {
  return has_role(program.spec(program.tasks[task.index()]), OpRole::kGradientNorm);
}

/// Norms of gradients that stand side by side, in the order in which their gradients are reduced:
/// so the first ones run beside the last reductions. Returns how many change places.
int64_t sort_norms(const Program& program, std::vector<TaskId>& order) {
  const auto is_one = [&](TaskId task) { return is_norm(program, task); };
  const DependencyGraph dependencies = build_dependencies(program);
  std::vector<uint32_t> places(order.size());
  for (uint32_t place = 0; place < order.size(); ++place) {
    places[order[place].index()] = place;
  }
  const auto is_ready_at = [&](TaskId norm) {
    uint32_t last = 0;
    for (const TaskId earlier : dependencies.of(norm)) {
      last = std::max(last, places[earlier.index()]);
    }
    return last;
  };
  int64_t num_moved = 0;
  for (auto begin = std::ranges::find_if(order, is_one); begin != order.end();) {
    const auto end = std::find_if_not(begin, order.end(), is_one);
    const std::vector<TaskId> before(begin, end);
    std::ranges::stable_sort(begin, end, {}, is_ready_at);
    for (size_t i = 0; i < before.size(); ++i) {
      num_moved += before[i] == begin[static_cast<std::ptrdiff_t>(i)] ? 0 : 1;
    }
    begin = std::find_if(end, order.end(), is_one);
  }
  return num_moved;
}

struct MoveCounts {
  int64_t num_moved = 0;
  int64_t num_communications_moved = 0;
};

/// Counts the tasks that are not in their slot yet.
MoveCounts count_moves(const Slots& slots) {
  MoveCounts counts;
  uint32_t slot = 0;
  for (size_t i = 0; i < slots.of_task.size(); ++i) {
    if (!slots.moves[i]) {
      slot = slots.of_task[i];
    }
    const bool moved = slots.of_task[i] != slot;
    counts.num_moved += moved ? 1 : 0;
    counts.num_communications_moved += moved && slots.communicates[i] ? 1 : 0;
  }
  return counts;
}

/// The whole gradients that a compute stream writes and a communication reads. Each returns to
/// compute when the next one is reduced and another one begins. At the end of a step no gradient
/// begins and no task needs the memory, so these are kept until all are reduced.
class GivingBack {
 public:
  GivingBack(const Program& program, const Slots& slots, std::span<const TaskId> order)
      : program_(program),
        slots_(slots),
        order_(order),
        first_(program.buffers.size(), BufferUses::kNone),
        last_(program.buffers.size(), BufferUses::kNone),
        is_given_back_(program.buffers.size()) {
    for (uint32_t place = 0; place < order.size(); ++place) {
      for (const BufferRange& range : program.operands_of(task_at(place))) {
        first_[range.buffer.index()] = std::min(first_[range.buffer.index()], place);
        last_[range.buffer.index()] = place;
      }
    }
  }

  /// At most those of two units at a time.
  std::vector<HandOver> find() {
    const std::vector<std::vector<Reduction>> all = all_reductions();
    std::vector<uint32_t> begins;
    for (const std::vector<Reduction>& reductions : all) {
      begins.push_back(begin_of(reductions));
    }
    std::ranges::sort(begins);
    std::vector<HandOver> hand_overs;
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t next = std::min(i + 1, all.size() - 1);
      const uint32_t next_is_reduced = end_of_slot(all[next].front().place);
      const auto next_begin = std::ranges::lower_bound(begins, next_is_reduced);
      const bool is_last = next_begin == begins.end();
      const uint32_t position = is_last ? behind_norms(all.back().front().place) : *next_begin;
      for (const Reduction& reduction : all[i]) {
        // A sum over all microbatches that nothing follows ends with its reduction.
        if (!is_last || program_.buffers[reduction.gradient.index()].role == BufferRole::kGrad) {
          add(reduction, position, hand_overs);
        }
      }
    }
    return hand_overs;
  }

  /// At most `budget_bytes` of whole gradients at a time.
  std::vector<HandOver> find_within(int64_t budget_bytes) {
    const std::vector<std::vector<Reduction>> all = all_reductions();
    std::vector<HandOver> hand_overs;
    int64_t live_bytes = 0;
    size_t oldest = 0;  // of those that are not given back
    std::multimap<uint32_t, int64_t>
        others;  // behind their last use: gradients that no reduction reads
    const std::set<BufferId> reduced = gradients_of(all);
    for (const BufferId gradient : whole_gradients()) {
      const uint32_t begin = first_[gradient.index()];
      const int64_t bytes = aligned_bytes(program_.buffers[gradient.index()]);
      for (; !others.empty() && others.begin()->first <= begin; others.erase(others.begin())) {
        live_bytes -= others.begin()->second;
      }
      for (; live_bytes + bytes > budget_bytes && oldest < all.size() &&
             all[oldest].back().place < begin;
           ++oldest) {
        for (const Reduction& reduction : all[oldest]) {
          add(reduction, begin, hand_overs);
          live_bytes -= aligned_bytes(program_.buffers[reduction.gradient.index()]);
        }
      }
      live_bytes += bytes;
      if (!reduced.contains(gradient)) {
        others.emplace(last_[gradient.index()] + 1, bytes);
      }
    }
    for (; oldest < all.size(); ++oldest) {
      for (const Reduction& reduction : all[oldest]) {
        add(reduction, behind_norms(all.back().front().place), hand_overs);
      }
    }
    return hand_overs;
  }

 private:
  struct Reduction {
    BufferId gradient;
    uint32_t place;
  };

  /// By communication, or layer.
  std::vector<std::vector<Reduction>> all_reductions() const {
    std::vector<std::vector<Reduction>> all;
    for (uint32_t place = 0; place < order_.size(); ++place) {
      if (std::vector<Reduction> here = reductions_at(place); !here.empty()) {
        if (all.empty() || !is_of_same_layer(all.back(), here)) {
          all.emplace_back();
        }
        std::ranges::copy(here, std::back_inserter(all.back()));
      }
    }
    return all;
  }

  static std::set<BufferId> gradients_of(const std::vector<std::vector<Reduction>>& all) {
    std::set<BufferId> gradients;
    for (const std::vector<Reduction>& reductions : all) {
      for (const Reduction& reduction : reductions) {
        gradients.insert(reduction.gradient);
      }
    }
    return gradients;
  }

  /// The step buffers in which compute makes gradients, in the order in which they begin to live.
  std::vector<BufferId> whole_gradients() const {
    std::vector<BufferId> gradients;
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& buffer = program_.buffers[i];
      if (buffer.role == BufferRole::kGrad && buffer.lifetime == Lifetime::kStep &&
          first_[i] != BufferUses::kNone && !communicates_at(first_[i])) {
        gradients.emplace_back(i);
      }
    }
    std::ranges::stable_sort(gradients, {},
                             [&](BufferId gradient) { return first_[gradient.index()]; });
    return gradients;
  }

  const Task& task_at(uint32_t place) const { return program_.tasks[order_[place].index()]; }
  bool moves_at(uint32_t place) const { return slots_.moves[order_[place].index()]; }
  bool communicates_at(uint32_t place) const { return slots_.communicates[order_[place].index()]; }
  bool is_reduced_at(uint32_t place) const { return slots_.is_reduced[order_[place].index()]; }

  /// Whether `next` is another gradient of the layer of those before it: some of its weights may
  /// form a unit of their own.
  bool is_of_same_layer(const std::vector<Reduction>& before,
                        const std::vector<Reduction>& next) const {
    const Label& its = task_at(next.front().place).label;
    return its.layer >= 0 && std::ranges::all_of(before, [&](const Reduction& reduction) {
             const Label& other = task_at(reduction.place).label;
             return other.layer == its.layer && other.virtual_stage == its.virtual_stage &&
                    other.site != its.site;
           });
  }

  /// Where the first of the gradients begins to live.
  uint32_t begin_of(const std::vector<Reduction>& reductions) const {
    uint32_t begin = BufferUses::kNone;
    for (const Reduction& reduction : reductions) {
      begin = std::min(begin, first_[reduction.gradient.index()]);
    }
    return begin;
  }

  /// Behind the tasks that have moved to this place.
  uint32_t end_of_slot(uint32_t place) const {
    ++place;
    while (place < order_.size() && moves_at(place)) {
      ++place;
    }
    return place;
  }

  /// The place behind these tasks and the norms that follow, so that the first norms need not wait.
  uint32_t behind_norms(uint32_t place) const {
    uint32_t behind = end_of_slot(place);
    for (uint32_t later = behind; later < order_.size(); ++later) {
      behind = is_norm(program_, order_[later]) ? later + 1 : behind;
    }
    return behind;
  }

  /// The gradients that compute has made and that the communication at this place reads.
  std::vector<Reduction> reductions_at(uint32_t place) const {
    const Task& task = task_at(place);
    std::vector<Reduction> found;
    if (!moves_at(place) || !communicates_at(place) ||
        program_.streams[task.stream.index()].kind != StreamKind::kCompute) {
      return found;
    }
    for (const BufferRange& range : program_.operands_of(task)) {
      const Buffer& buffer = program_.buffers[range.buffer.index()];
      const bool is_gradient =
          buffer.role == BufferRole::kGrad || buffer.role == BufferRole::kMainGrad;
      // The sums of a shard group, which replicas reduce, are no whole gradients.
      if (is_gradient && buffer.lifetime == Lifetime::kStep &&
          !is_reduced_at(first_[range.buffer.index()])) {
        found.push_back({range.buffer, place});
      }
    }
    return found;
  }

  /// Adds nothing if another task uses the gradient later, or if it has been returned already.
  void add(const Reduction& reduction, uint32_t position, std::vector<HandOver>& hand_overs) {
    const size_t gradient = reduction.gradient.index();
    const uint32_t last = last_[gradient];
    const Task& reducer = task_at(reduction.place);
    if (!moves_at(last) || is_given_back_[gradient]) {
      return;
    }
    is_given_back_[gradient] = true;
    Label label = reducer.label;
    label.phase = Phase::kWgrad;
    hand_overs.push_back({reduction.gradient, std::max(position, last + 1), reducer.stream, label});
  }

  const Program& program_;
  const Slots& slots_;
  std::span<const TaskId> order_;
  std::vector<uint32_t> first_;  // by buffer: place of its first access
  std::vector<uint32_t> last_;
  std::vector<bool> is_given_back_;
};

std::string describe(int64_t num_moved, int64_t num_found, size_t num_given_back,
                     const OverlapGradReduceOptions& options) {
  std::string text = fmt::format("moved {} of {} gradient communications", num_moved, num_found);
  if (num_given_back > 0) {
    text += options.budget_bytes
                ? fmt::format(", kept {} full gradients as long as {} permit", num_given_back,
                              format_bytes(*options.budget_bytes))
                : fmt::format(", freed {} full gradients one unit later", num_given_back);
  }
  return text;
}

void no_grad_reduce(OverlapConfig& overlap) {
  overlap.overlap_grad_reduce = false;
  overlap.overlap_grad_reduce_delayed_wgrad_layers = 0;
}

std::vector<OverlapAxis> reduction_axes(const RunConfig& config, const AxisLimits&) {
  if (config.parallel.ranks == 1) {
    return {};
  }
  return {{"gradients",
           {no_grad_reduce, [](OverlapConfig& overlap) { overlap.overlap_grad_reduce = true; }},
           AxisPlace::kGradients}};
}

}  // namespace

PassResult overlap_grad_reduce(Program program, const OverlapGradReduceOptions& options) {
  const Slots slots = find_slots(program);
  std::vector<TaskId> order = order_by_slot(slots.of_task);
  const int64_t num_norms_moved = sort_norms(program, order);
  GivingBack giving_back(program, slots, order);
  const std::vector<HandOver> hand_overs =
      options.budget_bytes ? giving_back.find_within(*options.budget_bytes) : giving_back.find();
  const MoveCounts counts = count_moves(slots);
  const int64_t num_changes =
      counts.num_moved + num_norms_moved + static_cast<int64_t>(hand_overs.size());
  PassReport report{
      num_changes > 0, num_changes,
      describe(counts.num_communications_moved, std::ranges::count(slots.communicates, true),
               hand_overs.size(), options)};
  if (num_changes == 0) {
    return {std::move(program), std::move(report)};
  }
  return {rearrange(std::move(program), order, hand_overs), std::move(report)};
}

Pass overlap_grad_reduce_pass(const PipelineOptions& options) {
  return {.name = "overlap_grad_reduce",
          .summary =
              "Starts the communication of each gradient as soon as the gradient is ready, so "
              "that it runs beside the rest of the backward.",
          .run = run_of(overlap_grad_reduce, options),
          .only_overlaps = true,
          .keys = {"overlap.overlap_grad_reduce", "memory.grad_budget"},
          .is_wanted = [](const OverlapConfig& overlap) { return overlap.overlap_grad_reduce; },
          .axes = reduction_axes};
}

}  // namespace braid
