#pragma once

#include "config/run_config.h"

namespace braid {

/// A run file without keys in [model] that names a checkpoint to start from (checkpoint.resume) is
/// about the model of that checkpoint: returns the configuration with its [model], and its
/// tokenizer unless the file names one. Otherwise returns `config`; also if there is no such
/// checkpoint, which the start of the run refuses. Throws DataError for a damaged state.json.
RunConfig with_resumed_model(RunConfig config);

}  // namespace braid
