#include "passes/tensor/split_ops.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ir/dependencies.h"
#include "passes/analysis/cost_timeline.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline_options.h"
#include "passes/program_rewriter.h"
#include "passes/tensor/split_task.h"

namespace braid {
namespace {

using Item = CostTimeline::Item;
using Place = StepPrices::Place;

// Limits per wait, so that a pass over many waits stays near-linear.
constexpr int kMaxMoves = 4;
constexpr int kMaxTries = 8;      // tries per move
constexpr int64_t kMaxCuts = 64;  // cut places tried per item

/// Attention steps differ between context ranks, so prices differ too. The order of gradients, in
/// which ranks reduce them, would then differ.
bool has_context_ranks(const Program& program) {
  return std::ranges::any_of(program.groups, [](const Group& group) {
    return group.kind == GroupKind::kContext && group.ranks.size() > 1;
  });
}

/// By task: the first task that depends on it; the number of tasks if there is none.
std::vector<uint32_t> first_dependents(const DependencyGraph& dependencies, size_t num_tasks) {
  std::vector<uint32_t> first(num_tasks, static_cast<uint32_t>(num_tasks));
  for (uint32_t task = 0; task < num_tasks; ++task) {
    for (const TaskId earlier : dependencies.of(TaskId(task))) {
      first[earlier.index()] = std::min(first[earlier.index()], task);
    }
  }
  return first;
}

/// A cut of an item: the part that stays (empty if the whole item moves) and the part that moves.
struct Cut {
  SplitRange stays;
  SplitRange moves;
};

/// A cut of an item of the timeline, and how much earlier the waiting task starts.
struct Move {
  size_t item = 0;
  Cut cut;
  int64_t gain_ns = 0;
};

class Splitter {
 public:
  Splitter(const Program& program, const SplitOpsOptions& options, const CostModel& model)
      : program_(program),
        options_(options),
        dependencies_(build_dependencies(program)),
        first_dependent_(first_dependents(dependencies_, program.tasks.size())),
        prices_(program, model),
        timeline_(program, dependencies_, prices_),
        num_pieces_(program.tasks.size(), 1) {}

  void run() {
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      const StepPrices::Price& price = prices_.of(task);
      if (price.place == Place::kDevice) {
        fill_wait_of(task);
      }
      timeline_.push(task, {}, price.ns);
    }
  }

  int64_t num_cut() const {
    return std::ranges::count_if(num_pieces_, [](int64_t pieces) { return pieces > 1; });
  }
  int64_t num_moved() const { return num_moved_; }
  int64_t saved_ns() const { return saved_ns_; }

  Program result() const {
    ProgramRewriter writer(program_);
    for (const Item& item : timeline_.items()) {
      if (item.range.size() == 0) {
        writer.append(TaskId(item.task));
      } else {
        const TaskPiece piece = piece_of_task(program_, TaskId(item.task), item.range);
        append_piece(writer, program_, piece, program_.tasks[item.task]);
      }
    }
    return writer.take();
  }

 private:
  void fill_wait_of(uint32_t task) {
    for (int moves = 0; moves < kMaxMoves; ++moves) {
      const int64_t wait_ns = timeline_.start_ns(task) - timeline_.device_free_ns();
      if (wait_ns < options_.min_gain_ns) {
        return;
      }
      const Move best = best_move(task, wait_ns);
      if (best.gain_ns < options_.min_gain_ns) {
        return;
      }
      const Item& item = timeline_.items()[best.item];
      num_pieces_[item.task] += best.cut.stays.size() > 0 ? 1 : 0;
      ++num_moved_;
      saved_ns_ += best.gain_ns;
      rewrite(best.item, best.cut);
    }
  }

  /// Looks at the nearest items before the communication that the task waits for.
  Move best_move(uint32_t task, int64_t wait_ns) {
    const auto reach = static_cast<size_t>(options_.max_distance);
    const size_t size = timeline_.items().size();
    const uint32_t call = call_waited_for(task);
    Move best;
    bool is_in_front = false;
    int tries = 0;
    for (size_t i = size; i > size - std::min(size, reach) && tries < kMaxTries; --i) {
      const Item item = timeline_.items()[i - 1];
      if (is_in_front && may_move(item, task)) {
        ++tries;
        consider(i - 1, task, wait_ns, best);
        if (best.gain_ns >= wait_ns * 4 / 5) {
          return best;
        }
      }
      is_in_front = is_in_front || item.task == call;
    }
    return best;
  }

  /// The predecessor of the task that ends last. The device is free before that, so it is
  /// communication.
  uint32_t call_waited_for(uint32_t task) const {
    const auto producers = dependencies_.of(TaskId(task));
    const auto last = std::ranges::max_element(
        producers, {}, [&](TaskId producer) { return timeline_.done_ns(producer.value); });
    return last->value;
  }

  bool may_move(const Item& item, uint32_t past) const {
    const StepPrices::Price& price = prices_.of(item.task);
    return price.is_compute && first_dependent_[item.task] > past &&
           item.ns >= options_.min_gain_ns;
  }

  void consider(size_t index, uint32_t task, int64_t wait_ns, Move& best) {
    const Item item = timeline_.items()[index];
    const auto keep_better = [&](const Cut& cut) {
      const int64_t gain_ns = gain_of(index, cut, task);
      if (gain_ns > best.gain_ns) {
        best = {index, cut, gain_ns};
      }
    };
    keep_better({{}, item.range});
    if (best.item == index && best.gain_ns >= wait_ns) {
      return;
    }
    if (const std::optional<Cut> cut = cut_for(item, wait_ns)) {
      keep_better(*cut);
    }
  }

  /// The cut that leaves the least time before the wait; the moved part counts if it exceeds the
  /// wait.
  std::optional<Cut> cut_for(const Item& item, int64_t wait_ns) {
    const OpSpec& spec = program_.spec(program_.tasks[item.task]);
    const std::optional<SplitRule> rule = split_rule(spec);
    if (!rule || num_pieces_[item.task] >= options_.max_pieces) {
      return std::nullopt;
    }
    const int64_t room_ns = wait_ns * prices_.of(item.task).shared_rate / StepPrices::kFullRate;
    const SplitRange all = item.range.size() > 0 ? item.range : SplitRange{0, rule->count};
    const int64_t unit = std::lcm(rule->unit, options_.min_rows);
    const int64_t step = unit * std::max<int64_t>(1, all.size() / unit / kMaxCuts);
    std::optional<Cut> best;
    int64_t best_ns = 0;
    for (int64_t border = (all.begin / unit + 1) * unit; all.end - border >= options_.min_rows;
         border += step) {
      const Cut cut{{all.begin, border}, {border, all.end}};
      const int64_t over_ns =
          std::max<int64_t>(0, prices_.piece_ns(item.task, cut.moves) - room_ns);
      const int64_t gain_ns = item.ns - prices_.piece_ns(item.task, cut.stays) - over_ns;
      if (gain_ns >= best_ns && gain_ns > 0) {  // of equal cuts, prefer the one that moves least
        best = cut;
        best_ns = gain_ns;
      }
    }
    return best;
  }

  /// How much earlier the task would start. Restores the timeline.
  int64_t gain_of(size_t index, const Cut& cut, uint32_t task) {
    const int64_t before_ns = timeline_.start_ns(task);
    const std::vector<Item> old = rewrite(index, cut);
    const int64_t after_ns = timeline_.start_ns(task);
    timeline_.pop_to(index);
    for (const Item& item : old) {
      timeline_.push(item.task, item.range, item.ns);
    }
    return before_ns - after_ns;
  }

  /// Moves the item at `index`, or the cut part of it, to the end of the timeline. Returns the
  /// items that were there from `index` on.
  std::vector<Item> rewrite(size_t index, const Cut& cut) {
    std::vector<Item> old = timeline_.pop_to(index);
    const Item& whole = old.front();
    if (cut.stays.size() > 0) {
      timeline_.push(whole.task, cut.stays, prices_.piece_ns(whole.task, cut.stays));
    }
    for (size_t i = 1; i < old.size(); ++i) {
      timeline_.push(old[i].task, old[i].range, old[i].ns);
    }
    timeline_.push(whole.task, cut.moves,
                   cut.stays.size() > 0 ? prices_.piece_ns(whole.task, cut.moves) : whole.ns);
    return old;
  }

  const Program& program_;
  const SplitOpsOptions& options_;
  DependencyGraph dependencies_;
  std::vector<uint32_t> first_dependent_;
  StepPrices prices_;
  CostTimeline timeline_;
  std::vector<int64_t> num_pieces_;  // by task
  int64_t num_moved_ = 0;
  int64_t saved_ns_ = 0;
};

std::vector<OverlapAxis> split_axes(const RunConfig& config, const AxisLimits&) {
  const ParallelConfig& parallel = config.parallel;
  if (!config.overlap.may_change_rounding || parallel.tensor == 1 || parallel.context > 1) {
    return {};
  }
  return {{"split",
           {[](OverlapConfig& overlap) { overlap.split_ops = false; },
            [](OverlapConfig& overlap) { overlap.split_ops = overlap.tp_comm_overlap; }},
           AxisPlace::kSplits}};
}

}  // namespace

PassResult split_ops(Program program, const SplitOpsOptions& options, const PassContext& context) {
  check(options.min_rows >= 1 && options.max_pieces >= 1 && options.min_gain_ns >= 1,
        "split_ops needs positive limits");
  const char* const reason = !options.enabled                ? "not asked for"
                             : context.cost_model == nullptr ? "needs costs of tasks"
                             : has_context_ranks(program)
                                 ? "context ranks differ in what they compute"
                                 : nullptr;
  if (reason != nullptr) {
    return {std::move(program), {false, 0, reason}};
  }
  Splitter splitter(program, options, *context.cost_model);
  splitter.run();
  if (splitter.num_moved() == 0) {
    return {std::move(program), {false, 0, "no task gains by being cut or moved"}};
  }
  return {
      splitter.result(),
      {true, splitter.num_moved(),
       fmt::format("moved {} tasks into waits for communication, split {}; waits are {} us shorter",
                   splitter.num_moved(), splitter.num_cut(), splitter.saved_ns() / 1000)}};
}

Pass split_ops_pass(const PipelineOptions& options) {
  return {
      .name = "split_ops",
      .summary = "Splits tasks so that one part runs while a rank waits for tensor communication.",
      .run = run_of(split_ops, options),
      .changes_rounding = true,
      .only_overlaps = true,
      .needs_costs =
          "overlap.split_ops = true: needs the durations of tasks, but "
          "overlap.cost is empty; remove the key",
      .keys = {"overlap.split_ops", "overlap.tp_comm_overlap_min_rows"},
      .read_keys =
          [](const OverlapConfig& overlap, PipelineOptions& its) {
            its.of<SplitOpsOptions>() = {.enabled = overlap.split_ops,
                                         .min_rows = overlap.tp_comm_overlap_min_rows};
          },
      .is_wanted = [](const OverlapConfig& overlap) { return overlap.split_ops; },
      .axes = split_axes};
}

}  // namespace braid
