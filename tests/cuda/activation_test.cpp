#include "ops/activation.h"

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using ActivationCudaTest = CudaKernelTest;

struct Sizes {
  int64_t rows;
  int64_t width;
};
constexpr Sizes kSizes[] = {{1, 1}, {3, 5}, {7, 8}, {129, 31}, {5, 1000}, {33, 4096}, {3, 14336}};

KernelCase activation_case(const std::string& op, DType dtype, Sizes s) {
  const bool is_gated = op.starts_with("swiglu") || op.starts_with("geglu");
  const Shape half{s.rows, s.width};
  const Shape input{s.rows, is_gated ? 2 * s.width : s.width};
  std::vector<OperandSpec> operands = {read(dtype, input)};
  const bool is_backward = op.ends_with("_backward");
  if (is_backward) {
    operands.push_back(read(dtype, half));
  }
  operands.push_back(write(dtype, is_backward ? input : half));
  KernelCase kernel_case({op, {}, std::move(operands)});
  // Into both tails, where exponentials over- and underflow.
  TestRandom random(7);
  kernel_case.set(0, random.uniforms(kernel_case.num_elems(0), -30.0, 30.0));
  return kernel_case;
}

constexpr const char* kOps[] = {"swiglu", "swiglu_backward", "geglu", "geglu_backward",
                                "gelu",   "gelu_backward"};

// Inputs up to 30: an exponent that is off by 30 half units gives 4e-6, times products up to 900.
TEST_F(ActivationCudaTest, EqualsTheCpu) {
  for (const char* const op : kOps) {
    for (const DType dtype : kCudaDtypes) {
      for (const Sizes s : kSizes) {
        expect_equals_cpu(activation_case(op, dtype, s), context(), rounded_once(1e-4, 1e-5),
                          fmt::format("{} [{},{}]", dtype_name(dtype), s.rows, s.width));
      }
    }
  }
}

TEST_F(ActivationCudaTest, IsBitwiseRepeatable) {
  for (const char* const op : kOps) {
    for (const DType dtype : kCudaDtypes) {
      expect_repeatable([&] { return activation_case(op, dtype, {67, 1040}); }, context());
    }
  }
}

}  // namespace
}  // namespace braid
