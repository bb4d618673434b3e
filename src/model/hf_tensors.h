#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/shape.h"
#include "model/model_spec.h"

namespace braid {

/// How files of Hugging Face transformers name the tensors of a layer.
enum class HfNaming : uint8_t {
  kLlama,     ///< "self_attn.q_proj.weight", "mlp.experts.0.up_proj.weight"; Llama, Qwen, OLMoE
  kMixtral,   ///< the same but for "block_sparse_moe.experts.0.w3.weight"
  kBackbone,  ///< "norm.weight" and "mixer.in_proj.weight", one block per layer; Mamba2, Nemotron-H
  kPhi3,      ///< Llama's but for "self_attn.qkv_proj.weight" and "mlp.gate_up_proj.weight"
  kDeepseek,  ///< Llama's but for "mlp.shared_experts.up_proj.weight"; DeepSeek
  kGemma3,    ///< Llama's with norms behind blocks, "post_feedforward_layernorm.weight"
  kGpt2,      ///< "attn.c_attn.weight"
};

/// How files hold the experts of a layer.
enum class HfExperts : uint8_t {
  kSeparate,  ///< a tensor for each matrix of each expert, as published
  kFused,  ///< experts.gate_up_proj [E, 2F, C] and experts.down_proj [E, C, F], as transformers 5
           ///< has them in memory; Nemotron-H's names then begin with "model." and not "backbone."
};

/// A tensor of a Hugging Face model, or with `whole` some rows of one: rows first_row, first_row +
/// row_stride, ... of one of our parameters. Ours are packed where theirs are separate: rows of
/// query, key and value are concatenated; those of gate and up alternate. Rotary pairs are (i, i +
/// head_size / 2) in both formats, so rows keep their place in their head.
struct HfTensor {
  std::string name;
  Shape shape;
  std::string parameter;  ///< of `model_parameters`
  int64_t first_row = 0;
  int64_t row_stride = 1;
  bool transposed = false;  ///< [in, out], as GPT-2's Conv1D has its weights
  Shape whole = {};         ///< of the tensor, if these are rows from `theirs_row` on of it, each
                            ///< as long as ours. Rows of a tensor follow each other.
  int64_t theirs_row = 0;
  bool is_copy =
      false;  ///< files hold the same elements twice; they are read from the other tensor

  /// Rows in our parameter; vectors have rows of one element.
  int64_t num_rows() const { return shape[transposed ? 1 : 0]; }
  int64_t num_columns() const {
    return transposed ? shape[0] : shape.num_elems() / std::max<int64_t>(1, shape[0]);
  }
  int64_t pitch() const { return row_stride * num_columns(); }
  const Shape& whole_shape() const { return whole.rank() > 0 ? whole : shape; }
};

/// Appends tensors under one pair of prefixes at a time.
class HfTensorList {
 public:
  explicit HfTensorList(HfExperts experts = HfExperts::kSeparate) : experts_(experts) {}

  HfExperts experts() const { return experts_; }
  /// Sets their prefix and ours for the names that follow.
  void enter(std::string theirs, std::string ours);
  void add(std::string_view theirs, Shape shape, std::string_view ours, int64_t first_row = 0,
           int64_t row_stride = 1);
  /// Makes the last tensor rows from `theirs_row` on of one of shape `whole`.
  void set_whole(const Shape& whole, int64_t theirs_row);
  /// The last tensor repeats one that was added before.
  void set_copy() { list_.back().is_copy = true; }
  /// Weight [in, out] and bias [out].
  void add_conv1d(std::string_view theirs, int64_t in, int64_t out, std::string_view ours);
  /// Weight and, for a LayerNorm, bias.
  void add_norm(std::string_view theirs, const ModelSpec& spec, std::string_view ours);

  std::vector<HfTensor> take() { return std::move(list_); }

 private:
  HfExperts experts_;
  std::string theirs_;
  std::string ours_;
  std::vector<HfTensor> list_;
};

}  // namespace braid
