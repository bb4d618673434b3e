#pragma once

#include <array>
#include <span>
#include <string_view>

#include "model/model_spec.h"

namespace braid {

/// A family of similar models. Key model.family names one; other keys may override parts of it.
struct ModelFamily {
  std::string_view name;
  ModelStyle style;
  bool qkv_bias = false;
  bool tied_embeddings = false;
  bool normalizes_weights = true;  ///< RouterSpec::normalize
  int64_t norm_offset = 0;
  bool post_norms = false;
  bool scale_embedding = false;
};

/// The first one is the default of a run file that names neither family nor preset.
inline constexpr std::array kModelFamilies = {
    ModelFamily{.name = "llama", .style = kLlamaStyle},
    ModelFamily{.name = "qwen3", .style = kQwen3Style},
    ModelFamily{.name = "phi3", .style = kPhi3Style},
    ModelFamily{.name = "gemma3_text",
                .style = kGemma3Style,
                .tied_embeddings = true,
                .norm_offset = 1,
                .post_norms = true,
                .scale_embedding = true},
    ModelFamily{.name = "olmoe", .style = kOlmoeStyle, .normalizes_weights = false},
    ModelFamily{.name = "mamba2", .style = kMamba2Style, .tied_embeddings = true},
    ModelFamily{.name = "nemotron_h", .style = kNemotronHStyle},
    ModelFamily{.name = "gpt2", .style = kGpt2Style, .qkv_bias = true, .tied_embeddings = true},
};

/// The family of that name. Throws ConfigError with the nearest name.
const ModelFamily& find_family(std::string_view name);

/// The family that has that style. Throws InternalError if none has.
std::string_view family_name(const ModelStyle& style);

struct ModelPreset {
  std::string_view name;
  std::string_view source;  ///< where the shape was published
  ModelSpec spec;
};

std::span<const ModelPreset> model_presets();

/// The preset of that name. Throws ConfigError with the nearest name.
const ModelPreset& find_preset(std::string_view name);

}  // namespace braid
