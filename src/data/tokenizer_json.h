#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

/// Reading of a tokenizer.json's parts. `what` begins each message: "'gpt2/tokenizer.json'".
namespace braid {

/// The value of an object's key; null if it is missing. Throws DataError if `object` is none.
const nlohmann::json& json_member(const nlohmann::json& object, std::string_view key,
                                  const std::string& what);
/// Throws DataError unless it is a list.
const nlohmann::json& list_member(const nlohmann::json& object, std::string_view key,
                                  const std::string& what);
/// `fallback` if missing or null. Throws DataError unless it is a boolean.
bool flag_member(const nlohmann::json& object, std::string_view key, bool fallback,
                 const std::string& what);
/// Throws DataError unless it is a string.
std::string text_member(const nlohmann::json& object, std::string_view key,
                        const std::string& what);
/// Throws DataError unless it is an integer from 0 to 2^24 - 1, the limit of model.vocabulary.
int32_t id_member(const nlohmann::json& object, std::string_view key, const std::string& what);

/// The "type" of a component such as a normalizer.
std::string type_of_component(const nlohmann::json& object, const std::string& what,
                              std::string_view component);

/// Throws DataError: braid does not compute this type of component.
[[noreturn]] void refuse_component(const std::string& what, std::string_view component,
                                   std::string_view type);

}  // namespace braid
