#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

/// The measured fastest algorithm for each problem, kept on disk between runs. A key names
/// everything that the choice depends on (shapes, dtypes, layouts, device, library version); a
/// value identifies the algorithm for the library. Neither may contain tabs or line ends.
///
/// The file is `folder`/algorithms.txt: a format line, one line "key TAB value" per entry in order
/// of keys, a line with a checksum. A file that is missing, truncated or changed counts as empty
/// and the next `store` rewrites it: its content can always be measured again. Several processes
/// may share a folder: under a lock (`folder`/.lock), each adds its entries and replaces the file
/// atomically.
class AlgorithmCache {
 public:
  /// The first `store` creates `folder`. Empty: nothing is kept on disk.
  explicit AlgorithmCache(std::string folder);

  std::optional<std::string> find(std::string_view key) const;

  /// Stores the value and writes the file, including entries that other processes have written
  /// meanwhile. A file that cannot be written is not an error: the next run measures again.
  void store(const std::string& key, const std::string& value);

  size_t size() const { return entries_.size(); }
  /// Whether the last `store` wrote the file.
  bool is_saved() const { return is_saved_; }

 private:
  std::string folder_;
  std::map<std::string, std::string, std::less<>> entries_;
  bool is_saved_ = false;
  bool locks_answer_ = true;  // false: later stores do not wait for the lock
};

}  // namespace braid
