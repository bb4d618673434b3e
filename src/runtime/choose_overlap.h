#pragma once

#include <functional>
#include <string_view>

#include "plan/run_spec.h"
#include "sim/cost_model.h"

namespace braid {

struct ChooseOverlapOptions {
  std::function<void(std::string_view)> print =
      {};                            ///< receives the choice and its reason; may be null
  bool progress_bar = false;         ///< drawn through `print`
  const CostModel* model = nullptr;  ///< null: RunSpec::cost_model. Not owned
};

/// Resolves overlap.mode = "auto" of a run that sets overlap.cost: returns the setting that
/// `auto_overlap` finds, as mode = "manual". Any other `run` is returned unchanged. Throws
/// ConfigError.
RunSpec choose_overlap(const RunSpec& run, const ChooseOverlapOptions& options = {});

}  // namespace braid
