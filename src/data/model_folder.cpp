#include "data/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_json.h"

namespace braid {
namespace {

using nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;  // of files in use: some kilobytes

}  // namespace

json read_beside(const std::string& path, const std::string& name) {
  const std::filesystem::path file = std::filesystem::path(path).parent_path() / name;
  if (!std::filesystem::exists(file)) {
    return nullptr;
  }
  const std::string text = read_text_file(file.string(), kMaxFileBytes);
  return parse_json(text, fmt::format("'{}'", file.string()));
}

std::vector<int32_t> stop_ids_beside(const std::string& path, std::optional<int32_t> eod) {
  const std::string what = fmt::format("generation_config.json of '{}'", path);
  const json config = read_beside(path, "generation_config.json");
  std::vector<int32_t> ids;
  if (!config.is_null()) {
    const json& value = json_member(config, "eos_token_id", what);
    for (const json& id : value.is_array()  ? value
                          : value.is_null() ? json::array()
                                            : json::array({value})) {
      ids.push_back(id_member({{"eos_token_id", id}}, "eos_token_id", what));
    }
  }
  if (eod && std::ranges::find(ids, *eod) == ids.end()) {
    ids.push_back(*eod);
  }
  return ids;
}

}  // namespace braid
