#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "launch/launch.h"

namespace braid {

struct LocalLaunchOptions {
  int num_processes = 1;
  std::function<bool()> stop_requested;  ///< asked all the time; true once: they are asked to stop
  int64_t patience_ns = 13'000'000'000;  ///< from the first failure until the rest is killed
  std::function<void(std::string_view)> error;  ///< a line for standard error, without its end
};

/// Starts this program with its arguments once per rank on this host, each told by its environment
/// which one it is, and waits for all. Process 0 has this one's standard output and error; what the
/// others write to standard error comes out line by line with their ranks, what several say alike
/// once. A request to stop is passed on once. Where one fails, the others end by themselves (they
/// share a rendezvous) or are killed; all are killed when this process ends. Returns the exit
/// status of the first that failed (128 + the signal that ended it), or 0; 2 rather than 1, which
/// are those who end because one refused the configuration. Throws DeviceError if one cannot be
/// started.
int run_processes(const LocalLaunchOptions& options);

/// In a process that `run_processes` has started: from here on it ends with that. Throws
/// DeviceError if that has ended already.
void end_with_parent(const Launch& launch);

}  // namespace braid
