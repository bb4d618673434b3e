#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace braid {

/// Waits for the work that an event was recorded behind. Throws DeviceError if it fails, and
/// AbortedError (comm/transport.h) with what `fault` says, which is asked meanwhile: the parts of
/// other ranks then never come. False if it has not ended within `limit`.
bool wait_for_event(cudaEvent_t event, const std::function<std::optional<std::string>()>& fault,
                    std::optional<std::chrono::nanoseconds> limit = std::nullopt);

}  // namespace braid
