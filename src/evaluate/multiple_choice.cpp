#include "evaluate/multiple_choice.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "data/text_lines.h"

namespace braid {
namespace {

using Json = nlohmann::json;

/// Other programs wrote the lines.
constexpr JsonLimits kLineLimits = {.depth = 64, .size_bytes = int64_t{1} << 26};

/// A line's object, and how messages name it.
struct JsonLine {
  Json value;
  std::string where;
  int64_t number = 0;
};

const Json& member_of(const JsonLine& line, const char* name) {
  const auto member = line.value.find(name);
  if (member == line.value.end()) {
    throw_data_error("{} has no member \"{}\"", line.where, name);
  }
  return *member;
}

std::string text_of(const JsonLine& line, const Json& value, const char* name) {
  if (!value.is_string()) {
    throw_data_error("{}: member \"{}\" is a JSON {}, not a string", line.where, name,
                     value.type_name());
  }
  return value.get<std::string>();
}

void for_each_json_object(const std::string& path, int64_t limit,
                          const std::function<void(const JsonLine&)>& visit) {
  TextLines lines(path);
  int64_t count = 0;
  while (const std::optional<std::string_view> text = lines.next()) {
    if (trim(*text).empty()) {
      continue;
    }
    const std::string where = fmt::format("'{}' line {}", path, lines.number());
    const JsonLine line{parse_json(*text, where, kLineLimits), where, lines.number()};
    if (!line.value.is_object()) {
      throw_data_error("{} is a JSON {}, not an object", where, line.value.type_name());
    }
    visit(line);
    if (++count == limit) {
      return;
    }
  }
  if (count == 0) {
    throw_data_error("'{}' has no items: it is empty or all blanks", path);
  }
}

/// A number, or a text of one, as in Hugging Face's copy of HellaSwag.
int64_t label_of(const JsonLine& line, int64_t num_endings) {
  const Json& value = member_of(line, "label");
  std::optional<int64_t> label = json_integer(value);
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) {
      label = number;
    }
  }
  if (!label || *label < 0 || *label >= num_endings) {
    throw_data_error("{}: member \"label\" is {}: it must be 0 to {}, the number of an ending",
                     line.where, inert_line(value.dump()), num_endings - 1);
  }
  return *label;
}

ChoiceItem item_of(const JsonLine& line) {
  ChoiceItem item{.context = text_of(line, member_of(line, "ctx"), "ctx"), .line = line.number};
  const Json& endings = member_of(line, "endings");
  if (!endings.is_array() || endings.size() < 2) {
    throw_data_error("{}: member \"endings\" must be a list of two or more strings", line.where);
  }
  for (const Json& ending : endings) {
    item.endings.push_back(text_of(line, ending, "endings"));
  }
  item.label = label_of(line, std::ssize(item.endings));
  return item;
}

int64_t count_characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;  // not inside a character
  });
}

double normed(const ChoiceScore& score, size_t ending, ChoiceNorm norm) {
  const double logprob = score.endings[ending].logprob;
  switch (norm) {
    case ChoiceNorm::kSum:
      return logprob;
    case ChoiceNorm::kCharacters:
      return logprob / static_cast<double>(std::max<int64_t>(score.characters[ending], 1));
    case ChoiceNorm::kTokens:
      return logprob / static_cast<double>(score.endings[ending].tokens);
  }
  throw_internal_error("unknown norm");
}

bool is_right(const ChoiceScore& score, ChoiceNorm norm) {
  size_t best = 0;
  for (size_t i = 1; i < score.endings.size(); ++i) {
    best = normed(score, i, norm) > normed(score, best, norm) ? i : best;
  }
  return static_cast<int64_t>(best) == score.label;
}

}  // namespace

std::vector<ChoiceItem> read_choices(const std::string& path, int64_t limit) {
  std::vector<ChoiceItem> items;
  for_each_json_object(path, limit, [&](const JsonLine& line) { items.push_back(item_of(line)); });
  return items;
}

std::vector<ContinuationRequest> read_requests(const std::string& path, int64_t limit) {
  std::vector<ContinuationRequest> requests;
  for_each_json_object(path, limit, [&](const JsonLine& line) {
    requests.push_back(
        {.context = text_of(line, member_of(line, "context"), "context"),
         .continuation = text_of(line, member_of(line, "continuation"), "continuation"),
         .line = line.number});
  });
  return requests;
}

std::vector<ContinuationTokens> encode_choices(const Tokenizer& tokenizer, const ChoiceItem& item) {
  std::vector<ContinuationTokens> endings;
  for (const std::string& ending : item.endings) {
    endings.push_back(encode_continuation(tokenizer, item.context, " " + ending));
  }
  return endings;
}

ChoiceScore choice_score(const ChoiceItem& item, std::span<const ContinuationScore> endings) {
  ChoiceScore score{.label = item.label, .endings = {endings.begin(), endings.end()}};
  for (const std::string& ending : item.endings) {
    score.characters.push_back(count_characters(ending));
  }
  return score;
}

Accuracy accuracy_of(std::span<const ChoiceScore> scores, ChoiceNorm norm) {
  const auto count = static_cast<double>(scores.size());
  const auto right = static_cast<double>(
      std::count_if(scores.begin(), scores.end(),
                    [&](const ChoiceScore& score) { return is_right(score, norm); }));
  const double share = scores.empty() ? 0 : right / count;
  return {.value = share,
          .standard_error = count > 1 ? std::sqrt(share * (1 - share) / (count - 1)) : 0};
}

}  // namespace braid
