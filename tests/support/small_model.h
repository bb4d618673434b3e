#pragma once

#include "model/families.h"
#include "model/model_spec.h"

namespace braid {

/// A GPT-2 of awkward sizes: no parameter is a multiple of the 64 elements that they are aligned
/// to, and the vocabulary has padding rows.
inline ModelSpec small_gpt2() {
  ModelSpec spec = find_preset("gpt2-124m").spec;
  spec.layers = 2;
  spec.width = 20;
  spec.heads = 2;
  spec.kv_heads = 2;
  spec.head_size = 10;
  spec.ffn = 36;
  spec.vocabulary = 50;
  spec.max_positions = 12;
  return spec;
}

}  // namespace braid
