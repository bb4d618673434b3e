#pragma once

#include <cstddef>
#include <functional>

namespace braid {

/// Calls `work(index)` for 0 to count - 1 on up to `num_threads` threads (0: those of the machine),
/// in any order, and waits for all. If calls throw, the rest is left out, and of those that threw
/// the exception of the lowest index is thrown on.
void parallel_for(size_t count, int num_threads, const std::function<void(size_t)>& work);

}  // namespace braid
