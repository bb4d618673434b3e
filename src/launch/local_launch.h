#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "launch/launch.h"

namespace braid {

struct LocalLaunchOptions {
  int num_processes = 1;
  std::function<bool()> stop_requested;  ///< polled; after the first true the processes are asked
                                         ///< to stop
  int64_t patience_ns = 5'000'000'000;   ///< time from the first failure until the other processes
                                         ///< are killed
  std::function<void(std::string_view)> error;  ///< receives a line for standard error, without
                                                ///< "\n"
};

/// Starts this program with its arguments once per rank on this host, with an environment that
/// tells each its rank, and waits for all. Process 0 inherits standard output and error. Standard
/// error of the others is printed line by line with their ranks, equal lines of several ranks once.
/// A request to stop is forwarded once. If one fails, the others end by themselves (they share a
/// rendezvous) or are killed; all are killed when this process ends. Returns the exit status of the
/// first that failed (128 + the signal that ended it), or 0. Prefers 2, a rejected configuration,
/// to 1, which the other processes then return. Throws DeviceError if a process cannot be started.
int run_processes(const LocalLaunchOptions& options);

/// For a process that `run_processes` has started: it will end when its parent ends. Throws
/// DeviceError if the parent has already ended.
void end_with_parent(const Launch& launch);

}  // namespace braid
