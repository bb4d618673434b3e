#include "calibrate/host_cpu.h"

#include <unistd.h>

#include <fstream>

#include "base/text.h"

namespace braid {

std::string host_cpu_info(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) {
      return std::string(trim(std::string_view(line).substr(line.find(':') + 1)));
    }
  }
  return "";
}

std::string host_cpu_name() {
  const std::string name = host_cpu_info("model name");
  return name.empty() ? "unknown CPU" : name;
}

int64_t host_cache_bytes() {
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<int64_t>(bytes) : int64_t{32} << 20;
}

}  // namespace braid
