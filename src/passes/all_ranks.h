#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"
#include "memory/memory_plan.h"
#include "parallel/verify_ranks.h"

namespace braid {

/// The programs and the memory plan of one rank. Not owned.
struct PlannedStep {
  std::vector<Program>* programs = nullptr;  ///< training step, then others sharing its memory
  MemoryPlan* memory = nullptr;              ///< of these programs
  int64_t beside_bytes = 0;  ///< device memory used outside the arenas (kernel scratch,
                             ///< driver); 0 without costs, because only they name the device
};

/// The planned steps of all ranks of a run, as the passes over all ranks read and change them. A
/// pass that changes programs must plan their memory again.
struct AllRanks {
  std::vector<PlannedStep> planned;
  /// The training step of every rank. `programs[i]` is the training step of `planned[i]`.
  RankPrograms ranks;
  bool has_pipeline = false;
  bool quick_memory = false;  ///< plan memory quickly: a search keeps only one of many plans
};

}  // namespace braid
