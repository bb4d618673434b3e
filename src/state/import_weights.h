#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "model/model_spec.h"

namespace braid {

struct ImportSummary {
  ModelSpec model;
  ModelConfig keys;                  ///< the same as section [model] of a run file
  std::vector<std::string> ignored;  ///< of config.json, see HfConfig
  std::string checkpoint;            ///< path of the new checkpoint
};

/// Makes a checkpoint before the first step of the Hugging Face model in `hf_folder`, in the
/// folder of checkpoints `folder`, which must hold none. Its configuration names the folder's
/// tokenizer.model, if there is one. Host memory: that of `save_model_state`; the files are mapped.
/// Throws DataError as `parse_hf_config`, HfTensorFolder and HuggingFaceSource do, and ConfigError
/// if `folder` has checkpoints; it is as it was then.
ImportSummary import_weights(const std::string& hf_folder, const std::string& folder);

}  // namespace braid
