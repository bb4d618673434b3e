#pragma once

#include "support/cuda_kernel_case.h"

/// What every CUDA kernel of ours must hold, beside its values.
namespace braid {

inline constexpr DType kCudaDtypes[] = {DType::kBF16, DType::kF32};

/// Runs the case with every operand one element after a multiple of 1024 bytes, so that no vector
/// access is possible; its operands are then the device's.
inline void run_misaligned(KernelCase& kernel_case, CudaContext& context) {
  const OpSpec& spec = kernel_case.spec();
  const CudaKernel kernel = make_cuda_kernel(spec, context);
  GuardedDeviceBuffer scratch(kernel.scratch_bytes);
  std::vector<GuardedDeviceBuffer> buffers;
  std::vector<std::byte*> operands;
  const auto shift_of = [&](size_t i) { return dtype_bytes(spec.operands[i].dtype); };
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    std::vector<std::byte> bytes = kernel_case.bytes(i);
    bytes.insert(bytes.begin(), shift_of(i), std::byte{0});
    buffers.emplace_back(bytes.size());
    buffers.back().upload(bytes);
    operands.push_back(buffers.back().data() + shift_of(i));
  }
  kernel.launch({.operands = operands, .scratch = scratch.data(), .stream = cudaStreamLegacy});
  BRAID_CUDA_CHECK(cudaDeviceSynchronize());
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_TRUE(buffers[i].guards_intact()) << spec.op << ": wrote outside of operand " << i;
    std::vector<std::byte> bytes = buffers[i].download();
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(shift_of(i)));
    kernel_case.set(i, to_doubles(spec.operands[i].dtype, bytes));
  }
}

/// Two runs, a replay of a captured graph and a run on misaligned operands give the same bits.
inline void expect_repeatable(const std::function<KernelCase()>& make, CudaContext& context) {
  KernelCase first = make();
  run_on_cuda(first, context);
  const auto expect_equal = [&](const KernelCase& other, const char* what) {
    for (size_t i = 0; i < first.spec().operands.size(); ++i) {
      EXPECT_TRUE(other.bytes(i) == first.bytes(i))
          << first.spec().op << ": operand " << i << " differs " << what;
    }
  };
  KernelCase again = make();
  run_on_cuda(again, context);
  expect_equal(again, "in a second run");
  KernelCase replayed = make();
  run_on_cuda(replayed, context, CudaLaunch::kGraph);
  expect_equal(replayed, "in a graph");
  KernelCase misaligned = make();
  run_misaligned(misaligned, context);
  expect_equal(misaligned, "on misaligned operands");
}

/// Runs on the device; every written operand is close to the CPU's in f64.
inline void expect_equals_cpu(KernelCase kernel_case, CudaContext& context,
                              const std::function<Tolerance(DType)>& tolerance,
                              const std::string& name, std::optional<size_t> kept = {}) {
  const KernelCase expected = f64_reference(kernel_case, 2, kept);
  run_on_cuda(kernel_case, context);
  const OpSpec& spec = kernel_case.spec();
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    if (writes(spec.operands[i].access)) {
      expect_close(kernel_case.values(i), expected.values(i), tolerance(spec.operands[i].dtype),
                   fmt::format("{} {} operand {}", spec.op, name, i));
    }
  }
}

/// Runs on the device and, with the same dtypes, on the CPU: every operand has the same values.
inline void expect_same_as_cpu(const std::function<KernelCase()>& make, CudaContext& context,
                               const std::string& name) {
  KernelCase expected = make();
  expected.run(2);
  KernelCase actual = make();
  run_on_cuda(actual, context);
  for (size_t i = 0; i < actual.spec().operands.size(); ++i) {
    expect_close(actual.values(i), expected.values(i), {},
                 fmt::format("{} {} operand {}", actual.spec().op, name, i));
  }
}

/// One rounding to the stored dtype, and `absolute` for what fp32 arithmetic loses before it.
inline std::function<Tolerance(DType)> rounded_once(double absolute, double relative = 0) {
  return [=](DType dtype) {
    return Tolerance{.absolute = absolute, .relative = 1.01 * rounding_error(dtype) + relative};
  };
}

}  // namespace braid
