#include "passes/pair_forward_backward.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ir/dependencies.h"
#include "passes/job_spans.h"
#include "passes/stage_messages.h"
#include "passes/tensor_sites.h"
#include "passes/weave.h"
#include "passes/weave_prices.h"

namespace braid {
namespace {

/// In percent: without a model, merges that do not alternate strictly must be better by this.
constexpr int64_t kRoughMargin = 10;

/// Tasks [begin, middle) and [middle, end) are the jobs.
struct Region {
  uint32_t begin = 0;
  uint32_t middle = 0;
  uint32_t end = 0;
};

using JobKey = std::pair<bool, uint64_t>;  // backward?, microbatch and virtual stage

JobKey key_of(const Job& job) {
  Label label;
  label.microbatch = job.microbatch;
  label.virtual_stage = job.virtual_stage;
  return {job.kind != JobKind::kForward, microbatch_key(label)};
}

/// Where the jobs of pairs are, as far as they are neighbours.
class Regions {
 public:
  explicit Regions(const Program& program) : program_(program), spans_(program) {
    for (uint32_t job = 0; job < spans_.jobs().size(); ++job) {
      const JobSpans::JobSpan& span = spans_.jobs()[job];
      positions_[{span.is_backward, microbatch_key(program.tasks[span.first].label)}] = job;
    }
  }

  std::optional<Region> find(const JobPair& pair) const {
    const auto first = positions_.find(key_of(pair.first));
    const auto second = positions_.find(key_of(pair.second));
    if (first == positions_.end() || second == positions_.end() ||
        second->second != first->second + 1) {
      return std::nullopt;
    }
    const auto& jobs = spans_.jobs();
    const Region region{jobs[first->second].begin, jobs[second->second].begin,
                        end_of(second->second)};
    const bool is_sound = region.begin < region.middle && region.middle < region.end;
    return is_sound ? std::optional(region) : std::nullopt;
  }

 private:
  /// The beginning of the next job, or behind the last task of any.
  uint32_t end_of(uint32_t job) const {
    if (job + 1 < spans_.jobs().size()) {
      return spans_.jobs()[job + 1].begin;
    }
    auto end = static_cast<uint32_t>(program_.tasks.size());
    while (spans_.job_of(end - 1) == JobSpans::kNone) {
      --end;
    }
    return end;
  }

  const Program& program_;
  JobSpans spans_;
  std::map<JobKey, uint32_t> positions_;  // in spans_.jobs()
};

class Weaver {
 public:
  Weaver(const Program& program, const PassContext& context)
      : dependencies_(build_dependencies(program)), prices_(program, context.cost_model) {
    for (size_t i = 0; i < program.tasks.size(); ++i) {
      order_.emplace_back(i);
    }
  }

  /// Says whether that gains anything.
  bool weave_region(const Region& region) {
    const Woven woven = weave(items_of(region), region.middle - region.begin,
                              prices_.are_rough() ? kRoughMargin : 0);
    for (uint32_t i = 0; i < woven.order.size(); ++i) {
      order_[region.begin + i] = TaskId(region.begin + woven.order[i]);
    }
    return woven.is_woven();
  }

  const std::vector<TaskId>& order() const { return order_; }

 private:
  std::vector<WeaveItem> items_of(const Region& region) {
    std::vector<WeaveItem> items(region.end - region.begin);
    for (uint32_t i = 0; i < items.size(); ++i) {
      const TaskId task(region.begin + i);
      items[i] = {.ns = prices_.ns(task), .channel = prices_.channel(task), .predecessors = {}};
      for (const TaskId earlier : dependencies_.of(task)) {
        if (earlier.value >= region.begin) {
          items[i].predecessors.push_back(earlier.value - region.begin);
        }
      }
    }
    return items;
  }

  DependencyGraph dependencies_;
  WeavePrices prices_;
  std::vector<TaskId> order_;
};

}  // namespace

PassResult pair_forward_backward(Program program, const PairForwardBackwardOptions& options,
                                 const PassContext& context) {
  if (options.pairs.empty()) {
    return {std::move(program), {false, 0, "there are no pairs"}};
  }
  const Regions regions(program);
  Weaver weaver(program, context);
  const int64_t num_woven = std::ranges::count_if(options.pairs, [&](const JobPair& pair) {
    const std::optional<Region> region = regions.find(pair);
    return region && weaver.weave_region(*region);
  });
  std::string summary = fmt::format("wove {} of {} pairs of jobs", num_woven, options.pairs.size());
  if (num_woven == 0) {
    return {std::move(program), {false, 0, std::move(summary)}};
  }
  program = reorder_tasks(program, weaver.order());
  move_tensor_communication(program, options.comm_priority);
  return {std::move(program), {true, num_woven, std::move(summary)}};
}

}  // namespace braid
