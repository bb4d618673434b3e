// Replaces make_executor.cpp in builds without CUDA.
#include "backends/cuda/make_executor.h"
#include "base/errors.h"

namespace braid {

FoundDevices find_cuda_gpus(size_t) {
  return {.usable = {}, .why_none = "this build has no CUDA"};
}

int64_t free_cuda_bytes(int) {
  throw_config_error("this build has no CUDA");
}

std::string cuda_software() {
  return "";
}

std::string describe_cuda_tracing() {
  return "";
}

std::string describe_cuda_communication() {
  return "";
}

std::unique_ptr<Executor> make_cuda_rank(std::vector<Program>, MemoryPlan, const RankOptions&) {
  throw_config_error(
      "runtime.device = \"cuda\": this build has no CUDA; build where nvcc is installed, or set "
      "runtime.device = \"cpu\"");
}

}  // namespace braid
