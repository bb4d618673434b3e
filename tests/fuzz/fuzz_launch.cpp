#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "base/text.h"
#include "launch/environment/find_launch.h"
#include "launch/environment/run_secret.h"

/// Lines "NAME=VALUE": the environment that a launcher leaves. Whatever is accepted must make
/// sense.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::map<std::string, std::string, std::less<>> variables;
  for (const std::string& line : braid::split_text(text, '\n')) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) {
      variables[line.substr(0, equals)] = line.substr(equals + 1);
    }
  }
  variables.erase(std::string(braid::kSecretFileVariable));  // files are not what is read here
  const braid::EnvLookup lookup = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  try {
    const std::optional<braid::Launch> launch = braid::find_launch(lookup);
    braid::describe_launch(launch);
    if (launch && (launch->process < 0 || launch->process >= launch->num_processes ||
                   launch->local_process < 0 || launch->num_processes < 2 || launch->host.empty() ||
                   launch->port < 1 || launch->port > 65535)) {
      __builtin_trap();
    }
  } catch (const braid::ConfigError&) {
  }
  return 0;
}
