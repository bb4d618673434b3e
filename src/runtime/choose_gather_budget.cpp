#include "runtime/choose_gather_budget.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "config/choices.h"
#include "plan/run_plan.h"
#include "plan/unit_budgets.h"

namespace braid {
namespace {

/// 1 / kSpareParts of a memory stays free, as for `choose_recompute`.
constexpr int64_t kSpareParts = 128;
constexpr int kMaxTrials = 5;

/// A plan, and what the fullest memory has left for each rank that uses it.
struct Trial {
  RunPlan plan;
  MemoryUse fullest;
  int64_t left_bytes = 0;
};

int64_t num_sharing(const MemoryUse& use, const RunMemory& memory, const Mesh& mesh) {
  return use.rank                    ? 1
         : memory.host_ranks.empty() ? mesh.num_ranks()
                                     : std::ssize(memory.host_ranks);
}

Trial try_budget(const RunSpec& run, const std::string& budget, const RunMemory& memory) {
  RunConfig config = run.config;
  config.memory.gather_budget = budget;
  Trial trial{.plan = plan_run(resolve_again(run, config),
                               {.ranks = edge_ranks(run.mesh), .verify = false}),
              .fullest = {}};
  bool is_first = true;
  for (MemoryUse& use : memory_uses(trial.plan, memory)) {
    const int64_t free = use.free_bytes - use.free_bytes / kSpareParts;
    const int64_t left = (free - use.needs.bytes()) / num_sharing(use, memory, run.mesh);
    if (is_first || left < trial.left_bytes) {
      trial.left_bytes = left;
      trial.fullest = std::move(use);
      is_first = false;
    }
  }
  return trial;
}

/// What all units that a rank gathers take together: a larger budget changes nothing.
int64_t bytes_of_all_units(const RunPlan& plan) {
  int64_t most = 0;
  for (const RankPlan& rank : plan.ranks) {
    int64_t bytes = 0;
    for (const ParameterUnit& unit : rank.layout.units) {
      bytes += unit.num_elems * static_cast<int64_t>(dtype_bytes(plan.run.dtype)) +
               kBufferAlignmentBytes;
    }
    most = std::max(most, bytes);
  }
  return most;
}

/// The key's value with at most these bytes, in whole MiB where that loses little.
std::string rounded_down(int64_t bytes) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return budget_text(bytes < 64 * kMiB ? bytes : bytes / kMiB * kMiB);
}

}  // namespace

bool wants_auto_gather_budget(const RunConfig& config) {
  return config.memory.gather_budget == kAutoBudget;
}

RunSpec choose_gather_budget(const RunSpec& run, const RunMemory& memory,
                             const std::function<void(std::string_view)>& print) {
  if (!wants_auto_gather_budget(run.config)) {
    return run;
  }
  const Trial by_units = try_budget(run, "", memory);
  const int64_t least = most_gathered_bytes(by_units.plan);
  if (least == 0) {
    return by_units.plan.run;  // nothing is gathered
  }
  int64_t bytes = std::min(least + std::max<int64_t>(by_units.left_bytes, 0),
                           std::max(least, bytes_of_all_units(by_units.plan)));
  Trial trial = try_budget(run, rounded_down(bytes), memory);
  for (int i = 1; i < kMaxTrials && trial.left_bytes < 0 && bytes > least; ++i) {
    bytes = std::max(least, bytes + trial.left_bytes);
    trial = try_budget(run, budget_text(bytes), memory);
  }
  if (print) {
    print(fmt::format("gather budget {}: {} of {}; by units {} of gathered weights and {}\n",
                      trial.plan.run.config.memory.gather_budget,
                      format_bytes(trial.fullest.needs.bytes()),
                      format_bytes(trial.fullest.free_bytes), format_bytes(least),
                      format_bytes(by_units.fullest.needs.bytes())));
  }
  return trial.plan.run;
}

}  // namespace braid
