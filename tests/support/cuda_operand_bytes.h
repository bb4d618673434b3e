#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "support/cuda_kernel_case.h"

/// Kernels on operands that are kept as bytes: a KernelCase holds numbers, so it loses the bits of
/// NaN and knows no 8-bit floats.
namespace braid {

using OperandBytes = std::vector<std::vector<std::byte>>;

inline std::vector<std::byte> poisoned_bytes(const OperandSpec& operand) {
  return std::vector<std::byte>(
      static_cast<size_t>(operand.shape.num_elems()) * dtype_bytes(operand.dtype), std::byte{0xFF});
}

/// All operands after a run on the CPU.
inline OperandBytes run_on_cpu(const OpSpec& spec, OperandBytes bytes) {
  check_spec(spec);
  const CpuKernel kernel = make_cpu_kernel(spec, 2);
  GuardedBuffer scratch(kernel.scratch_bytes);
  scratch.poison();
  std::vector<std::byte*> operands;
  for (std::vector<std::byte>& each : bytes) {
    operands.push_back(each.data());
  }
  WorkerPool workers(2);
  kernel.run({.operands = operands, .scratch = scratch.bytes(), .workers = workers});
  return bytes;
}

/// All operands after a run on the device; expects that nothing outside of written operands and
/// scratch has changed.
inline OperandBytes run_on_cuda(const OpSpec& spec, const OperandBytes& bytes,
                                CudaContext& context) {
  check_spec(spec);
  const CudaKernel kernel = make_cuda_kernel(spec, context);
  EXPECT_LE(kernel.scratch_bytes, max_cuda_scratch_bytes(spec, /*repeatable=*/true)) << spec.op;
  GuardedDeviceBuffer scratch(kernel.scratch_bytes);
  scratch.poison();
  std::vector<GuardedDeviceBuffer> buffers;
  std::vector<std::byte*> operands;
  for (const std::vector<std::byte>& each : bytes) {
    buffers.emplace_back(each.size());
    buffers.back().upload(each);
    operands.push_back(buffers.back().data());
  }
  kernel.launch({.operands = operands, .scratch = scratch.data(), .stream = nullptr});
  BRAID_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(scratch.guards_intact()) << spec.op << ": wrote outside of its scratch";
  OperandBytes results;
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_TRUE(buffers[i].guards_intact()) << spec.op << ": wrote outside of operand " << i;
    results.push_back(buffers[i].download());
    if (!writes(spec.operands[i].access)) {
      EXPECT_TRUE(results[i] == bytes[i]) << spec.op << ": changed its read-only operand " << i;
    }
  }
  return results;
}

}  // namespace braid
