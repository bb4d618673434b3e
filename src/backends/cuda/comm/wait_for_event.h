#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace braid {

/// Waits for the work before a recorded event. Throws DeviceError if it fails. Polls `fault` and
/// throws AbortedError (comm/transport.h) with its result, since the parts of other ranks then
/// never arrive. False if the work has not ended within `limit`.
bool wait_for_event(cudaEvent_t event, const std::function<std::optional<std::string>()>& fault,
                    std::optional<std::chrono::nanoseconds> limit = std::nullopt);

}  // namespace braid
