#include "trace/packed_column.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace braid {
namespace {

using Json = nlohmann::ordered_json;
using Values = std::vector<int64_t>;

/// Bytes of the values as a JSON list, without brackets.
size_t text_bytes(std::span<const int64_t> values) {
  size_t bytes = values.size();
  for (const int64_t value : values) {
    bytes += fmt::formatted_size("{}", value);
  }
  return bytes;
}

Values deltas_of(std::span<const int64_t> values) {
  Values deltas;
  deltas.reserve(values.size());
  int64_t before = 0;
  for (const int64_t value : values) {
    deltas.push_back(value - before);
    before = value;
  }
  return deltas;
}

Values runs_of(std::span<const int64_t> values) {
  Values runs;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0 && values[i] == values[i - 1]) {
      ++runs.back();
    } else {
      runs.push_back(values[i]);
      runs.push_back(1);
    }
  }
  return runs;
}

}  // namespace

Json packed_column(std::span<const int64_t> values) {
  constexpr size_t kNameBytes = 10;  // {"delta":}
  const Values deltas = deltas_of(values);
  const Values runs = runs_of(values);
  const size_t plain_bytes = text_bytes(values);
  const size_t delta_bytes = text_bytes(deltas) + kNameBytes;
  const size_t run_bytes = text_bytes(runs) + kNameBytes;
  if (run_bytes < plain_bytes && run_bytes <= delta_bytes) {
    return {{"runs", runs}};
  }
  if (delta_bytes < plain_bytes) {
    return {{"delta", deltas}};
  }
  return Values(values.begin(), values.end());
}

}  // namespace braid
