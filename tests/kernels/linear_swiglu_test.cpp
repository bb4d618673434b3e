#include "ops/linear_swiglu.h"

#include "ops/linear.h"
#include "support/grouped_swiglu_cases.h"
#include "support/kernel_harness.h"
#include "support/linear_swiglu_cases.h"

namespace braid {
namespace {

constexpr SwigluSizes kAwkward[] = {{1, 1, 1}, {1, 7, 3}, {5, 1, 2}, {13, 31, 17}, {67, 48, 101}};

constexpr OpSpec (*kDense[])(DType, SwigluSizes) = {linear_swiglu_spec,
                                                    linear_dgrad_swiglu_backward_spec};
constexpr KernelCase (*kGrouped[])(DType, const Groups&) = {grouped_linear_swiglu_case,
                                                            grouped_dgrad_swiglu_backward_case};

/// All that the op writes, and what it leaves: rows of no expert are NaN.
void expect_bits_of_the_two_kernels(KernelCase kernel) {
  const KernelCase expected = run_as_two(kernel, [](KernelCase& part) { part.run(2); });
  kernel.run(2);
  for (size_t i = 0; i < kernel.spec().operands.size(); ++i) {
    const OperandSpec& operand = kernel.spec().operands[i];
    if (writes(operand.access)) {
      expect_close(kernel.values(i), expected.values(i), {},
                   kernel.spec().op + " " + std::string(dtype_name(operand.dtype)));
    }
  }
}

TEST(LinearSwiglu, GivesTheBitsOfTheTwoKernels) {
  for (const DType dtype : kFloatDtypes) {
    for (const auto make_spec : kDense) {
      for (const SwigluSizes s : kAwkward) {
        expect_bits_of_the_two_kernels(KernelCase(make_spec(dtype, s)));
      }
    }
    for (const auto make_case : kGrouped) {
      for (const Groups& g : awkward_groups()) {
        expect_bits_of_the_two_kernels(make_case(dtype, g));
      }
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
    for (const auto make_case : kGrouped) {
      expect_same_for_any_workers([&] {
        return make_case(dtype, {.counts = {300, 0, 500}, .in = 96, .out = 160});
      });
    }
  }
}

}  // namespace
}  // namespace braid
