#include "hugging_face/window_config.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

namespace braid {
namespace {

using nlohmann::json;

/// By layer: "layer_types"; without them, all with a window, of Qwen's those from
/// "max_window_layers" on.
std::vector<bool> layers_in_windows(ConfigKeys& keys, int64_t num_layers, int64_t window,
                                    bool is_qwen) {
  const int64_t first = is_qwen ? keys.count("max_window_layers", kMaxLayers, 28) : 0;
  const json& types = keys.value_of("layer_types");
  std::vector<bool> in_windows;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    in_windows.push_back(window > 0 && layer >= first);
  }
  if (types.is_null()) {
    return in_windows;
  }
  if (!types.is_array() || std::ssize(types) != num_layers) {
    keys.refuse("layer_types", types, "must be a list of {} layers", num_layers);
  }
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const json& type = types[static_cast<size_t>(layer)];
    const bool is_sliding = type == "sliding_attention";
    if (type != "full_attention" && !(is_sliding && window > 0)) {
      keys.refuse("layer_types", types,
                  "braid computes \"full_attention\", and with a sliding_window "
                  "\"sliding_attention\"");
    }
    in_windows[static_cast<size_t>(layer)] = is_sliding;
  }
  return in_windows;
}

}  // namespace

void read_windows(ConfigKeys& keys, ModelSpec& model, const HfClass& type) {
  const bool is_qwen = type.model_type.starts_with("qwen");
  if (type.windows == HfWindows::kNone) {
    if (is_qwen) {
      keys.require_flag("use_sliding_window", false, false);
      layers_in_windows(keys, model.layers.size(), 0, is_qwen);  // refuses others
    } else if (type.naming == HfNaming::kMixtral) {
      keys.require_none("sliding_window", "braid has no windows in layers of this class");
    }
    return;
  }
  const bool has_default = !is_qwen || keys.flag("use_sliding_window", false);
  const bool is_null = (keys.has("sliding_window") || type.naming == HfNaming::kPhi3) &&
                       keys.value_of("sliding_window").is_null();
  const int64_t window = has_default && !is_null ? keys.size("sliding_window", kMaxSize, 4096) : 0;
  const int64_t period =
      type.naming == HfNaming::kGemma3 ? keys.size("sliding_window_pattern", kMaxLayers, 6) : 0;
  std::vector<bool> in_windows = layers_in_windows(keys, model.layers.size(), window, is_qwen);
  if (period > 0 && keys.value_of("layer_types").is_null()) {  // all but each so manieth
    for (size_t layer = static_cast<size_t>(period) - 1; layer < in_windows.size();
         layer += static_cast<size_t>(period)) {
      in_windows[layer] = false;
    }
  }
  std::vector<LayerSpec> layers(model.layers.begin(), model.layers.end());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (in_windows[layer]) {
      layers[layer].mixer = &kSlidingBlock;
      model.sliding_window = window;
    }
  }
  model.layers = LayerPattern(std::move(layers));
}

}  // namespace braid
