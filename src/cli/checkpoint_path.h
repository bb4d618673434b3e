#pragma once

#include <optional>
#include <string>

namespace braid {

/// The checkpoint that a path means: itself, the newest of a folder of checkpoints, or that of a
/// run folder; nothing if there is none.
std::optional<std::string> checkpoint_at(const std::string& path);

/// The same. Throws DataError if there is none.
std::string find_checkpoint(const std::string& path);

/// How to make a checkpoint of the Hugging Face folder that a path is, behind a message that it is
/// none; empty if it is no such folder.
std::string hint_of_import(const std::string& path);

}  // namespace braid
