#pragma once

#include <cstdint>
#include <string>

namespace braid {

/// The value of the first line of /proc/cpuinfo with that key ("model name", "flags"); empty if
/// there is none.
std::string host_cpu_info(const std::string& key);

/// "AMD EPYC 9B45", or "unknown CPU".
std::string host_cpu_name();

/// Bytes of the last level of cache; 32 MiB if the system does not report it.
int64_t host_cache_bytes();

}  // namespace braid
