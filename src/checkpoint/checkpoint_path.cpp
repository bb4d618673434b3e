#include "checkpoint/checkpoint_path.h"

#include <filesystem>

#include "base/errors.h"
#include "checkpoint/checkpoint.h"

namespace braid {

namespace fs = std::filesystem;

std::optional<std::string> checkpoint_at(const std::string& path) {
  if (fs::exists(path + "/state.json")) {
    return path;
  }
  for (const std::string& folder : {path, path + "/checkpoints"}) {
    if (!fs::is_directory(folder)) {
      continue;
    }
    if (const auto latest = find_latest_checkpoint(folder)) {
      return latest;
    }
  }
  return std::nullopt;
}

std::string hint_of_import(const std::string& path) {
  return fs::exists(path + "/config.json")
             ? fmt::format("; `braid import {} FOLDER` converts a Hugging Face folder", path)
             : "";
}

std::string find_checkpoint(const std::string& path) {
  const std::optional<std::string> found = checkpoint_at(path);
  if (!found) {
    throw_data_error(
        "'{}' is not a checkpoint, and neither it nor its folder checkpoints contains one{}", path,
        hint_of_import(path));
  }
  return *found;
}

}  // namespace braid
