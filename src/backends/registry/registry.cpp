#include "backends/registry/registry.h"

#include <algorithm>
#include <array>

#include "backends/cpu/cpu_backend.h"
#include "backends/cuda/cuda_backend.h"
#include "base/errors.h"

namespace braid {
namespace {

constexpr std::array kBackends = {
    &kCpuBackend,
    &kCudaBackend,
};

}  // namespace

std::span<const Backend* const> backends() {
  return kBackends;
}

const Backend& host_backend() {
  return *kBackends.front();
}

const Backend& gpu_backend() {
  return **std::ranges::find(kBackends, false, &Backend::is_host);
}

const Backend& backend_named(std::string_view name) {
  for (const Backend* const backend : kBackends) {
    if (backend->name == name) {
      return *backend;
    }
  }
  throw_internal_error("there is no backend {}", name);
}

}  // namespace braid
