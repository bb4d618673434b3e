#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "ops/linear_swiglu.h"
#include "support/grouped_linear_cases.h"

/// Products of experts with SwiGLU in the same op. Of `Groups`, `in` is the depth of the product
/// and `out` are the features F behind the activation.
namespace braid {

inline KernelCase grouped_linear_swiglu_case(DType dtype, const Groups& g) {
  KernelCase kernel({"grouped_linear_swiglu",
                     {},
                     {read(dtype, {g.rows(), g.in}), read(dtype, {2 * g.weights(), g.in}),
                      read(DType::kI32, {g.num_experts() + 1}), read(wide(dtype), {g.rows()}),
                      write(dtype, {g.rows(), 2 * g.out}), write(dtype, {g.rows(), g.out})}});
  kernel.set(2, g.offsets());
  for (const size_t operand : {0, 3}) {
    poison_unused(kernel, operand, g);
  }
  return kernel;
}

inline KernelCase grouped_dgrad_swiglu_backward_case(DType dtype, const Groups& g) {
  KernelCase kernel({"grouped_linear_dgrad_swiglu_backward",
                     {},
                     {read(dtype, {g.rows(), g.in}), read(dtype, {g.num_experts() * g.in, g.out}),
                      read(DType::kI32, {g.num_experts() + 1}), read(dtype, {g.rows(), 2 * g.out}),
                      read(wide(dtype), {g.rows()}), write(dtype, {g.rows(), 2 * g.out}),
                      write(wide(dtype), {g.rows()})}});
  kernel.set(2, g.offsets());
  for (const size_t operand : {0, 3, 4}) {
    poison_unused(kernel, operand, g);
  }
  return kernel;
}

/// What `run` leaves if it runs the two ops of a fused one, one after the other.
inline KernelCase run_as_two(const KernelCase& whole, const std::function<void(KernelCase&)>& run) {
  const ProductAndActivation parts = unfused(whole.spec());
  std::vector<size_t> operands(whole.spec().operands.size());
  std::iota(operands.begin(), operands.end(), size_t{0});
  const size_t none = operands.size();
  PartOperands<size_t> own(parts, operands, none);
  KernelCase product(parts.product);
  KernelCase activation(parts.activation);
  const size_t result = parts.product.operands.size() - 1;
  for (size_t i = 0; i < result; ++i) {
    product.set(i, whole.values(own.product()[i]));
  }
  run(product);
  const size_t handed = handed_on(parts.activation);
  for (size_t i = 0; i < parts.activation.operands.size(); ++i) {
    if (reads(parts.activation.operands[i].access)) {
      activation.set(i, i == handed ? product.values(result) : whole.values(own.activation()[i]));
    }
  }
  run(activation);
  KernelCase both(whole.spec());
  if (own.product()[result] != none) {
    both.set(own.product()[result], product.values(result));
  }
  for (size_t i = 0; i < parts.activation.operands.size(); ++i) {
    if (writes(parts.activation.operands[i].access)) {
      both.set(own.activation()[i], activation.values(i));
    }
  }
  return both;
}

}  // namespace braid
