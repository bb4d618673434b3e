#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace braid {

/// A JSON file in the folder of the file `path`; null if it is not there. Throws DataError if it is
/// damaged.
nlohmann::json read_beside(const std::string& path, const std::string& name);

/// Ids that end a generated text: eos_token_id of the generation_config.json in the folder of the
/// file `path`, which may be several, and `eod`. Throws DataError if they are no ids.
std::vector<int32_t> stop_ids_beside(const std::string& path, std::optional<int32_t> eod);

}  // namespace braid
