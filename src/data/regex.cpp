#include "data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "base/errors.h"
#include "base/text.h"
#include "data/new_characters.h"

namespace braid {
namespace {

constexpr size_t kShownBytes = 80;

/// Ruby's classes, as the content of a set.
struct ClassEscape {
  char letter;
  std::string_view members;
};
constexpr std::array kClasses = {
    ClassEscape{'s', "\\p{White_Space}"},
    ClassEscape{'w', "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"},
};

constexpr std::string_view kSameEscapes = "rntf0ae";  // of letters, alike in both syntaxes
/// Properties that both know; other names of more than two letters are scripts.
constexpr std::array<std::string_view, 5> kProperties = {"Alphabetic", "White_Space", "Uppercase",
                                                         "Lowercase", "Emoji"};
constexpr std::array<std::string_view, 8> kSameGroups = {
    "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)"};

bool is_word_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// Rewrites Ruby's syntax as PCRE2's, and refuses what would silently mean something else.
class RubyPattern {
 public:
  RubyPattern(std::string_view pattern, const std::string& what) : rest_(pattern), what_(what) {}

  std::string translate() {
    while (!rest_.empty()) {
      if (rest_.front() == '\\') {
        translate_escape();
      } else if (is_in_set_) {
        translate_in_set();
      } else {
        translate_outside();
      }
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(std::string_view part) const {
    throw_data_error("{}: braid does not support {} in a regular expression", what_,
                     quote(part, kShownBytes));
  }

  void copy(size_t num_bytes) {
    result_ += rest_.substr(0, num_bytes);
    rest_.remove_prefix(num_bytes);
  }

  void translate_in_set() {
    if (rest_.starts_with('[') || rest_.starts_with("&&")) {
      refuse(rest_.substr(0, 2));
    }
    is_in_set_ = rest_.front() != ']';
    copy(1);
  }

  void translate_outside() {
    if (rest_.starts_with("[]") || rest_.starts_with("[^]")) {
      refuse(rest_.substr(0, 3));
    }
    if (rest_.starts_with("(?")) {
      copy_group();
      return;
    }
    if (rest_.starts_with("(*") || rest_.starts_with("{,") || rest_.starts_with("}+")) {
      refuse(rest_.substr(0, 2));
    }
    is_in_set_ = rest_.front() == '[';
    copy(is_in_set_ && rest_.starts_with("[^") ? 2 : 1);
  }

  void copy_group() {
    for (const std::string_view group : kSameGroups) {
      if (rest_.starts_with(group)) {
        copy(group.size());
        return;
      }
    }
    refuse(rest_.substr(0, 4));
  }

  void translate_escape() {
    if (rest_.size() < 2) {
      refuse(rest_);
    }
    const char letter = rest_[1];
    for (const ClassEscape& escape : kClasses) {
      const bool is_complement = letter == escape.letter - 'a' + 'A';
      if (letter == escape.letter || is_complement) {
        add_class(escape, is_complement);
        return;
      }
    }
    if (letter == 'p' || letter == 'P') {
      add_property();
      return;
    }
    if (letter == 'd' || letter == 'D') {
      add_category("Nd", letter == 'D');
      rest_.remove_prefix(2);
      return;
    }
    if (letter == 'u' || letter == 'x') {
      add_code_point(letter == 'u' ? 4 : 2);
      return;
    }
    if (is_word_byte(letter) && kSameEscapes.find(letter) == std::string_view::npos) {
      refuse(rest_.substr(0, 2));
    }
    copy(2);
  }

  void add_class(const ClassEscape& escape, bool is_complement) {
    const bool is_one_property = escape.members.rfind("\\p") == 0;
    if (is_in_set_ && is_complement && !is_one_property) {
      refuse(rest_.substr(0, 2));
    }
    if (!is_in_set_) {
      result_ += fmt::format("[{}{}]", is_complement ? "^" : "", escape.members);
    } else if (is_complement) {
      result_ += fmt::format("\\P{}", escape.members.substr(2));
    } else {
      result_ += escape.members;
    }
    rest_.remove_prefix(2);
  }

  void add_property() {
    const size_t end = rest_.find('}');
    if (end == std::string_view::npos || rest_[2] != '{') {
      refuse(rest_.substr(0, 3));
    }
    const bool is_negated = rest_[1] == 'P';
    std::string_view name = rest_.substr(3, end - 3);
    const bool is_complement = is_negated != name.starts_with('^');
    name.remove_prefix(name.starts_with('^') ? 1 : 0);
    if (name.size() <= 2) {
      add_category(name, is_complement);
    } else {
      const bool is_property = std::ranges::find(kProperties, name) != kProperties.end();
      // \p{Han} is the script alone in Ruby; in PCRE2 also characters that it shares.
      result_ +=
          fmt::format("\\{}{{{}{}}}", is_complement ? 'P' : 'p', is_property ? "" : "sc:", name);
    }
    rest_.remove_prefix(end + 1);
  }

  /// A general category, "Lu", or all that begin with a letter, "L".
  void add_category(std::string_view name, bool is_complement) {
    std::string members = fmt::format("\\p{{{}}}", name);
    for (const CharacterRange& range : kNewCharacters) {
      if (range.category.starts_with(name)) {
        members += fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", range.first, range.last);
      }
    }
    if (is_in_set_ && is_complement) {
      refuse(fmt::format("\\P{{{}}} in a set", name));
    }
    result_ += is_in_set_ ? members : fmt::format("[{}{}]", is_complement ? "^" : "", members);
  }

  /// \uHHHH or \xHH. Ruby's \xHH above 7F is a byte, and PCRE2's is a code point.
  void add_code_point(size_t num_digits) {
    const std::string_view digits = rest_.substr(2, num_digits);
    const bool is_byte = num_digits == 2 && (digits.empty() || digits.front() > '7');
    if (digits.size() < num_digits || is_byte ||
        digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      refuse(rest_.substr(0, 2 + num_digits));
    }
    result_ += fmt::format("\\x{{{}}}", digits);
    rest_.remove_prefix(2 + num_digits);
  }

  std::string_view rest_;
  const std::string& what_;
  std::string result_;
  bool is_in_set_ = false;
};

std::string message_of_code(int code) {
  std::array<char, 256> message{};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(message.data()), message.size());
  return message.data();
}

std::string library_fact(uint32_t what) {
  std::array<char, 64> text{};
  pcre2_config(what, text.data());
  return text.data();
}

struct FreeContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

}  // namespace

void Regex::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

void Regex::Splitter::Free::operator()(pcre2_real_match_data_8* match) const {
  pcre2_match_data_free(match);
}

Regex::Regex(std::string_view pattern, const std::string& what) : what_(what) {
  const std::string translated = RubyPattern(pattern, what).translate();
  const std::unique_ptr<pcre2_compile_context, FreeContext> context(
      pcre2_compile_context_create(nullptr));
  check(context != nullptr, "no memory for a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                            &error, &offset, context.get()));
  if (code_ == nullptr) {
    throw_data_error("{}: {} is not a regular expression: {}", what, quote(pattern, kShownBytes),
                     message_of_code(error));
  }
  // Without machine code (another processor, a hardened kernel) PCRE2 interprets: slower, the same.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

Regex::Splitter::Splitter(const Regex& regex)
    : regex_(regex), match_(pcre2_match_data_create_from_pattern(regex.code_.get(), nullptr)) {
  check(match_ != nullptr, "no memory for matches of a regular expression");
}

bool Regex::Splitter::find(std::string_view text, size_t from) {
  const auto match = [&](uint32_t options) {
    return pcre2_match(regex_.code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                       from, PCRE2_NO_UTF_CHECK | options, match_.get(), nullptr);
  };
  int result = match(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    result = match(PCRE2_NO_JIT);  // the interpreter's stack is on the heap
  }
  if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
    throw_data_error("{}: matching a text of {} bytes failed: {}", regex_.what_, text.size(),
                     message_of_code(result));
  }
  return result != PCRE2_ERROR_NOMATCH;
}

void Regex::Splitter::split(std::string_view text, const Visit& visit) {
  size_t done = 0;  // visited so far
  size_t from = 0;
  while (from <= text.size() && find(text, from)) {
    const size_t* const range = pcre2_get_ovector_pointer(match_.get());
    const size_t begin = range[0];
    const size_t end = range[1];
    if (begin > done) {
      visit(text.substr(done, begin - done), false);
    }
    if (end > begin) {
      visit(text.substr(begin, end - begin), true);
    }
    done = end;
    from = end;
    if (begin == end) {  // an empty match: the next one begins after a character
      ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0u) == 0x80u) {
        ++from;
      }
    }
  }
  if (done < text.size()) {
    visit(text.substr(done), false);
  }
}

std::string escape_regex(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const bool is_plain = is_word_byte(c) || static_cast<unsigned char>(c) >= 0x80;
    pattern += is_plain ? "" : "\\";
    pattern += c;
  }
  return pattern;
}

std::string describe_regex_library() {
  uint32_t has_jit = 0;
  pcre2_config(PCRE2_CONFIG_JIT, &has_jit);
  const std::string version = library_fact(PCRE2_CONFIG_VERSION);
  return fmt::format("PCRE2 {}, Unicode {}, {}", version.substr(0, version.find(' ')),
                     library_fact(PCRE2_CONFIG_UNICODE_VERSION),
                     has_jit != 0 ? "compiles patterns" : "interprets patterns");
}

}  // namespace braid
