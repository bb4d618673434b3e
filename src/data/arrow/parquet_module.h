#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What braid_parquet.so gives the program. Apache Arrow's libraries have 60 MB, and each start of
/// a program that links them takes longer, so only this module links them, and it is loaded where a
/// Parquet file is read. It links nothing of braid; both sides are compiled together.
namespace braid {

/// Which columns of a file are read.
struct ParquetColumns {
  /// Given: the values of this column are the texts of rows.
  std::string text;
  /// Otherwise: a row's text is a JSON object of those of these columns that the file has, without
  /// the ones that are null. At least one must be there.
  std::vector<std::string> json;
};

/// The rows of a file from front to back. Functions throw std::runtime_error with the reason, one
/// line without the path.
class ParquetRows {
 public:
  ParquetRows() = default;
  ParquetRows(const ParquetRows&) = delete;
  ParquetRows& operator=(const ParquetRows&) = delete;
  virtual ~ParquetRows() = default;

  virtual int64_t num_rows() const = 0;
  /// Of the columns, in the file, before compression; dictionaries may make it smaller than the
  /// text.
  virtual int64_t encoded_bytes() const = 0;
  /// False after the last row. Otherwise `text` is that of the next row, valid until the next call,
  /// or nothing if it is null.
  virtual bool next(std::optional<std::string_view>& text) = 0;
};

/// The functions of the module. `open` throws std::runtime_error as ParquetRows, also if a column
/// is missing or of another type; `describe` names the library: "Apache Arrow 26.0.1".
struct ParquetModule {
  void (*open)(const std::string& path, const ParquetColumns& columns,
               std::unique_ptr<ParquetRows>& rows) = nullptr;
  const char* (*describe)() = nullptr;
};
inline constexpr const char* kOpenParquet = "braid_open_parquet";
inline constexpr const char* kDescribeParquet = "braid_describe_parquet";

}  // namespace braid
