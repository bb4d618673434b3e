#include "backends/cuda/architecture.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <sstream>

#include "base/errors.h"
#include "base/text.h"

#ifndef BRAID_CUDA_ARCHITECTURES
#define BRAID_CUDA_ARCHITECTURES ""
#endif

namespace braid {
namespace {

constexpr int kOldest = 80;  // of cuDNN's attention
constexpr int kHopper = 90;  // what estimates are of without a GPU

std::atomic<int> used_capability{kHopper};

std::string version_text(int capability) {
  return fmt::format("{}.{}", capability / 10, capability % 10);
}

/// What helps if this build has no kernels for a GPU.
std::string way_out(int capability) {
  if (capability < kOldest) {
    return fmt::format(", and braid none below {}", version_text(kOldest));
  }
  return fmt::format("; build with -D BRAID_CUDA_ARCHITECTURES={}",
                     capability == kHopper ? "90a" : fmt::format("{}", capability));
}

/// Of the GPU that an architecture is named after.
int capability_of(std::string_view architecture) {
  int capability = 0;
  std::from_chars(architecture.data(), architecture.data() + architecture.size(), capability);
  return capability;
}

}  // namespace

std::vector<std::string> cuda_architectures() {
  std::vector<std::string> names;
  std::istringstream list(BRAID_CUDA_ARCHITECTURES);
  for (std::string name; std::getline(list, name, ' ');) {
    names.push_back(name);
  }
  return names;
}

bool runs_on(std::string_view architecture, int capability) {
  const int built = capability_of(architecture);
  return architecture.ends_with('a') ? capability == built
                                     : capability / 10 == built / 10 && capability >= built;
}

bool has_kernels_for(int capability) {
  return std::ranges::any_of(cuda_architectures(),
                             [&](const std::string& name) { return runs_on(name, capability); });
}

std::string describe_architectures() {
  std::vector<std::string> versions;
  for (const std::string& name : cuda_architectures()) {
    versions.push_back(version_text(capability_of(name)) + (name.ends_with('a') ? "" : " and up"));
  }
  return join(versions, ", ");
}

void use_gpu(int device, int capability) {
  if (!has_kernels_for(capability)) {
    throw_device_error("GPU {} has compute capability {}; this build has kernels for {}{}", device,
                       version_text(capability), describe_architectures(), way_out(capability));
  }
  used_capability = capability;
}

int gpu_capability() {
  return used_capability;
}

AssumedCapability::AssumedCapability(int capability)
    : before_(used_capability.exchange(capability)) {}

AssumedCapability::~AssumedCapability() {
  used_capability = before_;
}

}  // namespace braid
