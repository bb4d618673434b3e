#include "data/documents.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "data/input_file.h"
#include "data/parquet_file.h"
#include "data/text_lines.h"
#include "data/utf8.h"

namespace braid {
namespace {

using Json = nlohmann::json;

/// Other programs wrote the lines; their metadata may nest deeper than any file of ours.
constexpr JsonLimits kLineLimits = {.depth = 256, .size_bytes = int64_t{1} << 30};

void for_each_json_line(const std::string& path, const DocumentOptions& options,
                        const std::function<void(const Document&)>& visit) {
  TextLines lines(path, options.text.replaces_invalid);
  int64_t num_documents = 0;
  while (const std::optional<std::string_view> next = lines.next()) {
    const std::string_view line = trim(*next);
    if (line.empty()) {
      continue;
    }
    visit({.text = line,
           .end_bytes = lines.end_bytes(),
           .file_bytes = lines.size_bytes(),
           .line = lines.number()});
    ++num_documents;
  }
  if (num_documents == 0) {
    throw_data_error("'{}' has no documents: it is empty or all blanks", path);
  }
}

/// Members of conversations and of pairs of answers (data/chat_template.h).
std::vector<std::string> conversation_columns() {
  return {"messages", "prompt", "completion", "chosen", "rejected"};
}

/// The text, or where its bytes are no characters, `replaced`.
std::string_view valid_row(const ParquetFile& file, std::string_view text, bool replaces_invalid,
                           std::string& replaced) {
  const std::optional<size_t> position = find_invalid_utf8(text);
  if (!position) {
    return text;
  }
  if (!replaces_invalid) {
    throw_data_error("{} is not UTF-8 text: byte 0x{:02X} at position {}",
                     document_place(file.path(), file.row()),
                     static_cast<unsigned char>(text[*position]), *position);
  }
  replaced = replace_invalid_utf8(text);
  return replaced;
}

void for_each_row(const std::string& path, const DocumentOptions& options,
                  const std::function<void(const Document&)>& visit) {
  ParquetFile file(path, options.conversations
                             ? ParquetColumns{.text = {}, .json = conversation_columns()}
                             : ParquetColumns{.text = options.json_key, .json = {}});
  std::optional<std::string_view> text;
  std::string replaced;
  while (file.next(text)) {
    visit({.text = valid_row(file, text.value_or(""), options.text.replaces_invalid, replaced),
           .end_bytes = file.read_bytes(),
           .file_bytes = file.size_bytes(),
           .line = file.row()});
  }
  if (file.row() == 0) {
    throw_data_error("'{}' has no documents: it has no rows", path);
  }
}

}  // namespace

std::string document_place(const std::string& path, int64_t line) {
  return fmt::format("'{}' {} {}", path, is_parquet(path) ? "row" : "line", line);
}

bool is_json_lines(std::string_view path) {
  const std::string_view name = uncompressed_name(path);
  return name.ends_with(".jsonl") || name.ends_with(".json");
}

std::string text_of_json(std::string_view json, int64_t line, const std::string& path,
                         const std::string& json_key) {
  Json value = parse_json(json, fmt::format("'{}' line {}", path, line), kLineLimits);
  if (!value.is_object()) {
    throw_data_error("'{}' line {} is a JSON {}, not an object", path, line, value.type_name());
  }
  const auto member = value.find(json_key);
  if (member == value.end()) {
    throw_data_error("'{}' line {} has no member \"{}\"", path, line, json_key);
  }
  if (!member->is_string()) {
    throw_data_error("'{}' line {}: member \"{}\" is a JSON {}, not a string", path, line, json_key,
                     member->type_name());
  }
  return std::move(*member).get<std::string>();
}

void for_each_raw_document(const std::string& path, const DocumentOptions& options,
                           const std::function<void(const Document&)>& visit) {
  if (is_parquet(path)) {
    for_each_row(path, options, visit);
  } else if (is_json_lines(path)) {
    for_each_json_line(path, options, visit);
  } else {
    for_each_text(path, options.text, visit);
  }
}

void for_each_document(const std::string& path, const DocumentOptions& options,
                       const std::function<void(const Document&)>& visit) {
  const bool is_json = is_json_lines(path);
  for_each_raw_document(path, options, [&](const Document& raw) {
    Document document = raw;
    std::string text;
    if (is_json) {
      text = text_of_json(raw.text, raw.line, path, options.json_key);
      document.text = text;
    }
    visit(document);
  });
}

}  // namespace braid
