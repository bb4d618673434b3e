// linear_test.cpp holds the ops to the CPU's with the product that was measured to be the fastest;
// here are all that could be, cuBLASLt's and our own.
#include "backends/cuda/kernels/gemm.h"

#include <array>

#include "ops/linear.h"
#include "support/cuda_kernel_case.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows;
  int64_t in;
  int64_t out;
};

/// One row, less than a tile, multiples of 8 but not of a tile, odd rows, and more tiles than
/// multiprocessors.
constexpr Sizes kSizes[] = {{1, 8, 8},       {3, 24, 40},   {129, 264, 136},  {257, 1032, 72},
                            {300, 1000, 88}, {67, 48, 104}, {1031, 136, 776}, {2048, 1536, 1024}};
/// Rows that are not whole vectors.
constexpr Sizes kOddSizes[] = {{5, 7, 3}, {64, 20, 36}};

/// An op, the product it is, and which operands are the product's a, b and d.
struct Product {
  OpSpec spec;
  GemmProblem problem;
  std::array<size_t, 3> operands;
  int64_t terms;
};

constexpr DType kBF16 = DType::kBF16;

Product forward(Sizes s) {
  return {.spec = {"linear",
                   to_attributes(LinearAttributes{}),
                   {read(kBF16, {s.rows, s.in}), read(kBF16, {s.out, s.in}),
                    write(kBF16, {s.rows, s.out})}},
          .problem = {.transpose_a = true, .m = s.out, .n = s.rows, .k = s.in},
          .operands = {1, 0, 2},
          .terms = s.in};
}

Product dgrad(Sizes s) {
  return {.spec = {"linear_dgrad",
                   to_attributes(LinearDgradAttributes{}),
                   {read(kBF16, {s.rows, s.out}), read(kBF16, {s.out, s.in}),
                    write(kBF16, {s.rows, s.in})}},
          .problem = {.m = s.in, .n = s.rows, .k = s.out},
          .operands = {1, 0, 2},
          .terms = s.out};
}

Product wgrad(Sizes s) {
  return {.spec = {"linear_wgrad",
                   to_attributes(LinearWgradAttributes{.accumulate = true}),
                   {read(kBF16, {s.rows, s.in}), read(kBF16, {s.rows, s.out}),
                    read_write(DType::kF32, {s.out, s.in})}},
          .problem = {.transpose_b = true,
                      .m = s.in,
                      .n = s.out,
                      .k = s.rows,
                      .output = DType::kF32,
                      .accumulate = true},
          .operands = {0, 1, 2},
          .terms = s.rows};
}

constexpr Product (*kProducts[])(Sizes) = {forward, dgrad, wgrad};

/// The candidate with operands in the order of the op.
CudaKernel in_order_of_op(const Product& product, const CudaKernel& kernel) {
  return {.launch =
              [launch = kernel.launch, order = product.operands](const CudaKernelArgs& args) {
                const std::array operands{args.operands[order[0]], args.operands[order[1]],
                                          args.operands[order[2]]};
                launch({.operands = operands, .scratch = args.scratch, .stream = args.stream});
              },
          .scratch_bytes = kernel.scratch_bytes};
}

using GemmCudaTest = CudaKernelTest;

/// Where the old d is added, some algorithms round the product to d's type before.
Tolerance tolerance_of(const Product& product, const std::vector<double>& expected) {
  const DType dtype = product.spec.operands[2].dtype;
  Tolerance tolerance = sum_tolerance(dtype, static_cast<double>(product.terms + 1));
  if (product.problem.accumulate) {
    double largest = 0;
    for (const double value : expected) {
      largest = std::max(largest, std::abs(value));
    }
    tolerance.absolute += rounding_error(dtype) * (largest + 1);
  }
  return tolerance;
}

void expect_candidates_equal_cpu(const Product& product, CudaContext& context) {
  const std::vector<double> expected = f64_reference(KernelCase(product.spec)).values(2);
  const Tolerance tolerance = tolerance_of(product, expected);
  for (const NamedKernel& candidate : gemm_candidates(product.problem, context)) {
    KernelCase actual(product.spec);
    run_on_cuda(actual, in_order_of_op(product, candidate.kernel));
    const GemmProblem& p = product.problem;
    expect_close(actual.values(2), expected, tolerance,
                 fmt::format("{} {}x{}x{} by {}", product.spec.op, p.m, p.n, p.k, candidate.name));
  }
}

TEST_F(GemmCudaTest, EveryCandidateEqualsTheCpu) {
  for (const auto make : kProducts) {
    for (const Sizes s : kSizes) {
      expect_candidates_equal_cpu(make(s), context());
    }
    for (const Sizes s : kOddSizes) {
      expect_candidates_equal_cpu(make(s), context());
    }
  }
}

TEST_F(GemmCudaTest, EveryCandidateIsBitwiseRepeatableAlsoInAGraph) {
  for (const auto make : kProducts) {
    const Product product = make({1031, 1544, 520});
    for (const NamedKernel& candidate : gemm_candidates(product.problem, context())) {
      const CudaKernel kernel = in_order_of_op(product, candidate.kernel);
      KernelCase first(product.spec);
      run_on_cuda(first, kernel);
      for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
        KernelCase again(product.spec);
        run_on_cuda(again, kernel, how);
        EXPECT_TRUE(again.bytes(2) == first.bytes(2)) << product.spec.op << " " << candidate.name;
      }
    }
  }
}

}  // namespace
}  // namespace braid
