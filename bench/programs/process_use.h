#pragma once

#include <sys/resource.h>

#include <ctime>
#include <utility>

/// What a benchmark takes of the machine.
namespace braid {

/// Processor time, so that other load on the machine matters less.
class ProcessorClock {
 public:
  /// Seconds since the last lap.
  double lap() {
    const std::clock_t now = std::clock();
    return static_cast<double>(now - std::exchange(last_, now)) / CLOCKS_PER_SEC;
  }

 private:
  std::clock_t last_ = std::clock();
};

/// Most memory that this process has had so far.
inline double peak_gib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

}  // namespace braid
