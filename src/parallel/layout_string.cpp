#include "parallel/layout_string.h"

#include <algorithm>
#include <charconv>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

/// More than any model needs. Prevents a mistyped count from using all memory.
constexpr size_t kMaxLetters = 100'000;

class LayoutParser {
 public:
  explicit LayoutParser(std::string_view layout) : layout_(layout) {
    for (const char c : layout) {
      if (c != ' ' && c != ',') {
        text_ += c;
      }
    }
  }

  std::vector<std::string> parse() {
    const std::string letters = repeat_letters(repeat_groups());
    std::vector<std::string> stages(1);
    for (const char c : letters) {
      if (c == '|') {
        stages.emplace_back();
      } else {
        stages.back() += c;
      }
    }
    return stages;
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw_config_error("parallel.pipeline_layout = {}: {}", quote(layout_, 200),
                       fmt::format(format, std::forward<Args>(args)...));
  }

  /// Reads the number after the "*" at `at` and moves `at` past it.
  size_t read_count(const std::string& text, size_t& at) const {
    size_t count = 0;
    const char* begin = text.data() + at + 1;
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), count);
    if (error != std::errc() || count < 1 || count > kMaxLetters) {
      refuse("\"*\" needs a number from 1 to {} behind it", kMaxLetters);
    }
    at = static_cast<size_t>(end - text.data());
    return count;
  }

  void append(std::string& result, std::string_view part, size_t count) const {
    if (part.size() * count > kMaxLetters - std::min(kMaxLetters, result.size())) {
      refuse("more than {} letters", kMaxLetters);
    }
    for (size_t i = 0; i < count; ++i) {
      result += part;
    }
  }

  std::string repeat_groups() const {
    std::string result;
    for (size_t at = 0; at < text_.size();) {
      if (text_[at] == ')') {
        refuse("\")\" without \"(\"");
      }
      if (text_[at] != '(') {
        result += text_[at++];
        continue;
      }
      const size_t close = text_.find(')', at);
      if (close == std::string::npos) {
        refuse("\"(\" without \")\"");
      }
      const std::string group = text_.substr(at + 1, close - at - 1);
      if (group.find('(') != std::string::npos) {
        refuse("a group inside a group");
      }
      at = close + 1;
      if (at == text_.size() || text_[at] != '*') {
        refuse("a group needs \"*\" and a number behind it");
      }
      const size_t count = read_count(text_, at);
      append(result, group, count);
    }
    return result;
  }

  std::string repeat_letters(const std::string& text) const {
    std::string result;
    for (size_t at = 0; at < text.size();) {
      const char letter = text[at++];
      check_letter(letter);
      size_t count = 1;
      if (at < text.size() && text[at] == '*') {
        if (letter == '|') {
          refuse("\"|\" cannot be repeated");
        }
        count = read_count(text, at);
      }
      append(result, std::string_view(&letter, 1), count);
    }
    return result;
  }

  void check_letter(char letter) const {
    if (letter == 'm') {
      refuse("m (multi-token prediction): its layers are always with L and have no letter");
    }
    if (letter != 'E' && letter != 't' && letter != 'L' && letter != '|') {
      refuse("{} is not one of E (embedding), t (layer), L (head and loss), | (next stage)",
             quote(std::string_view(&letter, 1)));
    }
  }

  std::string_view layout_;
  std::string text_;  // without blanks and commas
};

}  // namespace

std::vector<std::string> parse_layout_string(std::string_view layout) {
  return LayoutParser(layout).parse();
}

}  // namespace braid
