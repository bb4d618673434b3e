#include "data/documents.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "data/text_lines.h"

namespace braid {
namespace {

using Json = nlohmann::json;

/// Other programs wrote the lines; their metadata may nest deeper than any file of ours.
constexpr JsonLimits kLineLimits = {.depth = 256, .size_bytes = int64_t{1} << 30};

std::string text_of_line(std::string_view line, int64_t number, const std::string& path,
                         const std::string& key) {
  Json value = parse_json(line, fmt::format("'{}' line {}", path, number), kLineLimits);
  if (!value.is_object()) {
    throw_data_error("'{}' line {} is a JSON {}, not an object", path, number, value.type_name());
  }
  const auto member = value.find(key);
  if (member == value.end()) {
    throw_data_error("'{}' line {} has no member \"{}\"", path, number, key);
  }
  if (!member->is_string()) {
    throw_data_error("'{}' line {}: member \"{}\" is a JSON {}, not a string", path, number, key,
                     member->type_name());
  }
  return std::move(*member).get<std::string>();
}

void for_each_json_line(const std::string& path, const DocumentOptions& options,
                        const std::function<void(const Document&)>& visit) {
  TextLines lines(path, options.text.replaces_invalid);
  int64_t num_documents = 0;
  while (const std::optional<std::string_view> next = lines.next()) {
    const std::string_view line = trim(*next);
    if (line.empty()) {
      continue;
    }
    const std::string text = text_of_line(line, lines.number(), path, options.json_key);
    visit({.text = text, .end_bytes = lines.end_bytes(), .file_bytes = lines.size_bytes()});
    ++num_documents;
  }
  if (num_documents == 0) {
    throw_data_error("'{}' has no documents: it is empty or all blanks", path);
  }
}

}  // namespace

void for_each_document(const std::string& path, const DocumentOptions& options,
                       const std::function<void(const Document&)>& visit) {
  if (path.ends_with(".jsonl") || path.ends_with(".json")) {
    for_each_json_line(path, options, visit);
  } else {
    for_each_text(path, options.text, visit);
  }
}

}  // namespace braid
