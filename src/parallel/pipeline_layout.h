#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/stage_slice.h"

namespace braid {

/// Which layers each stage of a pipeline holds. At most one of three ways: evenly (nothing below
/// given, or with the embedding or the loss counted as a layer), by the number of layers of the
/// first or last rank, or by a layout string.
struct PipelineLayoutOptions {
  int64_t layers = 1;
  int num_ranks = 1;       ///< parallel.pipeline
  int virtual_stages = 1;  ///< parallel.virtual_stages, per rank
  bool v_shape = false;    ///< of zb-v and dualpipe-v: the second virtual stages lie in reverse
                           ///< order on the ranks
  /// parallel.pipeline_layout, or empty: stages in the order of the model, "|" between them; E
  /// embedding, t layer, L head and loss. "x*n" repeats a letter, "(...)*n" a group (groups do not
  /// nest; groups are repeated first); commas and blanks mean nothing. "Et*3|(tt|)*2t*3L" is
  /// Ettt|tt|tt|tttL.
  std::string layout;
  int64_t first_stage_layers = 0;  ///< parallel.first_stage_layers: of all virtual stages of the
                                   ///< first rank; 0: as many as others
  int64_t last_stage_layers = 0;   ///< parallel.last_stage_layers: the same for the last rank
  bool account_for_embedding = false;  ///< parallel.account_for_embedding: the first stage has a
                                       ///< layer less than others
  bool account_for_loss = false;       ///< parallel.account_for_loss: the last stage has a layer
                                       ///< less than others
};

/// The stages in the order in which a microbatch passes them, num_ranks * virtual_stages of them.
/// Throws ConfigError naming option, values and what would fit if there is no such layout, if a
/// stage would be empty, or for a string that is not a layout of this model.
std::vector<StageSlice> make_pipeline_layout(const PipelineLayoutOptions& options);

/// The shortest usual layout string of these stages: "Et*3|t*2|t*2|t*3L".
std::string layout_text(std::span<const StageSlice> stages);

}  // namespace braid
