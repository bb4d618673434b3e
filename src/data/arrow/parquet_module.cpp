#include "data/arrow/parquet_module.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/util/config.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace braid {
namespace {

/// Documents that are decoded at once, and bytes of a column chunk that are read at once: row
/// groups of corpora have up to a million documents, and need not fit into memory.
constexpr int64_t kBatchRows = 256;
constexpr int64_t kBufferBytes = int64_t{1} << 20;

[[noreturn]] void fail(std::string reason) {
  reason.erase(std::find(reason.begin(), reason.end(), '\n'), reason.end());
  throw std::runtime_error(reason);
}

void check_status(const arrow::Status& status) {
  if (!status.ok()) {
    fail(status.message());
  }
}

template <class T>
T value_of(arrow::Result<T> result) {
  check_status(result.status());
  return std::move(result).ValueUnsafe();
}

// ---- Values.

bool is_text(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY:  // of writers that do not say that it is text
    case arrow::Type::LARGE_BINARY:
    case arrow::Type::BINARY_VIEW:
      return true;
    case arrow::Type::DICTIONARY:
      return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
    default:
      return false;
  }
}

/// Element `i`, which is not null, of an array for which `is_text`.
std::string_view text_at(const arrow::Array& array, int64_t i) {
  switch (array.type_id()) {
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return static_cast<const arrow::LargeBinaryArray&>(array).GetView(i);
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return static_cast<const arrow::BinaryViewArray&>(array).GetView(i);
    case arrow::Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return text_at(*coded.dictionary(), coded.GetValueIndex(i));
    }
    default:
      return static_cast<const arrow::BinaryArray&>(array).GetView(i);
  }
}

void append_json_text(std::string& json, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  json += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (byte < 0x20) {
      json += "\\u00";
      json += kHex[byte >> 4U];
      json += kHex[byte & 15U];
    } else {
      json += c;
    }
  }
  json += '"';
}

void append_json(std::string& json, const arrow::Array& array, int64_t i);

void append_json_list(std::string& json, const arrow::Array& values, int64_t begin, int64_t end) {
  json += '[';
  for (int64_t i = begin; i < end; ++i) {
    json += i == begin ? "" : ",";
    append_json(json, values, i);
  }
  json += ']';
}

void append_json_struct(std::string& json, const arrow::StructArray& array, int64_t i) {
  json += '{';
  for (int k = 0; k < array.num_fields(); ++k) {
    json += k == 0 ? "" : ",";
    append_json_text(json, array.struct_type()->field(k)->name());
    json += ':';
    append_json(json, *array.field(k), i);
  }
  json += '}';
}

void append_json(std::string& json, const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) {
    json += "null";
  } else if (is_text(*array.type())) {
    append_json_text(json, text_at(array, i));
  } else if (array.type_id() == arrow::Type::LIST) {
    const auto& list = static_cast<const arrow::ListArray&>(array);
    append_json_list(json, *list.values(), list.value_offset(i), list.value_offset(i + 1));
  } else if (array.type_id() == arrow::Type::LARGE_LIST) {
    const auto& list = static_cast<const arrow::LargeListArray&>(array);
    append_json_list(json, *list.values(), list.value_offset(i), list.value_offset(i + 1));
  } else if (array.type_id() == arrow::Type::STRUCT) {
    append_json_struct(json, static_cast<const arrow::StructArray&>(array), i);
  } else {  // numbers and others that no conversation has: in quotes
    append_json_text(json, value_of(array.GetScalar(i))->ToString());
  }
}

// ---- Files.

/// Columns as Parquet counts them: one of a text, and of a list of messages one of each member.
void add_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.is_leaf()) {
    leaves.push_back(field.column_index);
  }
  for (const parquet::arrow::SchemaField& child : field.children) {
    add_leaves(child, leaves);
  }
}

std::string names_of(const parquet::arrow::SchemaManifest& manifest) {
  constexpr size_t kMost = 20;
  std::string names;
  for (size_t i = 0; i < std::min(manifest.schema_fields.size(), kMost); ++i) {
    names += (i == 0 ? "\"" : ", \"") + manifest.schema_fields[i].field->name() + '"';
  }
  return names + (manifest.schema_fields.size() > kMost ? ", ..." : "");
}

std::vector<int> leaves_of(const parquet::arrow::SchemaManifest& manifest,
                           const ParquetColumns& columns) {
  std::vector<int> leaves;
  for (const parquet::arrow::SchemaField& field : manifest.schema_fields) {
    const std::string& name = field.field->name();
    if (columns.text.empty()) {
      if (std::find(columns.json.begin(), columns.json.end(), name) != columns.json.end()) {
        add_leaves(field, leaves);
      }
    } else if (name == columns.text) {
      if (!is_text(*field.field->type())) {
        fail("column \"" + name + "\" has values of type " + field.field->type()->ToString() +
             ", not texts");
      }
      add_leaves(field, leaves);
    }
  }
  if (leaves.empty()) {
    std::string wanted = columns.text;
    for (const std::string& name : columns.json) {
      wanted += (wanted.empty() ? "" : "\", \"") + name;
    }
    fail((columns.text.empty() ? "it has none of the columns \"" : "it has no column \"") + wanted +
         "\"; its columns are " + names_of(manifest));
  }
  return leaves;
}

class ArrowRows final : public ParquetRows {
 public:
  ArrowRows(const std::string& path, const ParquetColumns& columns)
      : is_json_(columns.text.empty()) {
    parquet::ReaderProperties properties = parquet::default_reader_properties();
    properties.enable_buffered_stream();
    properties.set_buffer_size(kBufferBytes);
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties arrow_properties;
    arrow_properties.set_batch_size(kBatchRows);
    arrow_properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    check_status(builder.Open(value_of(arrow::io::ReadableFile::Open(path)), properties));
    builder.properties(arrow_properties);
    check_status(builder.Build(&reader_));
    leaves_ = leaves_of(reader_->manifest(), columns);
    metadata_ = reader_->parquet_reader()->metadata();
  }

  int64_t num_rows() const override { return metadata_->num_rows(); }

  int64_t encoded_bytes() const override {
    int64_t bytes = 0;
    for (int group = 0; group < metadata_->num_row_groups(); ++group) {
      const auto columns = metadata_->RowGroup(group);
      for (const int leaf : leaves_) {
        bytes += columns->ColumnChunk(leaf)->total_uncompressed_size();
      }
    }
    return bytes;
  }

  bool next(std::optional<std::string_view>& text) override {
    try {
      while (batch_ == nullptr || row_ == batch_->num_rows()) {
        if (!next_batch()) {
          return false;
        }
      }
      text = is_json_ ? json_at(row_) : column_text_at(row_);
      ++row_;
      return true;
    } catch (const parquet::ParquetException& error) {
      fail(error.what());
    }
  }

 private:
  bool next_batch() {
    row_ = 0;
    while (true) {
      if (batches_ == nullptr) {
        if (group_ == metadata_->num_row_groups()) {
          return false;
        }
        batches_ = value_of(reader_->GetRecordBatchReader({group_++}, leaves_));
      }
      check_status(batches_->ReadNext(&batch_));
      if (batch_ != nullptr) {
        check_status(batch_->Validate());
        return true;
      }
      batches_.reset();
    }
  }

  std::optional<std::string_view> column_text_at(int64_t row) const {
    const arrow::Array& column = *batch_->column(0);
    return column.IsNull(row) ? std::nullopt : std::optional(text_at(column, row));
  }

  std::string_view json_at(int64_t row) {
    json_ = "{";
    for (int k = 0; k < batch_->num_columns(); ++k) {
      if (!batch_->column(k)->IsNull(row)) {
        json_ += json_.size() == 1 ? "" : ",";
        append_json_text(json_, batch_->column_name(k));
        json_ += ':';
        append_json(json_, *batch_->column(k), row);
      }
    }
    json_ += '}';
    return json_;
  }

  const bool is_json_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::vector<int> leaves_;
  int group_ = 0;                                      // the next one
  std::unique_ptr<arrow::RecordBatchReader> batches_;  // of a row group
  std::shared_ptr<arrow::RecordBatch> batch_;
  int64_t row_ = 0;  // of the batch: the next one
  std::string json_;
};

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void braid_open_parquet(const std::string& path,
                                                               const ParquetColumns& columns,
                                                               std::unique_ptr<ParquetRows>& rows) {
  try {
    rows = std::make_unique<ArrowRows>(path, columns);
  } catch (const parquet::ParquetException& error) {
    fail(error.what());
  }
}

__attribute__((visibility("default"))) const char* braid_describe_parquet() {
  return "Apache Arrow " ARROW_VERSION_STRING;
}
}

}  // namespace braid
