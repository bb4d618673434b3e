#include "data/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"

namespace braid {
namespace {

using nlohmann::json;

constexpr size_t kShownBytes = 80;
constexpr int64_t kMaxIds = 1 << 24;

}  // namespace

const json& json_member(const json& object, std::string_view key, const std::string& what) {
  static const json kMissing;
  if (!object.is_object()) {
    throw_data_error("{}: \"{}\" belongs in an object, but this is none", what, key);
  }
  const auto found = object.find(key);
  return found == object.end() ? kMissing : *found;
}

const json& list_member(const json& object, std::string_view key, const std::string& what) {
  const json& value = json_member(object, key, what);
  if (!value.is_array()) {
    throw_data_error("{}: \"{}\" must be a list", what, key);
  }
  return value;
}

bool flag_member(const json& object, std::string_view key, bool fallback, const std::string& what) {
  const json& value = json_member(object, key, what);
  if (!value.is_null() && !value.is_boolean()) {
    throw_data_error("{}: \"{}\" must be true or false", what, key);
  }
  return value.is_null() ? fallback : value.get<bool>();
}

std::string text_member(const json& object, std::string_view key, const std::string& what) {
  const json& value = json_member(object, key, what);
  if (!value.is_string()) {
    throw_data_error("{}: \"{}\" must be a string", what, key);
  }
  return value.get<std::string>();
}

int32_t id_member(const json& object, std::string_view key, const std::string& what) {
  const auto id = json_integer(json_member(object, key, what));
  if (!id || *id < 0 || *id >= kMaxIds) {
    throw_data_error("{}: {} must be an id, from 0 to {}", what, quote(key, kShownBytes),
                     kMaxIds - 1);
  }
  return static_cast<int32_t>(*id);
}

std::string type_of_component(const json& object, const std::string& what,
                              std::string_view component) {
  return text_member(object, "type", fmt::format("{}: {}", what, component));
}

void refuse_component(const std::string& what, std::string_view component, std::string_view type) {
  throw_data_error(
      "{}: braid does not support the {} {}; it reads byte-level BPE as of GPT-2, Llama 3 and "
      "Qwen, "
      "and SentencePiece's tokenizer.model",
      what, component, quote(type, kShownBytes));
}

}  // namespace braid
