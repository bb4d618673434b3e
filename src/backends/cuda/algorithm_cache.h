#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

/// Which algorithm was measured to be the fastest for a problem, kept on disk between runs. A key
/// names everything that the choice depends on (shapes, dtypes, layouts, device, library version);
/// a value is what the library needs to find the algorithm again. Neither may contain tabs or line
/// ends.
///
/// The file is `folder`/algorithms.txt: a format line, one line "key TAB value" per entry in order
/// of keys, a line with a checksum. A file that is missing, truncated or changed counts as empty
/// and is written anew by the next `store`: its content can always be measured again. Several
/// processes may share a folder: one after the other adds to the file and replaces it in one
/// instant (`folder`/.lock).
class AlgorithmCache {
 public:
  /// `folder` is created by the first `store`. Empty: nothing is kept on disk.
  explicit AlgorithmCache(std::string folder);

  std::optional<std::string> find(std::string_view key) const;

  /// Remembers the value and writes the file, together with what other processes have written to it
  /// since. A file that cannot be written is no error: the next run measures again.
  void store(const std::string& key, const std::string& value);

  size_t size() const { return entries_.size(); }
  /// Whether the last `store` reached the disk.
  bool is_saved() const { return is_saved_; }

 private:
  std::string folder_;
  std::map<std::string, std::string, std::less<>> entries_;
  bool is_saved_ = false;
  bool locks_answer_ = true;  // else no store waits again
};

}  // namespace braid
