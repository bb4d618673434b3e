#include "plan/unit_budgets.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "config/choices.h"
#include "memory/unit_pools.h"
#include "plan/unit_memory.h"

namespace braid {
namespace {

using FindUses = std::vector<UnitUse> (*)(const Program&);

/// The program whose units need most at one time.
struct Most {
  int64_t bytes = 0;
  const Program* program = nullptr;
};

Most most_of(const RunPlan& plan, FindUses find_uses) {
  Most most;
  for (const RankPlan& rank : plan.ranks) {
    for (size_t i = 0; !rank.no_buffers && i < rank.programs.size(); ++i) {
      const Program& program = rank.programs[i];
      const int64_t bytes = most_unit_bytes(program, find_uses(program));
      most = bytes > most.bytes ? Most{bytes, &program} : most;
    }
  }
  return most;
}

const Buffer& largest_of(const Program& program, const std::vector<UnitUse>& uses) {
  const UnitUse& largest = *std::ranges::max_element(uses, {}, [&](const UnitUse& use) {
    return program.buffers[use.buffer.index()].size_bytes();
  });
  return program.buffers[largest.buffer.index()];
}

struct Budget {
  std::string_view key;
  std::string_view pass;  ///< that keeps to it
  const std::string& value;
  std::string_view what;
  FindUses find_uses;
};

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

void check_budget(const RunPlan& plan, const Budget& budget) {
  const std::optional<int64_t> limit = parse_byte_size(budget.value);
  if (!limit || contains(plan.run.passes.disabled_passes, budget.pass) ||
      contains(plan.run.config.overlap.disable_passes, budget.pass)) {
    return;  // no budget, or one that is chosen later, or nothing that keeps to it
  }
  const Most most = most_of(plan, budget.find_uses);
  if (most.bytes <= *limit) {
    return;
  }
  const Buffer& largest = largest_of(*most.program, budget.find_uses(*most.program));
  throw_config_error(
      "memory.{} = {}: rank {} needs {} of {} at one time; the largest buffer is {} with {}; set "
      "memory.{} = \"{}\"",
      budget.key, quote(budget.value), most.program->rank, format_bytes(most.bytes), budget.what,
      largest.name, format_bytes(largest.size_bytes()), budget.key, budget_text(most.bytes));
}

}  // namespace

int64_t most_gathered_bytes(const RunPlan& plan) {
  return most_of(plan, gathered_weights).bytes;
}

int64_t most_gradient_bytes(const RunPlan& plan) {
  return most_of(plan, unreduced_gradients).bytes;
}

std::string budget_text(int64_t bytes) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return bytes < 8 * kMiB ? fmt::format("{}B", bytes)
                          : fmt::format("{}MiB", (bytes + kMiB - 1) / kMiB);
}

void check_budgets(const RunPlan& plan) {
  const MemoryConfig& memory = plan.run.config.memory;
  check_budget(plan, {"gather_budget", "prefetch_parameters", memory.gather_budget,
                      "gathered weights", gathered_weights});
  check_budget(plan, {"grad_budget", "overlap_grad_reduce", memory.grad_budget, "whole gradients",
                      unreduced_gradients});
}

}  // namespace braid
