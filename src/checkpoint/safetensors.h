#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/checksum.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/shape.h"

/// Files of named tensors in the safetensors format: u64 little-endian header size N, N bytes of
/// JSON padded with spaces, then the tensors without holes, row-major, little-endian. Source:
/// github.com/huggingface/safetensors, README.md. Not supported: more than 5 dimensions; dtypes
/// that braid lacks (BOOL, I8, I16, U32, U64, ...).
namespace braid {

/// One tensor of a safetensors file.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  int64_t begin_bytes = 0;  ///< counted from the first byte after the header
  int64_t end_bytes = 0;

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

/// The content of the header.
struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
  int64_t data_begin_bytes = 0;  ///< counted from the start of the file
};

/// Parses and checks the header of a file of `file_bytes` bytes. `read(offset, out)` fills a span
/// with the bytes of the file from there on. Throws DataError naming `path` unless the header has a
/// possible size, is a JSON object without duplicate keys, and its tensors have known dtypes,
/// shapes that agree with their bytes, and cover the rest of the file without holes and overlaps.
SafetensorsHeader read_safetensors_header(
    int64_t file_bytes, const std::function<void(int64_t, std::span<std::byte>)>& read,
    std::string_view path);

/// A safetensors file, open. Immutable; any thread may read. A file that has become shorter is a
/// DataError of the call that reads.
class SafetensorsFile {
 public:
  /// Throws DataError as `read_safetensors_header` does, or if the file cannot be read.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  std::span<const TensorEntry> tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  bool contains(std::string_view name) const { return by_name_.contains(name); }
  /// Throws DataError if there is no such tensor.
  const TensorEntry& entry(std::string_view name) const;
  /// The tensor of that name. Throws DataError naming the file, expected and found if it is missing
  /// or of another dtype or shape.
  const TensorEntry& entry(std::string_view name, DType dtype, const Shape& shape) const;
  /// Of `num_bytes` bytes of a tensor, from `begin_bytes` on.
  SequentialReader reader(const TensorEntry& entry, int64_t begin_bytes, int64_t num_bytes) const;
  /// Of all bytes of a tensor.
  SequentialReader reader(const TensorEntry& entry) const {
    return reader(entry, 0, entry.end_bytes - entry.begin_bytes);
  }

  int64_t size_bytes() const { return file_.size_bytes(); }

 private:
  PieceFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> by_name_;  // views into header_
};

/// What a writer must know of each tensor before the first byte.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

/// Writes a safetensors file from front to back, so that only a part of the data need be in memory.
/// The file appears under its path at `finish`, complete and durable. Errors of the system are
/// DataErrors; bytes that do not fit the announced tensors are an InternalError.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::span<const TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata);

  /// Writes the next bytes of the tensors' data: in the announced order, in blocks of any size.
  void write(std::span<const std::byte> bytes);
  void finish();

  /// Of everything written so far, including the header.
  int64_t size_bytes() const { return file_.size_bytes(); }
  std::string checksum() const { return checksum_.hex(); }

 private:
  AtomicFile file_;
  Checksum checksum_;
  int64_t missing_bytes_ = 0;
};

}  // namespace braid
