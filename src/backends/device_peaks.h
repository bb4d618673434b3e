#pragma once

#include <string>

#include "trace/timeline.h"

namespace braid {

/// Peaks from NVIDIA's data sheets for a GPU of this name (cudaDeviceProp::name); 0 for other
/// devices.
DevicePeaks gpu_peaks(const std::string& name);

}  // namespace braid
