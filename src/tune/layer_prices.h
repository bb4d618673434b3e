#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "model/model_spec.h"
#include "sim/cost_model.h"
#include "tune/layout.h"

namespace braid {

/// Microbatches of the runs that `price_layers` plans.
inline constexpr int64_t kPricedMicrobatches = 2;

/// Cost of one part of a model on a rank, for one microbatch.
struct PartPrice {
  double forward_ns = 0;
  double backward_ns = 0;        ///< dgrad, wgrad and recompute
  double wgrad_ns = 0;           ///< of that, wgrad tasks
  double update_ns = 0;          ///< optimizer, all its weights
  double parameters = 0;         ///< elements on this rank
  double expert_parameters = 0;  ///< those of them that are weights of experts
  double kept_bytes = 0;         ///< activations from the forward to the backward
  double wgrad_bytes = 0;        ///< activations that wgrad tasks read and no task of theirs makes
  double driver_bytes = 0;       ///< of LayerPrices::other_bytes: its tasks in the driver's graphs

  friend bool operator==(const PartPrice&, const PartPrice&) = default;
};

/// Costs of a rank of a layout, without pipeline and data parallelism. Times include the exposed
/// communication of tensor and context ranks, and of ranks that exchange rows of experts.
struct LayerPrices {
  std::vector<PartPrice> kinds;  ///< of one layer of each of LayerPattern::kinds
  PartPrice ends;                ///< embedding, head, loss and multi-token prediction together
  double layer_work_bytes =
      0;                   ///< activations besides the kept ones at the worst moment of any layer
  double work_bytes = 0;   ///< the same, of the whole model: mostly the logits
  double other_bytes = 0;  ///< of kernels and the driver, for `kPricedMicrobatches` of two layers

  friend bool operator==(const LayerPrices&, const LayerPrices&) = default;
};

/// The ranks on which `price_layers` runs `layout`: one stage, and data ranks only if they exchange
/// rows of experts.
Layout priced_ranks(Layout layout, int64_t expert_tensor);

/// Plans and simulates models with one and two layers of each kind that the model has, on
/// `priced_ranks`, with
/// `kPricedMicrobatches`, and takes the times of the first microbatch, before sums
/// over data ranks. So overlap, contention and recompute are those of the passes. Pipeline, data,
/// shard and schedule of `layout` do not matter. `model`'s cluster must have a device for each
/// rank. Throws ConfigError if the layout is impossible.
LayerPrices price_layers(const RunConfig& config, const ModelSpec& spec, int64_t vocabulary,
                         const Layout& layout, const CostModel& model);

}  // namespace braid
