#pragma once

#include <optional>
#include <vector>

#include "ir/program.h"
#include "parallel/parameter_layout.h"
#include "plan/run_spec.h"

namespace braid {

struct BuildOptions {
  std::optional<DType> dtype = {};  ///< as PlanOptions::dtype
  bool update_weights = true;       ///< as PlanOptions::update_weights
  /// As TrainProgramOptions::outline, and only of the training step: the evaluation runs a part of
  /// its nodes.
  bool outline = false;
};

/// The training step and the evaluation forward of one rank before any pass, by ProgramIndex.
/// `layout` is that of the rank.
std::vector<Program> build_programs(const RunSpec& run, const ParameterLayout& layout, int rank,
                                    const BuildOptions& options = {});

}  // namespace braid
