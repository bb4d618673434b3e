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

/// Reckons layouts of one run from the prices of their layers. A stage costs the sum of its layers,
/// of which each costs what one of its kind does; jobs then run as `PipelineClock` says; sums and
/// gathers of data ranks take what the cost model says and hide under the compute that the passes
/// put them under. Not reckoned: what messages between stages slow, uneven ranks, and the host
/// copies of offload. Thread-safe.
class LayoutEstimator {
 public:
  /// `config` with `parallel.ranks` set; all arguments must outlive the estimator.
  LayoutEstimator(const RunConfig& config, const ModelSpec& spec, const CostModel& model);

  LayoutEstimate bounds(const Layout& layout, const LayerPrices& prices) const;
  /// The step in nanoseconds, without the host's part. Takes time linear in the jobs of a pipeline.
  double step_ns(const Layout& layout, const LayerPrices& prices) const;

 private:
  struct DataTimes;  ///< what data and context ranks do for each other
  struct RankParts;  ///< what a pipeline rank holds

  using Slices = std::shared_ptr<const std::vector<StageSlice>>;

  Slices slices_of(const Layout& layout) const;
  DataTimes data_times(const Layout& layout, double elems) const;
  /// By kind: its layers of a stage.
  std::vector<double> layers_of(const StageSlice& slice) const;
  RankParts parts_of(const ScheduleOptions& schedule, const std::vector<StageSlice>& slices,
                     int rank) const;
  double rank_bytes(const Layout& layout, const LayerPrices& prices,
                    const std::vector<StageSlice>& slices, int rank) const;
  double parameters_of(const Layout& layout, const LayerPrices& prices,
                       const std::vector<StageSlice>& slices, int rank) const;
  StageTimes stage_times(const Layout& layout, const LayerPrices& prices, const StageSlice& slice,
                         std::span<const DataTimes> layer_data) const;
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
  std::vector<size_t> kind_of_layer_;
  std::vector<std::vector<double>> layers_before_;  // by kind, by layer: those in front of it
  using ScheduleKey = std::tuple<ScheduleKind, int, int, int64_t>;
  mutable std::mutex mutex_;
  mutable std::map<ScheduleKey, std::shared_ptr<const PipelineClock>> clocks_;
  using SliceKey = std::tuple<ScheduleKind, int, int, int64_t>;
  mutable std::map<SliceKey, Slices> slices_;
};

}  // namespace braid
