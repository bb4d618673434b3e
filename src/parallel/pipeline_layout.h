#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/stage_slice.h"
#include "parallel/balance_stages.h"
#include "parallel/schedule.h"

namespace braid {

/// Which layers each stage of a pipeline holds. At most one of four methods applies: balanced (the
/// default), even (optionally counting embedding or loss as a layer), a given number of layers for
/// the first or last rank, or a layout string.
struct PipelineLayoutOptions {
  int64_t layers = 1;
  ScheduleOptions schedule;                       ///< must be valid (check_schedule)
  PartCosts costs;                                ///< input of balanced layouts
  BalanceEffort effort = BalanceEffort::kSearch;  ///< for balanced layouts
  /// parallel.pipeline_layout: "balanced" (balanced_layers; also the default if no option is set),
  /// "even", or a layout string. A layout string lists the stages in model order, separated by "|":
  /// E embedding, t layer, L head and loss. "x*n" repeats a letter and "(...)*n" a group; groups do
  /// not nest and are expanded first. Commas and blanks are ignored. "Et*3|(tt|)*2t*3L" expands to
  /// Ettt|tt|tt|tttL.
  std::string layout;
  int64_t first_stage_layers = 0;      ///< parallel.first_stage_layers: total of the first rank's
                                       ///< virtual stages; 0: same as the others
  int64_t last_stage_layers = 0;       ///< parallel.last_stage_layers: the same for the last rank
  bool account_for_embedding = false;  ///< parallel.account_for_embedding: the first stage has one
                                       ///< layer less
  bool account_for_loss = false;  ///< parallel.account_for_loss: the last stage has one layer less
};

/// Returns the schedule.num_stages() stages in the order in which a microbatch passes them. Throws
/// ConfigError with option, values and nearest valid settings if no such layout exists, if a stage
/// would be empty, or if the string is not a layout of this model.
std::vector<StageSlice> make_pipeline_layout(const PipelineLayoutOptions& options);

/// Returns the shortest layout string of these stages in the usual notation: "Et*3|t*2|t*2|t*3L".
std::string layout_text(std::span<const StageSlice> stages);

}  // namespace braid
