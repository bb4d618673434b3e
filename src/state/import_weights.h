#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "hugging_face/model_config.h"
#include "model/model_spec.h"

namespace braid {

struct ImportSummary {
  ModelSpec model;
  ModelConfig keys;                  ///< in the format of section [model] of a run file
  std::vector<std::string> ignored;  ///< keys of config.json, see HfConfig
  std::string checkpoint;            ///< path of the new checkpoint
  std::string tokenizer;             ///< data.tokenizer of its configuration
  std::vector<std::string> carried;  ///< names of the files in FOLDER/hugging_face
};

/// config.json of a Hugging Face folder. Throws DataError as `parse_hf_config`.
HfConfig read_hf_config(const std::string& hf_folder);

/// The configuration of a run that has this model and the tokenizer in `folder` ("ids:N" if there
/// is none): sections [model] and [data], and train.sequence, the context of generation.
RunConfig imported_run(const HfConfig& config, const std::string& folder);

/// Writes a checkpoint before the first step of the Hugging Face model in `hf_folder`, into the
/// folder of checkpoints `folder`, which must contain none. FOLDER/hugging_face gets a copy of
/// config.json and of the files that HfCompanions names; the checkpoint's configuration names the
/// tokenizer there
/// (`tokenizer_file`), if there is one. Host memory: that of `save_model_state`. Locks `folder`
/// while it writes. Throws DataError as `parse_hf_config`, HfTensorFolder, HuggingFaceSource and
/// `save_model_state` do (also for weights that are NaN or infinite), and ConfigError if `folder`
/// has checkpoints, which it does not change, or another process has it locked.
ImportSummary import_weights(const std::string& hf_folder, const std::string& folder);

}  // namespace braid
