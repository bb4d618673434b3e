#pragma once

#include <string>

#include "plan/run_spec.h"
#include "plan/step_range.h"
#include "sim/cost_model.h"

namespace braid {

/// A step of the same layout under other software, and under braid.
struct StackGain {
  std::string stack;        ///< its name
  std::string description;  ///< of the stack
  StepRange theirs;
  StepRange braids;
};

/// Simulates `run` on the cluster of `braid`, whose costs are braid's, and again under a stack
/// (`with_stack`), with its overlap.mode; a rank per pipeline stage. Throws ConfigError for an
/// unknown stack.
StackGain stack_gain(const RunSpec& run, const CostModel& braid, const std::string& stack);

/// Two lines, with both steps, their ranges, and what braid gains:
///   stack    megatron-te: 14.8 s per step, 13.9 s to 15.7 s (Megatron-LM with Transformer Engine)
///   braid    14.4 s per step, 13.6 s to 15.3 s: 2.8% shorter than under megatron-te
std::string describe_stack_gain(const StackGain& gain);

}  // namespace braid
