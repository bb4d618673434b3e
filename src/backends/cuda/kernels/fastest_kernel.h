#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/kernel.h"
#include "base/dtype.h"

/// Choices between kernels that do the same work, by measurement.
namespace braid {

/// One way to do the work, and the text that finds it again: no tabs, no line ends.
struct NamedKernel {
  std::string name;
  CudaKernel kernel;
};

/// What the kernels are timed on.
struct TimedWork {
  struct Operand {
    int64_t num_elems = 0;
    DType dtype = DType::kBF16;  ///< bf16 or f32
  };
  std::vector<Operand> operands;  ///< as the kernels take them; random content
  double flops = 0;               ///< of the matrix product in it
};

/// A choice that may have been made before.
struct KernelChoice {
  std::string key;  ///< see AlgorithmCache
  TimedWork work;
  /// At least one, and in front those to take where times cannot be told apart.
  std::function<std::vector<NamedKernel>()> candidates;
  /// The candidate of that name, if there still is one.
  std::function<std::optional<CudaKernel>(std::string_view name)> recall;
};

/// The kernel that `context.algorithms()` remembers for the key, or else the fastest candidate,
/// which it then remembers. The measurement (operands that do not stay in L2, under steady load
/// where the product is large; some 0.1 s, 1 to 2 s for large products, and the memory of the
/// operands) runs on the current device.
CudaKernel fastest_kernel(const KernelChoice& choice, CudaContext& context);

/// What a key says about the device: its name and the number of its multiprocessors.
std::string device_text(const CudaContext& context);

}  // namespace braid
