#include "plan/recompute_policies.h"

#include <algorithm>

#include "base/errors.h"

namespace braid {
namespace {

bool full_repeats_communication(const ParallelConfig& parallel) {
  const auto method = choice<ContextExchange>(parallel.context_method);
  const bool exchanges_heads = parallel.context > 1 && method != ContextExchange::kRing &&
                               method != ContextExchange::kAllGather;
  return parallel.tensor > 1 || parallel.expert * parallel.expert_tensor > 1 || exchanges_heads;
}

}  // namespace

Recompute recompute_policy(RecomputeChoice choice) {
  switch (choice) {
    case RecomputeChoice::kNorms:
      return Recompute::kNorms;
    case RecomputeChoice::kAttention:
      return Recompute::kAttention;
    case RecomputeChoice::kCompute:
      return Recompute::kCompute;
    case RecomputeChoice::kFull:
      return Recompute::kFull;
    case RecomputeChoice::kNone:
    case RecomputeChoice::kAuto:
      return Recompute::kNone;
  }
  throw_internal_error("no recompute policy");
}

std::vector<RecomputeChoice> recompute_policies(const ParallelConfig& parallel) {
  std::vector<RecomputeChoice> policies{RecomputeChoice::kNone, RecomputeChoice::kNorms,
                                        RecomputeChoice::kAttention};
  if (full_repeats_communication(parallel)) {
    policies.push_back(RecomputeChoice::kCompute);
  }
  policies.push_back(RecomputeChoice::kFull);
  return policies;
}

std::vector<RecomputeChoice> policies_beside(const std::vector<RecomputeChoice>& policies,
                                             RecomputeChoice policy) {
  std::vector<RecomputeChoice> beside;
  const auto at = std::ranges::lower_bound(policies, policy);
  if (at != policies.begin()) {
    beside.push_back(*(at - 1));
  }
  const auto after = std::ranges::upper_bound(policies, policy);
  if (after != policies.end()) {
    beside.push_back(*after);
  }
  return beside;
}

}  // namespace braid
