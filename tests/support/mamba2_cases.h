#pragma once

#include "ops/mamba2.h"
#include "support/kernel_harness.h"

namespace braid {

/// Sequences of one Mamba-2 layer. Operands of the forward: 0 to 6 are read, 7 is y, 8 rstd, 9 v;
/// of the backward: 0 to 6 the same, 7 y, 8 rstd, 9 dv, 10 to 16 the gradients of 0 to 6.
struct Mamba2Case {
  Mamba2Attributes a;
  int64_t batches = 1;
  int64_t taps = 4;

  int64_t rows() const { return batches * a.sequence; }
  Shape inner() const { return {rows(), a.inner()}; }
  Shape rstd() const { return {rows(), a.norm_groups}; }
  int64_t all_heads() const { return a.weights.count * a.heads; }  ///< of the weights
  std::vector<Shape> inputs() const {
    const int64_t parts = a.weights.count;
    return {{rows(), a.row_elems()}, {parts * a.convolved(), taps},
            {parts * a.convolved()}, {all_heads()},
            {all_heads()},           {all_heads()},
            {parts * a.inner()}};
  }
  std::string name(DType dtype) const {
    return fmt::format("{} sequence {} heads {} of {} groups {} state {} chunk {} taps {} parts {}",
                       dtype_name(dtype), a.sequence, a.heads, a.head_size, a.groups, a.state,
                       a.chunk, taps, a.weights.count);
  }

  KernelCase forward(DType dtype) const {
    std::vector<OperandSpec> operands = read_inputs(dtype);
    operands.insert(operands.end(),
                    {write(dtype, inner()), write(wide(dtype), rstd()), write(dtype, inner())});
    return KernelCase({"mamba2", to_attributes(a), operands});
  }
  /// With inputs, y and rstd of a forward that has run.
  KernelCase backward(const KernelCase& forward, bool accumulate = false) const {
    const DType dtype = forward.spec().operands[0].dtype;
    std::vector<OperandSpec> operands = read_inputs(dtype);
    operands.insert(operands.end(), {read(dtype, inner()), read(wide(dtype), rstd()),
                                     read(dtype, inner()), write(dtype, inputs()[0])});
    for (size_t i = 1; i < inputs().size(); ++i) {
      operands.push_back(gradient(accumulate, wide(dtype), inputs()[i]));
    }
    KernelCase kernel(
        {"mamba2_backward",
         to_attributes(Mamba2BackwardAttributes{.core = a, .accumulate = accumulate}), operands},
        2);
    for (size_t i = 0; i < 9; ++i) {
      kernel.set(i, forward.values(i));
    }
    return kernel;
  }

 private:
  std::vector<OperandSpec> read_inputs(DType dtype) const {
    std::vector<OperandSpec> operands;
    for (const Shape& shape : inputs()) {
      operands.push_back(read(dtype, shape));
    }
    return operands;
  }
};

/// One row and one element; chunks that do not divide the sequence; sequences shorter than the
/// convolution; more heads per group than runs of heads in the backward; limits of dt that hold;
/// weights of other heads in front of and behind those that are used.
/// Some epsilons are large, so that third derivatives of norms of small rows are not.
inline std::vector<Mamba2Case> awkward_mamba2_cases() {
  return {{{.sequence = 1, .heads = 1, .head_size = 1, .groups = 1, .state = 1, .chunk = 1}, 1, 1},
          {{.sequence = 5,
            .heads = 4,
            .head_size = 2,
            .groups = 2,
            .state = 3,
            .chunk = 2,
            .norm_groups = 2,
            .epsilon = 1e-2},
           2,
           4},
          {{.sequence = 2, .heads = 2, .head_size = 3, .groups = 1, .state = 2, .chunk = 64}, 3, 4},
          {{.sequence = 7,
            .heads = 5,
            .head_size = 1,
            .groups = 1,
            .state = 2,
            .chunk = 3,
            .norm_groups = 5,
            .dt_min = 0.5,
            .dt_max = 1.0,
            .epsilon = 1e-2},
           1,
           2},
          {{.sequence = 4,
            .heads = 2,
            .head_size = 2,
            .groups = 2,
            .state = 1,
            .chunk = 3,
            .norm_groups = 2,
            .epsilon = 1e-2,
            .weights = {.count = 3, .index = 1}},
           2,
           3}};
}

}  // namespace braid
