#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace braid {

/// Measures the phases before the first step.
class SetupClock {
 public:
  using Now = std::function<int64_t()>;

  /// Starts the first phase. `now_ns` may have any origin; default: a steady clock.
  explicit SetupClock(Now now_ns = {});

  /// Ends the current phase under this name, and starts the next. Phases of one name add up.
  void end(std::string_view phase);

  /// The sum of all phases.
  double seconds() const;

  /// "setup    6.1 s: data 0.2, plan 0.4, kernels 1.1, weights 4.4": phases in the order of their
  /// first end, without "\n".
  std::string line() const;

 private:
  Now now_ns_;
  int64_t begin_ns_ = 0;                                 // of the current phase
  std::vector<std::pair<std::string, int64_t>> phases_;  // name, nanoseconds
};

}  // namespace braid
