#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// Name of the folder, beside imported checkpoints, with the files that `import` carries.
inline constexpr std::string_view kCompanionFolder = "hugging_face";

/// What a Hugging Face folder has besides the model that braid computes: files of the tokenizer,
/// settings of generation, and the ids and the number of positions that config.json names.
struct HfCompanions {
  std::vector<int32_t> bos_ids;              ///< bos_token_id; empty: null
  std::vector<int32_t> eos_ids;              ///< eos_token_id, one or several
  int64_t max_positions = 0;                 ///< max_position_embeddings; 0: not given
  std::map<std::string, std::string> files;  ///< path by name
};

/// Finds the companions in a folder. A config.json with another vocab_size than `vocabulary` is of
/// another model and not read. Throws DataError for one that is no JSON object, or an id that is
/// none.
HfCompanions find_companions(const std::string& folder, int64_t vocabulary);

/// The tokenizer that `load_tokenizer` takes of these: tokenizer.model, or else tokenizer.json; ""
/// if there is neither.
std::string tokenizer_file(const HfCompanions& companions);

/// Copies the files into `folder`, which exists. Throws DataError for errors of the system.
void copy_companions(const HfCompanions& companions, const std::string& folder);

}  // namespace braid
