#pragma once

#include <map>

#include "config/run_config.h"
#include "ir/program.h"

namespace braid {

/// How many multiprocessors of a GPU communication and matrix products take from each other:
/// overlap.comm_sms and overlap.product_sm_margin.
struct SmBudget {
  std::map<GroupKind, int> comm_sms;  ///< at most, by the kind of group; others: NCCL chooses
  int product_margin = 0;             ///< that products leave free

  friend bool operator==(const SmBudget&, const SmBudget&) = default;
};

/// Throws ConfigError, naming the entry, for one that is not KIND=NUMBER, an unknown kind, a number
/// outside of 1 to kMostCommSms, and a kind that is named twice.
SmBudget sm_budget(const OverlapConfig& overlap);

/// NCCL's limit (NCCL_MAX_CTAS).
inline constexpr int64_t kMostCommSms = 64;
inline constexpr int64_t kMostSmMargin = 64;

}  // namespace braid
