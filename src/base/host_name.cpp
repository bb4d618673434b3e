#include "base/host_name.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <fstream>

namespace braid {

std::string host_name() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  std::array<char, 256> name{};
  static_cast<void>(gethostname(name.data(), name.size() - 1));
  return fmt::format("{}/{}", boot.empty() ? "?" : boot, name.data());
}

}  // namespace braid
