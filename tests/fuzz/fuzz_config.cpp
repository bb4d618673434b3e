// Any bytes as a run file and as an override: a configuration that prints and reads back the same,
// or one of braid's errors.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "config/load.h"
#include "config/reference.h"
#include "config/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    // The first zero byte, if there is one, ends the file and begins an override.
    const size_t end = input.find('\0');
    std::vector<std::string> overrides;
    if (end != std::string_view::npos) {
      overrides.emplace_back(input.substr(end + 1));
    }
    const braid::RunConfig config = braid::parse_config(input.substr(0, end), "fuzz", overrides);
    if (braid::parse_config(braid::to_toml(config), "dump") != config) {
      std::abort();
    }
    braid::validate(config);
    static_cast<void>(braid::num_microbatches(braid::resolved(config)));
  } catch (const braid::InternalError&) {
    std::abort();  // a broken invariant of ours is a finding
  } catch (const braid::Error&) {
  }
  return 0;
}
