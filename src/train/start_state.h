#pragma once

#include <cstdint>
#include <string>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "runtime/engine.h"

namespace braid {

/// The point where a run continues.
struct StartState {
  int64_t first_step = 1;
  std::string checkpoint;  ///< the checkpoint that it resumes; empty: the initial weights of
                           ///< train.seed
};

/// Fills weights and optimizer state; all processes call it. The source is the checkpoint that
/// checkpoint.resume allows, otherwise the initial weights. The first process finds the checkpoint,
/// since all must continue from the same one. Throws ConfigError if its steps had another
/// train.global_batch, and DataError.
StartState write_start_state(Engine& engine, const RunConfig& config, ProcessGroup& processes);

}  // namespace braid
