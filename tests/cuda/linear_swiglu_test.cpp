#include "ops/linear_swiglu.h"

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows;
  int64_t width;  // K; M of the backward
  int64_t ffn;    // F
};

/// Ones, primes, multiples of 8 but not of a tile, and one that fills the device.
constexpr Sizes kSizes[] = {{1, 1, 1},       {1, 7, 3},        {13, 31, 17},
                            {67, 48, 101},   {128, 64, 256},   {200, 1000, 264},
                            {33, 4099, 129}, {300, 8, 8 * 37}, {2048, 512, 768}};

using LinearSwigluCudaTest = CudaKernelTest;

std::string name_of(DType dtype, Sizes s) {
  return fmt::format("{} N={} K={} F={}", dtype_name(dtype), s.rows, s.width, s.ffn);
}

KernelCase forward_case(DType dtype, Sizes s) {
  return KernelCase({"linear_swiglu",
                     {},
                     {read(dtype, {s.rows, s.width}), read(dtype, {2 * s.ffn, s.width}),
                      write(dtype, {s.rows, 2 * s.ffn}), write(dtype, {s.rows, s.ffn})}});
}

KernelCase backward_case(DType dtype, Sizes s) {
  return KernelCase({"linear_dgrad_swiglu_backward",
                     {},
                     {read(dtype, {s.rows, s.width}), read(dtype, {s.width, s.ffn}),
                      read(dtype, {s.rows, 2 * s.ffn}), write(dtype, {s.rows, 2 * s.ffn})}});
}

/// swiglu of the product as the device has rounded it, in f64 on the CPU.
std::vector<double> swiglu_of(const KernelCase& forward) {
  OpSpec spec = unfused(forward.spec()).activation;
  for (OperandSpec& operand : spec.operands) {
    operand.dtype = DType::kF64;
  }
  KernelCase swiglu(spec);
  swiglu.set(0, forward.values(2));
  swiglu.run(2);
  return swiglu.values(1);
}

// y is a function of the rounded product: of what was not rounded it would be off by more than its
// own rounding. Sums are some 100 at most: an exponent that is off by as many half units gives
// 1e-5.
TEST_F(LinearSwigluCudaTest, ForwardEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : kSizes) {
      KernelCase kernel = forward_case(dtype, s);
      const KernelCase expected = f64_reference(kernel);
      run_on_cuda(kernel, context());
      expect_close(kernel.values(2), expected.values(2),
                   sum_tolerance(dtype, static_cast<double>(s.width)),
                   "gate_up " + name_of(dtype, s));
      expect_close(kernel.values(3), swiglu_of(kernel), rounded_once(1e-4, 1e-5)(dtype),
                   "y " + name_of(dtype, s));
    }
  }
}

// Factors behind d_h are at most 1.1 here; it and the result are each rounded once.
TEST_F(LinearSwigluCudaTest, BackwardEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : kSizes) {
      KernelCase kernel = backward_case(dtype, s);
      const KernelCase expected = f64_reference(kernel);
      run_on_cuda(kernel, context());
      Tolerance tolerance = sum_tolerance(dtype, static_cast<double>(s.width));
      tolerance.absolute *= 1.1;
      tolerance.relative += 2 * rounding_error(dtype) + 1e-5;
      expect_close(kernel.values(3), expected.values(3), tolerance,
                   "d_gate_up " + name_of(dtype, s));
    }
  }
}

TEST_F(LinearSwigluCudaTest, GraphAndRerunsAreBitwiseEqual) {
  const Sizes sizes{4096, 1024, 1536};
  for (const auto make : {forward_case, backward_case}) {
    CudaContext remembering(0, testing::TempDir() + "/braid_linear_swiglu_cuda_test");
    KernelCase first = make(DType::kBF16, sizes);
    run_on_cuda(first, remembering);
    for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
      KernelCase again = make(DType::kBF16, sizes);
      run_on_cuda(again, remembering, how);
      for (size_t i = 0; i < first.spec().operands.size(); ++i) {
        EXPECT_TRUE(again.bytes(i) == first.bytes(i)) << first.spec().op << " operand " << i;
      }
    }
  }
}

}  // namespace
}  // namespace braid
