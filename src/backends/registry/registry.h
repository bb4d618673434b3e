#pragma once

#include <span>
#include <string_view>

#include "backends/backend.h"

namespace braid {

/// All backends, the host's first. It includes backends that this build lacks: they can plan, and
/// report why they have no device.
std::span<const Backend* const> backends();

/// The backend whose ranks are threads of the host.
const Backend& host_backend();

/// The default backend for planning GPUs: the first that is not the host's.
const Backend& gpu_backend();

/// The backend of that name. Throws InternalError if there is none.
const Backend& backend_named(std::string_view name);

}  // namespace braid
