#pragma once

#include <string>

#include "plan/run_plan.h"
#include "runtime/device.h"

namespace braid {

/// The file in the run folder with the whole plan of the newest start.
inline constexpr const char* kPlanFile = "plan.txt";

/// What a run is, in three lines of at most 80 columns, without the last "\n": model and ranks, a
/// step and its memory, and where the rest is. `setup_seconds`: the time until the first step.
///
///   model    llama, 6 layers, 5.48M parameters; cpu, 2 ranks (data 2)
///   step     2.05K tokens: 8 sequences of 256 in 1 microbatch; 188 MiB per rank
///   run      runs/quickstart (config.toml, plan.txt); set up in 2.1 s
std::string short_start(const RunPlan& plan, const Device& device, double setup_seconds);

}  // namespace braid
