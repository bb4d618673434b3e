#pragma once

#include <functional>
#include <string_view>

#include "plan/run_spec.h"
#include "sim/cost_model.h"

namespace braid {

struct ChooseOverlapOptions {
  std::function<void(std::string_view)> print =
      {};                            ///< what was chosen, and why; null: nobody asks
  bool progress_bar = false;         ///< through `print`
  const CostModel* model = nullptr;  ///< null: RunSpec::cost_model. Not owned
};

/// What a run that says overlap.mode = "auto" and overlap.cost runs with: the setting that
/// `auto_overlap` finds, as mode = "manual". Any other `run` as it is. Throws ConfigError.
RunSpec choose_overlap(const RunSpec& run, const ChooseOverlapOptions& options = {});

}  // namespace braid
