#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "hugging_face/companions.h"
#include "model/model_spec.h"

namespace braid {

/// The model that a config.json describes.
struct HfConfig {
  ModelSpec model;
  /// Keys for features that braid does not have or know, such as dropout, with their values:
  /// "attn_pdrop = 0.1". None of the known ones changes what the model computes.
  std::vector<std::string> ignored;
};

/// Reads the text of a config.json. A missing key has the default of transformers. Throws DataError
/// naming `path`, key and value for a class other than those of `hf_class`, and for every known key
/// that would make the model compute something else than ours (attention_bias of Llama, another
/// rope_type than those of ops/rope_scaling.h, quantization, ...).
HfConfig parse_hf_config(std::string_view text, std::string_view path);

/// Returns a config.json from which transformers builds the same model. `dtype`: of the tensors. Of
/// `companions`, the ids that begin and end a text.
std::string print_hf_config(const ModelSpec& model, DType dtype,
                            const HfCompanions& companions = {});

}  // namespace braid
