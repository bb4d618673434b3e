#pragma once

#include <cstdint>
#include <string>

namespace braid {

/// Bytes of memory that processes here may use together: the machine's, or less where a control
/// group (a container) is limited to less.
int64_t host_memory_bytes();

/// Where the system says how much memory there is; tests have folders of their own.
struct HostMemoryFiles {
  std::string meminfo = "/proc/meminfo";
  std::string cgroup = "/sys/fs/cgroup";  ///< control groups, version 2 or 1
};

/// Bytes that processes here can still take without swapping: what the kernel says is available, or
/// less where a control group (a container) is limited to less. What files occupy in memory counts
/// as free, since the system takes it back. The largest number there is if nothing is known.
int64_t free_host_bytes(const HostMemoryFiles& files = {});

/// The most that this process has had in memory so far.
int64_t peak_process_bytes();

}  // namespace braid
