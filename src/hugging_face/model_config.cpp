#include "hugging_face/model_config.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "hugging_face/tensor_names.h"

namespace braid {
namespace {

using nlohmann::json;

constexpr size_t kMaxQuotedBytes = 80;
// The same limits as for these keys in a run file.
constexpr int64_t kMaxSize = 1 << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadSize = 65536;
constexpr int64_t kMaxExperts = 512;

/// Keys that do not change what a model computes from its tokens in training.
constexpr std::array kHarmless = {"_name_or_path",
                                  "architectures",
                                  "bos_token_id",
                                  "dtype",
                                  "eos_token_id",
                                  "gradient_checkpointing",
                                  "id2label",
                                  "is_decoder",
                                  "is_encoder_decoder",
                                  "label2id",
                                  "max_window_layers",
                                  "model_type",
                                  "n_ctx",
                                  "output_past",
                                  "pad_token_id",
                                  "predict_special_tokens",
                                  "pretraining_tp",
                                  "reorder_and_upcast_attn",
                                  "sliding_window",
                                  "summary_activation",
                                  "summary_first_dropout",
                                  "summary_proj_to_labels",
                                  "summary_type",
                                  "summary_use_proj",
                                  "task_specific_params",
                                  "torch_dtype",
                                  "transformers_version",
                                  "use_cache"};

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxQuotedBytes) {
    text.resize(kMaxQuotedBytes);
    text += "...";
  }
  return text;
}

/// Python writes infinities (of time_step_limit) in a way that JSON does not have: null in place of
/// them.
std::string without_infinities(std::string_view text) {
  constexpr std::string_view kInfinity = "Infinity";
  std::string result;
  bool is_quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (!is_quoted && text.substr(at, kInfinity.size()) == kInfinity) {
      result += "null";
      at += kInfinity.size() - 1;
      continue;
    }
    if (is_quoted && text[at] == '\\' && at + 1 < text.size()) {
      result += text[at++];
    } else if (text[at] == '"') {
      is_quoted = !is_quoted;
    }
    result += text[at];
  }
  return result;
}

/// One config.json; remembers which keys were asked for.
class ConfigReader {
 public:
  ConfigReader(std::string_view text, std::string_view path)
      : path_(path), root_(parse_json(text, fmt::format("'{}'", path))) {
    if (!root_.is_object()) {
      throw_data_error("'{}' is not a JSON object", path_);
    }
  }

  HfConfig read() {
    HfConfig config;
    const HfClass& type = class_of_file();
    config.model = model_of(type);
    config.model.style = type.style;
    config.model.qkv_bias = type.qkv_bias;
    refuse_quantization();
    try {
      check_model(config.model);
      hf_tensors(config.model);
    } catch (const ConfigError& error) {
      throw_data_error("'{}' describes no model: {}", path_, error.what());
    }
    for (const auto& [key, value] : root_.items()) {
      if (!known_.contains(key) && !value.is_null() && !is_no_dropout(key, value)) {
        config.ignored.push_back(quote_key(key) + " = " + shown(value));
      }
    }
    return config;
  }

 private:
  /// The value of an object's key; null if it is missing.
  static const json& member(const json& object, std::string_view key) {
    static const json kMissing;
    const auto found = object.find(key);
    return found == object.end() ? kMissing : *found;
  }

  ModelSpec model_of(const HfClass& type) {
    switch (type.naming) {
      case HfNaming::kGpt2:
        return gpt2();
      case HfNaming::kDeepseek:
        return deepseek(type);
      case HfNaming::kBackbone:
        return type.style == kMamba2Style ? mamba2() : nemotron_h();
      case HfNaming::kGemma3:
        return gemma3(type);
      case HfNaming::kLlama:
      case HfNaming::kMixtral:
      case HfNaming::kPhi3:
        return llama(type);
    }
    throw_internal_error("no class of models");
  }

  /// The scaling of rotary frequencies in an object "rope_scaling" or "rope_parameters".
  class RopeReader {
   public:
    /// `original`: what a file says beside the object about the positions before the context was
    /// extended.
    RopeReader(const ConfigReader& config, std::string_view key, const json& rope,
               std::optional<int64_t> original)
        : config_(config), key_(key), rope_(rope), original_(original) {}

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
          config_.refuse(key_, rope_, "rope_type \"{}\" has no {} that braid knows",
                         rope_type_name(model.rope_scaling.type), quote_key(name));
        }
      }
    }

   private:
    RopeType type() const {
      const json& given = member(rope_, rope_.contains("rope_type") ? "rope_type" : "type");
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
      config_.refuse(key_, rope_, "braid computes rotary embeddings of rope_type {} only",
                     join(names, ", "));
    }

    std::string path_of(std::string_view name) const { return fmt::format("{}.{}", key_, name); }

    /// A missing parameter has the type's usual value; a factor or number of positions, that of
    /// transformers.
    void read_parameter(const std::string& name, double& value) {
      known_.insert(name);
      const json& given = member(rope_, name);
      if (name == "factor" && given.is_null() &&
          (original_ || rope_.contains("original_max_position_embeddings"))) {
        int64_t original = 0;
        read_parameter("original_max_position_embeddings", original);
        value = static_cast<double>(max_positions_) / static_cast<double>(original);
        return;
      }
      if (name.ends_with("factor") && name != "attention_factor" && given.is_null()) {
        config_.refuse(key_, rope_, "{} is missing", name);
      }
      value = config_.checked_number(path_of(name), given, value, 0, 1e6);
    }
    void read_parameter(const std::string& name, int64_t& value) {
      known_.insert(name);
      value = config_.checked_size(path_of(name), member(rope_, name), kMaxSize,
                                   original_.value_or(max_positions_));
    }
    /// The factors of pairs.
    void read_parameter(const std::string& name, std::string& value) {
      known_.insert(name);
      const json& given = member(rope_, name);
      std::vector<double> factors;
      if (given.is_array()) {
        for (const json& factor : given) {
          factors.push_back(config_.checked_number(path_of(name), factor, 0, 1e-6, 1e6));
        }
      }
      if (factors.empty()) {
        config_.refuse(path_of(name), given, "must be a list of numbers");
      }
      value = rope_factor_list(factors);
    }
    void read_parameter(const std::string& name, bool& value) {
      known_.insert(name);
      value = config_.checked_flag(path_of(name), member(rope_, name), value);
    }

    const ConfigReader& config_;
    std::string_view key_;
    const json& rope_;
    std::optional<int64_t> original_;
    int64_t max_positions_ = 0;
    std::set<std::string> known_;
  };

  static std::string quote_key(const std::string& key) {
    return is_printable(key) && key.size() < kMaxQuotedBytes ? key : quote(key, kMaxQuotedBytes);
  }

  static bool is_no_dropout(std::string_view key, const json& value) {
    return value == 0 && (key.ends_with("dropout") || key.ends_with("_pdrop"));
  }

  template <class... Args>
  [[noreturn]] void refuse(std::string_view key, const json& value,
                           fmt::format_string<Args...> format, Args&&... args) const {
    throw_data_error("'{}': {} = {}: {}", path_, key, shown(value),
                     fmt::format(format, std::forward<Args>(args)...));
  }

  /// The value of a key; null if it is missing.
  const json& value_of(const std::string& key) {
    static const json kMissing;
    known_.insert(key);
    const auto found = root_.find(key);
    return found == root_.end() ? kMissing : *found;
  }

  const HfClass& class_of_file() {
    const json& type = value_of("model_type");
    const std::span<const HfClass> classes = hf_classes();
    const auto found = std::ranges::find_if(
        classes, [&](const HfClass& known) { return type == known.model_type; });
    if (found == classes.end()) {
      std::vector<std::string_view> names;
      std::ranges::transform(classes, std::back_inserter(names), &HfClass::model_type);
      refuse("model_type", type, "only {} can be imported", join(names, ", "));
    }
    const json& architectures = value_of("architectures");
    if (!architectures.is_null() && architectures != json::array({found->architecture})) {
      refuse("architectures", architectures, "braid imports only [\"{}\"] of model_type \"{}\"",
             found->architecture, found->model_type);
    }
    return *found;
  }

  int64_t size(const std::string& key, int64_t maximum,
               std::optional<int64_t> otherwise = std::nullopt) {
    return checked_size(key, value_of(key), maximum, otherwise);
  }

  int64_t checked_size(const std::string& key, const json& value, int64_t maximum,
                       std::optional<int64_t> otherwise) const {
    if (value.is_null() && otherwise) {
      return *otherwise;
    }
    if (!value.is_number_integer() || value < 1 || value > maximum) {
      refuse(key, value, "must be an integer from 1 to {}", maximum);
    }
    return value.get<int64_t>();
  }

  /// An integer from 0 on.
  int64_t count(const std::string& key, int64_t maximum, int64_t otherwise) {
    return value_of(key) == 0 ? 0 : size(key, maximum, otherwise);
  }

  double number(const std::string& key, double otherwise, double minimum, double maximum) {
    return checked_number(key, value_of(key), otherwise, minimum, maximum);
  }

  double checked_number(const std::string& key, const json& value, double otherwise, double minimum,
                        double maximum) const {
    if (value.is_null()) {
      return otherwise;
    }
    const double found = value.is_number() ? value.get<double>() : minimum - 1;
    if (!(found >= minimum && found <= maximum)) {
      refuse(key, value, "must be a number from {} to {}", minimum, maximum);
    }
    return found;
  }

  bool flag(const std::string& key, bool otherwise) {
    return checked_flag(key, value_of(key), otherwise);
  }

  bool checked_flag(const std::string& key, const json& value, bool otherwise) const {
    if (value.is_null()) {
      return otherwise;
    }
    if (!value.is_boolean()) {
      refuse(key, value, "must be true or false");
    }
    return value.get<bool>();
  }

  /// Requires the value `only`, the only one that braid supports; `otherwise` is the default of a
  /// missing key.
  void require_flag(const std::string& key, bool only, bool otherwise) {
    if (flag(key, otherwise) != only) {
      refuse(key, value_of(key), "braid supports only {} = {}", key, only);
    }
  }

  void require_text(const std::string& key, const std::vector<std::string>& allowed) {
    const json& value = value_of(key);
    const bool good =
        value.is_null() || std::any_of(allowed.begin(), allowed.end(),
                                       [&](const std::string& name) { return value == name; });
    if (!good) {
      refuse(key, value, "braid computes {} only", join(allowed, ", "));
    }
  }

  void refuse_quantization() {
    const json& quantization = value_of("quantization_config");
    if (!quantization.is_null()) {
      refuse("quantization_config", quantization, "quantized weights cannot be imported");
    }
  }

  /// "rope_theta" beside "rope_scaling", or both in "rope_parameters" as of transformers 5, where
  /// the former counts if a file has both objects. max_positions must have been read.
  void read_rope(ModelSpec& model, double default_theta,
                 std::optional<int64_t> original = std::nullopt) {
    model.rope_theta = number("rope_theta", default_theta, 1, 1e12);
    const json& older = value_of("rope_scaling");
    const json& newer = value_of("rope_parameters");
    const json& rope = older.is_null() ? newer : older;
    if (rope.is_null()) {
      return;
    }
    const std::string key = older.is_null() ? "rope_parameters" : "rope_scaling";
    if (!rope.is_object()) {
      refuse(key, rope, "must be an object");
    }
    model.rope_theta = checked_number(fmt::format("{}.rope_theta", key), member(rope, "rope_theta"),
                                      model.rope_theta, 1, 1e12);
    RopeReader(*this, key, rope, original).read(model);
  }

  /// Values of missing keys, where classes differ.
  struct Defaults {
    int64_t head_size = 0;  ///< 0: hidden_size / num_attention_heads
    int64_t max_positions = 2048;
    double theta = 10000.0;
    double epsilon = 1e-6;
  };

  static Defaults defaults_of(const HfClass& type) {
    if (type.model_type == "mixtral") {
      return {.max_positions = 131072, .theta = 1000000.0, .epsilon = 1e-5};
    }
    if (type.model_type == "olmoe") {
      return {.max_positions = 4096, .epsilon = 1e-5};
    }
    if (type.model_type.ends_with("istral")) {
      return {.max_positions = 131072};
    }
    if (type.model_type == "phi3") {
      return {.max_positions = 4096, .epsilon = 1e-5};
    }
    if (type.model_type == "qwen3") {
      return {.head_size = 128, .max_positions = 32768};
    }
    return {.max_positions = type.model_type == "llama" ? 2048 : 32768};
  }

  ModelSpec llama(const HfClass& type) {
    const Defaults defaults = defaults_of(type);
    ModelSpec model;
    model.layers = size("num_hidden_layers", kMaxLayers);
    model.width = size("hidden_size", kMaxSize);
    model.heads = size("num_attention_heads", kMaxHeads);
    model.kv_heads = size("num_key_value_heads", kMaxHeads, model.heads);
    model.head_size =
        size("head_dim", kMaxHeadSize,
             defaults.head_size != 0 ? defaults.head_size
                                     : std::max<int64_t>(1, model.width / model.heads));
    if (type.experts) {
      read_experts(model, type);
    }
    if (model.layers.has(kMlpBlock)) {
      model.ffn = size("intermediate_size", kMaxSize);
    }
    model.vocabulary = size("vocab_size", kMaxSize);
    model.max_positions = size("max_position_embeddings", kMaxSize, defaults.max_positions);
    model.tied_embeddings = flag("tie_word_embeddings", false);
    if (type.naming == HfNaming::kPhi3) {
      read_phi3_rope(model, defaults);
    } else {
      read_rope(model, defaults.theta);
      refuse_partial_rotation();
    }
    model.norm_epsilon = number("rms_norm_eps", defaults.epsilon, 0, 1);
    model.init_std = number("initializer_range", 0.02, 0, 10);
    require_text("hidden_act", {"silu"});
    read_windows(model, type);
    if (!type.qkv_bias) {
      require_flag("attention_bias", false, false);
      require_flag("mlp_bias", false, false);
    }
    return model;
  }

  ModelSpec gemma3(const HfClass& type) {
    ModelSpec model;
    model.layers = size("num_hidden_layers", kMaxLayers, 26);
    model.width = size("hidden_size", kMaxSize, 2304);
    model.heads = size("num_attention_heads", kMaxHeads, 8);
    model.kv_heads = size("num_key_value_heads", kMaxHeads, 4);
    model.head_size = size("head_dim", kMaxHeadSize, 256);
    model.ffn = size("intermediate_size", kMaxSize, 9216);
    model.vocabulary = size("vocab_size", kMaxSize, 262208);
    model.max_positions = size("max_position_embeddings", kMaxSize, 131072);
    model.tied_embeddings = flag("tie_word_embeddings", true);
    model.norm_offset = 1;
    model.post_norms = true;
    model.scale_embedding = true;
    model.query_pre_attn_scalar = size("query_pre_attn_scalar", kMaxSize, 256);
    model.norm_epsilon = number("rms_norm_eps", 1e-6, 0, 1);
    model.init_std = number("initializer_range", 0.02, 0, 10);
    require_text("hidden_activation", {"gelu_pytorch_tanh"});
    for (const char* const key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
      require_none(key, "braid has no soft caps of scores and logits");
    }
    require_flag("use_bidirectional_attention", false, false);
    value_of("_sliding_window_pattern");  // beside layer_types
    require_flag("attention_bias", false, false);
    refuse_partial_rotation();
    read_windows(model, type);
    read_gemma_rope(model);
    return model;
  }

  /// Bases of layers with windows and without: in two objects as of transformers 5; before, in keys
  /// beside "rope_scaling", which is of layers without.
  void read_gemma_rope(ModelSpec& model) {
    const bool has_windows = model.layers.has(kSlidingBlock);
    double local = number("rope_local_base_freq", 10000.0, 1, 1e12);
    const json& both = value_of("rope_parameters");
    if (!both.is_object()) {
      read_rope(model, 1000000.0);
    } else {
      model.rope_theta = number("rope_theta", 1000000.0, 1, 1e12);
      local = read_layers_rope(both, "sliding_attention", local).rope_theta;
      const ModelSpec whole =
          read_layers_rope(both, "full_attention", model.rope_theta, model.max_positions);
      model.rope_theta = whole.rope_theta;
      model.rope_scaling = whole.rope_scaling;
    }
    model.rope_local_base_freq = has_windows ? local : 0.0;
  }

  /// The base and the scaling of one kind of layers, which may have one if there are
  /// `max_positions`.
  ModelSpec read_layers_rope(const json& both, const std::string& kind, double otherwise,
                             std::optional<int64_t> max_positions = std::nullopt) {
    ModelSpec model;
    model.max_positions = max_positions.value_or(1);
    model.rope_theta = otherwise;
    const json& rope = member(both, kind);
    if (rope.is_null()) {
      return model;
    }
    const std::string key = fmt::format("rope_parameters.{}", kind);
    if (!rope.is_object()) {
      refuse(key, rope, "must be an object");
    }
    model.rope_theta = checked_number(fmt::format("{}.rope_theta", key), member(rope, "rope_theta"),
                                      otherwise, 1, 1e12);
    RopeReader(*this, key, rope, std::nullopt).read(model);
    if (!max_positions && model.rope_scaling.type != RopeType::kDefault) {
      refuse(key, rope, "braid scales the frequencies of layers without windows only");
    }
    return model;
  }

  /// V2 has no key for the layout of rotated pairs, and V3's may have only one value here.
  ModelSpec deepseek(const HfClass& type) {
    ModelSpec model;
    model.width = size("hidden_size", kMaxSize);
    model.heads = size("num_attention_heads", kMaxHeads);
    read_latents(model);
    read_deepseek_experts(model, type);
    if (model.layers.has(kMlpBlock)) {
      model.ffn = size("intermediate_size", kMaxSize);
    }
    model.vocabulary = size("vocab_size", kMaxSize);
    model.max_positions = size("max_position_embeddings", kMaxSize, type.sigmoid ? 4096 : 2048);
    model.tied_embeddings = flag("tie_word_embeddings", false);
    read_rope(model, 10000.0);
    model.norm_epsilon = number("rms_norm_eps", 1e-6, 0, 1);
    model.init_std = number("initializer_range", 0.02, 0, 10);
    require_text("hidden_act", {"silu"});
    require_flag("rope_interleave", true, true);
    require_flag("attention_bias", false, false);
    require_flag("mlp_bias", false, false);
    return model;
  }

  void read_latents(ModelSpec& model) {
    const json& kv_heads = value_of("num_key_value_heads");
    if (!kv_heads.is_null() && kv_heads != model.heads) {
      refuse("num_key_value_heads", kv_heads, "latent attention has one for each of {} heads",
             model.heads);
    }
    value_of("head_dim");     // qk_rope_head_dim again
    value_of("qk_head_dim");  // their sum
    // A missing key has the default, and null means that there is no latent.
    const bool has_latent = !root_.contains("q_lora_rank") || !value_of("q_lora_rank").is_null();
    model.q_lora_rank = has_latent ? size("q_lora_rank", kMaxSize, 1536) : 0;
    model.kv_lora_rank = size("kv_lora_rank", kMaxSize, 512);
    model.qk_nope_head_dim = size("qk_nope_head_dim", kMaxHeadSize, 128);
    model.qk_rope_head_dim = size("qk_rope_head_dim", kMaxHeadSize, 64);
    model.v_head_dim = size("v_head_dim", kMaxHeadSize, 128);
  }

  void read_deepseek_experts(ModelSpec& model, const HfClass& type) {
    const int64_t dense = count("first_k_dense_replace", kMaxLayers, type.sigmoid ? 3 : 0);
    const int64_t all = size("num_hidden_layers", kMaxLayers);
    std::vector<LayerSpec> layers(static_cast<size_t>(all),
                                  {.mixer = &kMlaBlock, .feed_forward = &kMoeBlock});
    std::fill_n(layers.begin(), std::min(dense, all), LayerSpec{.mixer = &kMlaBlock});
    model.layers = LayerPattern(std::move(layers));
    model.experts = size("n_routed_experts", kMaxSize);
    model.experts_per_token = size("num_experts_per_tok", kMaxSize);
    model.expert_ffn = size("moe_intermediate_size", kMaxSize);
    model.shared_ffn =
        size("n_shared_experts", kMaxExperts, type.sigmoid ? 1 : 2) * model.expert_ffn;
    if (value_of("moe_layer_freq") != 1) {
      require_none("moe_layer_freq", "braid supports only 1");
    }
    value_of("num_nextn_predict_layers");  // files may lack them: stored_mtp_depth
    value_of("ep_size");
    read_deepseek_router(model, type);
  }

  void read_deepseek_router(ModelSpec& model, const HfClass& type) {
    const json& method = value_of("topk_method");
    require_text("topk_method", type.sigmoid
                                    ? std::vector<std::string>{"noaux_tc"}
                                    : std::vector<std::string>{"greedy", "group_limited_greedy"});
    require_text("scoring_func", {type.sigmoid ? "sigmoid" : "softmax"});
    if (!type.sigmoid) {
      require_flag("norm_topk_prob", false, false);
    }
    model.router = {.sigmoid = type.sigmoid,
                    .normalize = type.sigmoid && flag("norm_topk_prob", true),
                    .scale = number("routed_scaling_factor", type.sigmoid ? 2.5 : 1.0, 0, 1000),
                    .bias = type.sigmoid};
    const int64_t groups = size("n_group", kMaxExperts, type.sigmoid ? 8 : 1);
    const int64_t kept = size("topk_group", kMaxExperts, type.sigmoid ? 4 : 1);
    if (type.sigmoid || method == "group_limited_greedy") {  // greedy ones ignore the groups
      model.router.groups = groups;
      model.router.kept_groups = kept;
    }
  }

  void read_experts(ModelSpec& model, const HfClass& type) {
    const bool is_mixtral = type.naming == HfNaming::kMixtral;
    model.layers = expert_layers(model.layers.size(), type);
    // As of transformers 5, Qwen3's files have Mixtral's key.
    const bool is_local = is_mixtral || !value_of("num_local_experts").is_null();
    model.experts = size(is_local ? "num_local_experts" : "num_experts", kMaxSize);
    model.experts_per_token = size("num_experts_per_tok", kMaxSize);
    model.expert_ffn =
        size(type.some_mlps ? "moe_intermediate_size" : "intermediate_size", kMaxSize);
    if (type.shared_expert) {
      model.shared_ffn = size("shared_expert_intermediate_size", kMaxSize);
      model.shared_gate = true;
      require_flag("qkv_bias", true, true);
    }
    model.router.normalize = is_mixtral || flag("norm_topk_prob", false);
    require_none("router_jitter_noise", "braid adds no noise to a router's input");
    require_none("clip_qkv", "braid does not clip queries, keys and values");
  }

  /// A key that changes what the model computes unless it is missing, null or 0.
  void require_none(const std::string& key, std::string_view reason) {
    const json& value = value_of(key);
    if (!value.is_null() && value != 0) {
      refuse(key, value, "{}", reason);
    }
  }

  /// Every decoder_sparse_step-th layer has experts, unless mlp_only_layers names it.
  LayerPattern expert_layers(int64_t count, const HfClass& type) {
    const LayerSpec experts{.feed_forward = &kMoeBlock};
    if (!type.some_mlps) {
      return {count, experts};
    }
    const int64_t step = size("decoder_sparse_step", kMaxLayers, 1);
    const json& dense = value_of("mlp_only_layers");
    if (!dense.is_null() && !dense.is_array()) {
      refuse("mlp_only_layers", dense, "must be a list of layers");
    }
    std::vector<LayerSpec> layers;
    for (int64_t layer = 0; layer < count; ++layer) {
      const bool is_dense =
          (layer + 1) % step != 0 ||
          (dense.is_array() && std::find(dense.begin(), dense.end(), layer) != dense.end());
      layers.push_back(is_dense ? LayerSpec() : experts);
    }
    return LayerPattern(std::move(layers));
  }

  /// Two keys are beside the object of the scaling, as of transformers 5 in it.
  void read_phi3_rope(ModelSpec& model, const Defaults& defaults) {
    const json& newer = value_of("rope_parameters");
    const auto inside = [&](const std::string& key) -> const json& {
      const json& found = newer.is_object() ? member(newer, key) : newer;
      return found.is_number() ? found : value_of(key);
    };
    const int64_t original =
        checked_size("original_max_position_embeddings", inside("original_max_position_embeddings"),
                     kMaxSize, defaults.max_positions);
    model.partial_rotary_factor =
        checked_number("partial_rotary_factor", inside("partial_rotary_factor"), 1.0, 1e-6, 1.0);
    read_rope(model, defaults.theta, original);
    value_of("original_max_position_embeddings");
    value_of("partial_rotary_factor");
  }

  void refuse_partial_rotation() {
    const json& factor = value_of("partial_rotary_factor");
    if (!factor.is_null() && factor != 1.0) {
      refuse("partial_rotary_factor", factor, "braid rotates whole heads only");
    }
  }

  /// Windows, of Mistral's classes by default, of Phi-3's if there is a key, of Qwen's if
  /// "use_sliding_window" says so.
  void read_windows(ModelSpec& model, const HfClass& type) {
    const bool is_qwen = type.model_type.starts_with("qwen");
    if (type.windows == HfWindows::kNone) {
      if (is_qwen) {
        require_flag("use_sliding_window", false, false);
        layers_in_windows(model.layers.size(), 0, is_qwen);  // refuses others
      } else if (type.naming == HfNaming::kMixtral) {
        require_none("sliding_window", "braid has no windows in layers of this class");
      }
      return;
    }
    const bool has_default = !is_qwen || flag("use_sliding_window", false);
    const bool is_null = (root_.contains("sliding_window") || type.naming == HfNaming::kPhi3) &&
                         value_of("sliding_window").is_null();
    const int64_t window = has_default && !is_null ? size("sliding_window", kMaxSize, 4096) : 0;
    const int64_t period =
        type.naming == HfNaming::kGemma3 ? size("sliding_window_pattern", kMaxLayers, 6) : 0;
    std::vector<bool> in_windows = layers_in_windows(model.layers.size(), window, is_qwen);
    if (period > 0 && value_of("layer_types").is_null()) {  // all but each so manieth
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

  /// By layer: "layer_types"; without them, all with a window, of Qwen's those from
  /// "max_window_layers" on.
  std::vector<bool> layers_in_windows(int64_t num_layers, int64_t window, bool is_qwen) {
    const int64_t first = is_qwen ? count("max_window_layers", kMaxLayers, 28) : 0;
    const json& types = value_of("layer_types");
    std::vector<bool> in_windows;
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      in_windows.push_back(window > 0 && layer >= first);
    }
    if (types.is_null()) {
      return in_windows;
    }
    if (!types.is_array() || std::ssize(types) != num_layers) {
      refuse("layer_types", types, "must be a list of {} layers", num_layers);
    }
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      const json& type = types[static_cast<size_t>(layer)];
      const bool is_sliding = type == "sliding_attention";
      if (type != "full_attention" && !(is_sliding && window > 0)) {
        refuse("layer_types", types,
               "braid computes \"full_attention\", and with a sliding_window "
               "\"sliding_attention\"");
      }
      in_windows[static_cast<size_t>(layer)] = is_sliding;
    }
    return in_windows;
  }

  /// Keys that classes of layers with states share, but for the sizes of heads.
  void read_states(ModelSpec& model, int64_t usual_groups, int64_t usual_chunk) {
    model.width = size("hidden_size", kMaxSize);
    model.mamba_n_groups = size("n_groups", kMaxHeads, usual_groups);
    model.conv_kernel = size("conv_kernel", 1024, 4);
    model.mamba_chunk_size = size("chunk_size", kMaxHeadSize, usual_chunk);
    model.vocabulary = size("vocab_size", kMaxSize);
    model.tied_embeddings = flag("tie_word_embeddings", false);
    model.norm_epsilon = number("layer_norm_epsilon", 1e-5, 0, 1);
    require_flag("use_bias", false, false);
    require_flag("use_conv_bias", true, true);
    // Of fresh weights, of caches, and of residuals in float32 beside other types.
    for (const char* const key : {"time_step_rank", "time_step_max", "time_step_floor",
                                  "rescale_prenorm_residual", "residual_in_fp32", "expand"}) {
      value_of(key);
    }
  }

  /// A list of two numbers. The second may be infinite: {"__float__": "Infinity"} or, where
  /// `parse_hf_config` put it, null.
  void read_step_limits(ModelSpec& model) {
    const std::string key = "time_step_limit";
    const json& limits = value_of(key);
    if (limits.is_null()) {
      return;
    }
    if (!limits.is_array() || limits.size() != 2) {
      refuse(key, limits, "must be a list of two numbers");
    }
    model.mamba_dt_min = checked_number(key, limits[0], 0.0, 0, 1e6);
    const bool is_infinite = limits[1].is_null() || limits[1].is_object() ||
                             (limits[1].is_number() && limits[1].get<double>() > 1e30);
    model.mamba_dt_max = is_infinite ? 0.0 : checked_number(key, limits[1], 0.0, 1e-30, 1e30);
  }

  ModelSpec mamba2() {
    ModelSpec model;
    read_states(model, 8, 256);
    model.layers = {size("num_hidden_layers", kMaxLayers, 64),
                    {.mixer = &kMambaBlock, .feed_forward = nullptr}};
    model.mamba_num_heads = size("num_heads", kMaxHeads, 128);
    model.mamba_head_dim = size("head_dim", kMaxHeadSize, 64);
    model.ssm_state_size = size("state_size", kMaxHeadSize, 128);
    model.init_std = number("initializer_range", 0.1, 0, 10);
    read_step_limits(model);
    value_of("time_step_min");  // of fresh weights
    require_text("hidden_act", {"silu", "swish"});
    require_flag("rms_norm", true, true);
    return model;
  }

  ModelSpec nemotron_h() {
    ModelSpec model;
    read_states(model, 8, 128);
    model.layers = nemotron_h_layers();
    model.mamba_num_heads = size("mamba_num_heads", kMaxHeads, 128);
    model.mamba_head_dim = size("mamba_head_dim", kMaxHeadSize, 64);
    model.ssm_state_size = size("ssm_state_size", kMaxHeadSize, 128);
    model.mamba_dt_min = number("time_step_min", 0.001, 0, 1e6);
    model.heads = size("num_attention_heads", kMaxHeads, 32);
    model.kv_heads = size("num_key_value_heads", kMaxHeads, 8);
    model.head_size =
        size(value_of("head_dim").is_null() ? "attention_head_dim" : "head_dim", kMaxHeadSize, 128);
    model.max_positions = size("max_position_embeddings", kMaxSize, 4096);
    model.init_std = number("initializer_range", 0.02, 0, 10);
    require_text("mamba_hidden_act", {"silu", "swish"});
    require_text("mlp_hidden_act", {"relu2"});
    for (const char* const key : {"attention_bias", "mlp_bias", "mamba_proj_bias"}) {
      require_flag(key, false, false);
    }
    if (model.layers.has(kMlpBlock)) {
      model.ffn = size("intermediate_size", kMaxSize, 21504);
    }
    if (model.layers.has(kMoeBlock)) {
      read_nemotron_h_experts(model);
    }
    ignore_unused_keys();
    return model;
  }

  void read_nemotron_h_experts(ModelSpec& model) {
    model.experts = size("n_routed_experts", kMaxExperts, 8);
    model.experts_per_token = size("num_experts_per_tok", kMaxExperts, 2);
    model.expert_ffn = size("moe_intermediate_size", kMaxSize, 7688);
    model.shared_ffn = size("moe_shared_expert_intermediate_size", kMaxSize, 7688);
    require_none("moe_latent_size", "braid has no latents in front of experts");
    model.router = {.sigmoid = true,
                    .normalize = flag("norm_topk_prob", true),
                    .scale = number("routed_scaling_factor", 1.0, 0, 1000),
                    .bias = true,
                    .groups = size("n_group", kMaxExperts, 1),
                    .kept_groups = size("topk_group", kMaxExperts, 1)};
  }

  /// Of steps, caches, generation, and of layers that the model does not have.
  void ignore_unused_keys() {
    for (const char* const key : {"time_step_limit",
                                  "use_mamba_kernels",
                                  "mamba_ssm_cache_dtype",
                                  "num_logits_to_keep",
                                  "intermediate_size",
                                  "n_routed_experts",
                                  "n_shared_experts",
                                  "moe_intermediate_size",
                                  "moe_latent_size",
                                  "moe_shared_expert_intermediate_size",
                                  "moe_shared_expert_overlap",
                                  "num_experts_per_tok",
                                  "routed_scaling_factor",
                                  "n_group",
                                  "topk_group",
                                  "norm_topk_prob",
                                  "output_router_logits",
                                  "num_nextn_predict_layers",
                                  "mtp_layers_block_type",
                                  "mtp_hybrid_override_pattern",
                                  "num_hidden_layers"}) {
      value_of(key);
    }
  }

  /// "hybrid_override_pattern", or as of transformers 5 a list of names "layers_block_type".
  LayerPattern nemotron_h_layers() {
    const json& list = value_of("layers_block_type");
    const json& pattern = value_of("hybrid_override_pattern");
    std::string letters;
    if (list.is_array()) {
      for (const json& name : list) {
        letters += letter_of(list, name);
      }
    } else if (pattern.is_string()) {
      letters = pattern.get<std::string>();
    }
    const std::string key = list.is_array() ? "layers_block_type" : "hybrid_override_pattern";
    if (letters.empty() || letters.size() > static_cast<size_t>(kMaxLayers) ||
        letters.find_first_not_of("M*-E") != std::string::npos) {
      refuse(key, value_of(key), "must be 1 to {} layers of M, *, - and E", kMaxLayers);
    }
    return LayerPattern::parse(letters);
  }

  char letter_of(const json& list, const json& name) const {
    constexpr std::array<std::pair<std::string_view, char>, 6> kNames = {{{"linear_attention", 'M'},
                                                                          {"mamba", 'M'},
                                                                          {"full_attention", '*'},
                                                                          {"attention", '*'},
                                                                          {"mlp", '-'},
                                                                          {"moe", 'E'}}};
    const auto* const found =
        std::ranges::find_if(kNames, [&](const auto& known) { return name == known.first; });
    if (found == kNames.end()) {
      refuse("layers_block_type", list, "braid knows no layer {}", shown(name));
    }
    return found->second;
  }

  ModelSpec gpt2() {
    ModelSpec model;
    model.layers = size("n_layer", kMaxLayers);
    model.width = size("n_embd", kMaxSize);
    model.heads = size("n_head", kMaxHeads);
    model.kv_heads = model.heads;
    model.head_size = std::max<int64_t>(1, model.width / model.heads);
    model.ffn = size("n_inner", kMaxSize, 4 * model.width);
    model.vocabulary = size("vocab_size", kMaxSize);
    model.max_positions = size("n_positions", kMaxSize, 1024);
    model.tied_embeddings = flag("tie_word_embeddings", true);
    model.norm_epsilon = number("layer_norm_epsilon", 1e-5, 0, 1);
    model.init_std = number("initializer_range", 0.02, 0, 10);
    require_text("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
    require_flag("scale_attn_weights", true, true);
    require_flag("scale_attn_by_inverse_layer_idx", false, false);
    require_flag("add_cross_attention", false, false);
    return model;
  }

  std::string_view path_;
  json root_;
  std::set<std::string> known_{kHarmless.begin(), kHarmless.end()};
};

}  // namespace

HfConfig parse_hf_config(std::string_view text, std::string_view path) {
  return ConfigReader(without_infinities(text), path).read();
}

}  // namespace braid
