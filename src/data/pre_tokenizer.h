#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/regex.h"

namespace braid {

/// The "pre_tokenizer" of a byte-level tokenizer.json: cuts a text into words, in which merges
/// happen. Immutable, thread-safe.
class PreTokenizer {
 public:
  /// `json`: {"type": "ByteLevel"}, or a Sequence of Split (by a regular expression or a string;
  /// Isolated or Removed) and Digits that ends with it. Throws DataError, beginning with `what`,
  /// for any other.
  PreTokenizer(const nlohmann::json& json, const std::string& what);

  using Visit = std::function<void(std::string_view word)>;

  /// Cuts texts, on one thread.
  class Cutter {
   public:
    /// `rules` must outlive it.
    explicit Cutter(const PreTokenizer& rules);
    /// Calls `visit` with the words of a text of well-formed UTF-8, in order; none is empty.
    void cut(std::string_view text, const Visit& visit) { cut_from(0, text, visit); }

   private:
    /// By the rules from this one on.
    void cut_from(size_t rule, std::string_view text, const Visit& visit);

    const PreTokenizer& rules_;
    std::vector<Regex::Splitter> splitters_;  // by rule
  };

 private:
  struct Rule {
    Regex regex;
    bool removes_matches = false;
    bool removes_rest = false;
    bool begins_with_space = false;  // puts a space before texts that do not begin with one
  };
  void add(const nlohmann::json& json, const std::string& what);
  void add_split(const nlohmann::json& json, const std::string& what);
  void add_byte_level(const nlohmann::json& json, const std::string& what);

  std::vector<Rule> rules_;
  bool is_byte_level_ = false;
};

}  // namespace braid
