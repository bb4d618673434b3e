#include "data/documents.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "data/input_file.h"
#include "data/text_lines.h"

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

}  // namespace

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
  if (is_json_lines(path)) {
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
