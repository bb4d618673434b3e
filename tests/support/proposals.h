#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// Overrides of a configuration: "section.key=value".
using Overrides = std::vector<std::string>;

/// Settings that go together: "section.key=value", or a key alone, which is removed.
using Proposal = std::vector<std::string>;

/// Reads "a.b = 1 and a.c = "x", or a.d = 2" from the front of a text.
class SettingReader {
 public:
  explicit SettingReader(std::string_view text) : text_(text) {}

  /// Those before and after each "or"; none if the text begins otherwise.
  std::vector<Proposal> read() {
    std::vector<Proposal> proposals;
    bool begins = true;
    for (std::string setting; !(setting = next()).empty();) {
      if (begins) {
        proposals.emplace_back();
      }
      proposals.back().push_back(setting);
      begins = skip(" or ") || skip(", or ");
      if (!begins && !skip(" and ") && !skip(", and ")) {
        break;
      }
    }
    return proposals;
  }

 private:
  /// "a.b=1", or nothing if there is no setting.
  std::string next() {
    const std::string key = take([](char c) {
      return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '_' || c == '.';
    });
    if (key.find('.') == std::string::npos || !skip(" = ")) {
      return "";
    }
    if (skip("\"")) {
      const std::string value = take([](char c) { return c != '"'; });
      skip("\"");
      return key + "=" + value;
    }
    return key + "=" + take([](char c) { return std::isalnum(c) != 0 || c == '.' || c == '-'; });
  }

  bool skip(std::string_view word) {
    const bool starts = text_.starts_with(word);
    text_.remove_prefix(starts ? word.size() : 0);
    return starts;
  }

  template <class Takes>
  std::string take(Takes takes) {
    const auto end = std::ranges::find_if_not(text_, takes);
    std::string taken(text_.begin(), end);
    text_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view text_;
};

/// What a refusal proposes, one of which is enough: "set KEY = VALUE" (or another, and another
/// beside it), "remove the key" and "the nearest are 4 and 8" of the key that it begins with.
inline std::vector<Proposal> proposals_of(std::string_view refusal) {
  std::vector<Proposal> proposals;
  const std::string key(refusal.substr(0, refusal.find(' ')));
  if (refusal.find("remove the key") != std::string_view::npos) {
    proposals.push_back({key});
  }
  for (const std::string_view near :
       {"the nearest is ", "the nearest are ", "the nearest that fits this model is "}) {
    const size_t at = refusal.find(near);
    for (size_t i = at == std::string_view::npos ? refusal.size() : at + near.size();
         i < refusal.size() && std::isdigit(refusal[i]) != 0;) {
      const size_t end = std::min(refusal.find_first_not_of("0123456789", i), refusal.size());
      proposals.push_back({fmt::format("{}={}", key, refusal.substr(i, end - i))});
      i = refusal.substr(end).starts_with(" and ") ? end + 5 : refusal.size();
    }
  }
  for (size_t at = refusal.find(" set "); at != std::string_view::npos;
       at = refusal.find(" set ", at + 1)) {
    const std::vector<Proposal> settings = SettingReader(refusal.substr(at + 5)).read();
    proposals.insert(proposals.end(), settings.begin(), settings.end());
  }
  return proposals;
}

/// Overrides after what was proposed.
inline Overrides applied(Overrides overrides, const Proposal& proposal) {
  for (const std::string& setting : proposal) {
    const size_t equals = setting.find('=');
    const std::string key = setting.substr(0, equals) + "=";
    std::erase_if(overrides, [&](const std::string& old) { return old.starts_with(key); });
    if (equals != std::string::npos) {
      overrides.push_back(setting);
    }
  }
  return overrides;
}

/// Empty if what each refusal proposes first leads to what is accepted, or to a refusal that
/// proposes nothing; else the refusals, one per line: they go round in circles.
template <class RefusalOf>
std::string refusals_in_a_row(Overrides overrides, std::string refusal, RefusalOf refusal_of) {
  constexpr int kMostSteps = 12;
  std::string all;
  for (int step = 0; !refusal.empty(); ++step) {
    all += refusal + "\n";
    const std::vector<Proposal> proposals = proposals_of(refusal);
    if (proposals.empty()) {
      return "";
    }
    if (step == kMostSteps) {
      return all;
    }
    overrides = applied(std::move(overrides), proposals.front());
    refusal = refusal_of(overrides);
  }
  return "";
}

}  // namespace braid
