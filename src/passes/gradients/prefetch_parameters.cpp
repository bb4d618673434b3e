#include "passes/gradients/prefetch_parameters.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "config/choices.h"
#include "memory/memory_plan.h"
#include "passes/gradients/gather_budget.h"
#include "passes/gradients/gather_tables_again.h"
#include "passes/gradients/parameter_gathers.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline_options.h"
#include "passes/rearrange.h"

namespace braid {
namespace {

/// Where each gather starts: before the task at that position.
class Places {
 public:
  Places(const ParameterGathers& gathers, const PrefetchParametersOptions& options)
      : gathers_(gathers), options_(options) {}

  /// By group of gathers.
  BudgetedPlaces within_budget() const {
    std::vector<BudgetedUnit> units;
    std::map<BufferId, size_t> last;  // by source: its last group
    for (size_t group = 0; group < gathers_.groups().size(); ++group) {
      units.push_back(unit_of(group));
      units.back().same = same_group(group, last);
      for (const ParameterGather& gather : gathers_.of_group(group)) {
        last[gather.from.buffer] = group;
      }
    }
    return place_within_budget(units, *options_.budget_bytes);
  }

  /// By gather that is not held: those of a group start together.
  std::vector<uint32_t> by_groups(std::span<const BudgetedPlace> groups) const {
    std::vector<uint32_t> places;
    for (const ParameterGather& gather : gathers_.list()) {
      if (groups[gather.group].held) {
        continue;
      }
      const uint32_t place = std::max(groups[gather.group].place, first_possible(gather));
      places.push_back(places.empty() ? place : std::max(place, places.back()));
      places.back() = std::min(places.back(), gather.task);
    }
    return places;
  }

  std::vector<uint32_t> by_units() const {
    std::vector<uint32_t> places;
    for (size_t i = 0; i < gathers_.list().size(); ++i) {
      const uint32_t wanted = wanted_place(i);
      const uint32_t place = std::max(wanted, first_possible(gathers_.list()[i]));
      // A communicator takes its calls in one order, so no gather starts before the previous one.
      places.push_back(places.empty() ? place : std::max(place, places.back()));
      places.back() = std::min(places.back(), gathers_.list()[i].task);
    }
    return places;
  }

 private:
  BudgetedUnit unit_of(size_t group) const {
    const size_t first = gathers_.group(group).begin;
    const ParameterGather& gather = gathers_.list()[first];
    const bool fills = gather.is_step_buffer && options_.fills_budget;
    const uint32_t wanted = fills ? 0 : wanted_place(first);
    return {.task = gather.task,
            .earliest = std::min(std::max(wanted, first_possible(gather)), gather.task),
            .end = gathers_.group(group).last_use + 1,
            .bytes = gathers_.group(group).bytes,
            .same = {}};
  }

  /// The last group before it, if its gathers are the same as those of this group.
  std::optional<size_t> same_group(size_t group, const std::map<BufferId, size_t>& last) const {
    const auto found = last.find(gathers_.of_group(group).front().from.buffer);
    const bool is_same =
        found != last.end() &&
        std::ranges::equal(gathers_.of_group(found->second), gathers_.of_group(group),
                           [&](const ParameterGather& before, const ParameterGather& gather) {
                             return gathers_.repeats(before, gather);
                           });
    return is_same ? std::optional(found->second) : std::nullopt;
  }

  uint32_t wanted_place(size_t index) const {
    const ParameterGather& gather = gathers_.list()[index];
    const auto distance = static_cast<size_t>(options_.units);
    if (gather.is_of_step && options_.aligns) {
      return 0;
    }
    if (distance == 0) {
      return gather.task;
    }
    if (gather.group <= distance) {
      return 0;
    }
    const GatherGroup& done = gathers_.group(gather.group - distance - 1);
    const uint32_t first_use = gathers_.group(gather.group).first_use;
    const bool takes_its_memory = gather.is_step_buffer && done.last_use < first_use;
    return takes_its_memory ? done.last_use + 1 : gathers_.group(gather.group - distance).first_use;
  }

  /// After the tasks that write the shard, and after those that access the destination.
  uint32_t first_possible(const ParameterGather& gather) const {
    const BufferAccesses& accesses = gathers_.accesses();
    const uint32_t start = gather.first_task();
    uint32_t place = 0;
    const auto stay_behind = [&](uint32_t before) {
      place = before == BufferAccesses::kNone ? place : std::max(place, before + 1);
    };
    stay_behind(accesses.previous_write(gather.from.buffer, start));
    stay_behind(accesses.previous(gather.to, start));
    if (gather.before) {
      stay_behind(accesses.previous_write(gather.parts, start));
      stay_behind(accesses.previous(gather.from.buffer, start));
    }
    return place;
  }

  const ParameterGathers& gathers_;
  const PrefetchParametersOptions& options_;
};

struct Arrangement {
  std::vector<TaskId> order;
  std::vector<HandOver> hand_overs;
  int64_t num_moved = 0;
};

Arrangement arrange(const Program& program, const ParameterGathers& gathers,
                    std::span<const uint32_t> places) {
  Arrangement result;
  std::vector<bool> is_gather(program.tasks.size());
  std::vector<bool> is_before_one(program.tasks.size());
  for (const ParameterGather& gather : gathers.list()) {
    is_gather[gather.task] = true;
    if (gather.before) {
      is_before_one[*gather.before] = true;
    }
  }
  size_t next = 0;
  for (uint32_t task = 0; task < program.tasks.size(); ++task) {
    for (; next < places.size() && places[next] == task; ++next) {
      const ParameterGather& gather = gathers.list()[next];
      const Task& it = program.tasks[gather.task];
      if (gather.is_step_buffer) {
        result.hand_overs.push_back({gather.to, static_cast<uint32_t>(result.order.size()),
                                     it.stream, hand_over_label(program, task, it)});
      }
      if (gather.before) {
        result.order.emplace_back(*gather.before);
      }
      result.order.emplace_back(gather.task);
    }
    if (!is_gather[task] && !is_before_one[task]) {
      result.order.emplace_back(task);
    }
  }
  for (uint32_t place = 0; place < result.order.size(); ++place) {
    const uint32_t task = result.order[place].value;
    result.num_moved += is_gather[task] && place < task ? 1 : 0;
  }
  return result;
}

/// What the pass did, for its summary.
struct Counts {
  int64_t num_gathers = 0;  ///< that are left
  int64_t num_moved = 0;
  int64_t num_dropped = 0;  ///< that were repeated in a row
  int64_t num_held = 0;     ///< whose data stays from an earlier use
  int64_t num_again = 0;    ///< of tables that do not stay
  int64_t planned_bytes = 0;
};

/// Places by bytes. Adds gathers of tables that do not stay to the program, and takes those out
/// that are not needed.
std::vector<uint32_t> place_by_bytes(Program& program, const PrefetchParametersOptions& options,
                                     Counts& counts) {
  auto [with_tables, num_again] = gather_tables_again(std::move(program), *options.budget_bytes);
  program = std::move(with_tables);
  counts.num_again = num_again;
  std::vector<std::pair<ParameterGather, BufferId>> held;
  std::vector<uint32_t> places;
  {
    const ParameterGathers gathers(program);
    const Places by_bytes(gathers, options);
    const BudgetedPlaces found = by_bytes.within_budget();
    counts.planned_bytes = found.planned_bytes;
    for (size_t group = 0; group < found.places.size(); ++group) {
      if (const std::optional<size_t> owner = found.places[group].held) {
        for (size_t i = 0; i < gathers.of_group(group).size(); ++i) {
          held.emplace_back(gathers.of_group(group)[i], gathers.of_group(*owner)[i].to);
        }
      }
    }
    places = by_bytes.by_groups(found.places);
  }
  for (uint32_t& place : places) {  // behind those that are taken out
    place -= static_cast<uint32_t>(
        std::ranges::lower_bound(held, place, {}, [](const auto& out) { return out.first.task; }) -
        held.begin());
  }
  counts.num_held = std::ssize(held);
  if (!held.empty()) {
    program = without_gathers(program, held);
  }
  check(ParameterGathers(program).list().size() == places.size(),
        "gathers that are not held are gone");
  return places;
}

std::string describe(const Counts& counts, const PrefetchParametersOptions& options) {
  std::string text = fmt::format("started {} of {} parameter all-gathers early", counts.num_moved,
                                 counts.num_gathers + counts.num_dropped + counts.num_held);
  if (options.budget_bytes) {
    text += fmt::format(", in {} of {}", format_bytes(counts.planned_bytes),
                        format_bytes(*options.budget_bytes));
  }
  if (const int64_t removed = counts.num_dropped + counts.num_held; removed > 0) {
    text += fmt::format(", removed {} whose parameters were still in memory", removed);
  }
  if (counts.num_again > 0) {
    text += fmt::format(", gathered {} tables again instead of holding them", counts.num_again);
  }
  return text;
}

void no_gather(OverlapConfig& overlap) {
  overlap.overlap_param_gather = false;
  overlap.overlap_param_gather_with_optimizer_step = false;
  overlap.align_param_gather = false;
  overlap.param_gather_prefetch_units = 1;
  overlap.param_gather_fills_budget = true;
  overlap.param_gather_whole_units = 0;
}

OverlapChange gather(bool with_optimizer_step, bool aligned) {
  return [=](OverlapConfig& overlap) {
    overlap.overlap_param_gather = true;
    overlap.overlap_param_gather_with_optimizer_step = with_optimizer_step;
    overlap.align_param_gather = aligned;
  };
}

OverlapChange gather_ahead(int64_t units, bool fills_budget) {
  return [=](OverlapConfig& overlap) {
    if (overlap.overlap_param_gather) {
      overlap.param_gather_prefetch_units = units;
      overlap.param_gather_fills_budget = fills_budget;
    }
  };
}

/// How far ahead: with a budget, also as far as it permits.
OverlapAxis prefetch_axis(const RunConfig& config) {
  const bool has_budget = !config.memory.gather_budget.empty();
  OverlapAxis axis{"prefetch", {}, AxisPlace::kGathers};
  for (const int64_t units : {1, 0, 2, 4}) {
    axis.choices.push_back(gather_ahead(units, /*fills_budget=*/!has_budget));
  }
  if (has_budget) {
    axis.choices.push_back(gather_ahead(1, /*fills_budget=*/true));
  }
  return axis;
}

std::vector<OverlapAxis> gather_axes(const RunConfig& config, const AxisLimits&) {
  const ParallelConfig& parallel = config.parallel;
  const auto shard = choice<ShardKind>(parallel.shard);
  if (parallel.data * parallel.context == 1 || shard == ShardKind::kNone) {
    return {};
  }
  OverlapAxis gathers{"gathers", {no_gather, gather(false, false)}, AxisPlace::kGathers};
  if (shard != ShardKind::kParameters) {
    for (const auto& [with_step, aligned] : {std::pair{true, false}, {false, true}, {true, true}}) {
      gathers.choices.push_back(gather(with_step, aligned));
    }
  }
  std::vector<OverlapAxis> axes = {std::move(gathers), prefetch_axis(config)};
  if (may_keep_units_whole(config)) {
    axes.push_back(whole_units_axis());
  }
  return axes;
}

}  // namespace

PassResult prefetch_parameters(Program program, const PrefetchParametersOptions& options) {
  const auto repeated = ParameterGathers(program).repeated();
  if (!repeated.empty()) {
    program = without_gathers(program, repeated);
  }
  Counts counts{.num_dropped = static_cast<int64_t>(repeated.size())};
  std::vector<uint32_t> places;
  if (options.budget_bytes) {
    places = place_by_bytes(program, options, counts);
  } else {
    places = Places(ParameterGathers(program), options).by_units();
  }
  const ParameterGathers gathers(program);
  const Arrangement arrangement = arrange(program, gathers, places);
  counts.num_moved = arrangement.num_moved;
  counts.num_gathers = std::ssize(gathers.list());
  const auto num_handed_over = static_cast<int64_t>(arrangement.hand_overs.size());
  const int64_t num_changes = std::max(arrangement.num_moved, num_handed_over) +
                              counts.num_dropped + counts.num_held + counts.num_again;
  if (num_changes > 0) {
    program = rearrange(std::move(program), arrangement.order, arrangement.hand_overs);
  }
  return {std::move(program), {num_changes > 0, num_changes, describe(counts, options)}};
}

bool may_keep_units_whole(const RunConfig& config) {
  return choice<ShardKind>(config.parallel.shard) == ShardKind::kParameters &&
         config.parallel.data * config.parallel.context > 1 && config.memory.recompute_layers == 0;
}

OverlapAxis whole_units_axis() {
  OverlapAxis axis{"whole units", {}, AxisPlace::kGathers};
  for (const int64_t units : {0, 1, 2}) {
    axis.choices.push_back([units](OverlapConfig& overlap) {
      overlap.param_gather_whole_units = overlap.overlap_param_gather ? units : 0;
    });
  }
  return axis;
}

// Gathers that stay at their use still move to a stream of their own, which gradients also need:
// both are calls of one communicator. So no key turns the pass off.
Pass prefetch_parameters_pass(const PipelineOptions& options) {
  return {
      .name = "prefetch_parameters",
      .summary =
          "Gathers sharded weights one or more units before they are used, so that the gather "
          "runs beside the compute of earlier units.",
      .run = run_of(prefetch_parameters, options),
      .only_overlaps = true,
      .keys = {"overlap.overlap_param_gather", "overlap.overlap_param_gather_with_optimizer_step",
               "overlap.align_param_gather", "overlap.param_gather_prefetch_units",
               "overlap.param_gather_fills_budget", "overlap.param_gather_whole_units",
               "memory.gather_budget"},
      .read_keys =
          [](const OverlapConfig& overlap, PipelineOptions& its) {
            its.of<PrefetchParametersOptions>() = {
                .units = overlap.overlap_param_gather ? overlap.param_gather_prefetch_units : 0,
                .aligns = overlap.align_param_gather,
                .fills_budget = overlap.overlap_param_gather && overlap.param_gather_fills_budget};
          },
      .axes = gather_axes};
}

}  // namespace braid
