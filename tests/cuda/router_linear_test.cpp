#include "ops/router.h"
#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using RouterLinearCudaTest = CudaKernelTest;

struct Sizes {
  int64_t rows;
  int64_t width;
  int64_t experts;
};

/// Ones, primes, and those of models; a gate is a router with one expert.
constexpr Sizes kSizes[] = {{1, 1, 1},   {67, 2048, 1},   {5, 7, 3},        {13, 31, 17},
                            {67, 48, 8}, {200, 1000, 60}, {512, 2048, 128}, {96, 1024, 512}};

std::string name_of(DType dtype, Sizes s) {
  return fmt::format("{} [{},{}] x [{},{}]", dtype_name(dtype), s.rows, s.width, s.experts,
                     s.width);
}

KernelCase linear_case(DType dtype, Sizes s, bool has_bias = false) {
  std::vector<OperandSpec> operands{read(dtype, {s.rows, s.width}),
                                    read(dtype, {s.experts, s.width})};
  if (has_bias) {
    operands.push_back(read(DType::kF32, {s.experts}));
  }
  operands.push_back(write(DType::kF32, {s.rows, s.experts}));
  return KernelCase({"router_linear",
                     to_attributes(RouterLinearAttributes{.bias = {.has_logit_bias = has_bias}}),
                     operands});
}

KernelCase dgrad_case(DType dtype, Sizes s, bool accumulate) {
  return KernelCase({"router_linear_dgrad",
                     to_attributes(RouterGradAttributes{.accumulate = accumulate}),
                     {read(DType::kF32, {s.rows, s.experts}), read(dtype, {s.experts, s.width}),
                      gradient(accumulate, dtype, {s.rows, s.width})}});
}

KernelCase wgrad_case(DType dtype, Sizes s, bool accumulate, bool has_bias = false) {
  std::vector<OperandSpec> operands{read(dtype, {s.rows, s.width}),
                                    read(DType::kF32, {s.rows, s.experts}),
                                    gradient(accumulate, DType::kF32, {s.experts, s.width})};
  if (has_bias) {
    operands.push_back(gradient(accumulate, DType::kF32, {s.experts}));
  }
  return KernelCase({"router_linear_wgrad",
                     to_attributes(RouterWgradAttributes{.accumulate = accumulate,
                                                         .bias = {.has_logit_bias = has_bias}}),
                     operands});
}

/// Of a sum of `terms` products. With `split`, a factor is off by up to 2^-16 of it: errors of
/// random sign add up like the sums themselves. Some of cuBLASLt's algorithms round the product
/// before they add it to an old value, which is at most 1.
std::function<Tolerance(DType)> tolerance(int64_t terms, bool split, bool accumulate) {
  return [=](DType dtype) {
    Tolerance of_sum = sum_tolerance(dtype, static_cast<double>(terms + 1));
    const double size = std::sqrt(static_cast<double>(terms));
    of_sum.absolute += (split ? 0x1.0p-16 : 0.0) * 4 * size;
    of_sum.absolute += accumulate ? rounding_error(dtype) * (4 * size + 1) : 0.0;
    return of_sum;
  };
}

TEST_F(RouterLinearCudaTest, LogitsAreNotRounded) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : kSizes) {
      for (const bool has_bias : {false, true}) {
        expect_equals_cpu(linear_case(dtype, s, has_bias), context(),
                          tolerance(s.width + 1, false, has_bias), name_of(dtype, s));
      }
    }
  }
}

TEST_F(RouterLinearCudaTest, GradientsEqualTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    const bool split = dtype == DType::kBF16;
    for (const Sizes s : kSizes) {
      for (const bool accumulate : {false, true}) {
        expect_equals_cpu(dgrad_case(dtype, s, accumulate), context(),
                          tolerance(s.experts, split, accumulate), name_of(dtype, s));
        for (const bool has_bias : {false, true}) {
          expect_equals_cpu(wgrad_case(dtype, s, accumulate, has_bias), context(),
                            tolerance(s.rows, split, accumulate), name_of(dtype, s));
        }
      }
    }
  }
}

// d_logits that bf16 cannot hold: rounded to it, these would be 1.
TEST_F(RouterLinearCudaTest, GradientsKeepSixteenBits) {
  const Sizes s{16, 8, 8};
  KernelCase wgrad = wgrad_case(DType::kBF16, s, false, true);
  wgrad.set_all(0, 1.0);
  wgrad.set_all(1, 1.0 + 0x1.0p-12);
  run_on_cuda(wgrad, context());
  EXPECT_EQ(wgrad.values(2), std::vector<double>(64, 16 * (1.0 + 0x1.0p-12)));
  EXPECT_EQ(wgrad.values(3), std::vector<double>(8, 16 * (1.0 + 0x1.0p-12)));
}

// In bf16 these logits would be 1.
TEST_F(RouterLinearCudaTest, BiasesAreNotRounded) {
  KernelCase linear = linear_case(DType::kBF16, {16, 8, 8}, true);
  linear.set_all(0, 0.0);
  linear.set_all(2, 1.0 + 0x1.0p-20);
  run_on_cuda(linear, context());
  EXPECT_EQ(linear.values(3), std::vector<double>(128, 1.0 + 0x1.0p-20));
}

TEST_F(RouterLinearCudaTest, IsBitwiseRepeatable) {
  const Sizes s{512, 1024, 64};
  const auto expect_twice = [&](const std::function<KernelCase()>& make) {
    KernelCase first = make();
    run_on_cuda(first, context());
    for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
      KernelCase again = make();
      run_on_cuda(again, context(), how);
      for (size_t i = 2; i < first.spec().operands.size(); ++i) {
        EXPECT_TRUE(again.bytes(i) == first.bytes(i)) << first.spec().op;
      }
    }
  };
  for (const DType dtype : kCudaDtypes) {
    expect_twice([&] { return linear_case(dtype, s, true); });
    expect_twice([&] { return dgrad_case(dtype, s, true); });
    expect_twice([&] { return wgrad_case(dtype, s, true, true); });
  }
}

}  // namespace
}  // namespace braid
