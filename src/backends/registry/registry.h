#pragma once

#include <span>
#include <string_view>

#include "backends/backend.h"

namespace braid {

/// All backends, the host's first. Those that this build lacks are there, too: they plan, and say
/// why they have no device.
std::span<const Backend* const> backends();

/// The one whose ranks are threads of the host.
const Backend& host_backend();

/// The one that GPUs are planned for where nothing names another: the first that has devices.
const Backend& gpu_backend();

/// The one of that name. Throws InternalError if there is none.
const Backend& backend_named(std::string_view name);

}  // namespace braid
