#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "model/model_spec.h"

namespace braid {

/// What a config.json says about a model.
struct HfConfig {
  ModelSpec model;
  /// Keys that say something which braid does not do or know, such as dropout, with their values:
  /// "attn_pdrop = 0.1". None of those known changes what the model computes.
  std::vector<std::string> ignored;
};

/// Reads the text of a config.json; a key that is missing has the default of transformers. Throws
/// DataError naming `path`, key and value for another class than those of `hf_class`, and for
/// every known key that would make the model compute something else than ours (rope_scaling,
/// attention_bias of Llama, quantization, ...).
HfConfig parse_hf_config(std::string_view text, std::string_view path);

/// A config.json from which transformers makes the same model. `dtype` is that of the tensors.
std::string print_hf_config(const ModelSpec& model, DType dtype);

}  // namespace braid
