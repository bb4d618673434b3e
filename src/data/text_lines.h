#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/input_file.h"

namespace braid {

/// The lines of a UTF-8 text file, which may be compressed with gzip or zstd, read from front to
/// back. Memory: InputFile's, and that of the longest line. A byte order mark at the start of the
/// text belongs to no line.
class TextLines {
 public:
  /// `replaces_invalid`: as `replace_invalid_utf8`, instead of refusing the file. Throws DataError
  /// as the constructor of InputFile.
  explicit TextLines(std::string path, bool replaces_invalid = false);

  /// The next line with its line end; nullopt at the end of the file. Valid until the next call.
  /// Throws DataError naming path, line and byte if it is not UTF-8, and as InputFile::next.
  std::optional<std::string_view> next();

  const std::string& path() const { return file_.path(); }
  int64_t size_bytes() const { return file_.size_bytes(); }
  /// Of the last line, from 1 on.
  int64_t number() const { return number_; }
  /// Position in the file at which the last line ends; of a compressed file, how many of its bytes
  /// have been read.
  int64_t end_bytes() const { return file_.is_compressed() ? file_.read_bytes() : text_bytes_; }
  bool is_compressed() const { return file_.is_compressed(); }

 private:
  std::string_view take_line();
  std::string_view valid_utf8(std::string_view line);

  InputFile file_;
  std::string_view part_;  // of the file: not handed out yet
  std::string joined_;     // a line that goes over the end of a part
  bool replaces_invalid_;
  std::string replaced_;  // a line with U+FFFD in it
  int64_t number_ = 0;
  int64_t text_bytes_ = 0;  // up to the end of the last line, decompressed
};

}  // namespace braid
