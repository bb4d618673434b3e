#include "passes/gradients/prefetch_parameters.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "config/choices.h"
#include "ops/op.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline_options.h"
#include "passes/rearrange.h"

namespace braid {
namespace {

constexpr uint32_t kNone = BufferUses::kNone;

/// A gather, with places in program order.
struct Gather {
  uint32_t task = 0;
  BufferRange from;
  BufferId to;
  bool is_step_buffer = false;
  bool is_of_step = false;     ///< once for all jobs: of weights that are updated in parts
  uint32_t first_use = kNone;  ///< first other task that touches what is gathered
  uint32_t last_use = kNone;
  size_t group = 0;
};

/// Gathers in a row for one layer and job: of its FP8 copies, and of its other weights.
struct GatherGroup {
  size_t begin = 0;  ///< in the list of gathers
  uint32_t first_use = kNone;
  uint32_t last_use = 0;
};

/// Accesses of a buffer: positions of tasks, ascending.
class Accesses {
 public:
  explicit Accesses(const Program& program) : of_buffer_(program.buffers.size()) {
    for (uint32_t task = 0; task < program.tasks.size(); ++task) {
      const auto ranges = program.operands_of(program.tasks[task]);
      const auto& specs = program.spec(program.tasks[task]).operands;
      for (size_t i = 0; i < ranges.size(); ++i) {
        of_buffer_[ranges[i].buffer.index()].push_back({task, writes(specs[i].access)});
      }
    }
  }

  uint32_t first(BufferId buffer) const { return of_buffer_[buffer.index()].front().task; }
  uint32_t last(BufferId buffer) const { return of_buffer_[buffer.index()].back().task; }
  /// Position of the first access behind the task; kNone if there is none.
  uint32_t next(BufferId buffer, uint32_t task) const {
    const auto found = behind(buffer, task);
    return found == of_buffer_[buffer.index()].end() ? kNone : found->task;
  }
  /// Position of the last access in front of the task; kNone if there is none.
  uint32_t previous(BufferId buffer, uint32_t task) const {
    const std::vector<Access>& all = of_buffer_[buffer.index()];
    const auto found = std::ranges::lower_bound(all, task, {}, &Access::task);
    return found == all.begin() ? kNone : std::prev(found)->task;
  }
  /// Position of the last write in front of the task; kNone if there is none.
  uint32_t previous_write(BufferId buffer, uint32_t task) const {
    const std::vector<Access>& all = of_buffer_[buffer.index()];
    auto at = std::ranges::lower_bound(all, task, {}, &Access::task);
    while (at != all.begin()) {
      if (std::prev(at)->writes) {
        return std::prev(at)->task;
      }
      --at;
    }
    return kNone;
  }
  bool is_written_behind(BufferId buffer, uint32_t task) const {
    return std::any_of(behind(buffer, task), of_buffer_[buffer.index()].end(),
                       [](const Access& access) { return access.writes; });
  }

 private:
  struct Access {
    uint32_t task;
    bool writes;
  };

  std::vector<Access>::const_iterator behind(BufferId buffer, uint32_t task) const {
    return std::ranges::upper_bound(of_buffer_[buffer.index()], task, {}, &Access::task);
  }

  std::vector<std::vector<Access>> of_buffer_;
};

bool covers(const Program& program, const BufferRange& range) {
  return range.begin == 0 && range.end == program.buffers[range.buffer.index()].num_elems();
}

std::optional<Gather> gather_at(const Program& program, const Accesses& accesses, uint32_t task) {
  const Task& it = program.tasks[task];
  if (!communicates_as(program.spec(it), CommOp::kAllGather) || it.label.phase != Phase::kComm ||
      program.streams[it.stream.index()].kind != StreamKind::kCompute) {
    return std::nullopt;
  }
  const auto ranges = program.operands_of(it);
  const Buffer& to = program.buffers[ranges[1].buffer.index()];
  const bool is_step_buffer = to.role == BufferRole::kGathered && to.lifetime == Lifetime::kStep;
  const bool is_updated = to.role == BufferRole::kParam && to.lifetime == Lifetime::kPersistent;
  if (!(is_step_buffer || is_updated) || !covers(program, ranges[1])) {
    return std::nullopt;
  }
  Gather gather{.task = task,
                .from = ranges[0],
                .to = ranges[1].buffer,
                .is_step_buffer = is_step_buffer,
                .is_of_step = is_updated || it.label.microbatch < 0,
                .first_use = accesses.next(ranges[1].buffer, task)};
  gather.last_use = accesses.last(gather.to);
  const bool is_whole_life =
      accesses.first(gather.to) == task && !accesses.is_written_behind(gather.to, task);
  if (gather.first_use == kNone || (is_step_buffer && !is_whole_life)) {
    return std::nullopt;  // not used in this step, or the memory holds something else as well
  }
  return gather;
}

/// All gathers of the program, in order, without those that repeat one of the group before.
class Gathers {
 public:
  explicit Gathers(const Program& program) : program_(program), accesses_(program) {
    for (uint32_t task = 0; task < program.tasks.size(); ++task) {
      if (const auto gather = gather_at(program, accesses_, task)) {
        add(*gather);
      }
    }
  }

  const std::vector<Gather>& list() const { return list_; }
  const GatherGroup& group(size_t index) const { return groups_[index]; }
  const Accesses& accesses() const { return accesses_; }
  /// Gathers that are not needed: each with the buffer that already holds the same data.
  const std::vector<std::pair<Gather, BufferId>>& repeated() const { return repeated_; }

 private:
  void add(Gather gather) {
    const auto same = std::find_if(group_begin(), list_.end(),
                                   [&](const Gather& before) { return repeats(before, gather); });
    if (same != list_.end()) {
      same->last_use = gather.last_use;
      repeated_.emplace_back(gather, same->to);
    } else {
      if (begins_group(gather)) {
        groups_.push_back({.begin = list_.size()});
      }
      gather.group = groups_.size() - 1;
      list_.push_back(gather);
      groups_.back().first_use = std::min(groups_.back().first_use, gather.first_use);
    }
    groups_.back().last_use = std::max(groups_.back().last_use, gather.last_use);
  }

  std::vector<Gather>::iterator group_begin() {
    return groups_.empty() ? list_.end()
                           : list_.begin() + static_cast<ptrdiff_t>(groups_.back().begin);
  }

  /// Whether it is of another layer or job than the gathers before it.
  bool begins_group(const Gather& gather) {
    if (list_.empty()) {
      return true;
    }
    const Label& before = program_.tasks[list_.back().task].label;
    const Label& its = program_.tasks[gather.task].label;
    return its.layer < 0 || its.layer != before.layer || its.microbatch != before.microbatch ||
           its.virtual_stage != before.virtual_stage ||
           std::any_of(group_begin(), list_.end(),
                       [&](const Gather& other) { return other.from == gather.from; });
  }

  bool repeats(const Gather& before, const Gather& gather) const {
    const Task& a = program_.tasks[before.task];
    const Task& b = program_.tasks[gather.task];
    const uint32_t written = accesses_.previous_write(gather.from.buffer, gather.task);
    return before.is_step_buffer && gather.is_step_buffer && a.spec == b.spec &&
           before.from == gather.from && (written == kNone || written < before.task);
  }

  const Program& program_;
  Accesses accesses_;
  std::vector<Gather> list_;
  std::vector<GatherGroup> groups_;
  std::vector<std::pair<Gather, BufferId>> repeated_;
};

/// Drops gathers of data that is still in memory and redirects their readers to it.
Program without_repeated(const Program& program,
                         std::span<const std::pair<Gather, BufferId>> repeated) {
  std::vector<bool> drops(program.tasks.size());
  std::vector<BufferId> replacement(program.buffers.size());
  for (const auto& [gather, same] : repeated) {
    drops[gather.task] = true;
    replacement[gather.to.index()] = same;
  }
  std::vector<TaskId> kept;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    if (!drops[i]) {
      kept.emplace_back(i);
    }
  }
  Program result = select_tasks(program, kept);
  for (BufferRange& range : result.operands) {
    if (const BufferId same = replacement[range.buffer.index()]; same.valid()) {
      range.buffer = same;
    }
  }
  return result;
}

/// Where each gather starts: before the task at that position.
class Places {
 public:
  Places(const Gathers& gathers, const PrefetchParametersOptions& options)
      : gathers_(gathers), options_(options) {}

  std::vector<uint32_t> find() const {
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
  uint32_t wanted_place(size_t index) const {
    const Gather& gather = gathers_.list()[index];
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
  uint32_t first_possible(const Gather& gather) const {
    const Accesses& accesses = gathers_.accesses();
    uint32_t place = 0;
    for (const uint32_t before : {accesses.previous_write(gather.from.buffer, gather.task),
                                  accesses.previous(gather.to, gather.task)}) {
      place = before == kNone ? place : std::max(place, before + 1);
    }
    return place;
  }

  const Gathers& gathers_;
  const PrefetchParametersOptions& options_;
};

struct Arrangement {
  std::vector<TaskId> order;
  std::vector<HandOver> hand_overs;
  int64_t num_moved = 0;
};

Arrangement arrange(const Program& program, const Gathers& gathers,
                    std::span<const uint32_t> places) {
  Arrangement result;
  std::vector<bool> is_gather(program.tasks.size());
  for (const Gather& gather : gathers.list()) {
    is_gather[gather.task] = true;
  }
  size_t next = 0;
  for (uint32_t task = 0; task < program.tasks.size(); ++task) {
    for (; next < places.size() && places[next] == task; ++next) {
      const Gather& gather = gathers.list()[next];
      const Task& it = program.tasks[gather.task];
      if (gather.is_step_buffer) {
        result.hand_overs.push_back({gather.to, static_cast<uint32_t>(result.order.size()),
                                     it.stream, hand_over_label(program, task, it)});
      }
      result.order.emplace_back(gather.task);
    }
    if (!is_gather[task]) {
      result.order.emplace_back(task);
    }
  }
  for (uint32_t place = 0; place < result.order.size(); ++place) {
    const uint32_t task = result.order[place].value;
    result.num_moved += is_gather[task] && place < task ? 1 : 0;
  }
  return result;
}

void no_gather(OverlapConfig& overlap) {
  overlap.overlap_param_gather = false;
  overlap.overlap_param_gather_with_optimizer_step = false;
  overlap.align_param_gather = false;
  overlap.param_gather_prefetch_units = 1;
  overlap.param_gather_whole_units = 0;
}

OverlapChange gather(bool with_optimizer_step, bool aligned) {
  return [=](OverlapConfig& overlap) {
    overlap.overlap_param_gather = true;
    overlap.overlap_param_gather_with_optimizer_step = with_optimizer_step;
    overlap.align_param_gather = aligned;
  };
}

OverlapChange gather_ahead(int64_t units) {
  return [=](OverlapConfig& overlap) {
    if (overlap.overlap_param_gather) {
      overlap.param_gather_prefetch_units = units;
    }
  };
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
  std::vector<OverlapAxis> axes = {
      std::move(gathers),
      {"prefetch",
       {gather_ahead(1), gather_ahead(0), gather_ahead(2), gather_ahead(4)},
       AxisPlace::kGathers}};
  if (may_keep_units_whole(config)) {
    axes.push_back(whole_units_axis());
  }
  return axes;
}

}  // namespace

PassResult prefetch_parameters(Program program, const PrefetchParametersOptions& options) {
  const auto repeated = Gathers(program).repeated();
  if (!repeated.empty()) {
    program = without_repeated(program, repeated);
  }
  const Gathers gathers(program);
  const std::vector<uint32_t> places = Places(gathers, options).find();
  const Arrangement arrangement = arrange(program, gathers, places);
  const auto num_dropped = static_cast<int64_t>(repeated.size());
  const auto num_handed_over = static_cast<int64_t>(arrangement.hand_overs.size());
  const int64_t num_changes = std::max(arrangement.num_moved, num_handed_over) + num_dropped;
  std::string summary =
      fmt::format("started {} of {} parameter all-gathers early", arrangement.num_moved,
                  static_cast<int64_t>(gathers.list().size()) + num_dropped);
  if (num_dropped > 0) {
    summary += fmt::format(", removed {} whose parameters were still in memory", num_dropped);
  }
  if (num_changes > 0) {
    program = rearrange(program, arrangement.order, arrangement.hand_overs);
  }
  return {std::move(program), {num_changes > 0, num_changes, std::move(summary)}};
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
  return {.name = "prefetch_parameters",
          .summary =
              "Gathers sharded weights one or more units before they are used, so that the gather "
              "runs beside the compute of earlier units.",
          .run = run_of(prefetch_parameters, options),
          .only_overlaps = true,
          .keys = {"overlap.overlap_param_gather",
                   "overlap.overlap_param_gather_with_optimizer_step", "overlap.align_param_gather",
                   "overlap.param_gather_prefetch_units", "overlap.param_gather_whole_units"},
          .read_keys =
              [](const OverlapConfig& overlap, PipelineOptions& its) {
                its.of<PrefetchParametersOptions>() = {
                    .units = overlap.overlap_param_gather ? overlap.param_gather_prefetch_units : 0,
                    .aligns = overlap.align_param_gather};
              },
          .axes = gather_axes};
}

}  // namespace braid
