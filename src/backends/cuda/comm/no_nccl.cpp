// Replaces nccl_communicators.cpp if nccl.h was not found.
#include "backends/cuda/comm/communicators.h"
#include "base/errors.h"

namespace braid {

struct Communicators::State {};

Communicators::Communicators(std::span<const Program>, Rendezvous&, CommunicatorOptions) {
  throw_config_error(
      "parallel.ranks: this build has no NCCL (nccl.h was not found), so ranks on GPUs communicate "
      "by copy engines only; build where NCCL is installed, or set overlap.comm_engine = \"copy\"");
}

Communicators::~Communicators() = default;

bool Communicators::wants_windows() const {
  return false;
}

void Communicators::register_windows(std::span<const Program>, const OperandMemory&) {}

const std::vector<std::string>& Communicators::without_windows() const {
  static const std::vector<std::string> kNone;
  return kNone;
}

CudaKernel Communicators::make_kernel(const Program&, const Task&) const {
  return {};
}

std::optional<std::string> Communicators::fault() const {
  return std::nullopt;
}

void Communicators::abort(const std::string&) noexcept {}

std::string why_no_nccl() {
  return "this build has no NCCL (nccl.h was not found)";
}

std::string describe_nccl() {
  return why_no_nccl();
}

std::string why_no_nccl_windows() {
  return why_no_nccl();
}

const Allocator& nccl_window_allocator() {
  return cuda_allocator();
}

}  // namespace braid
