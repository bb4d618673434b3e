#pragma once

#include <string>

#include "trace/timeline.h"

namespace braid {

/// What NVIDIA's data sheets say of a GPU of this name (cudaDeviceProp::name); peaks of others are
/// 0.
DevicePeaks gpu_peaks(const std::string& name);

}  // namespace braid
