#pragma once

#include <cstdint>
#include <vector>

#include "plan/simulated_run.h"
#include "plan/step_gains.h"
#include "tune/layout.h"

namespace braid {

struct GainOptions {
  int64_t num_layouts = 4;    ///< neighbouring layouts to simulate, the best by estimate
  int64_t num_overlaps = 12;  ///< settings of [overlap] to try, about
  int num_threads = 0;        ///< 0: all of the machine; does not change the result
};

/// The layouts one change away from this one, whether allowed or not: a factor 2 from one dimension
/// to another, twice or half the microbatch, another schedule or number of virtual stages, and one
/// more or less of sharding and recompute.
std::vector<Layout> neighbours(const Layout& layout, int64_t expert_tensor = 1);

/// Why the step is not faster: its critical path with what each cause costs, and of layout, overlap
/// and hardware the change that makes the step shortest, each simulated. Layouts are `neighbours`
/// that fit the memory, estimated as in a search; overlap is what `auto_overlap` finds in few
/// trials; hardware is `best_hardware`. Layouts and overlap are simulated with a rank per pipeline
/// stage, and their gains applied to `run`'s step. Deterministic.
StepGains find_gains(const SimulatedRun& run, const GainOptions& options = {});

}  // namespace braid
