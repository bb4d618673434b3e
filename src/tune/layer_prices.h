#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "model/model_spec.h"
#include "sim/cost_model.h"
#include "tune/layout.h"

namespace braid {

/// What one part of a model takes of a rank, for one microbatch.
struct PartPrice {
  double forward_ns = 0;
  double backward_ns = 0;  ///< dgrad, wgrad and what is made again
  double wgrad_ns = 0;     ///< of that, tasks of weight gradients
  double update_ns = 0;    ///< of all its weights, by the optimizer
  double parameters = 0;   ///< elements on this rank
  double kept_bytes = 0;   ///< activations from the forward to the backward
};

/// What a rank of a layout takes, without pipeline and data ranks: times with everything that
/// tensor and context ranks expose.
struct LayerPrices {
  std::vector<PartPrice> kinds;  ///< of one layer of each of LayerPattern::kinds
  PartPrice ends;                ///< embedding, head and loss together
  double layer_work_bytes =
      0;                   ///< activations besides the kept ones at the worst moment of any layer
  double work_bytes = 0;   ///< the same, of the whole model: mostly the logits
  double other_bytes = 0;  ///< of kernels and the driver
};

/// Plans and simulates one and two layers of each kind that the model has on the tensor and context
/// ranks of `layout` alone, two microbatches, and takes what the first of them took. So overlap,
/// contention and recompute are those of the passes. Pipeline, data, shard and schedule of `layout`
/// make no difference. `model`'s cluster must have a device for each rank. Throws ConfigError if
/// there is no such layout.
LayerPrices price_layers(const RunConfig& config, const ModelSpec& spec, int64_t vocabulary,
                         const Layout& layout, const CostModel& model);

}  // namespace braid
