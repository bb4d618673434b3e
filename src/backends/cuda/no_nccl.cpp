// Stands in for nccl_communicators.cpp where nccl.h was not found.
#include "backends/cuda/communicators.h"
#include "base/errors.h"

namespace braid {

struct Communicators::State {};

Communicators::Communicators(std::span<const Program>, Rendezvous&) {
  throw_config_error(
      "parallel.ranks: this build has no NCCL (nccl.h was not found), so a run has one GPU; build "
      "where NCCL is installed, or set parallel.ranks = 1");
}

Communicators::~Communicators() = default;

CudaKernel Communicators::make_kernel(const Program&, const Task&) const {
  return {};
}

bool Communicators::wait(cudaStream_t, std::optional<std::chrono::nanoseconds>) const {
  return true;
}

std::optional<std::string> Communicators::fault() const {
  return std::nullopt;
}

void Communicators::abort(const std::string&) noexcept {}

std::string why_no_nccl() {
  return "this build has no NCCL (nccl.h was not found)";
}

}  // namespace braid
