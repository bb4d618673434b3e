#include "data/input_paths.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "base/errors.h"
#include "data/input_file.h"
#include "data/parquet_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

bool is_input(const std::string& path) {
  const std::string_view name = uncompressed_name(path);
  return is_parquet(path) || name.ends_with(".txt") || name.ends_with(".jsonl") ||
         name.ends_with(".json");
}

std::vector<std::string> files_in(const std::string& folder, const std::string& option) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    const std::string path = at->path().string();
    if (is_hidden(at->path())) {
      at.disable_recursion_pending();
    } else if (at->is_regular_file() && is_input(path)) {
      files.push_back(path);
    }
  }
  if (error) {
    throw_config_error("{} {}: the folder cannot be read: {}", option, folder, error.message());
  }
  if (files.empty()) {
    throw_config_error(
        "{} {}: the folder has no file *.txt, *.jsonl, *.json or *.parquet, also none of the first "
        "three with .gz or .zst",
        option, folder);
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> files_like(const std::string& pattern, const std::string& option) {
  glob_t found = {};
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (result != 0 && result != GLOB_NOMATCH) {
    throw_config_error("{} {}: the pattern cannot be read", option, pattern);
  }
  std::erase_if(files, [](const std::string& path) { return !fs::is_regular_file(path); });
  if (files.empty()) {
    throw_config_error("{} {}: no file has a name like this", option, pattern);
  }
  std::sort(files.begin(), files.end());  // by bytes: independent of the locale
  return files;
}

std::vector<std::string> files_of(const std::string& input, const std::string& option) {
  if (fs::is_directory(input)) {
    return files_in(input, option);
  }
  const bool is_pattern = input.find_first_of("*?[") != std::string::npos && !fs::exists(input);
  return is_pattern ? files_like(input, option) : std::vector<std::string>{input};
}

}  // namespace

std::vector<std::string> expand_inputs(std::span<const std::string> inputs,
                                       const std::string& option) {
  std::vector<std::string> paths;
  std::set<std::string> seen;
  for (const std::string& input : inputs) {
    for (std::string& path : files_of(input, option)) {
      if (!seen.insert(fs::path(path).lexically_normal().string()).second) {
        throw_config_error("{} {}: '{}' is named twice, and its text would be there twice", option,
                           input, path);
      }
      paths.push_back(std::move(path));
    }
  }
  return paths;
}

std::string describe_inputs(std::span<const std::string> paths) {
  return paths.size() == 1 ? paths.front() : fmt::format("{} files", paths.size());
}

int64_t total_bytes(std::span<const std::string> paths) {
  int64_t bytes = 0;
  for (const std::string& path : paths) {
    bytes += PieceFile(path).size_bytes();
  }
  return bytes;
}

}  // namespace braid
