#include "base/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace braid {
namespace {

std::string comparable(std::string_view name) {
  std::string result(name);
  for (char& c : result) {
    c = c == '-' ? '_' : (c >= 'A' && c <= 'Z') ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return result;
}

/// The most edits allowed between a name and its suggestion: about one per three letters.
size_t edits_allowed(std::string_view name) {
  return name.size() <= 3 ? 1 : std::max<size_t>(2, name.size() / 3);
}

/// The candidate with the longest overlap with `name`, where one contains the other.
std::optional<std::string_view> overlapping_name(std::string_view name,
                                                 std::span<const std::string_view> candidates) {
  size_t best = 3;  // shorter words are in too many names
  std::optional<std::string_view> nearest;
  const std::string given = comparable(name);
  for (const std::string_view candidate : candidates) {
    const std::string other = comparable(candidate);
    const bool contained =
        given.find(other) != std::string::npos || other.find(given) != std::string::npos;
    const size_t shared = std::min(given.size(), other.size());
    if (contained && shared > best) {
      best = shared;
      nearest = candidate;
    }
  }
  return nearest;
}

template <class String>
std::string join_any(std::span<const String> parts, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    text += i == 0 ? std::string_view() : separator;
    text += parts[i];
  }
  return text;
}

std::string three_digits(double value) {
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}", value, decimals);
}

/// Index of the unit in which `value` has at most as many digits as `base`, once rounded.
size_t scale_to_unit(double& value, double base, size_t num_units) {
  size_t unit = 0;
  while (unit + 1 < num_units && value >= base - 0.5) {
    value /= base;
    ++unit;
  }
  return unit;
}

std::string two_parts(int64_t total, int64_t per_large, std::string_view large,
                      std::string_view small) {
  return fmt::format("{} {} {:02} {}", total / per_large, large, total % per_large, small);
}

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

/// Bytes of the well-formed UTF-8 sequence at the front of `text`; 0 if there is none. Overlong
/// forms, surrogates and values past U+10FFFF are not well-formed.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (length == 0 || lead > 0xF4 || text.size() < length) {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[i])) {
      return 0;
    }
  }
  const bool bad = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F) ||
                   (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F);
  return bad ? 0 : length;
}

/// The number of a well-formed UTF-8 sequence.
uint32_t code_point(std::string_view character) {
  constexpr std::array<unsigned, 5> kLeadBits = {0, 0x7F, 0x1F, 0x0F, 0x07};  // by length
  uint32_t code = static_cast<unsigned char>(character[0]) & kLeadBits[character.size()];
  for (const char c : character.substr(1)) {
    code = code << 6 | (static_cast<unsigned char>(c) & 0x3Fu);
  }
  return code;
}

bool is_control(uint32_t code) {
  const auto within = [&](uint32_t low, uint32_t high) { return code >= low && code <= high; };
  return code < 0x20 || within(0x7F, 0x9F) || code == 0x061C || within(0x200E, 0x200F) ||
         within(0x2028, 0x202E) || within(0x2066, 0x2069);
}

enum class Quotes : bool { kKept, kEscaped };

std::string escaped(std::string_view character, Quotes quotes) {
  const uint32_t code = code_point(character);
  if (quotes == Quotes::kEscaped && (code == '"' || code == '\\')) {
    return fmt::format("\\{}", character);
  }
  return is_control(code) ? fmt::format("\\u{:04X}", code) : std::string(character);
}

/// The text in one line, "..." in place of what is longer than `max_bytes`.
std::string escape(std::string_view text, size_t max_bytes, Quotes quotes) {
  std::string result;
  size_t position = 0;
  while (position < text.size()) {
    const size_t length = utf8_length(text.substr(position));
    if (position + std::max<size_t>(length, 1) > max_bytes) {
      return result + "...";
    }
    result += length == 0 ? fmt::format("\\x{:02X}", static_cast<unsigned char>(text[position]))
                          : escaped(text.substr(position, length), quotes);
    position += std::max<size_t>(length, 1);
  }
  return result;
}

std::string inert_except(std::string_view text, std::string_view kept) {
  std::string result;
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, std::max<size_t>(length, 1));
    text.remove_prefix(character.size());
    if (length > 0 &&
        (kept.find(character) != std::string_view::npos || !is_control(code_point(character)))) {
      result += character;
      continue;
    }
    for (const char byte : character) {
      result += fmt::format("\\x{:02X}", static_cast<unsigned char>(byte));
    }
  }
  return result;
}

}  // namespace

int64_t edit_distance(std::string_view from, std::string_view to) {
  // Three rows of the classic table: row i holds the distances of from[0, i) to every prefix of
  // `to`.
  std::vector<int64_t> before_last(to.size() + 1);
  std::vector<int64_t> last(to.size() + 1);
  std::vector<int64_t> row(to.size() + 1);
  for (size_t j = 0; j <= to.size(); ++j) {
    row[j] = static_cast<int64_t>(j);
  }
  for (size_t i = 1; i <= from.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= to.size(); ++j) {
      const int64_t replace = last[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[to.size()];
}

std::optional<std::string_view> nearest_name(std::string_view name,
                                             std::span<const std::string_view> candidates) {
  const size_t allowed = edits_allowed(name);
  auto best = static_cast<int64_t>(allowed) + 1;
  std::optional<std::string_view> nearest;
  for (const std::string_view candidate : candidates) {
    const size_t longer = std::max(name.size(), candidate.size());
    const size_t shorter = std::min(name.size(), candidate.size());
    if (longer - shorter > allowed) {
      continue;  // at least that many edits; also keeps absurdly long names cheap
    }
    const int64_t distance = edit_distance(comparable(name), comparable(candidate));
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest ? nearest : overlapping_name(name, candidates);
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  const std::optional<std::string_view> nearest = nearest_name(name, candidates);
  return nearest ? fmt::format("; did you mean {}?", quote(*nearest)) : std::string();
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  return join_any(parts, separator);
}

std::string join(std::span<const std::string_view> parts, std::string_view separator) {
  return join_any(parts, separator);
}

std::vector<std::string> split_text(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  while (!text.empty() || !pieces.empty()) {
    const size_t end = text.find(separator);
    pieces.emplace_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) {
      break;
    }
    text.remove_prefix(end + 1);
  }
  return pieces;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

bool is_printable(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0 || is_control(code_point(text.substr(0, length)))) {
      return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

std::string inert(std::string_view text) {
  return inert_except(text, "\n\t");
}

std::string inert_line(std::string_view text) {
  return inert_except(text, "");
}

std::string quote(std::string_view text, size_t max_bytes) {
  return fmt::format("\"{}\"", escape(text, max_bytes, Quotes::kEscaped));
}

std::string printable(std::string_view text, size_t max_bytes) {
  return escape(text, max_bytes, Quotes::kKept);
}

std::string format_bytes(int64_t bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = std::abs(static_cast<double>(bytes));
  const std::string_view sign = bytes < 0 ? "-" : "";
  const size_t unit = scale_to_unit(value, 1024, kUnits.size());
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{}{} {}", sign, three_digits(value), kUnits[unit]);
}

std::optional<int64_t> parse_byte_size(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc()) {
    return std::nullopt;
  }
  const std::string_view unit = trim({stop, static_cast<size_t>(end - stop)});
  constexpr std::string_view kPrefixes = "KMGTP";
  const size_t power = unit.size() < 2 ? 0 : kPrefixes.find(unit[0]) + 1;
  const bool is_binary = unit.size() == 3 && unit[1] == 'i';
  const bool is_unit = unit == "B" || ((unit.size() == 2 || is_binary) && unit.ends_with('B') &&
                                       kPrefixes.find(unit[0]) != std::string_view::npos);
  const double bytes =
      value * std::pow(is_binary ? 1024.0 : 1000.0, static_cast<double>(is_unit ? power : 0));
  return is_unit && bytes >= 0 && bytes < 0x1p63 ? std::optional(static_cast<int64_t>(bytes))
                                                 : std::nullopt;
}

std::string format_count(int64_t count) {
  constexpr std::array<std::string_view, 5> kUnits = {"", "K", "M", "B", "T"};
  auto value = std::abs(static_cast<double>(count));
  const std::string_view sign = count < 0 ? "-" : "";
  const size_t unit = scale_to_unit(value, 1000, kUnits.size());
  return unit == 0 ? fmt::format("{}", count)
                   : fmt::format("{}{}{}", sign, three_digits(value), kUnits[unit]);
}

std::string format_duration(double seconds) {
  constexpr double kYear_s = 365.0 * 86400;
  if (!(seconds >= 0) || seconds > 1000 * kYear_s) {
    return "unknown";
  }
  if (seconds < 59.95) {
    constexpr std::array<std::string_view, 4> kUnits = {"ns", "us", "ms", "s"};
    double value = seconds * 1e9;
    const size_t unit = scale_to_unit(value, 1000, kUnits.size());
    return unit == 0 ? fmt::format("{:.0f} ns", value)
                     : fmt::format("{} {}", three_digits(value), kUnits[unit]);
  }
  const auto whole_s = static_cast<int64_t>(std::llround(seconds));
  if (whole_s < 3600) {
    return two_parts(whole_s, 60, "min", "s");
  }
  return whole_s < 86400 ? two_parts(whole_s / 60, 60, "h", "min")
                         : two_parts(whole_s / 3600, 24, "d", "h");
}

}  // namespace braid
