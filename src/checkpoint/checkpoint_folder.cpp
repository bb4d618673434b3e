#include "checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <new>
#include <optional>
#include <system_error>

#include "base/errors.h"
#include "base/file.h"
#include "base/file_operation.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step_";
constexpr size_t kMinDigits = 8;

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0
             ? std::optional(number)
             : std::nullopt;
}

std::optional<int64_t> parse_checkpoint_name(std::string_view name) {
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + kMinDigits) {
    return std::nullopt;
  }
  const std::optional<int64_t> step = parse_number(name.substr(kPrefix.size()));
  // Accepts only the canonical name of a step, so that no two folders have the same step.
  return step && checkpoint_name(*step) == name ? step : std::nullopt;
}

/// The process that made a transient name: ".step_00000100.tmp-PID-0", or "latest.PID-0.tmp",
/// AtomicFile's names.
std::optional<int64_t> maker_of(std::string_view name) {
  size_t begin = std::string_view::npos;
  if (name.starts_with(".")) {
    for (const std::string_view mark : {".tmp-", ".trash-"}) {
      const size_t found = name.rfind(mark);
      begin = found == std::string_view::npos ? begin : found + mark.size();
    }
  } else if (name.starts_with(kLatestFile) && name.ends_with(".tmp")) {
    begin = kLatestFile.size() + 1;
  }
  if (begin == std::string_view::npos || begin >= name.size()) {
    return std::nullopt;
  }
  return parse_number(name.substr(begin, name.find('-', begin) - begin));
}

bool is_running(int64_t process) {
  return ::kill(static_cast<pid_t>(process), 0) == 0 || errno != ESRCH;
}

[[noreturn]] void throw_folder_error(std::string_view verb, const std::string& path,
                                     const std::error_code& error) {
  throw_data_error("cannot {} '{}': {}", verb, path, error.message());
}

std::error_code last_error() {
  return {errno, std::generic_category()};
}

/// Names of everything in a folder; empty if there is no folder.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  const FileOperation reading("read of", folder);
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw_folder_error("read folder", folder, error);
  }
  return names;
}

/// Entry by entry: each is an operation, and all of them may take long.
void remove_entries(const std::string& folder) {
  std::error_code ignored;
  try {
    for (const std::string& name : names_in(folder)) {
      const std::string entry = fmt::format("{}/{}", folder, name);
      const FileOperation removing("removal of", entry);
      fs::remove_all(entry, ignored);
    }
  } catch (const DataError&) {  // not a folder
  }
}

/// The folders in which `create_directories` will make one, the deepest first.
std::vector<std::string> parents_of_missing(const std::string& path) {
  std::vector<std::string> parents;
  fs::path missing = fs::path(path).lexically_normal();
  missing = missing.has_filename() ? missing : missing.parent_path();
  while (!missing.empty() && !is_folder(missing.string())) {
    missing = missing.parent_path();
    parents.push_back(missing.empty() ? "." : missing.string());
  }
  return parents;
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  return fmt::format("{}{:0{}}", kPrefix, step, kMinDigits);
}

std::vector<CheckpointEntry> list_checkpoints(const std::string& folder) {
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : names_in(folder)) {
    const std::string path = fmt::format("{}/{}", folder, name);
    if (const std::optional<int64_t> step = parse_checkpoint_name(name); step && is_folder(path)) {
      entries.push_back({*step, path});
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step < b.step; });
  return entries;
}

std::string transient_path(const std::string& folder, const std::string& name,
                           std::string_view purpose) {
  std::string path;
  int attempt = 0;
  std::error_code ignored;
  do {
    path = fmt::format("{}/.{}.{}-{}-{}", folder, name, purpose, ::getpid(), attempt++);
  } while (fs::exists(path, ignored));
  return path;
}

void remove_leftovers(const std::string& folder) {
  for (const std::string& name : names_in(folder)) {
    const std::optional<int64_t> maker = maker_of(name);
    if (maker && (*maker == ::getpid() || !is_running(*maker))) {
      remove_folder(fmt::format("{}/{}", folder, name));
    }
  }
}

void make_folders(const std::string& path) {
  const std::vector<std::string> parents = parents_of_missing(path);
  const FileOperation making("creation of", path);
  std::error_code error;
  fs::create_directories(path, error);
  if (!error && !is_folder(path)) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (error) {
    throw_folder_error("make folder", path, error);
  }
  for (const std::string& parent : parents) {
    sync_directory(parent);
  }
}

void move_folder(const std::string& from, const std::string& to) {
  const FileOperation renaming("rename of", from);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw_folder_error("rename folder", from, last_error());
  }
}

void exchange_folders(const std::string& fresh, const std::string& path) {
  const FileOperation renaming("rename of", fresh);
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) {
    throw_folder_error("replace folder", path, last_error());
  }
  const std::string aside = fresh + "-old";
  move_folder(path, aside);
  move_folder(fresh, path);
  move_folder(aside, fresh);
}

void remove_folder(const std::string& path) noexcept {
  try {
    remove_entries(path);
    const FileOperation removing("removal of", path);
    std::error_code ignored;
    fs::remove_all(path, ignored);
  } catch (const std::bad_alloc&) {  // the next save removes it
  }
}

/// Without memory of the heap, which may have run out.
bool is_folder(const std::string& path) noexcept {
  const FileOperation looking("look at", path);
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace braid
