#include "generate/prompt_file.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "data/text_lines.h"

namespace braid {
namespace {

/// Other programs wrote the lines.
constexpr JsonLimits kLineLimits = {.depth = 64, .size_bytes = int64_t{1} << 26};

bool is_jsonl(std::string_view path) {
  for (const std::string_view compressed : {".gz", ".zst"}) {
    if (path.ends_with(compressed)) {
      path.remove_suffix(compressed.size());
    }
  }
  return path.ends_with(".jsonl");
}

std::string without_line_end(std::string_view line) {
  for (const char end : {'\n', '\r'}) {
    if (line.ends_with(end)) {
      line.remove_suffix(1);
    }
  }
  return std::string(line);
}

PromptLine parse_prompt(std::string_view text, const std::string& where) {
  const nlohmann::json value = parse_json(text, where, kLineLimits);
  if (!value.is_object()) {
    throw_data_error("{} is a JSON {}, not an object", where, value.type_name());
  }
  const auto prompt = value.find("prompt");
  if (prompt == value.end() || !prompt->is_string()) {
    throw_data_error("{} has no member \"prompt\" that is a string", where);
  }
  PromptLine line{.prompt = prompt->get<std::string>(), .seed = {}};
  if (const auto seed = value.find("seed"); seed != value.end()) {
    const std::optional<int64_t> number = json_integer(*seed);
    if (!number || *number < 0) {
      throw_data_error("{}: member \"seed\" = {} is not an integer of at least 0", where,
                       seed->dump());
    }
    line.seed = static_cast<uint64_t>(*number);
  }
  return line;
}

}  // namespace

std::vector<PromptLine> read_prompts(const std::string& path) {
  std::vector<PromptLine> prompts;
  TextLines lines(path);
  while (const std::optional<std::string_view> text = lines.next()) {
    if (trim(*text).empty()) {
      continue;
    }
    prompts.push_back(is_jsonl(path)
                          ? parse_prompt(*text, fmt::format("'{}' line {}", path, lines.number()))
                          : PromptLine{.prompt = without_line_end(*text), .seed = {}});
    prompts.back().line = lines.number();
  }
  if (prompts.empty()) {
    throw_data_error("'{}' has no prompts: it is empty or all blanks", path);
  }
  return prompts;
}

}  // namespace braid
