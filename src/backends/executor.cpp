#include "backends/executor.h"

#include <algorithm>

#include "backends/element_hash.h"
#include "base/errors.h"

namespace braid {

// NOLINTNEXTLINE(performance-unnecessary-value-param): executors that can do this keep them
void Executor::replace_programs(std::vector<Program> /*programs*/, MemoryPlan /*plan*/) {
  throw_internal_error("this executor keeps the programs that it was made with");
}

uint64_t Executor::hash(std::span<const BufferElems> parts) {
  constexpr int64_t kBlockBytes = 1 << 18;  // stays in a cache
  std::vector<std::byte> block(kBlockBytes);
  uint64_t sum = 0;
  uint64_t index = 0;
  for (const BufferElems& part : parts) {
    const auto elem_bytes = static_cast<int64_t>(dtype_bytes(part.dtype));
    for (int64_t done = 0; done < part.num_elems;) {
      const int64_t count = std::min(part.num_elems - done, kBlockBytes / elem_bytes);
      const auto bytes = std::span(block).first(static_cast<size_t>(count * elem_bytes));
      read(part.buffer, (part.begin + done) * elem_bytes, bytes);
      sum += element_hash(bytes, part.dtype, index);
      index += static_cast<uint64_t>(count);
      done += count;
    }
  }
  return sum;
}

}  // namespace braid
