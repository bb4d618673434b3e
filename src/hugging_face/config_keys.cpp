#include "hugging_face/config_keys.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"

namespace braid {
namespace {

using nlohmann::json;

constexpr size_t kMaxQuotedBytes = 80;

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

bool is_no_dropout(std::string_view key, const json& value) {
  return value == 0 && (key.ends_with("dropout") || key.ends_with("_pdrop"));
}

}  // namespace

ConfigKeys::ConfigKeys(std::string_view text, std::string_view path)
    : path_(path),
      root_(
          std::make_unique<json>(parse_json(without_infinities(text), fmt::format("'{}'", path)))),
      known_(kHarmless.begin(), kHarmless.end()) {
  if (!root_->is_object()) {
    throw_data_error("'{}' is not a JSON object", path_);
  }
}

ConfigKeys::~ConfigKeys() = default;

const json& ConfigKeys::member(const json& object, std::string_view key) {
  static const json kMissing;
  const auto found = object.find(key);
  return found == object.end() ? kMissing : *found;
}

std::vector<std::string> ConfigKeys::ignored() const {
  std::vector<std::string> list;
  for (const auto& [key, value] : root_->items()) {
    if (!known_.contains(key) && !value.is_null() && !is_no_dropout(key, value)) {
      list.push_back(quote_key(key) + " = " + shown(value));
    }
  }
  return list;
}

bool ConfigKeys::has(const std::string& key) const {
  return root_->contains(key);
}

const json& ConfigKeys::value_of(const std::string& key) {
  known_.insert(key);
  return member(*root_, key);
}

int64_t ConfigKeys::size(const std::string& key, int64_t maximum,
                         std::optional<int64_t> otherwise) {
  return checked_size(key, value_of(key), maximum, otherwise);
}

int64_t ConfigKeys::checked_size(const std::string& key, const json& value, int64_t maximum,
                                 std::optional<int64_t> otherwise) const {
  if (value.is_null() && otherwise) {
    return *otherwise;
  }
  if (!value.is_number_integer() || value < 1 || value > maximum) {
    refuse(key, value, "must be an integer from 1 to {}", maximum);
  }
  return value.get<int64_t>();
}

int64_t ConfigKeys::count(const std::string& key, int64_t maximum, int64_t otherwise) {
  return value_of(key) == 0 ? 0 : size(key, maximum, otherwise);
}

double ConfigKeys::number(const std::string& key, double otherwise, double minimum,
                          double maximum) {
  return checked_number(key, value_of(key), otherwise, minimum, maximum);
}

double ConfigKeys::checked_number(const std::string& key, const json& value, double otherwise,
                                  double minimum, double maximum) const {
  if (value.is_null()) {
    return otherwise;
  }
  const double found = value.is_number() ? value.get<double>() : minimum - 1;
  if (!(found >= minimum && found <= maximum)) {
    refuse(key, value, "must be a number from {} to {}", minimum, maximum);
  }
  return found;
}

bool ConfigKeys::flag(const std::string& key, bool otherwise) {
  return checked_flag(key, value_of(key), otherwise);
}

bool ConfigKeys::checked_flag(const std::string& key, const json& value, bool otherwise) const {
  if (value.is_null()) {
    return otherwise;
  }
  if (!value.is_boolean()) {
    refuse(key, value, "must be true or false");
  }
  return value.get<bool>();
}

void ConfigKeys::require_flag(const std::string& key, bool only, bool otherwise) {
  if (flag(key, otherwise) != only) {
    refuse(key, value_of(key), "braid supports only {} = {}", key, only);
  }
}

void ConfigKeys::require_text(const std::string& key, const std::vector<std::string>& allowed) {
  const json& value = value_of(key);
  const bool good =
      value.is_null() || std::any_of(allowed.begin(), allowed.end(),
                                     [&](const std::string& name) { return value == name; });
  if (!good) {
    refuse(key, value, "braid computes {} only", join(allowed, ", "));
  }
}

void ConfigKeys::require_none(const std::string& key, std::string_view reason) {
  const json& value = value_of(key);
  if (!value.is_null() && value != 0) {
    refuse(key, value, "{}", reason);
  }
}

std::string ConfigKeys::shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxQuotedBytes) {
    text.resize(kMaxQuotedBytes);
    text += "...";
  }
  return text;
}

std::string ConfigKeys::quote_key(const std::string& key) {
  return is_printable(key) && key.size() < kMaxQuotedBytes ? key : quote(key, kMaxQuotedBytes);
}

}  // namespace braid
