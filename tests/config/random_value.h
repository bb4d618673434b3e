#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "config/value.h"

namespace braid {

/// Random values of each type within the limits of a key; the seed makes them repeat.
class RandomValue {
 public:
  RandomValue(const Limits& limits, std::mt19937_64& random) : limits_(limits), random_(random) {}

  ConfigValue operator()(bool) { return chance(); }
  ConfigValue operator()(int64_t) { return integer(); }
  ConfigValue operator()(double) {
    const double low = std::max(limits_.minimum, -1e300);
    const double high = std::min(limits_.maximum, 1e300);
    // Half of the time over many orders of magnitude, where printing could lose digits.
    const double part = std::generate_canonical<double, 53>(random_);
    const double shrunk = chance() ? part : part * std::pow(10.0, -300.0 * part);
    const double value = low + (high - low) * shrunk;
    return limits_.excludes_maximum && value >= high ? low : value;
  }
  ConfigValue operator()(const std::string&) { return text(); }
  ConfigValue operator()(const std::vector<int64_t>&) {
    std::vector<int64_t> values(random_() % 4);
    std::generate(values.begin(), values.end(), [&] { return integer(); });
    return values;
  }
  ConfigValue operator()(const std::vector<std::string>&) {
    std::vector<std::string> values(random_() % 4);
    std::generate(values.begin(), values.end(), [&] { return text(); });
    return values;
  }

 private:
  bool chance() { return random_() % 2 == 0; }

  int64_t integer() {
    const double low = std::max(limits_.minimum, -9e18);
    const double high = std::min(limits_.maximum, 9e18);
    const auto range = static_cast<uint64_t>(high - low);
    return static_cast<int64_t>(low) + static_cast<int64_t>(random_() % range);
  }

  std::string text() {
    if (!limits_.allowed.empty()) {
      return std::string(limits_.allowed[random_() % limits_.allowed.size()]);
    }
    const std::vector<std::string> pieces = {
        "a",      "Z9", " ", "\"", "\\", "'", "\"\"\"", "#", "=", "\xC3\xBC", "\xF0\x9F\x8E\x89",
        "\\u0041"};
    std::string result;
    for (uint64_t i = random_() % 8; i > 0; --i) {
      result += pieces[random_() % pieces.size()];
    }
    return result;
  }

  const Limits& limits_;
  std::mt19937_64& random_;
};

}  // namespace braid
