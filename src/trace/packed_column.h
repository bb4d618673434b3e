#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>

namespace braid {

/// Integers as JSON, in the shortest of these forms:
///   [7, 8, 9]                    the values
///   {"delta": [7, 1, 1]}         the first value, then differences to the previous one
///   {"runs": [0, 900, 1, 100]}   value, number of repetitions, and so on
nlohmann::ordered_json packed_column(std::span<const int64_t> values);

}  // namespace braid
