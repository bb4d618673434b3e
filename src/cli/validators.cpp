#include "cli/validators.h"

#include <fmt/core.h>

#include <charconv>

#include "base/text.h"

namespace braid {
namespace {

/// Whether the whole text is one number; if so, stores it in `value`.
template <class T>
bool is_number(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

}  // namespace

TextCheck between(double minimum, double maximum) {
  return [=](const std::string& text) {
    double value = 0;
    const bool good = is_number(text, value) && value >= minimum && value <= maximum;
    return good ? std::string()
                : fmt::format("{} is not a number from {} to {}", text, minimum, maximum);
  };
}

TextCheck at_least(int64_t minimum) {
  return [=](const std::string& text) {
    int64_t value = 0;
    const bool good = is_number(text, value) && value >= minimum;
    return good ? std::string() : fmt::format("{} is not an integer of at least {}", text, minimum);
  };
}

TextCheck byte_size() {
  return [](const std::string& text) -> std::string {
    return parse_byte_size(text).value_or(0) >= 1
               ? std::string()
               : fmt::format("{} is not a size with its unit, such as 5GB or 512MiB", text);
  };
}

}  // namespace braid
