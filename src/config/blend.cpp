#include "config/blend.h"

#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

constexpr size_t kShownBytes = 60;
/// Megatron-LM numbers the corpora of a blend with 16 bits.
constexpr size_t kMaxCorpora = 32767;

BlendEntry parse_entry(const std::string& entry, std::string_view key) {
  const std::string_view text = trim(entry);
  const std::string_view word = text.substr(0, text.find_first_of(" \t"));
  const std::string_view path = trim(text.substr(word.size()));
  double weight = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), weight);
  const bool is_number = error == std::errc() && end == word.data() + word.size();
  if (!is_number || path.empty()) {
    throw_config_error(
        "{}: {} is not a weight and a path; write both in one string, such as \"0.7 {}\"", key,
        quote(entry, kShownBytes),
        is_number || text.empty() ? "web_text_document" : inert_line(text));
  }
  if (!std::isfinite(weight) || weight <= 0) {
    throw_config_error(
        "{}: {}: the weight must be a number above 0; remove the entry, or give it one such as "
        "0.1",
        key, quote(entry, kShownBytes));
  }
  return {.weight = weight, .path = std::string(path)};
}

}  // namespace

std::vector<BlendEntry> parse_blend(std::span<const std::string> entries, std::string_view key) {
  if (entries.size() > kMaxCorpora) {
    throw_config_error("{} has {} entries: at most {} are possible", key, entries.size(),
                       kMaxCorpora);
  }
  std::vector<BlendEntry> blend;
  std::set<std::string> paths;
  for (const std::string& entry : entries) {
    blend.push_back(parse_entry(entry, key));
    if (!paths.insert(blend.back().path).second) {
      throw_config_error(
          "{} names {} twice, so the run would read the same samples twice; give it one entry with "
          "the sum of the weights",
          key, quote(blend.back().path, kShownBytes));
    }
  }
  return blend;
}

}  // namespace braid
