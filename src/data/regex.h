#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace braid {

/// A regular expression over UTF-8 as tokenizer.json has it: in the syntax of Ruby (Oniguruma,
/// which Hugging Face's library uses), compiled by PCRE2, to machine code where it can. \s is
/// Unicode's White_Space, \d its Nd and \w Alphabetic, M, Nd and Pc; ^ and $ are begin and end of a
/// line. Properties are those of the Unicode version of the installed PCRE2. Immutable,
/// thread-safe.
class Regex {
 public:
  /// Throws DataError, beginning with `what`, for a pattern that is invalid, or that PCRE2 would
  /// read otherwise than Ruby (possessive {n,m}+, {,n}, sets in sets, \h, ...).
  Regex(std::string_view pattern, const std::string& what);

  /// A part of a text: a match, or what lies between two of them.
  using Visit = std::function<void(std::string_view part, bool is_match)>;

  /// Matches of one expression in many texts, on one thread.
  class Splitter {
   public:
    /// `regex` must outlive it.
    explicit Splitter(const Regex& regex);
    /// Calls `visit` with all parts of a text of well-formed UTF-8, in order; none is empty. Throws
    /// DataError if matching takes more steps or memory than PCRE2's limits.
    void split(std::string_view text, const Visit& visit);

   private:
    struct Free {
      void operator()(pcre2_real_match_data_8* match) const;
    };
    /// Finds the first match at or after `from`; false if there is none.
    bool find(std::string_view text, size_t from);

    const Regex& regex_;
    std::unique_ptr<pcre2_real_match_data_8, Free> match_;
  };

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::string what_;
};

/// A pattern that matches this text and nothing else.
std::string escape_regex(std::string_view text);

/// The library and whether it compiles to machine code here: "PCRE2 10.42, Unicode 14.0.0, JIT".
std::string describe_regex_library();

}  // namespace braid
