// Products of experts with SwiGLU in their epilogue: each kernel that could be the fastest.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>

#include "backends/cuda/kernels/linear_swiglu.h"
#include "support/cuda_kernel_checks.h"
#include "support/grouped_swiglu_cases.h"
#include "support/linear_swiglu_cases.h"

namespace braid {
namespace {

constexpr KernelCase (*kCases[])(DType, const Groups&) = {grouped_linear_swiglu_case,
                                                          grouped_dgrad_swiglu_backward_case};

/// Experts that are empty, have less than a tile, exactly one, and several; odd multiples of 8;
/// parts of blocks of 128 columns; more tiles than multiprocessors; many experts; rows of nobody.
std::vector<Groups> vector_groups() {
  return {{{0, 128, 0, 1, 385, 127, 129, 0}, 264, 200, 70},
          {{1}, 8, 8},
          {{0, 0, 300}, 512, 1544},
          {{0, 0}, 64, 40, 9},
          {std::vector<int64_t>(130, 3), 40, 24, 5},
          {{2000, 1000, 1096}, 136, 776}};
}

bool is_forward(const OpSpec& spec) {
  return spec.op == kGroupedLinearSwigluOp.name;
}

std::string name_of(const OpSpec& spec, const std::string& kernel, const Groups& g) {
  return fmt::format("{} {} E={} R={} K={} F={}", spec.op, kernel, g.num_experts(), g.rows(), g.in,
                     g.out);
}

/// Skipped where the build has no such kernels.
class FusedGroupedProductsTest : public CudaKernelTest {
 protected:
  void SetUp() override {
    CudaKernelTest::SetUp();
    const Groups g{{1}, 8, 8};
    if (!IsSkipped() &&
        fused_kernel_names(grouped_linear_swiglu_case(DType::kBF16, g).spec()).empty()) {
      GTEST_SKIP() << "scripts/build_sm90_kernels.sh was not run before the build";
    }
  }

  static void for_each_kernel(
      const std::function<void(const KernelCase& inputs, const CudaKernel& kernel,
                               const std::string& name, const Groups& g)>& check) {
    for (const auto make_case : kCases) {
      for (const Groups& g : vector_groups()) {
        const KernelCase inputs = make_case(DType::kBF16, g);
        for (const std::string& kernel : fused_kernel_names(inputs.spec())) {
          check(inputs, make_fused_kernel(inputs.spec(), kernel, context()),
                name_of(inputs.spec(), kernel, g), g);
        }
      }
    }
  }
};

KernelCase copy_of(const KernelCase& inputs) {
  KernelCase copy(inputs.spec());
  for (size_t i = 0; i < inputs.spec().operands.size(); ++i) {
    if (reads(inputs.spec().operands[i].access)) {
      copy.set(i, inputs.values(i));
    }
  }
  return copy;
}

// y is held to the formula of the rounded gate_up that the kernel itself has written. In the
// backward, factors behind d_h are at most 1.1 and weights below 1; rows of nobody stay NaN.
TEST_F(FusedGroupedProductsTest, EqualTheCpu) {
  for_each_kernel([](const KernelCase& inputs, const CudaKernel& kernel, const std::string& name,
                     const Groups& g) {
    KernelCase actual = copy_of(inputs);
    run_on_cuda(actual, kernel);
    const KernelCase expected = f64_reference(copy_of(inputs));
    const auto depth = static_cast<double>(g.in);
    const Tolerance of_product = sum_tolerance(DType::kBF16, depth);
    if (is_forward(inputs.spec())) {
      expect_close(actual.values(4), expected.values(4), of_product, name + " gate_up");
      KernelCase activation(unfused(inputs.spec()).activation);
      activation.set(0, actual.values(4));
      activation.set(1, actual.values(3));
      activation.set(2, actual.values(2));
      expect_close(actual.values(5), f64_reference(std::move(activation)).values(3),
                   rounded_once(1e-4, 1e-5)(DType::kBF16), name + " y");
      return;
    }
    Tolerance of_gradient = of_product;
    of_gradient.absolute *= 1.1;
    of_gradient.relative += 2 * rounding_error(DType::kBF16) + 1e-5;
    expect_close(actual.values(5), expected.values(5), of_gradient, name + " d_gate_up");
    // A sum over F features of d_h, which is rounded to bf16, times values below 1.
    const double lost =
        4 * rounding_error(DType::kBF16) * std::sqrt(depth * static_cast<double>(g.out));
    expect_close(actual.values(6), expected.values(6), {.absolute = lost, .relative = 1e-2},
                 name + " d_weights");
  });
}

// The product adds up in the same order as without an epilogue. Only d_weights are added up in
// another order than by two kernels: f32 sums over F features.
TEST_F(FusedGroupedProductsTest, HaveTheBitsOfTheTwoKernels) {
  for_each_kernel([](const KernelCase& inputs, const CudaKernel& kernel, const std::string& name,
                     const Groups& g) {
    KernelCase actual = copy_of(inputs);
    run_on_cuda(actual, kernel);
    const KernelCase expected =
        run_as_two(inputs, [](KernelCase& part) { run_on_cuda(part, context()); });
    const bool forward = is_forward(inputs.spec());
    for (const size_t operand : forward ? std::vector<size_t>{4, 5} : std::vector<size_t>{5}) {
      expect_close(actual.values(operand), expected.values(operand), {},
                   fmt::format("{} operand {}", name, operand));
    }
    if (!forward) {
      const double lost = 1e-6 * std::sqrt(static_cast<double>(g.in)) * static_cast<double>(g.out);
      expect_close(actual.values(6), expected.values(6), {.absolute = lost, .relative = 1e-5},
                   name + " d_weights");
    }
  });
}

TEST_F(FusedGroupedProductsTest, GraphAndRerunsAreBitwiseEqual) {
  for_each_kernel([](const KernelCase& inputs, const CudaKernel& kernel, const std::string& name,
                     const Groups&) {
    KernelCase first = copy_of(inputs);
    run_on_cuda(first, kernel);
    for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
      KernelCase again = copy_of(inputs);
      run_on_cuda(again, kernel, how);
      for (size_t i = 0; i < inputs.spec().operands.size(); ++i) {
        EXPECT_TRUE(again.bytes(i) == first.bytes(i)) << name << " operand " << i;
      }
    }
  });
}

using GroupedSwigluCudaTest = CudaKernelTest;

// Whatever kernels they take: f32, and rows that are no whole vectors, have two.
TEST_F(GroupedSwigluCudaTest, OpsOfAwkwardSizesEqualTheCpu) {
  for (const auto make_case : kCases) {
    for (const DType dtype : kCudaDtypes) {
      for (const Groups& g : awkward_groups()) {
        KernelCase actual = make_case(dtype, g);
        const KernelCase expected =
            run_as_two(actual, [](KernelCase& part) { run_on_cuda(part, context()); });
        run_on_cuda(actual, context());
        for (size_t i = 0; i < actual.spec().operands.size(); ++i) {
          if (writes(actual.spec().operands[i].access)) {
            expect_close(actual.values(i), expected.values(i), {.absolute = 1e-5, .relative = 1e-5},
                         fmt::format("{} {} operand {}", actual.spec().op, dtype_name(dtype), i));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace braid
