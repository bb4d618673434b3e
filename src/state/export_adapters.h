#pragma once

#include <string>

#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "state/export_weights.h"
#include "state/state_source.h"

namespace braid {

/// Writes the adapters of `state` in peft's format: adapter_config.json and
/// adapter_model.safetensors, with an A and a B of their own for each matrix of the Hugging Face
/// model; with DoRA also the lengths of its rows, for which `state` must have the base, too. `base`
/// is what adapter_config.json names as base_model_name_or_path. `layout` is that of
/// the whole model with adapters. The folder appears complete or not at all. Throws ConfigError if
/// `folder` exists or peft has no such adapters (GPT-2 has query, key and value in one matrix),
/// DataError for errors of the system.
ExportSummary export_adapters(const StateSource& state, const ParameterLayout& layout,
                              const ModelSpec& model, const std::string& base,
                              const std::string& folder, DType dtype);

}  // namespace braid
