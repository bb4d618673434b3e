#pragma once

#include <optional>
#include <string>

namespace braid {

/// The checkpoint at a path: the path itself, the newest one in a folder of checkpoints, or that of
/// a run folder; nullopt if there is none.
std::optional<std::string> checkpoint_at(const std::string& path);

/// The same. Throws DataError if there is none.
std::string find_checkpoint(const std::string& path);

/// Hint to add to an error if the path is a Hugging Face folder: how to convert it to a checkpoint.
/// Empty if it is not such a folder.
std::string hint_of_import(const std::string& path);

}  // namespace braid
