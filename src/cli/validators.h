#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace braid {

/// Option check for CLI11: returns an empty text for a good value, else the reason.
using TextCheck = std::function<std::string(const std::string&)>;

/// A number from `minimum` to `maximum`. Unlike CLI::Range it refuses text that is not a number,
/// and its message prints the limits in plain digits.
TextCheck between(double minimum, double maximum);

/// An integer of at least `minimum`.
TextCheck at_least(int64_t minimum);

/// A size with its unit (parse_byte_size of base/text.h), at least one byte.
TextCheck byte_size();

}  // namespace braid
