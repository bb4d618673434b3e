#include "hugging_face/companions.h"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;  // of files in use: some megabytes
constexpr int64_t kMaxId = 1 << 24;

constexpr std::array kFiles = {"added_tokens.json",
                               "chat_template.jinja",
                               "chat_template.json",
                               "generation_config.json",
                               "merges.txt",
                               "special_tokens_map.json",
                               "tokenizer.json",
                               "tokenizer.model",
                               "tokenizer_config.json",
                               "vocab.json"};

/// An id, a list of ids, or null.
std::vector<int32_t> ids_of(const json& config, const char* key, const std::string& path) {
  std::vector<int32_t> ids;
  const json value = config.value(key, json());
  for (const json& id : value.is_array() ? value : value.is_null() ? json::array() : json{value}) {
    const std::optional<int64_t> number = json_integer(id);
    if (!number || *number < 0 || *number >= kMaxId) {
      throw_data_error("'{}': {} has {}, which is no token id", path, key, id.dump());
    }
    ids.push_back(static_cast<int32_t>(*number));
  }
  return ids;
}

void read_config(HfCompanions& companions, const std::string& path, int64_t vocabulary) {
  const json config = parse_json(read_text_file(path, kMaxFileBytes), "'" + path + "'");
  if (!config.is_object()) {
    throw_data_error("'{}' is not a JSON object", path);
  }
  if (json_integer(config.value("vocab_size", json())) != vocabulary) {
    return;
  }
  companions.bos_ids = ids_of(config, "bos_token_id", path);
  companions.eos_ids = ids_of(config, "eos_token_id", path);
  for (const char* key : {"max_position_embeddings", "n_positions"}) {
    if (const auto positions = json_integer(config.value(key, json()))) {
      companions.max_positions = *positions;
    }
  }
}

}  // namespace

HfCompanions find_companions(const std::string& folder, int64_t vocabulary) {
  HfCompanions companions;
  for (const char* name : kFiles) {
    if (const fs::path path = fs::path(folder) / name; fs::is_regular_file(path)) {
      companions.files.emplace(name, path.string());
    }
  }
  if (const fs::path path = fs::path(folder) / "config.json"; fs::is_regular_file(path)) {
    read_config(companions, path.string(), vocabulary);
  }
  return companions;
}

std::string tokenizer_file(const HfCompanions& companions) {
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    if (companions.files.contains(name)) {
      return name;
    }
  }
  return "";
}

void copy_companions(const HfCompanions& companions, const std::string& folder) {
  for (const auto& [name, path] : companions.files) {
    write_file_atomically((fs::path(folder) / name).string(), read_text_file(path, kMaxFileBytes));
  }
}

}  // namespace braid
