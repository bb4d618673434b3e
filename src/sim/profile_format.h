#pragma once

#include <array>
#include <cstdint>
#include <string_view>

/// Constants of the profile format, shared by reader and printer; docs/profiles.md explains it.
namespace braid {

inline constexpr std::string_view kProfileFormat = "braid profile";
inline constexpr int64_t kProfileVersion = 1;

inline constexpr int64_t kMaxNs = 1'000'000'000'000'000;  ///< eleven days
inline constexpr double kMaxSpread = 1e6;
inline constexpr double kMaxRate = 1e18;
inline constexpr double kMinSharedRate = 1e-3;
/// Limit of an integer attribute, so that products of a few of them and a shape do not overflow.
inline constexpr int64_t kMaxAttribute = int64_t{1} << 28;

/// The last two keys are optional.
inline constexpr std::array<std::string_view, 5> kContentionKeys = {
    "gemm_and_sm_comm", "memory_bound_and_sm_comm", "compute_and_copy_engine", "comm_sms",
    "compute_and_row_exchange"};
inline constexpr int64_t kMaxCommSms = 1024;

}  // namespace braid
