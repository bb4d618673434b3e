#pragma once

#include <map>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "config/run_config.h"

namespace braid {

/// `extra` of a CheckpointState, and in it the folder that this process runs in: names in the
/// configuration are relative to it. A folder whose name JSON cannot hold is left out.
std::map<std::string, std::string> with_current_folder(std::map<std::string, std::string> extra);

/// The configuration of a checkpoint, for use in any folder: the tokenizer and lora.base are those
/// that the run had. Their relative names are looked up in the folder where the run began; what is
/// no longer there, as in a project that was moved, in the current one. `source_name`: for errors.
RunConfig recorded_config(const CheckpointState& state, std::string_view source_name);

}  // namespace braid
