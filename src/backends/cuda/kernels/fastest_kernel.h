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

/// Chooses between kernels that do the same work, by measurement.
namespace braid {

/// An implementation, and a name that identifies it: no tabs, no line ends.
struct NamedKernel {
  std::string name;
  CudaKernel kernel;
};

/// The work for timing the kernels.
struct TimedWork {
  struct Operand {
    int64_t num_elems = 0;
    DType dtype = DType::kBF16;          ///< of random_fill.h
    std::vector<int32_t> integers = {};  ///< content of an i32 operand, in place of random content
  };
  std::vector<Operand> operands;  ///< in the kernels' order; random content
  double flops = 0;               ///< of its matrix product
};

/// A choice, which may have been made before.
struct KernelChoice {
  std::string key;  ///< see AlgorithmCache
  TimedWork work;
  /// At least one candidate; if times cannot be distinguished, earlier candidates are preferred.
  std::function<std::vector<NamedKernel>()> candidates;
  /// The candidate of that name, if it still exists.
  std::function<std::optional<CudaKernel>(std::string_view name)> recall;
};

/// Returns the kernel that `context.algorithms()` has for the key; otherwise measures the
/// candidates, stores the fastest and returns it. The measurement runs on the current device, with
/// operands that do not stay in L2, and under steady load if the product is large. It takes about
/// 0.1 s, 1 to 2 s for large products, and the memory of the operands.
CudaKernel fastest_kernel(const KernelChoice& choice, CudaContext& context);

/// The device's part of a key: its name and the number of its multiprocessors.
std::string device_text(const CudaContext& context);

}  // namespace braid
