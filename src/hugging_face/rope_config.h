#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hugging_face/config_keys.h"
#include "model/model_spec.h"

// What a config.json says of rotary embeddings.
namespace braid {

/// "rope_theta" beside "rope_scaling", or both in "rope_parameters" as of transformers 5, where
/// the former counts if a file has both objects. max_positions must have been read. `original`:
/// what a file says beside the object about the positions before the context was extended.
void read_rope(ConfigKeys& keys, ModelSpec& model, double default_theta,
               std::optional<int64_t> original = std::nullopt);

/// Of Phi-3: two keys are beside the object of the scaling, as of transformers 5 in it. The
/// original number of positions is `default_positions` where nothing says it.
void read_phi3_rope(ConfigKeys& keys, ModelSpec& model, double default_theta,
                    int64_t default_positions);

/// Of Gemma 3: bases of layers with windows and without, in two objects as of transformers 5;
/// before, in keys beside "rope_scaling", which is of layers without.
void read_gemma_rope(ConfigKeys& keys, ModelSpec& model);

/// Refuses heads of which only a part is rotated.
void refuse_partial_rotation(ConfigKeys& keys);

}  // namespace braid
