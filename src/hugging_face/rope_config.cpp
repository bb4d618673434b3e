#include "hugging_face/rope_config.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace braid {
namespace {

using nlohmann::json;

/// The scaling of rotary frequencies in an object "rope_scaling" or "rope_parameters".
class RopeReader {
 public:
  /// `original`: what a file says beside the object about the positions before the context was
  /// extended.
  RopeReader(const ConfigKeys& keys, std::string_view key, const json& rope,
             std::optional<int64_t> original)
      : keys_(keys), key_(key), rope_(rope), original_(original) {}

  void read(ModelSpec& model) {
    model.rope_scaling = {.type = type()};
    max_positions_ = model.max_positions;
    known_.insert({"rope_theta", "rope_type", "type", "finetuned"});
    if (original_) {
      known_.insert({"partial_rotary_factor", "original_max_position_embeddings"});
    }
    model.rope_scaling.parameters(
        [&](const char* name, auto& value) { read_parameter(name, value); });
    for (const auto& [name, value] : rope_.items()) {
      const bool is_whole = name == "partial_rotary_factor" && value == 1.0;
      if (!known_.contains(name) && !value.is_null() && !is_whole) {
        keys_.refuse(key_, rope_, "rope_type \"{}\" has no {} that braid knows",
                     rope_type_name(model.rope_scaling.type), ConfigKeys::quote_key(name));
      }
    }
  }

 private:
  RopeType type() const {
    const json& given =
        ConfigKeys::member(rope_, rope_.contains("rope_type") ? "rope_type" : "type");
    if (given.is_null()) {
      return RopeType::kDefault;
    }
    if (original_ && (given == "su" || given == "yarn")) {
      return RopeType::kLongrope;  // as old files of Phi-3 call it
    }
    std::vector<std::string_view> names;
    for (const auto& [name, type] : kRopeTypes) {
      if (given == name) {
        return type;
      }
      names.push_back(name);
    }
    keys_.refuse(key_, rope_, "braid computes rotary embeddings of rope_type {} only",
                 join(names, ", "));
  }

  std::string path_of(std::string_view name) const { return fmt::format("{}.{}", key_, name); }

  /// A missing parameter has the type's usual value; a factor or number of positions, that of
  /// transformers.
  void read_parameter(const std::string& name, double& value) {
    known_.insert(name);
    const json& given = ConfigKeys::member(rope_, name);
    if (name == "factor" && given.is_null() &&
        (original_ || rope_.contains("original_max_position_embeddings"))) {
      int64_t original = 0;
      read_parameter("original_max_position_embeddings", original);
      value = static_cast<double>(max_positions_) / static_cast<double>(original);
      return;
    }
    if (name.ends_with("factor") && name != "attention_factor" && given.is_null()) {
      keys_.refuse(key_, rope_, "{} is missing", name);
    }
    value = keys_.checked_number(path_of(name), given, value, 0, 1e6);
  }
  void read_parameter(const std::string& name, int64_t& value) {
    known_.insert(name);
    value = keys_.checked_size(path_of(name), ConfigKeys::member(rope_, name), kMaxSize,
                               original_.value_or(max_positions_));
  }
  /// The factors of pairs.
  void read_parameter(const std::string& name, std::string& value) {
    known_.insert(name);
    const json& given = ConfigKeys::member(rope_, name);
    std::vector<double> factors;
    if (given.is_array()) {
      for (const json& factor : given) {
        factors.push_back(keys_.checked_number(path_of(name), factor, 0, 1e-6, 1e6));
      }
    }
    if (factors.empty()) {
      keys_.refuse(path_of(name), given, "must be a list of numbers");
    }
    value = rope_factor_list(factors);
  }
  void read_parameter(const std::string& name, bool& value) {
    known_.insert(name);
    value = keys_.checked_flag(path_of(name), ConfigKeys::member(rope_, name), value);
  }

  const ConfigKeys& keys_;
  std::string_view key_;
  const json& rope_;
  std::optional<int64_t> original_;
  int64_t max_positions_ = 0;
  std::set<std::string> known_;
};

/// The base and the scaling of one kind of layers, which may have one if there are
/// `max_positions`.
ModelSpec read_layers_rope(ConfigKeys& keys, const json& both, const std::string& kind,
                           double otherwise, std::optional<int64_t> max_positions = std::nullopt) {
  ModelSpec model;
  model.max_positions = max_positions.value_or(1);
  model.rope_theta = otherwise;
  const json& rope = ConfigKeys::member(both, kind);
  if (rope.is_null()) {
    return model;
  }
  const std::string key = fmt::format("rope_parameters.{}", kind);
  if (!rope.is_object()) {
    keys.refuse(key, rope, "must be an object");
  }
  model.rope_theta =
      keys.checked_number(fmt::format("{}.rope_theta", key), ConfigKeys::member(rope, "rope_theta"),
                          otherwise, 1, 1e12);
  RopeReader(keys, key, rope, std::nullopt).read(model);
  if (!max_positions && model.rope_scaling.type != RopeType::kDefault) {
    keys.refuse(key, rope, "braid scales the frequencies of layers without windows only");
  }
  return model;
}

}  // namespace

void read_rope(ConfigKeys& keys, ModelSpec& model, double default_theta,
               std::optional<int64_t> original) {
  model.rope_theta = keys.number("rope_theta", default_theta, 1, 1e12);
  const json& older = keys.value_of("rope_scaling");
  const json& newer = keys.value_of("rope_parameters");
  const json& rope = older.is_null() ? newer : older;
  if (rope.is_null()) {
    return;
  }
  const std::string key = older.is_null() ? "rope_parameters" : "rope_scaling";
  if (!rope.is_object()) {
    keys.refuse(key, rope, "must be an object");
  }
  model.rope_theta =
      keys.checked_number(fmt::format("{}.rope_theta", key), ConfigKeys::member(rope, "rope_theta"),
                          model.rope_theta, 1, 1e12);
  RopeReader(keys, key, rope, original).read(model);
}

void read_phi3_rope(ConfigKeys& keys, ModelSpec& model, double default_theta,
                    int64_t default_positions) {
  const json& newer = keys.value_of("rope_parameters");
  const auto inside = [&](const std::string& key) -> const json& {
    const json& found = newer.is_object() ? ConfigKeys::member(newer, key) : newer;
    return found.is_number() ? found : keys.value_of(key);
  };
  const int64_t original =
      keys.checked_size("original_max_position_embeddings",
                        inside("original_max_position_embeddings"), kMaxSize, default_positions);
  model.partial_rotary_factor =
      keys.checked_number("partial_rotary_factor", inside("partial_rotary_factor"), 1.0, 1e-6, 1.0);
  read_rope(keys, model, default_theta, original);
  keys.value_of("original_max_position_embeddings");
  keys.value_of("partial_rotary_factor");
}

void read_gemma_rope(ConfigKeys& keys, ModelSpec& model) {
  const bool has_windows = model.layers.has(kSlidingBlock);
  double local = keys.number("rope_local_base_freq", 10000.0, 1, 1e12);
  const json& both = keys.value_of("rope_parameters");
  if (!both.is_object()) {
    read_rope(keys, model, 1000000.0);
  } else {
    model.rope_theta = keys.number("rope_theta", 1000000.0, 1, 1e12);
    local = read_layers_rope(keys, both, "sliding_attention", local).rope_theta;
    const ModelSpec whole =
        read_layers_rope(keys, both, "full_attention", model.rope_theta, model.max_positions);
    model.rope_theta = whole.rope_theta;
    model.rope_scaling = whole.rope_scaling;
  }
  model.rope_local_base_freq = has_windows ? local : 0.0;
}

void refuse_partial_rotation(ConfigKeys& keys) {
  const json& factor = keys.value_of("partial_rotary_factor");
  if (!factor.is_null() && factor != 1.0) {
    keys.refuse("partial_rotary_factor", factor, "braid rotates whole heads only");
  }
}

}  // namespace braid
