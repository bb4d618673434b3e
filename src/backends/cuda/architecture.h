#pragma once

#include <string>
#include <string_view>
#include <vector>

/// For which GPUs this build has machine code, and what kernels the GPUs of this process can run.
/// Independent of CUDA, so that memory can be counted without a device. A compute capability is
/// written as 10 x major + minor: 90 is 9.0.
namespace braid {

/// The architectures for which kernels were compiled, as CMake's BRAID_CUDA_ARCHITECTURES names
/// them: "90a", "100". Empty in a build without CUDA.
std::vector<std::string> cuda_architectures();

/// Whether machine code of an architecture runs on a GPU: that of "80" on 8.0 and later minor
/// versions, that of "90a", with instructions of 9.0 alone, on 9.0 only.
bool runs_on(std::string_view architecture, int capability);

/// Whether this build has kernels for a GPU.
bool has_kernels_for(int capability);
/// "8.0 and up, 9.0": what this build has kernels for, for people. "and up": within 8.x.
std::string describe_architectures();

/// Says which GPUs this process uses; all of them are alike. Throws DeviceError, naming the GPU,
/// if this build has no kernels for it.
void use_gpu(int device, int capability);

/// The capability that `use_gpu` was told last; before that 90, so that estimates without a GPU are
/// those of an H100.
int gpu_capability();

/// While it lives, kernels are made and memory is counted for a GPU of another capability: all that
/// ask `gpu_capability` agree. Tests and benchmarks run by it kernels for other GPUs that this one
/// can run, too; none are compiled for it.
class AssumedCapability {
 public:
  explicit AssumedCapability(int capability);
  ~AssumedCapability();
  AssumedCapability(const AssumedCapability&) = delete;
  AssumedCapability& operator=(const AssumedCapability&) = delete;

 private:
  int before_;
};

/// Whether GPUs run the kernels for Hopper: files `_sm90`, and what scripts/build_sm90_kernels.sh
/// makes.
constexpr bool runs_hopper_kernels(int capability) {
  return capability == 90;
}
/// Whether cuBLASLt multiplies FP8 factors with one scale each (Ada, Hopper and later), and with
/// scales for blocks of 128 elements (Hopper alone). Source: cuBLAS 13 manual, "Narrow precision
/// data types usage".
constexpr bool multiplies_fp8_with_one_scale(int capability) {
  return capability >= 89;
}
constexpr bool multiplies_fp8_with_blocks(int capability) {
  return capability == 90;
}

}  // namespace braid
