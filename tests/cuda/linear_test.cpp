#include "ops/linear.h"

#include <functional>
#include <limits>

#include "support/cuda_kernel_case.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows;
  int64_t in;
  int64_t out;
};

/// Ones, primes, multiples of 8 but not of a tile, and one that fills the device.
constexpr Sizes kSizes[] = {{1, 1, 1},        {1, 7, 3},       {5, 1, 2},
                            {13, 31, 17},     {67, 48, 101},   {128, 64, 256},
                            {200, 1000, 264}, {33, 4099, 129}, {2048, 512, 768}};
constexpr DType kDtypes[] = {DType::kBF16, DType::kF32};

using LinearCudaTest = CudaKernelTest;

std::string name_of(DType dtype, Sizes s) {
  return fmt::format("{} [{},{}] x [{},{}]", dtype_name(dtype), s.rows, s.in, s.out, s.in);
}

KernelCase linear_case(DType dtype, Sizes s, bool has_bias) {
  std::vector<OperandSpec> operands = {read(dtype, {s.rows, s.in}), read(dtype, {s.out, s.in})};
  if (has_bias) {
    operands.push_back(read(dtype, {s.out}));
  }
  operands.push_back(write(dtype, {s.rows, s.out}));
  return KernelCase(
      {"linear", to_attributes(LinearAttributes{.has_bias = has_bias}), std::move(operands)});
}

/// The bias is NaN, which must not show.
KernelCase case_without_adding_the_bias(DType dtype, Sizes s) {
  KernelCase kernel_case({"linear",
                          to_attributes(LinearAttributes{.has_bias = true, .adds_bias = false}),
                          {read(dtype, {s.rows, s.in}), read(dtype, {s.out, s.in}),
                           read(dtype, {s.out}), write(dtype, {s.rows, s.out})}});
  kernel_case.set_all(2, std::numeric_limits<double>::quiet_NaN());
  return kernel_case;
}

KernelCase dgrad_case(DType dtype, Sizes s, bool accumulate) {
  return KernelCase({"linear_dgrad",
                     to_attributes(LinearDgradAttributes{.accumulate = accumulate}),
                     {read(dtype, {s.rows, s.out}), read(dtype, {s.out, s.in}),
                      gradient(accumulate, dtype, {s.rows, s.in})}});
}

KernelCase wgrad_case(DType dtype, Sizes s, bool has_bias, bool accumulate) {
  std::vector<OperandSpec> operands = {read(dtype, {s.rows, s.in}), read(dtype, {s.rows, s.out}),
                                       gradient(accumulate, wide(dtype), {s.out, s.in})};
  if (has_bias) {
    operands.push_back(gradient(accumulate, wide(dtype), {s.out}));
  }
  const LinearWgradAttributes attributes{.has_bias = has_bias, .accumulate = accumulate};
  return KernelCase({"linear_wgrad", to_attributes(attributes), std::move(operands)});
}

/// Of a sum of `terms` products. `is_added_to`: bias or old values are added to it; some of
/// cuBLASLt's algorithms round the product to the output's type before, and what is added is at
/// most 1.
Tolerance product_tolerance(const OperandSpec& output, const std::vector<double>& expected,
                            int64_t terms, bool is_added_to) {
  Tolerance tolerance = sum_tolerance(output.dtype, static_cast<double>(terms + 1));
  if (is_added_to) {
    double largest = 0;
    for (const double value : expected) {
      largest = std::max(largest, std::abs(value));
    }
    tolerance.absolute += rounding_error(output.dtype) * (largest + 1);
  }
  return tolerance;
}

/// Runs on the device and compares the written operands with the CPU's in f64.
void check_against_cpu(KernelCase kernel_case, CudaContext& context, int64_t terms,
                       bool is_added_to, const std::string& name) {
  const KernelCase expected = f64_reference(kernel_case);
  run_on_cuda(kernel_case, context);
  const OpSpec& spec = kernel_case.spec();
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    if (writes(spec.operands[i].access)) {
      expect_close(
          kernel_case.values(i), expected.values(i),
          product_tolerance(spec.operands[i], expected.values(i), terms, is_added_to),
          fmt::format("{} {} operand {}{}", spec.op, name, i, is_added_to ? ", added to" : ""));
    }
  }
}

TEST_F(LinearCudaTest, ForwardEqualsTheCpu) {
  for (const DType dtype : kDtypes) {
    for (const Sizes s : kSizes) {
      for (const bool has_bias : {false, true}) {
        check_against_cpu(linear_case(dtype, s, has_bias), context(), s.in, has_bias,
                          name_of(dtype, s));
      }
    }
  }
}

TEST_F(LinearCudaTest, LeavesABiasOutOnRequest) {
  for (const DType dtype : kDtypes) {
    for (const Sizes s : kSizes) {
      check_against_cpu(case_without_adding_the_bias(dtype, s), context(), s.in, false,
                        name_of(dtype, s));
    }
  }
}

TEST_F(LinearCudaTest, DgradEqualsTheCpu) {
  for (const DType dtype : kDtypes) {
    for (const Sizes s : kSizes) {
      for (const bool accumulate : {false, true}) {
        check_against_cpu(dgrad_case(dtype, s, accumulate), context(), s.out, accumulate,
                          name_of(dtype, s));
      }
    }
  }
}

TEST_F(LinearCudaTest, WgradEqualsTheCpu) {
  for (const DType dtype : kDtypes) {
    for (const Sizes s : kSizes) {
      for (const bool has_bias : {false, true}) {
        for (const bool accumulate : {false, true}) {
          check_against_cpu(wgrad_case(dtype, s, has_bias, accumulate), context(), s.rows,
                            accumulate, name_of(dtype, s));
        }
      }
    }
  }
}

// Rows of the whole gradient: dy is read with the stride of all features.
TEST_F(LinearCudaTest, SlicesOfWgradEqualTheCpu) {
  for (const DType dtype : kDtypes) {
    for (const Sizes s : {Sizes{67, 48, 101}, Sizes{200, 1000, 264}, Sizes{2048, 512, 768}}) {
      for (const FeatureSlice& slice : {FeatureSlice{0, 16}, FeatureSlice{48, s.out}}) {
        KernelCase kernel_case(
            {"linear_wgrad",
             to_attributes(LinearWgradAttributes{.has_bias = true, .features = slice}),
             {read(dtype, {s.rows, s.in}), read(dtype, {s.rows, s.out}),
              gradient(true, wide(dtype), {slice.end_feature - slice.first_feature, s.in}),
              gradient(true, wide(dtype), {s.out})}});
        check_against_cpu(std::move(kernel_case), context(), s.rows, true, name_of(dtype, s));
      }
    }
  }
}

// TF32 keeps 11 bits of the operands, so its sums are off by far more than the f32 tolerance.
TEST_F(LinearCudaTest, F32IsNotRoundedToTf32) {
  KernelCase kernel_case = linear_case(DType::kF32, {256, 256, 256}, false);
  const KernelCase expected = f64_reference(kernel_case);
  run_on_cuda(kernel_case, context());
  EXPECT_LT(relative_distance(kernel_case.values(2), expected.values(2)), 1e-6);
}

TEST_F(LinearCudaTest, GraphAndRerunsAreBitwiseEqual) {
  const Sizes sizes{4096, 1024, 1536};
  const auto expect_repeatable = [&](const std::function<KernelCase()>& make) {
    CudaContext remembering(0, testing::TempDir() + "/braid_linear_cuda_test");
    KernelCase first = make();
    run_on_cuda(first, remembering);
    for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
      KernelCase again = make();
      run_on_cuda(again, remembering, how);
      for (size_t i = 0; i < first.spec().operands.size(); ++i) {
        EXPECT_TRUE(again.bytes(i) == first.bytes(i)) << first.spec().op << " operand " << i;
      }
    }
  };
  expect_repeatable([&] { return linear_case(DType::kBF16, sizes, true); });
  expect_repeatable([&] { return dgrad_case(DType::kBF16, sizes, true); });
  expect_repeatable([&] { return wgrad_case(DType::kBF16, sizes, true, true); });
}

}  // namespace
}  // namespace braid
