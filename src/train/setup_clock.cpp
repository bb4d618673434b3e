#include "train/setup_clock.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

namespace braid {
namespace {

int64_t steady_now_ns() {
  using std::chrono::nanoseconds;
  return std::chrono::duration_cast<nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double to_seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace

SetupClock::SetupClock(Now now_ns)
    : now_ns_(now_ns ? std::move(now_ns) : steady_now_ns), begin_ns_(now_ns_()) {}

void SetupClock::end(std::string_view phase) {
  const int64_t now_ns = now_ns_();
  const int64_t elapsed_ns = now_ns - begin_ns_;
  begin_ns_ = now_ns;
  const auto known = std::find_if(phases_.begin(), phases_.end(),
                                  [&](const auto& entry) { return entry.first == phase; });
  if (known == phases_.end()) {
    phases_.emplace_back(phase, elapsed_ns);
  } else {
    known->second += elapsed_ns;
  }
}

double SetupClock::seconds() const {
  int64_t total_ns = 0;
  for (const auto& [phase, ns] : phases_) {
    total_ns += ns;
  }
  return to_seconds(total_ns);
}

std::string SetupClock::line() const {
  std::string parts;
  for (const auto& [phase, ns] : phases_) {
    parts += fmt::format("{}{} {:.1f}", parts.empty() ? "" : ", ", phase, to_seconds(ns));
  }
  return fmt::format("setup    {:.1f} s: {}", seconds(), parts);
}

}  // namespace braid
