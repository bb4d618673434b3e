#include "backends/cuda/algorithm_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "base/file.h"

namespace braid {
namespace {

constexpr std::string_view kFormatLine = "braid algorithms 1";
constexpr std::string_view kChecksumWord = "checksum ";
constexpr int64_t kMaxFileBytes = int64_t{64} << 20;

using Entries = std::map<std::string, std::string, std::less<>>;

// FNV-1a (Fowler, Noll, Vo): sufficient to detect a truncated or edited file.
uint64_t checksum_of(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  }
  return hash;
}

std::string file_in(const std::string& folder) {
  return folder + "/algorithms.txt";
}

std::string to_text(const Entries& entries) {
  std::string text(kFormatLine);
  text += '\n';
  for (const auto& [key, value] : entries) {
    text += fmt::format("{}\t{}\n", key, value);
  }
  return text + fmt::format("{}{:016x}\n", kChecksumWord, checksum_of(text));
}

/// nullopt unless the text is exactly what `to_text` writes.
std::optional<Entries> parse(std::string_view text) {
  const size_t checksum_at = text.rfind(kChecksumWord);
  if (checksum_at == std::string_view::npos || !text.starts_with(kFormatLine)) {
    return std::nullopt;
  }
  Entries entries;
  std::string_view lines = text.substr(0, checksum_at);
  lines.remove_prefix(std::min(lines.size(), kFormatLine.size() + 1));
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    const size_t tab = line.find('\t');
    if (tab == std::string_view::npos) {
      return std::nullopt;
    }
    entries.emplace(line.substr(0, tab), line.substr(tab + 1));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
  }
  return to_text(entries) == text ? std::optional(std::move(entries)) : std::nullopt;
}

Entries read_entries(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(file_in(folder), ignored)) {
    return {};
  }
  try {
    return parse(read_text_file(file_in(folder), kMaxFileBytes)).value_or(Entries{});
  } catch (const DataError&) {
    return {};
  }
}

bool is_one_field(std::string_view text) {
  return text.find_first_of("\t\n") == std::string_view::npos;
}

/// Excludes other writers between reading and replacing the file, for the lifetime of the object.
/// Several ranks store at once at the start of a run. After `patience` it continues without the
/// lock: a stopped process must not block others, and lost entries are measured again.
class WriterLock {
 public:
  WriterLock(const std::string& folder, std::chrono::milliseconds patience)
      : fd_(open_regular_file(folder + "/.lock", O_RDWR | O_CREAT)) {
    constexpr std::chrono::milliseconds kBetween{2};
    const auto until = std::chrono::steady_clock::now() + patience;
    while (!take() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(kBetween);
    }
  }
  ~WriterLock() {
    if (fd_ >= 0) {
      ::close(fd_);  // releases the lock
    }
  }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

  bool is_held() const { return is_held_; }

 private:
  bool take() {
    is_held_ = fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
    return is_held_;
  }

  int fd_;
  bool is_held_ = false;
};

}  // namespace

AlgorithmCache::AlgorithmCache(std::string folder) : folder_(std::move(folder)) {
  if (!folder_.empty()) {
    entries_ = read_entries(folder_);
  }
}

std::optional<std::string> AlgorithmCache::find(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? std::nullopt : std::optional(found->second);
}

void AlgorithmCache::store(const std::string& key, const std::string& value) {
  check(is_one_field(key) && is_one_field(value), "algorithm cache: \"{}\" has a tab or line end",
        key);
  entries_[key] = value;
  is_saved_ = false;
  if (folder_.empty()) {
    return;
  }
  try {
    std::filesystem::create_directories(folder_);
    constexpr std::chrono::milliseconds kPatience{3000};
    const WriterLock lock(folder_, locks_answer_ ? kPatience : std::chrono::milliseconds(0));
    locks_answer_ = lock.is_held();
    entries_.merge(read_entries(folder_));
    write_file_atomically(file_in(folder_), to_text(entries_));
    is_saved_ = true;
  } catch (const DataError&) {
  } catch (const std::filesystem::filesystem_error&) {
  }
}

}  // namespace braid
