#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>

#include "config/run_config.h"

namespace braid {

/// Kinds of ranks that communicate with each other; the names of GroupKind (ir/program.h).
inline constexpr std::array<std::string_view, 6> kCommKindNames = {"data",    "tensor", "pipeline",
                                                                   "context", "expert", "world"};
/// NCCL's limit (NCCL_MAX_CTAS).
inline constexpr int64_t kMostCommSms = 64;
inline constexpr int64_t kMostSmMargin = 64;

/// The entries of overlap.comm_sms: by the kind of ranks, the most multiprocessors of a GPU that
/// kernels take for their communication. Throws ConfigError, naming the entry, for one that
/// is not KIND=NUMBER, an unknown kind, a number outside of 1 to kMostCommSms, and a kind that is
/// named twice.
std::map<std::string_view, int> comm_sms_by_kind(const OverlapConfig& overlap);

}  // namespace braid
