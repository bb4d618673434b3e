#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"
#include "memory/memory_plan.h"
#include "parallel/verify_ranks.h"

namespace braid {

/// What is planned for one rank. Not owned.
struct PlannedStep {
  std::vector<Program>* programs = nullptr;  ///< the training step, then others in its memory
  MemoryPlan* memory = nullptr;              ///< of these programs
  int64_t beside_bytes = 0;  ///< that a device holds beside the arenas: kernels' scratch, the
                             ///< driver; 0 without costs, which name the device
};

/// The planned step of all ranks of a run, as passes over all of them see and change it. A pass
/// that changes programs plans their memory again.
struct AllRanks {
  std::vector<PlannedStep> planned;
  /// The training step of every rank, by those that are planned: `programs[i]` is that of
  /// `planned[i]`.
  RankPrograms ranks;
  bool has_pipeline = false;
  bool quick_memory = false;  ///< plan it quickly, as a search does, which keeps one plan of many
};

}  // namespace braid
