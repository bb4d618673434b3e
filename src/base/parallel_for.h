#pragma once

#include <cstddef>
#include <functional>

namespace braid {

/// Calls `work(index)` for 0 to count - 1 on up to `num_threads` threads (0: all of the machine),
/// in any order, and waits for all. If a call throws, remaining calls are skipped, and the
/// exception with the lowest index is rethrown.
void parallel_for(size_t count, int num_threads, const std::function<void(size_t)>& work);

}  // namespace braid
