#pragma once

#include <string>
#include <string_view>

namespace braid {

/// A file that only grows. Nothing is buffered, so readers see all appended bytes, even after this
/// process was killed. Move-only. Throws DataError naming the path.
class AppendFile {
 public:
  enum class Existing { kAppend, kRefuse };

  /// Creates the file if it is missing. `existing` determines whether an existing file is continued
  /// or refused; if refused, `is_open` is false.
  AppendFile(std::string path, Existing existing);
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&&) = delete;
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  bool is_open() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }
  /// After an error the file may contain a part of the bytes.
  void append(std::string_view bytes);
  /// Makes what was appended durable: it is there after a loss of power.
  void sync();

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace braid
