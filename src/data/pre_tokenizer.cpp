#include "data/pre_tokenizer.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.h"
#include "data/tokenizer_json.h"

namespace braid {
namespace {

using nlohmann::json;

constexpr std::string_view kComponent = "pre-tokenizer";
/// GPT-2's words (Radford et al. 2019, encoder.py), which ByteLevel has built in.
constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
/// Leaves a text whole.
constexpr std::string_view kNothing = R"((?!))";

/// The pattern of a Split: {"Regex": "\\s+"} or {"String": " "}.
std::string pattern_of(const json& split, const std::string& what) {
  const json& pattern = json_member(split, "pattern", what);
  const bool is_regex = pattern.is_object() && pattern.contains("Regex");
  const std::string text = text_member(pattern, is_regex ? "Regex" : "String", what);
  return is_regex ? text : escape_regex(text);
}

}  // namespace

PreTokenizer::PreTokenizer(const json& json, const std::string& what) {
  add(json, what);
  if (!is_byte_level_) {
    throw_data_error(
        "{}: its pre-tokenizer must be or end with ByteLevel; braid reads byte-level BPE as of "
        "GPT-2, Llama 3 and Qwen, and SentencePiece's tokenizer.model",
        what);
  }
}

void PreTokenizer::add(const json& json, const std::string& what) {
  const std::string type = json.is_null() ? "null" : type_of_component(json, what, kComponent);
  if (is_byte_level_) {
    throw_data_error("{}: the pre-tokenizer \"{}\" follows ByteLevel, which must be the last one",
                     what, type);
  }
  if (type == "Sequence") {
    for (const nlohmann::json& part : list_member(json, "pretokenizers", what)) {
      add(part, what);
    }
  } else if (type == "Split") {
    add_split(json, what);
  } else if (type == "Digits") {
    const bool is_single = flag_member(json, "individual_digits", false, what);
    rules_.push_back({.regex = Regex(is_single ? R"(\p{N})" : R"(\p{N}+)", what)});
  } else if (type == "ByteLevel") {
    add_byte_level(json, what);
  } else {
    refuse_component(what, kComponent, type);
  }
}

void PreTokenizer::add_split(const json& json, const std::string& what) {
  const std::string behavior = text_member(json, "behavior", what);
  const bool removes = behavior == "Removed";
  if (!removes && behavior != "Isolated") {
    refuse_component(what, "behavior of Split,", behavior);
  }
  const bool is_inverted = flag_member(json, "invert", false, what);
  rules_.push_back({.regex = Regex(pattern_of(json, what), what),
                    .removes_matches = removes && !is_inverted,
                    .removes_rest = removes && is_inverted});
}

void PreTokenizer::add_byte_level(const json& json, const std::string& what) {
  is_byte_level_ = true;
  const bool begins_with_space = flag_member(json, "add_prefix_space", true, what);
  const bool uses_regex = flag_member(json, "use_regex", true, what);
  if (begins_with_space || uses_regex) {
    rules_.push_back({.regex = Regex(uses_regex ? kGpt2Words : kNothing, what),
                      .begins_with_space = begins_with_space});
  }
}

PreTokenizer::Cutter::Cutter(const PreTokenizer& rules) : rules_(rules) {
  for (const Rule& rule : rules.rules_) {
    splitters_.emplace_back(rule.regex);
  }
}

void PreTokenizer::Cutter::cut_from(size_t rule, std::string_view text, const Visit& visit) {
  if (rule == splitters_.size()) {
    visit(text);
    return;
  }
  const Rule& now = rules_.rules_[rule];
  std::string spaced;
  if (now.begins_with_space && !text.starts_with(' ')) {
    spaced = " ";
    spaced += text;
    text = spaced;
  }
  splitters_[rule].split(text, [&](std::string_view part, bool is_match) {
    if (is_match ? !now.removes_matches : !now.removes_rest) {
      cut_from(rule + 1, part, visit);
    }
  });
}

}  // namespace braid
