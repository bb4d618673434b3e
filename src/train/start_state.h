#pragma once

#include <cstdint>
#include <string>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "runtime/engine.h"

namespace braid {

/// Where a run goes on.
struct StartState {
  int64_t first_step = 1;
  std::string checkpoint;  ///< that it resumes; empty: from the initial weights of train.seed
};

/// Fills weights and optimizer state, called by all processes: of the checkpoint that
/// checkpoint.resume allows, as the first process finds it, since all must go on from one, else
/// the initial ones. Throws ConfigError where its steps had another train.global_batch, and
/// DataError.
StartState write_start_state(Engine& engine, const RunConfig& config, ProcessGroup& processes);

}  // namespace braid
