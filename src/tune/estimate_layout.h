#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

#include "config/run_config.h"
#include "model/model_spec.h"
#include "model/stage_slice.h"
#include "parallel/pipeline_times.h"
#include "sim/cost_model.h"
#include "tune/layer_prices.h"
#include "tune/layout_space.h"

namespace braid {

/// What is known of a layout without building a program.
struct LayoutEstimate {
  double peak_bytes = 0;  ///< of the rank that needs most
  double least_ns = 0;    ///< no step is shorter: the work of each rank, and the way to and from it
};

/// Reckons layouts of one run from the prices of their layers. Layers of a stage cost what one
/// costs times their number; jobs then run as `PipelineClock` says; sums and gathers of data ranks
/// take what the cost model says and hide under the compute that the passes put them under. Not
/// reckoned: what messages between stages slow, uneven ranks, and the host copies of offload.
/// Thread-safe.
class LayoutEstimator {
 public:
  /// `config` with `parallel.ranks` set; all arguments must outlive the estimator.
  LayoutEstimator(const RunConfig& config, const ModelSpec& spec, const CostModel& model);

  LayoutEstimate bounds(const Layout& layout, const LayerPrices& prices) const;
  /// The step in nanoseconds, without the host's part. Takes time linear in the jobs of a pipeline.
  double step_ns(const Layout& layout, const LayerPrices& prices) const;

 private:
  struct DataTimes;  ///< what data and context ranks do for each other

  using Slices = std::shared_ptr<const std::vector<StageSlice>>;

  Slices slices_of(const Layout& layout) const;
  DataTimes data_times(const Layout& layout, double elems) const;
  double rank_bytes(const Layout& layout, const LayerPrices& prices,
                    const std::vector<StageSlice>& slices, int rank) const;
  double parameters_of(const Layout& layout, const LayerPrices& prices,
                       const std::vector<StageSlice>& slices, int rank) const;
  StageTimes stage_times(const Layout& layout, const LayerPrices& prices, const StageSlice& slice,
                         const DataTimes& layer_data) const;
  std::shared_ptr<const PipelineClock> clock(const ScheduleOptions& options) const;
  int64_t message_ns(const Layout& layout) const;
  double tail_ns(const Layout& layout, const LayerPrices& prices,
                 const std::vector<StageSlice>& slices, int rank,
                 std::span<const StageTimes> stages) const;
  double update_ns(const Layout& layout, const LayerPrices& prices,
                   const std::vector<StageSlice>& slices, int rank) const;

  const RunConfig& config_;
  const ModelSpec& spec_;
  const CostModel& model_;
  double compute_bytes_;  ///< of an element of weights and activations
  double grad_bytes_;     ///< of an element of gradients, between ranks
  using ScheduleKey = std::tuple<ScheduleKind, int, int, int64_t>;
  mutable std::mutex mutex_;
  mutable std::map<ScheduleKey, std::shared_ptr<const PipelineClock>> clocks_;
  using SliceKey = std::tuple<ScheduleKind, int, int, int64_t>;
  mutable std::map<SliceKey, Slices> slices_;
};

}  // namespace braid
