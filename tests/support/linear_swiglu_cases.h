#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "ops/linear_swiglu.h"
#include "support/kernel_harness.h"

namespace braid {

struct SwigluSizes {
  int64_t rows;   // N
  int64_t depth;  // K, or M of the backward
  int64_t ffn;    // F
};

inline OpSpec linear_swiglu_spec(DType dtype, SwigluSizes s) {
  return {"linear_swiglu",
          {},
          {read(dtype, {s.rows, s.depth}), read(dtype, {2 * s.ffn, s.depth}),
           write(dtype, {s.rows, 2 * s.ffn}), write(dtype, {s.rows, s.ffn})}};
}

inline OpSpec linear_dgrad_swiglu_backward_spec(DType dtype, SwigluSizes s) {
  return {"linear_dgrad_swiglu_backward",
          {},
          {read(dtype, {s.rows, s.depth}), read(dtype, {s.depth, s.ffn}),
           read(dtype, {s.rows, 2 * s.ffn}), write(dtype, {s.rows, 2 * s.ffn})}};
}

/// y of the gate_up that a run of linear_swiglu has written, in f64 on the CPU.
inline std::vector<double> swiglu_of_written(const KernelCase& forward) {
  OpSpec spec = unfused(forward.spec()).activation;
  for (OperandSpec& operand : spec.operands) {
    operand.dtype = DType::kF64;
  }
  KernelCase swiglu(spec);
  swiglu.set(0, forward.values(2));
  swiglu.run(2);
  return swiglu.values(1);
}

}  // namespace braid
