#pragma once

#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/elementwise.h"
#include "ops/grouped_linear.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/quantize.h"
#include "ops/quantize_grouped.h"
#include "ops/scaled_grouped_linear.h"
#include "ops/specs.h"

namespace braid {

/// x [n, k] times a weight [m, k].
inline OpSpec linear_spec(int64_t n, int64_t m, int64_t k, DType dtype = DType::kBF16) {
  return {"linear",
          to_attributes(LinearAttributes{}),
          {read(dtype, {n, k}), read(dtype, {m, k}), write(dtype, {n, m})}};
}

inline OpSpec linear_dgrad_spec(int64_t n, int64_t m, int64_t k) {
  return {"linear_dgrad",
          to_attributes(LinearDgradAttributes{}),
          {read(DType::kBF16, {n, m}), read(DType::kBF16, {m, k}), write(DType::kBF16, {n, k})}};
}

/// Gradient [m, k] of a weight, in fp32, added to what is there.
inline OpSpec linear_wgrad_spec(int64_t n, int64_t m, int64_t k) {
  return {
      "linear_wgrad",
      to_attributes(LinearWgradAttributes{}),
      {read(DType::kBF16, {n, k}), read(DType::kBF16, {n, m}), read_write(DType::kF32, {m, k})}};
}

/// x [n, k] times a weight [2 f, k], and SwiGLU after it.
inline OpSpec linear_swiglu_spec(int64_t n, int64_t f, int64_t k, DType dtype = DType::kBF16) {
  return {"linear_swiglu",
          {},
          {read(dtype, {n, k}), read(dtype, {2 * f, k}), write(dtype, {n, 2 * f}),
           write(dtype, {n, f})}};
}

/// dy [n, m] times a weight [m, f], and SwiGLU's backward after it.
inline OpSpec linear_dgrad_swiglu_backward_spec(int64_t n, int64_t m, int64_t f) {
  return {"linear_dgrad_swiglu_backward",
          {},
          {read(DType::kBF16, {n, m}), read(DType::kBF16, {m, f}), read(DType::kBF16, {n, 2 * f}),
           write(DType::kBF16, {n, 2 * f})}};
}

/// `rows` rows of all experts together times weights [m, k] of each.
inline OpSpec grouped_linear_spec(int64_t rows, int64_t m, int64_t k, int64_t experts) {
  return {"grouped_linear",
          {},
          {read(DType::kBF16, {rows, k}), read(DType::kBF16, {experts * m, k}),
           read(DType::kI32, {experts + 1}), write(DType::kBF16, {rows, m})}};
}

/// The first product of experts with F features and what SwiGLU makes of it, and the gradients
/// behind the second one.
inline OpSpec grouped_linear_swiglu_spec(int64_t rows, int64_t f, int64_t k, int64_t experts) {
  return {"grouped_linear_swiglu",
          {},
          {read(DType::kBF16, {rows, k}), read(DType::kBF16, {experts * 2 * f, k}),
           read(DType::kI32, {experts + 1}), read(DType::kF32, {rows}),
           write(DType::kBF16, {rows, 2 * f}), write(DType::kBF16, {rows, f})}};
}
inline OpSpec grouped_linear_dgrad_swiglu_backward_spec(int64_t rows, int64_t f, int64_t m,
                                                        int64_t experts) {
  return {
      "grouped_linear_dgrad_swiglu_backward",
      {},
      {read(DType::kBF16, {rows, m}), read(DType::kBF16, {experts * m, f}),
       read(DType::kI32, {experts + 1}), read(DType::kBF16, {rows, 2 * f}),
       read(DType::kF32, {rows}), write(DType::kBF16, {rows, 2 * f}), write(DType::kF32, {rows})}};
}

/// Their gradients [m, k], in fp32, added to what is there.
inline OpSpec grouped_linear_wgrad_spec(int64_t rows, int64_t m, int64_t k, int64_t experts) {
  return {"grouped_linear_wgrad",
          to_attributes(GroupedWgradAttributes{}),
          {read(DType::kBF16, {rows, k}), read(DType::kBF16, {rows, m}),
           read(DType::kI32, {experts + 1}), read_write(DType::kF32, {experts * m, k})}};
}

inline OperandSpec scales_of(const Shape& shape, bool square) {
  return read(DType::kF32,
              ScaleLayout{.block = GroupedColumns::kBlock, .square = square}.shape(shape));
}

/// The same forward of FP8 factors: rows with scales of runs, weights of squares.
inline OpSpec scaled_grouped_linear_spec(int64_t rows, int64_t m, int64_t k, int64_t experts) {
  return {"scaled_grouped_linear",
          to_attributes(ScaledGroupedLinearAttributes{}),
          {read(DType::kF8E4M3, {rows, k}), scales_of({rows, k}, false),
           read(DType::kF8E4M3, {experts * m, k}), scales_of({experts * m, k}, true),
           read(DType::kI32, {experts + 1}), write(DType::kBF16, {rows, m})}};
}

/// Their gradients from copies by columns; rows of an expert are a multiple of 128.
inline OpSpec scaled_grouped_linear_wgrad_spec(int64_t rows, int64_t m, int64_t k,
                                               int64_t experts) {
  const int64_t columns = rows + GroupedColumns::kBlock * experts;
  return {"scaled_grouped_linear_wgrad",
          to_attributes(ScaledGroupedWgradAttributes{.rows = rows}),
          {read(DType::kF8E4M3, {k, columns}), scales_of({k, columns}, false),
           read(DType::kF8E5M2, {m, columns}), scales_of({m, columns}, false),
           read(DType::kI32, {experts + 1}), read_write(DType::kF32, {experts * m, k})}};
}

struct AttentionSizes {
  int64_t sequences = 1;
  int64_t sequence = 4096;
  int64_t heads = 32;
  int64_t kv_heads = 8;
  int64_t head_size = 128;
};

inline OpSpec attention_spec(const AttentionSizes& sizes, bool backward = false) {
  const int64_t rows = sizes.sequences * sizes.sequence;
  const OperandSpec qkv =
      read(DType::kBF16, {rows, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_size});
  const Shape out{rows, sizes.heads * sizes.head_size};
  const Shape lse{sizes.sequences, sizes.heads, sizes.sequence};
  const auto attributes = to_attributes(AttentionAttributes{.heads = sizes.heads,
                                                            .kv_heads = sizes.kv_heads,
                                                            .head_size = sizes.head_size,
                                                            .sequence = sizes.sequence,
                                                            .scale = 0.125});
  if (!backward) {
    return {"attention", attributes, {qkv, write(DType::kBF16, out), write(DType::kF32, lse)}};
  }
  return {"attention_backward",
          attributes,
          {qkv, read(DType::kBF16, out), read(DType::kF32, lse), read(DType::kBF16, out),
           write(DType::kBF16, qkv.shape)}};
}

inline OpSpec add_spec(int64_t elems, DType dtype = DType::kBF16) {
  return {"add", {}, {read(dtype, {elems}), read(dtype, {elems}), write(dtype, {elems})}};
}

inline OpSpec all_reduce_spec(int64_t elems, int64_t group = 0) {
  return {"all_reduce",
          to_attributes(CollectiveAttributes{.group = group}),
          {read_write(DType::kF32, {elems})}};
}

}  // namespace braid
