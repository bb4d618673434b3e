#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "hugging_face/companions.h"
#include "model/hf_tensors.h"
#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "state/state_source.h"

namespace braid {

struct ExportOptions {
  DType dtype = DType::kF32;  ///< or bf16, rounded to nearest even
  int64_t max_shard_bytes = 5'000'000'000;
  HfExperts experts = HfExperts::kSeparate;
  HfCompanions companions = {};  ///< max_positions is not used: it is the model's
};

struct ExportSummary {
  size_t num_tensors = 0;
  size_t num_files = 0;
  int64_t size_bytes = 0;  ///< of all tensors
};

/// Writes the weights of `state` as a Hugging Face folder: config.json and safetensors, several
/// files with an index if the total exceeds `max_shard_bytes`, and the companions. `layout` is that
/// of the whole model. The folder appears complete or not at all. Host memory: two pieces of
/// state_transfer.h; for GPT-2, whose matrices are transposed, two matrices if these are larger.
/// Throws ConfigError if no Hugging Face class computes this model or `folder` exists, DataError
/// for errors of the system.
ExportSummary export_weights(const StateSource& state, const ParameterLayout& layout,
                             const ModelSpec& model, const std::string& folder,
                             const ExportOptions& options);

}  // namespace braid
