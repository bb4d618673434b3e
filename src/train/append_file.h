#pragma once

#include <string>
#include <string_view>

namespace braid {

/// A file that only grows; nothing is buffered, so a reader sees all that was appended, also after
/// this process was killed. Move-only. Throws DataError naming the path.
class AppendFile {
 public:
  enum class Existing { kAppend, kRefuse };

  /// Creates the file if it is missing. An existing one is continued, or refused: `is_open` is
  /// then false.
  AppendFile(std::string path, Existing existing);
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&&) = delete;
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  bool is_open() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }
  /// On an error a part of the bytes may be in the file.
  void append(std::string_view bytes);

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace braid
