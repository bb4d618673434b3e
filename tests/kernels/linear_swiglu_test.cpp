#include "ops/linear_swiglu.h"

#include "ops/linear.h"
#include "support/kernel_harness.h"
#include "support/linear_swiglu_cases.h"

namespace braid {
namespace {

constexpr SwigluSizes kAwkward[] = {{1, 1, 1}, {1, 7, 3}, {5, 1, 2}, {13, 31, 17}, {67, 48, 101}};

/// The product and the activation as separate ops, with the operands of the fused case.
struct TwoKernels {
  KernelCase product;
  KernelCase activation;

  TwoKernels(const KernelCase& whole, int num_workers)
      : product(unfused(whole.spec()).product), activation(unfused(whole.spec()).activation) {
    const bool is_backward = activation.spec().op == "swiglu_backward";
    product.set(0, whole.values(0));
    product.set(1, whole.values(1));
    product.run(num_workers);
    if (is_backward) {
      activation.set(0, whole.values(2));
    }
    activation.set(is_backward ? 1 : 0, product.values(2));
    activation.run(num_workers);
  }
};

TEST(LinearSwiglu, GivesTheBitsOfTheTwoKernels) {
  for (const DType dtype : kFloatDtypes) {
    for (const SwigluSizes s : kAwkward) {
      KernelCase kernel(linear_swiglu_spec(dtype, s));
      const TwoKernels expected(kernel, 2);
      kernel.run(2);
      EXPECT_TRUE(kernel.bytes(2) == expected.product.bytes(2)) << dtype_name(dtype);
      EXPECT_TRUE(kernel.bytes(3) == expected.activation.bytes(1)) << dtype_name(dtype);
    }
  }
}

TEST(LinearDgradSwigluBackward, GivesTheBitsOfTheTwoKernels) {
  for (const DType dtype : kFloatDtypes) {
    for (const SwigluSizes s : kAwkward) {
      KernelCase kernel(linear_dgrad_swiglu_backward_spec(dtype, s));
      const TwoKernels expected(kernel, 2);
      kernel.run(2);
      EXPECT_TRUE(kernel.bytes(3) == expected.activation.bytes(2)) << dtype_name(dtype);
    }
  }
}

// By differences of the forward in f64: d_gate_up of a loss that weighs y's features by w.
TEST(LinearDgradSwigluBackward, AgreesWithDifferences) {
  const SwigluSizes s{.rows = 3, .depth = 5, .ffn = 7};
  KernelCase backward(linear_dgrad_swiglu_backward_spec(DType::kF64, s));
  backward.run();
  const auto dy = backward.values(0);
  const auto loss = [&](const std::vector<double>& gate_up) {
    KernelCase swiglu(
        {"swiglu",
         {},
         {read(DType::kF64, {s.rows, 2 * s.ffn}), write(DType::kF64, {s.rows, s.ffn})}});
    swiglu.set(0, gate_up);
    swiglu.run();
    KernelCase next({"linear_dgrad",  // y w^T, with w as it is in memory
                     to_attributes(LinearDgradAttributes{}),
                     {read(DType::kF64, {s.rows, s.ffn}), read(DType::kF64, {s.ffn, s.depth}),
                      write(DType::kF64, {s.rows, s.depth})}});
    std::vector<double> transposed;
    const auto w = backward.values(1);
    for (int64_t f = 0; f < s.ffn; ++f) {
      for (int64_t m = 0; m < s.depth; ++m) {
        transposed.push_back(w[static_cast<size_t>(m * s.ffn + f)]);
      }
    }
    next.set(0, swiglu.values(1));
    next.set(1, transposed);
    next.run();
    return dot(next.values(2), dy);
  };
  expect_gradient(loss, backward.values(2), backward.values(3), "d_gate_up");
}

TEST(LinearSwiglu, DoesNotDependOnTheNumberOfWorkers) {
  const SwigluSizes s{.rows = 1024, .depth = 96, .ffn = 160};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_same_for_any_workers([&] { return KernelCase(linear_swiglu_spec(dtype, s)); });
    expect_same_for_any_workers(
        [&] { return KernelCase(linear_dgrad_swiglu_backward_spec(dtype, s)); });
  }
}

}  // namespace
}  // namespace braid
