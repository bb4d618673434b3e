#pragma once

#include "ops/cached_attention.h"
#include "ops/cached_mamba2.h"
#include "support/kernel_harness.h"
#include "support/mamba2_cases.h"

/// Runs of the ops with caches (ops/token_cache.h) over a part of some sequences.
namespace braid {

/// `rows` rows of each sequence.
struct CachedAttentionCase {
  CachedAttentionAttributes a;
  int64_t sequences = 1;
  int64_t rows = 1;
  int64_t capacity = 1;

  int64_t qkv_width() const { return (a.heads + 2 * a.kv_heads) * a.head_size; }
  int64_t out_width() const { return a.heads * a.head_size; }

  KernelCase make(DType dtype) const {
    const Shape cache{sequences, capacity, a.kv_heads * a.head_size};
    return KernelCase(
        {"cached_attention",
         to_attributes(a),
         {read(dtype, {sequences * rows, qkv_width()}), read(DType::kI32, {sequences}),
          read(DType::kI32, {sequences}), read_write(dtype, cache), read_write(dtype, cache),
          write(dtype, {sequences * rows, out_width()})}});
  }
};

/// Those that hold the weights of their own heads only.
inline std::vector<Mamba2Case> whole_mamba2_cases() {
  std::vector<Mamba2Case> cases = awkward_mamba2_cases();
  std::erase_if(cases, [](const Mamba2Case& c) { return c.a.weights.count > 1; });
  return cases;
}

/// The sequences of a Mamba2Case, `rows` rows of each.
struct CachedMamba2Case {
  Mamba2Case whole;
  int64_t rows = 1;

  KernelCase make(DType dtype) const {
    Mamba2Attributes a = whole.a;
    a.sequence = rows;
    std::vector<Shape> shapes = whole.inputs();
    shapes[0] = {whole.batches * rows, a.row_elems()};
    std::vector<OperandSpec> operands;
    for (const Shape& shape : shapes) {
      operands.push_back(read(dtype, shape));
    }
    operands.insert(operands.end(),
                    {read(DType::kI32, {whole.batches}), read(DType::kI32, {whole.batches}),
                     read_write(dtype, {whole.batches, whole.taps, a.convolved()}),
                     read_write(wide(dtype), {whole.batches, a.heads, a.head_size, a.state}),
                     write(dtype, {whole.batches * rows, a.inner()})});
    return KernelCase({"cached_mamba2", to_attributes(a), operands});
  }
};

/// One row and one element; more heads per key head; blocks of keys and queries that are not full;
/// elements of a head that no vector divides; windows.
inline std::vector<CachedAttentionCase> awkward_cached_attention_cases() {
  return {{{.heads = 1, .kv_heads = 1, .head_size = 1, .scale = 1}, 1, 1, 1},
          {{.heads = 4, .kv_heads = 2, .head_size = 6, .scale = 0.4}, 3, 1, 9},
          {{.heads = 3, .kv_heads = 1, .head_size = 33, .scale = 0.2}, 2, 5, 17},
          {{.heads = 2, .kv_heads = 2, .head_size = 64, .scale = 0.1}, 1, 70, 300},
          {{.heads = 4, .kv_heads = 2, .head_size = 6, .scale = 0.4, .window = {1}}, 2, 1, 9},
          {{.heads = 3, .kv_heads = 1, .head_size = 33, .scale = 0.2, .window = {4}}, 2, 5, 17},
          {{.heads = 2, .kv_heads = 1, .head_size = 8, .scale = 0.3, .window = {75}}, 1, 70, 600}};
}

}  // namespace braid
