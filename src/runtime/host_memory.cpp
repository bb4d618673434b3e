#include "runtime/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

namespace braid {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

/// The number in a file of the control group file system; nullopt if the file is missing or
/// contains "max".
std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t bytes = 0;
  return file >> bytes && bytes >= 0 ? std::optional(bytes) : std::nullopt;
}

/// The number after a name in a file of names and numbers.
std::optional<int64_t> entry_in(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    int64_t value = 0;
    if (word == name && file >> value) {
      return value;
    }
  }
  return std::nullopt;
}

/// Free bytes below the limit of a control group; `cached` names the entry of memory.stat for
/// files.
int64_t free_in_group(const std::string& folder, const std::string& limit, const std::string& used,
                      const std::string& cached) {
  const auto limit_bytes = number_in(folder + "/" + limit);
  const auto used_bytes = number_in(folder + "/" + used);
  if (!limit_bytes || !used_bytes) {
    return kUnknown;
  }
  const int64_t file_bytes = entry_in(folder + "/memory.stat", cached).value_or(0);
  return std::max<int64_t>(0, *limit_bytes - *used_bytes + std::min(file_bytes, *used_bytes));
}

}  // namespace

int64_t host_memory_bytes() {
  const HostMemoryFiles files;
  const int64_t physical = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return std::min({physical, number_in(files.cgroup + "/memory.max").value_or(kUnknown),
                   number_in(files.cgroup + "/memory/memory.limit_in_bytes").value_or(kUnknown)});
}

int64_t free_host_bytes(const HostMemoryFiles& files) {
  constexpr int64_t kKiB = 1024;
  const auto available_kib = entry_in(files.meminfo, "MemAvailable:");
  return std::min({available_kib ? *available_kib * kKiB : kUnknown,
                   free_in_group(files.cgroup, "memory.max", "memory.current", "file"),
                   free_in_group(files.cgroup + "/memory", "memory.limit_in_bytes",
                                 "memory.usage_in_bytes", "total_cache")});
}

int64_t peak_process_bytes() {
  constexpr int64_t kUnitBytes = 1024;  // of ru_maxrss, on Linux
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * kUnitBytes;
}

}  // namespace braid
