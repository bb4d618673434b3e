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
///
/// Some planned ranks lead: the first in the tensor and data dimensions at each place in the
/// others. What a pass chooses must depend on the leading ranks only: then every process, plan and
/// simulation of a run chooses the same, whichever other ranks it has planned. The other planned
/// ranks follow their leaders (schedule/step_change.h): their programs differ in a few tasks of the
/// optimizer.
struct AllRanks {
  std::vector<PlannedStep> planned;  ///< leading ranks first
  /// By planned rank: the index of the rank that it follows; its own if it leads.
  std::vector<uint32_t> leader_of;
  /// The training steps of the leading ranks, which here stand for all ranks.
  RankPrograms leading;
  /// The training step of every rank. `programs[i]` is the training step of `planned[i]`.
  RankPrograms ranks;
  bool has_pipeline = false;
  bool quick_memory = false;  ///< plan memory quickly: a search keeps only one of many plans
};

}  // namespace braid
