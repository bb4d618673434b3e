#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/shape.h"
#include "checkpoint/tensor_index.h"
#include "model/model_spec.h"

/// Models as Hugging Face's transformers stores them: a folder with config.json and safetensors.
/// Supported: LlamaForCausalLM, Qwen2ForCausalLM, GPT2LMHeadModel.
namespace braid {

/// A tensor of a Hugging Face model: rows first_row, first_row + row_stride, ... of one of our
/// parameters, which are packed where theirs are apart: rows of query, key and value follow each
/// other, those of gate and up take turns. Rotary pairs are (i, i + head_size / 2) on both sides,
/// so no row changes its place in its head.
struct HfTensor {
  std::string name;
  Shape shape;
  std::string parameter;  ///< of `model_parameters`
  int64_t first_row = 0;
  int64_t row_stride = 1;
  bool transposed = false;  ///< [in, out], as GPT-2's Conv1D has its weights

  /// Of our parameter; vectors have rows of one element.
  int64_t num_rows() const { return shape[transposed ? 1 : 0]; }
  int64_t num_columns() const { return shape.rank() == 1 ? 1 : shape[transposed ? 0 : 1]; }
  /// Elements of our parameter, in the order of the tensor's rows: a run each, `pitch` apart, or
  /// one of all of them where no other rows lie between.
  PieceRange range() const;
  int64_t pitch() const { return row_stride * num_columns(); }
};

/// All tensors in forward order. Throws ConfigError naming the key if no Hugging Face class
/// computes this model.
std::vector<HfTensor> hf_tensors(const ModelSpec& model);

/// "GPT2LMHeadModel", and the value of "model_type": "gpt2".
struct HfClass {
  std::string_view architecture;
  std::string_view model_type;
};
HfClass hf_class(const ModelSpec& model);

/// Whether files of the class may hold a tensor of that name which is no parameter: masks and
/// frequencies that old versions stored.
bool is_hf_buffer(std::string_view name);

}  // namespace braid
