#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/decompressor.h"

namespace braid {

/// The bytes of a file from front to back, decompressed if its first bytes are those of gzip or
/// zstd; the name does not count. Memory: SequentialReader's, twice, and the window of the
/// compressed stream. Not thread-safe.
class InputFile {
 public:
  /// Throws DataError if the file cannot be opened, or is compressed in a way that this build does
  /// not read.
  explicit InputFile(std::string path);

  /// The next bytes, valid until the next call; empty at the end. Throws DataError if the file
  /// cannot be read, has become shorter, or its compressed data are damaged or end too early;
  /// `line`, the last complete one so far, is for this message.
  std::span<const std::byte> next(int64_t line);

  const std::string& path() const { return file_.path(); }
  /// On the disk.
  int64_t size_bytes() const { return file_.size_bytes(); }
  /// Of these, how many have been read.
  int64_t read_bytes() const { return read_bytes_; }
  bool is_compressed() const { return decompressor_ != nullptr; }

 private:
  void refill();
  [[noreturn]] void throw_broken(int64_t line, const std::string& cause) const;

  PieceFile file_;
  SequentialReader reader_;
  Compression compression_ = Compression::kNone;
  std::unique_ptr<Decompressor> decompressor_;  // null: plain
  std::vector<std::byte> out_;
  std::span<const std::byte> in_;  // of the reader: not decompressed yet
  int64_t read_bytes_ = 0;
  bool at_end_ = false;  // of the file
};

/// The name without the extension of a compressed file: "a.jsonl" for "a.jsonl.gz".
std::string_view uncompressed_name(std::string_view path);

}  // namespace braid
