#pragma once

#include <array>
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
#include "parallel/mesh.h"
#include "parallel/parameter_domain.h"
#include "parallel/pipeline_times.h"
#include "sim/cost_model.h"
#include "tune/layer_prices.h"
#include "tune/layout_space.h"

namespace braid {

/// Bounds of a layout, computed without building a program.
struct LayoutEstimate {
  double peak_bytes = 0;    ///< of the rank that needs most
  double device_bytes = 0;  ///< of that, for kernels, the driver and communicators
  double least_ns = 0;  ///< lower bound of the step: each rank's work and the path to and from it
};

/// Estimates layouts of one run from the prices of their layers. A stage costs the sum of its
/// layers; layers of one kind cost the same. Jobs are timed by `PipelineClock`. Reductions and
/// gathers of data ranks take the time of the cost model and hide under the compute under which the
/// passes place them. Not modelled: slowdown by messages between stages, uneven ranks, and the host
/// copies of offload. Thread-safe.
class LayoutEstimator {
 public:
  /// Requires: `config` has `parallel.ranks` set. All arguments must outlive the estimator.
  LayoutEstimator(const RunConfig& config, const ModelSpec& spec, const CostModel& model);

  LayoutEstimate bounds(const Layout& layout, const LayerPrices& prices) const;
  /// The step in nanoseconds, without the host's overhead. Time: linear in the jobs of a pipeline.
  double step_ns(const Layout& layout, const LayerPrices& prices) const;

 private:
  struct DataTimes;  ///< communication of data and context ranks
  struct RankParts;  ///< what a pipeline rank holds

  struct PipelineNeeds;  ///< of a schedule, by rank

  struct Weights;  ///< elements, of dense parameters and of experts

  /// How the ranks share the weights: dense ones, and experts.
  using Domains = std::array<ParameterDomain, 2>;
  using Slices = std::shared_ptr<const std::vector<StageSlice>>;

  Mesh mesh_of(const Layout& layout) const;
  Domains domains_of(const Layout& layout) const;
  Slices slices_of(const Layout& layout) const;
  DataTimes data_times(const Layout& layout, const Weights& weights) const;
  DataTimes domain_times(const Layout& layout, const ParameterDomain& domain, double elems) const;
  /// Number of layers of each kind in a stage.
  std::vector<double> layers_of(const StageSlice& slice) const;
  RankParts parts_of(const ScheduleOptions& schedule, const std::vector<StageSlice>& slices,
                     int rank) const;
  /// Of a rank, by kind of layer: at the moment at which it holds most.
  double held_bytes(const PipelineNeeds& pipeline, const RankParts& parts,
                    const LayerPrices& prices, int rank) const;
  double communicator_bytes(const Layout& layout, const PipelineNeeds& pipeline, int rank) const;
  /// Of kernels, the driver and communicators.
  double device_bytes(const Layout& layout, const LayerPrices& prices,
                      const std::vector<StageSlice>& slices, int rank) const;
  /// In the arenas.
  double arena_bytes(const Layout& layout, const LayerPrices& prices,
                     const std::vector<StageSlice>& slices, int rank) const;
  Weights weights_of(const Layout& layout, const LayerPrices& prices,
                     const std::vector<StageSlice>& slices, int rank) const;
  StageTimes stage_times(const Layout& layout, const LayerPrices& prices, const StageSlice& slice,
                         std::span<const DataTimes> layer_data) const;
  using ScheduleKey = std::tuple<ScheduleKind, int, int, int64_t>;
  template <class T>
  using Cache = std::map<ScheduleKey, std::shared_ptr<const T>>;

  static ScheduleKey schedule_key(const ScheduleOptions& options);
  /// The cache's value, made if it is missing. Threads may make one at the same time.
  template <class T, class Make>
  std::shared_ptr<const T> cached(Cache<T>& cache, const ScheduleKey& key, const Make& make) const;
  std::shared_ptr<const PipelineClock> clock(const ScheduleOptions& options) const;
  std::shared_ptr<const PipelineNeeds> pipeline_needs(const ScheduleOptions& options) const;
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
  double grad_bytes_;     ///< of an element of fp32 gradients, between ranks
  double num_moments_;    ///< of an element of a matrix
  std::vector<size_t> kind_of_layer_;
  std::vector<std::vector<double>> layers_before_;  // by kind, by layer: layers of it before
  mutable std::mutex mutex_;
  mutable Cache<PipelineClock> clocks_;
  mutable Cache<PipelineNeeds> pipeline_needs_;
  mutable Cache<std::vector<StageSlice>> slices_;
};

}  // namespace braid
