#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "ir/program.h"
#include "memory/memory_plan.h"
#include "model/model_spec.h"
#include "parallel/mesh.h"
#include "parallel/parameter_layout.h"
#include "passes/runner.h"

namespace braid {

/// The programs of one rank after all passes, with their memory.
struct RankPlan {
  std::vector<Program> programs;  ///< by ProgramIndex
  MemoryPlan memory;
  std::vector<PassRecord> passes;  ///< of the training program
};

inline constexpr size_t kTrainProgram = 0;
inline constexpr size_t kEvalProgram = 1;

/// All that is decided before a device is touched: it can be printed, checked and simulated on a
/// machine that could not run it.
struct RunPlan {
  ModelSpec model;
  ParameterLayout layout;
  Mesh mesh{MeshSizes{}};
  int64_t num_microbatches = 1;  ///< per rank and step
  std::vector<RankPlan> ranks;
};

/// Resolves the model, builds every rank's programs, runs the passes, plans memory. `config` must
/// be validated and resolved. `tokenizer_vocabulary` as in `resolve_model`. Throws ConfigError.
RunPlan plan_run(const RunConfig& config, int64_t tokenizer_vocabulary);

/// Runs the pass pipeline as section [overlap] and the debug variables of docs/env.md say.
RankPlan plan_rank(std::vector<Program> programs, const OverlapConfig& overlap);

/// What a person wants to know before the run: model, ranks, tokens per step, passes, memory by
/// class.
std::string describe_run_plan(const RunPlan& plan, const RunConfig& config);

}  // namespace braid
