#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/arrow/parquet_module.h"

namespace braid {

/// Whether a file is read as Parquet: *.parquet.
bool is_parquet(std::string_view path);

/// Opens a Parquet file by the module braid_parquet.so (data/arrow/parquet_module.h), which is
/// searched beside the program, where it is built or installed, and then where the loader looks.
/// Not thread-safe.
class ParquetFile {
 public:
  /// Throws DataError naming the path if this build has no such module, the file is missing or no
  /// Parquet file, or a column is missing or has no texts.
  ParquetFile(std::string path, const ParquetColumns& columns);

  /// False after the last row. Otherwise `text` is that of the next row, valid until the next call,
  /// or nothing if it is null. Throws DataError naming path and row if the file is damaged.
  bool next(std::optional<std::string_view>& text);

  const std::string& path() const { return path_; }
  /// On the disk.
  int64_t size_bytes() const { return size_bytes_; }
  /// Of these, the part that belongs to the rows so far, as if all had the same size.
  int64_t read_bytes() const;
  int64_t num_rows() const { return rows_->num_rows(); }
  /// Rows so far: the number of the last one, from 1 on.
  int64_t row() const { return row_; }
  /// Of the columns, before compression: about the bytes of their text.
  int64_t encoded_bytes() const { return rows_->encoded_bytes(); }

 private:
  std::string path_;
  int64_t size_bytes_ = 0;
  int64_t row_ = 0;
  std::unique_ptr<ParquetRows> rows_;
};

/// The library that reads Parquet, or how to get it.
std::string describe_parquet();

}  // namespace braid
