#pragma once

#include <cstdint>
#include <string>

namespace braid {

/// Memory that processes on this machine may use together: the machine's, or less if a control
/// group (a container) has a lower limit.
int64_t host_memory_bytes();

/// The system's files with memory sizes; tests use other folders.
struct HostMemoryFiles {
  std::string meminfo = "/proc/meminfo";
  std::string cgroup = "/sys/fs/cgroup";  ///< control groups, version 2 or 1
};

/// Bytes that processes can still allocate without swapping: the kernel's available memory, or less
/// if a control group (a container) has a lower limit. Memory used for file caches counts as free,
/// since the system reclaims it. INT64_MAX if nothing is known.
int64_t free_host_bytes(const HostMemoryFiles& files = {});

/// The peak memory of this process so far.
int64_t peak_process_bytes();

}  // namespace braid
