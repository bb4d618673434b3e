#include "backends/cuda/comm/wait_for_event.h"

#include <thread>

#include "backends/cuda/cuda_error.h"
#include "comm/transport.h"

namespace braid {

bool wait_for_event(cudaEvent_t event, const std::function<std::optional<std::string>()>& fault,
                    std::optional<std::chrono::nanoseconds> limit) {
  constexpr int kQueriesPerLook = 256;  // between checks for faults, which take a lock per
                                        // communicator
  const auto begin = std::chrono::steady_clock::now();
  for (int queries = 1;; ++queries) {
    const cudaError_t status = cudaEventQuery(event);
    if (status != cudaErrorNotReady) {
      cuda_check(status, "cudaEventQuery");
      return true;
    }
    if (queries % kQueriesPerLook == 0) {
      if (const std::optional<std::string> reason = fault()) {
        throw AbortedError(*reason);
      }
      if (limit && std::chrono::steady_clock::now() - begin > *limit) {
        return false;
      }
    }
    std::this_thread::yield();
  }
}

}  // namespace braid
