#pragma once

#include "ops/mla_qkv.h"
#include "support/kernel_harness.h"

namespace braid {

/// Heads of latent attention.
struct MlaCase {
  MlaAttributes a;
  int64_t batches = 1;

  int64_t rows() const { return batches * a.sequence; }
  Shape q() const { return {rows(), a.heads * (a.plain + a.rotated)}; }
  Shape kv() const { return {rows(), a.heads * (a.plain + a.value)}; }
  Shape k_rope() const { return {rows(), a.rotated}; }
  Shape qkv() const { return {rows(), 3 * a.heads * a.head_size}; }

  KernelCase forward(DType dtype) const {
    return KernelCase(
        {"mla_qkv",
         to_attributes(a),
         {read(dtype, q()), read(dtype, kv()), read(dtype, k_rope()), write(dtype, qkv())}});
  }
  KernelCase backward(DType dtype) const {
    return KernelCase(
        {"mla_qkv_backward",
         to_attributes(a),
         {read(dtype, qkv()), write(dtype, q()), write(dtype, kv()), write(dtype, k_rope())}},
        2);
  }
};

inline std::vector<MlaCase> awkward_mla_cases() {
  return {{{.heads = 1, .plain = 1, .rotated = 2, .value = 1, .head_size = 3, .sequence = 1}, 1},
          {{.heads = 3, .plain = 5, .rotated = 4, .value = 7, .head_size = 9, .sequence = 6}, 2},
          {{.heads = 2, .plain = 3, .rotated = 2, .value = 8, .head_size = 8, .sequence = 5}, 3},
          {{.heads = 2,
            .plain = 4,
            .rotated = 6,
            .value = 3,
            .head_size = 12,
            .sequence = 5,
            .theta = 100.0,
            .positions = {.first_begin = 3, .second_begin = 9, .split = 2}},
           2},
          {{.heads = 2,
            .plain = 3,
            .rotated = 8,
            .value = 4,
            .head_size = 11,
            .sequence = 9,
            .theta = 100.0,
            .scaling = {.type = RopeType::kYarn,
                        .factor = 4.0,
                        .original_max_position_embeddings = 256,
                        .mscale = 1.0,
                        .mscale_all_dim = 0.5}},
           2}};
}

}  // namespace braid
