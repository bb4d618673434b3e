#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace braid {

/// What CLI11 takes as the check of an option: an empty text for a good value, else what is wrong.
using TextCheck = std::function<std::string(const std::string&)>;

/// A number from `minimum` to `maximum`. Unlike CLI::Range it refuses what is not a number, and its
/// message names the limits in the digits that a person would write.
TextCheck between(double minimum, double maximum);

/// An integer of at least `minimum`.
TextCheck at_least(int64_t minimum);

/// A size with its unit (parse_byte_size of base/text.h), at least one byte.
TextCheck byte_size();

}  // namespace braid
