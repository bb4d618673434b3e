#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/stage_slice.h"
#include "parallel/balance_stages.h"
#include "parallel/schedule.h"

namespace braid {

/// Which layers each stage of a pipeline holds. At most one of four ways: balanced (nothing below
/// given), evenly (perhaps with the embedding or the loss counted as a layer), by the number of
/// layers of the first or last rank, or by a layout string.
struct PipelineLayoutOptions {
  int64_t layers = 1;
  ScheduleOptions schedule;                       ///< valid (check_schedule)
  PartCosts costs;                                ///< what balanced layouts balance
  BalanceEffort effort = BalanceEffort::kSearch;  ///< of balanced layouts
  /// parallel.pipeline_layout: "balanced" (balanced_layers; also if empty and nothing below is
  /// given), "even", or a layout string:
  /// stages in the order of the model, "|" between them; E embedding, t layer, L head and loss.
  /// "x*n" repeats a letter, "(...)*n" a group (groups do not nest; groups are repeated first);
  /// commas and blanks mean nothing. "Et*3|(tt|)*2t*3L" is Ettt|tt|tt|tttL.
  std::string layout;
  int64_t first_stage_layers = 0;  ///< parallel.first_stage_layers: of all virtual stages of the
                                   ///< first rank; 0: as many as others
  int64_t last_stage_layers = 0;   ///< parallel.last_stage_layers: the same for the last rank
  bool account_for_embedding = false;  ///< parallel.account_for_embedding: the first stage has a
                                       ///< layer less than others
  bool account_for_loss = false;       ///< parallel.account_for_loss: the last stage has a layer
                                       ///< less than others
};

/// The stages in the order in which a microbatch passes them, schedule.num_stages() of them. Throws
/// ConfigError naming option, values and what would fit if there is no such layout, if a stage
/// would be empty, or for a string that is not a layout of this model.
std::vector<StageSlice> make_pipeline_layout(const PipelineLayoutOptions& options);

/// The shortest usual layout string of these stages: "Et*3|t*2|t*2|t*3L".
std::string layout_text(std::span<const StageSlice> stages);

}  // namespace braid
