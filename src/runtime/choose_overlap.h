#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "config/run_config.h"
#include "sim/cost_model.h"

namespace braid {

struct ChooseOverlapOptions {
  std::function<void(std::string_view)> print =
      {};                            ///< what was chosen, and why; null: nobody asks
  bool progress_bar = false;         ///< through `print`
  const CostModel* model = nullptr;  ///< null: the one that overlap.cost names. Not owned
};

/// What a run that says overlap.mode = "auto" and overlap.cost runs with: the setting that
/// `auto_overlap` finds, as mode = "manual". Any other `config`, a validated and resolved one, as
/// it is. Throws ConfigError, and DataError for a profile that cannot be read.
RunConfig choose_overlap(const RunConfig& config, int64_t vocabulary,
                         const ChooseOverlapOptions& options = {});

}  // namespace braid
