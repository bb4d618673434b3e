#include "state/recorded_config.h"

#include <filesystem>
#include <system_error>

#include "base/text.h"
#include "config/load.h"
#include "data/tokenizer.h"
#include "state/adapted_state.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "folder";  // in CheckpointState::extra

/// As seen from the current folder.
std::string found_from(const fs::path& folder, const std::string& name) {
  std::error_code ignored;
  const fs::path there = folder / name;
  return fs::path(name).is_relative() && fs::exists(there, ignored) ? there.string() : name;
}

bool is_current(const fs::path& folder) {
  std::error_code ignored;
  return fs::equivalent(folder, fs::current_path(ignored), ignored);
}

}  // namespace

std::map<std::string, std::string> with_current_folder(std::map<std::string, std::string> extra) {
  std::error_code error;
  const std::string folder = fs::current_path(error).string();
  if (!error && printable(folder, 4 * folder.size()) == folder) {
    extra[kFolder] = folder;
  }
  return extra;
}

RunConfig recorded_config(const CheckpointState& state, std::string_view source_name) {
  RunConfig config = parse_config(state.config, source_name);
  const auto folder = state.extra.find(kFolder);
  if (folder == state.extra.end() || is_current(folder->second)) {
    return config;
  }
  if (is_tokenizer_file(config.data.tokenizer)) {
    config.data.tokenizer = found_from(folder->second, config.data.tokenizer);
  }
  if (!config.lora.base.empty() && config.lora.base != kInitialBase) {
    config.lora.base = found_from(folder->second, config.lora.base);
  }
  return config;
}

}  // namespace braid
