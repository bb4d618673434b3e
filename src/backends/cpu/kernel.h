#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "ir/op_spec.h"
#include "ir/program.h"

namespace braid {

/// Runs pieces of one kernel on the workers of a rank's stream. Splits depend only on the problem,
/// so results do not depend on which worker runs which piece.
class WorkerPool;

/// Arguments of a kernel for one task. Operand pointers are in the order of the spec's operands.
struct KernelArgs {
  std::span<std::byte* const> operands;
  std::span<std::byte>
      scratch;  ///< at least CpuKernel::scratch_bytes, 64-byte aligned, content undefined
  WorkerPool& workers;

  template <class T>
  T* data(size_t operand) const {
    return reinterpret_cast<T*>(operands[operand]);
  }
};

/// A kernel made for one spec: `run` already contains attributes and shapes. It allocates nothing.
struct CpuKernel {
  std::function<void(const KernelArgs&)> run;
  size_t scratch_bytes = 0;
};

/// The CPU kernel of a compute spec, for pools of up to `num_workers` workers. Floating-point
/// operands may be f32 or f64 (all of one type, for gradient checks) or bf16 with fp32 arithmetic;
/// main grads, norm statistics and optimizer state are fp32 (f64 if the operands are f64). Throws
/// InternalError if there is no kernel for the op or for its dtypes.
CpuKernel make_cpu_kernel(const OpSpec& spec, int num_workers);

}  // namespace braid
