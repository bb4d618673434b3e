#include "tune/estimate_layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "config/validate.h"
#include "model/layer_pattern.h"
#include "parallel/pipeline_layout.h"
#include "plan/communicators.h"
#include "plan/optimizer_setup.h"

namespace braid {
namespace {

double bytes_of(const std::string& dtype) {
  return static_cast<double>(dtype_bytes(choice<DType>(dtype)));
}

double moments_of(const RunConfig& config) {
  const OptimizerOptions optimizer = optimizer_options(config);
  return num_moments(update_rule(optimizer.kind, /*is_muon=*/true), optimizer);
}

/// Whether gradients are reduced after every microbatch.
bool shards_gradients(const Layout& layout) {
  return layout.shard == ShardKind::kGradients || layout.shard == ShardKind::kParameters;
}

/// Of an element.
double main_grad_bytes(const Layout& layout) {
  return static_cast<double>(dtype_bytes(layout.main_grads));
}

/// Communication that may hide under compute.
struct Hidden {
  double exposed_ns = 0;
  double hidden_ns = 0;
};

Hidden hide(double communication_ns, double compute_ns) {
  const double hidden_ns = std::min(communication_ns, compute_ns);
  return {communication_ns - hidden_ns, hidden_ns};
}

/// Sum over kinds: number of layers times the cost of one.
double sum_of(std::span<const double> layers, const LayerPrices& prices, double PartPrice::*part) {
  double sum = 0;
  for (size_t kind = 0; kind < layers.size(); ++kind) {
    sum += layers[kind] * prices.kinds[kind].*part;
  }
  return sum;
}

/// The price of the layer with the most weights, among the kinds with layers here.
PartPrice largest_layer(std::span<const double> layers, const LayerPrices& prices) {
  PartPrice largest;
  for (size_t kind = 0; kind < layers.size(); ++kind) {
    const PartPrice& price = prices.kinds[kind];
    largest = layers[kind] > 0 && price.parameters > largest.parameters ? price : largest;
  }
  return largest;
}

}  // namespace

/// Elements, of dense parameters and of experts, which other ranks may share.
struct LayoutEstimator::Weights {
  double dense = 0;
  double experts = 0;

  static Weights of(const PartPrice& price) {
    return {price.parameters - price.expert_parameters, price.expert_parameters};
  }
  double sum() const { return dense + experts; }
  /// Of one rank, if ranks shard them.
  double shard(const Domains& domains) const {
    return dense / static_cast<double>(domains[0].num_shards) +
           experts / static_cast<double>(domains[1].num_shards);
  }
  /// That one rank updates.
  double part(const Domains& domains) const {
    return dense / static_cast<double>(domains[0].num_parts) +
           experts / static_cast<double>(domains[1].num_parts);
  }
};

/// Layers by kind, and parts of embedding and head, of one pipeline rank.
struct LayoutEstimator::RankParts {
  std::vector<double> layers;
  double ends = 0;  ///< 0.5 for either
  bool has_head = false;
};

/// What ranks hold for the pipeline.
struct LayoutEstimator::PipelineNeeds {
  int64_t virtual_stages = 1;
  std::vector<std::vector<HeldPairs>> held;  ///< PipelineClock::most_held
  std::vector<int64_t> message_pairs;        ///< count_message_pairs
};

/// Communication of one unit of weights.
struct LayoutEstimator::DataTimes {
  double reduce_ns = 0;
  double gather_ns = 0;
  double loss = 0;  ///< part of compute's rate that is lost meanwhile

  /// Time that it adds to compute of length `compute_ns` running at the same time.
  double cost_ns(double communication_ns, double compute_ns) const {
    const Hidden parts = hide(communication_ns, compute_ns);
    return parts.exposed_ns + loss * parts.hidden_ns;
  }
};

LayoutEstimator::LayoutEstimator(const RunConfig& config, const ModelSpec& spec,
                                 const CostModel& model)
    : config_(config),
      spec_(spec),
      model_(model),
      compute_bytes_(bytes_of(config.train.dtype)),
      grad_bytes_(bytes_of(config.parallel.grad_reduce_dtype)),
      num_moments_(moments_of(config)),
      kind_of_layer_(spec.layers.kind_indices()),
      layers_before_(spec.layers.kinds().size(), std::vector<double>(1, 0)) {
  for (const size_t kind_of_layer : kind_of_layer_) {
    for (size_t kind = 0; kind < layers_before_.size(); ++kind) {
      std::vector<double>& before = layers_before_[kind];
      before.push_back(before.back() + (kind == kind_of_layer ? 1 : 0));
    }
  }
}

Mesh LayoutEstimator::mesh_of(const Layout& layout) const {
  const int64_t expert_tensor = config_.parallel.expert_tensor;
  const int64_t stage_ranks = layout.tensor * layout.context * layout.data;
  const int64_t expert_replicas =
      std::gcd(layout.shard_replicas, stage_ranks / (layout.expert * expert_tensor));
  return Mesh({.tensor = static_cast<int>(layout.tensor),
               .context = static_cast<int>(layout.context),
               .data = static_cast<int>(layout.data),
               .pipeline = static_cast<int>(layout.pipeline),
               .replicas = static_cast<int>(layout.shard_replicas),
               .expert = static_cast<int>(layout.expert),
               .expert_tensor = static_cast<int>(expert_tensor),
               .expert_replicas = static_cast<int>(expert_replicas)});
}

LayoutEstimator::Domains LayoutEstimator::domains_of(const Layout& layout) const {
  const auto domains = parameter_domains(mesh_of(layout),
                                         {.shard = layout.shard,
                                          .expert_shard = layout.shard,
                                          .shard_over_replicas = layout.shard_over_replicas},
                                         /*has_experts=*/true);
  return {domains.at(0), domains.at(1)};
}

std::vector<double> LayoutEstimator::layers_of(const StageSlice& slice) const {
  const auto first = static_cast<size_t>(slice.first_layer);
  const auto end = first + static_cast<size_t>(slice.num_layers);
  std::vector<double> layers;
  layers.reserve(layers_before_.size());
  for (const std::vector<double>& before : layers_before_) {
    layers.push_back(before[end] - before[first]);
  }
  return layers;
}

LayoutEstimator::RankParts LayoutEstimator::parts_of(const ScheduleOptions& schedule,
                                                     const std::vector<StageSlice>& slices,
                                                     int rank) const {
  RankParts parts{.layers = std::vector<double>(layers_before_.size(), 0)};
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    if (place_of(schedule, stage).rank == rank) {
      const StageSlice& slice = slices[static_cast<size_t>(stage)];
      const std::vector<double> layers = layers_of(slice);
      std::ranges::transform(parts.layers, layers, parts.layers.begin(), std::plus());
      parts.ends += (slice.has_embedding ? 0.5 : 0) + (slice.has_head ? 0.5 : 0);
      parts.has_head = parts.has_head || slice.has_head;
    }
  }
  return parts;
}

LayoutEstimator::ScheduleKey LayoutEstimator::schedule_key(const ScheduleOptions& options) {
  return {options.kind, options.num_ranks, options.virtual_stages, options.num_microbatches};
}

template <class T, class Make>
std::shared_ptr<const T> LayoutEstimator::cached(Cache<T>& cache, const ScheduleKey& key,
                                                 const Make& make) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = cache.find(key); found != cache.end()) {
      return found->second;
    }
  }
  auto made = std::make_shared<const T>(make());
  const std::lock_guard lock(mutex_);
  return cache.emplace(key, std::move(made)).first->second;
}

LayoutEstimator::Slices LayoutEstimator::slices_of(const Layout& layout) const {
  const ScheduleOptions schedule = balancing_schedule(schedule_of(config_, layout));
  return cached(slices_, schedule_key(schedule), [&] {
    return make_pipeline_layout(pipeline_layout_options(config_, spec_, layout));
  });
}

LayoutEstimator::DataTimes LayoutEstimator::data_times(const Layout& layout,
                                                       const Weights& weights) const {
  const Domains domains = domains_of(layout);
  DataTimes times = domain_times(layout, domains[0], weights.dense);
  const DataTimes experts = domain_times(layout, domains[1], weights.experts);
  times.reduce_ns += experts.reduce_ns;
  times.gather_ns += experts.gather_ns;
  times.loss = std::max(times.loss, experts.loss);
  return times;
}

LayoutEstimator::DataTimes LayoutEstimator::domain_times(const Layout& layout,
                                                         const ParameterDomain& domain,
                                                         double elems) const {
  const Cluster& cluster = model_.cluster();
  const Mesh mesh = mesh_of(layout);
  const std::vector<int> gradient_ranks = mesh.group(domain.gradient_group, 0).ranks;
  if (elems == 0 || gradient_ranks.size() < 2) {
    return {};
  }
  const auto price = [&](CommKind kind, std::string_view group, double bytes) {
    const auto ranks = mesh.group(group, 0).ranks;
    return ranks.size() < 2
               ? 0.0
               : static_cast<double>(
                     cheapest_comm(model_, kind, place_group(cluster, ranks), std::llround(bytes))
                         .ns);
  };
  const double grad_bytes = elems * std::min(grad_bytes_, main_grad_bytes(layout));
  DataTimes times;
  if (domain.shard != ShardKind::kNone) {
    times.reduce_ns =
        price(CommKind::kReduceScatter, domain.shard_group, grad_bytes) +
        price(domain.splits_shards() ? CommKind::kReduceScatter : CommKind::kAllReduce,
              domain.replica_group, grad_bytes / static_cast<double>(domain.num_shards));
    times.gather_ns = price(CommKind::kAllGather, domain.shard_group, elems * compute_bytes_);
  } else {
    times.reduce_ns = price(CommKind::kAllReduce, domain.gradient_group, grad_bytes);
  }
  const GroupPlacement place = place_group(cluster, gradient_ranks);
  const double inter =
      cluster.inter_node.bytes_per_s / place.oversubscription * place.fewest_per_node;
  const double part =
      place.num_nodes == 1 ? 1.0 : std::min(1.0, inter / cluster.intra_node.bytes_per_s);
  times.loss = (1.0 - model_.contention().gemm_and_sm_comm.compute) * part;
  return times;
}

LayoutEstimator::Weights LayoutEstimator::weights_of(const Layout& layout,
                                                     const LayerPrices& prices,
                                                     const std::vector<StageSlice>& slices,
                                                     int rank) const {
  const RankParts parts = parts_of(schedule_of(config_, layout), slices, rank);
  const bool has_all =
      spec_.tied_embeddings ? parts.ends > 0 : spec_.mtp_depth > 0 && parts.has_head;
  const double ends = has_all ? 1.0 : parts.ends;
  const double experts = sum_of(parts.layers, prices, &PartPrice::expert_parameters);
  return {.dense = sum_of(parts.layers, prices, &PartPrice::parameters) - experts +
                   ends * prices.ends.parameters,
          .experts = experts};
}

std::shared_ptr<const LayoutEstimator::PipelineNeeds> LayoutEstimator::pipeline_needs(
    const ScheduleOptions& options) const {
  return cached(pipeline_needs_, schedule_key(options), [&] {
    PipelineNeeds needs{.virtual_stages = options.virtual_stages,
                        .held = {},
                        .message_pairs = count_message_pairs(options)};
    if (splits_backward(options.kind)) {
      needs.held = clock(options)->most_held();
    } else {
      for (int rank = 0; rank < options.num_ranks; ++rank) {
        needs.held.push_back({{.for_backward = most_activations(options, rank)}});
      }
    }
    return needs;
  });
}

double LayoutEstimator::held_bytes(const PipelineNeeds& pipeline, const RankParts& parts,
                                   const LayerPrices& prices, int rank) const {
  const double kept = sum_of(parts.layers, prices, &PartPrice::kept_bytes);
  const double wgrad = sum_of(parts.layers, prices, &PartPrice::wgrad_bytes);
  double most = 0;
  for (const HeldPairs& held : pipeline.held[static_cast<size_t>(rank)]) {
    most = std::max(most, static_cast<double>(held.for_backward) * kept +
                              static_cast<double>(held.for_wgrad) * wgrad);
  }
  return most / static_cast<double>(pipeline.virtual_stages);
}

/// In addition to those of `priced_ranks`, which the prices have.
double LayoutEstimator::communicator_bytes(const Layout& layout, const PipelineNeeds& pipeline,
                                           int rank) const {
  const DeviceSpec& device = model_.cluster().device;
  const auto bytes_of = [&](const Layout& it, bool has_tied_table, int64_t message_pairs) {
    const Domains domains = domains_of(it);
    const size_t num_domains = spec_.layers.has(kMoeBlock) ? 2 : 1;
    return static_cast<double>(braid::communicator_bytes(
        device, mesh_of(it), std::span(domains).first(num_domains), has_tied_table, message_pairs));
  };
  const bool has_tied_table = spec_.tied_embeddings && (rank == 0 || rank + 1 == layout.pipeline);
  return bytes_of(layout, has_tied_table, pipeline.message_pairs[static_cast<size_t>(rank)]) -
         bytes_of(priced_ranks(layout, config_.parallel.expert_tensor), false, 0);
}

double LayoutEstimator::device_bytes(const Layout& layout, const LayerPrices& prices,
                                     const std::vector<StageSlice>& slices, int rank) const {
  const ScheduleOptions schedule = schedule_of(config_, layout);
  const RankParts parts = parts_of(schedule, slices, rank);
  double driver = static_cast<double>(schedule.num_microbatches) *
                  sum_of(parts.layers, prices, &PartPrice::driver_bytes);
  driver -= kPricedMicrobatches * 2 * largest_layer(parts.layers, prices).driver_bytes;
  return prices.other_bytes + std::max(driver, 0.0) +
         communicator_bytes(layout, *pipeline_needs(schedule), rank);
}

double LayoutEstimator::arena_bytes(const Layout& layout, const LayerPrices& prices,
                                    const std::vector<StageSlice>& slices, int rank) const {
  const ScheduleOptions schedule = schedule_of(config_, layout);
  const RankParts parts = parts_of(schedule, slices, rank);
  const Weights weights = weights_of(layout, prices, slices, rank);
  const double elems = weights.sum();
  const Domains domains = domains_of(layout);
  const double shard = weights.shard(domains);
  const double largest = largest_layer(parts.layers, prices).parameters;
  const double unit = std::max(largest, parts.ends * prices.ends.parameters);
  const double bytes = compute_bytes_;
  const bool has_main_weights = bytes < 4 || layout.shard == ShardKind::kOptimizer ||
                                layout.shard == ShardKind::kGradients || domains[0].splits_shards();
  const double moments = num_moments_ * static_cast<double>(dtype_bytes(layout.moments));
  const double averages = config_.optimizer.ema > 0 ? 4 : 0;
  const double main_weights = has_main_weights ? 4 : 0;
  double sum = weights.part(domains) * (moments + averages + main_weights);
  sum += layout.shard == ShardKind::kParameters ? bytes * (shard + 2 * largest) : bytes * elems;
  sum += main_grad_bytes(layout) * (shards_gradients(layout) ? shard + unit : elems);
  sum += held_bytes(*pipeline_needs(schedule), parts, prices, rank);
  sum += parts.has_head ? prices.ends.kept_bytes + prices.work_bytes : prices.layer_work_bytes;
  return sum;
}

StageTimes LayoutEstimator::stage_times(const Layout& layout, const LayerPrices& prices,
                                        const StageSlice& slice,
                                        std::span<const DataTimes> layer_data) const {
  const double ends = slice.has_head ? 1 : 0;
  double forward = 0;
  double backward = 0;
  const std::vector<double> layers = layers_of(slice);
  for (size_t kind = 0; kind < layers.size(); ++kind) {
    const PartPrice& layer = prices.kinds[kind];
    const DataTimes data = layer_data.empty() ? DataTimes{} : layer_data[kind];
    const double forward_comm = layout.shard == ShardKind::kParameters ? data.gather_ns : 0;
    const double backward_comm = forward_comm + (shards_gradients(layout) ? data.reduce_ns : 0);
    forward += layers[kind] * (layer.forward_ns + data.cost_ns(forward_comm, layer.forward_ns));
    backward += layers[kind] * (layer.backward_ns + data.cost_ns(backward_comm, layer.backward_ns));
  }
  const double wgrad = sum_of(layers, prices, &PartPrice::wgrad_ns) + ends * prices.ends.wgrad_ns;
  backward += ends * prices.ends.backward_ns;
  // The backward ends with the first layer.
  const double delayed =
      slice.num_layers > 0
          ? prices.kinds[kind_of_layer_[static_cast<size_t>(slice.first_layer)]].wgrad_ns
          : 0;
  return {.forward_ns = std::llround(forward + ends * prices.ends.forward_ns),
          .dgrad_ns = std::llround(std::max(backward - wgrad, 0.0)),
          .wgrad_ns = std::llround(wgrad),
          .delayed_ns = std::llround(delayed)};
}

LayoutEstimate LayoutEstimator::bounds(const Layout& layout, const LayerPrices& prices) const {
  const ScheduleOptions schedule = schedule_of(config_, layout);
  const Slices shared_slices = slices_of(layout);
  const std::vector<StageSlice>& slices = *shared_slices;
  const auto microbatches = static_cast<double>(schedule.num_microbatches);
  std::vector<double> work(static_cast<size_t>(schedule.num_ranks), 0);
  // Time from the first stage to a rank's first one. While its last result travels back, a rank may
  // run wgrad: as separate jobs, or those that fill_cooldown keeps for this time.
  std::vector<double> way(slices.size() + 1, 0);
  for (size_t stage = 0; stage < slices.size(); ++stage) {
    const StageTimes times = stage_times(layout, prices, slices[stage], {});
    work[static_cast<size_t>(place_of(schedule, static_cast<int>(stage)).rank)] +=
        microbatches * static_cast<double>(times.forward_ns + times.dgrad_ns + times.wgrad_ns);
    way[stage + 1] = way[stage] + static_cast<double>(times.forward_ns);
  }
  LayoutEstimate estimate;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    const auto index = static_cast<size_t>(rank);
    const double device = device_bytes(layout, prices, slices, rank);
    const double sum = device + arena_bytes(layout, prices, slices, rank);
    if (sum > estimate.peak_bytes) {
      estimate.peak_bytes = sum;
      estimate.device_bytes = device;
    }
    estimate.least_ns = std::max(
        estimate.least_ns, work[index] + way[index] + update_ns(layout, prices, slices, rank));
  }
  return estimate;
}

double LayoutEstimator::update_ns(const Layout& layout, const LayerPrices& prices,
                                  const std::vector<StageSlice>& slices, int rank) const {
  const RankParts parts = parts_of(schedule_of(config_, layout), slices, rank);
  const double whole_ns =
      sum_of(parts.layers, prices, &PartPrice::update_ns) + parts.ends * prices.ends.update_ns;
  const Weights weights = weights_of(layout, prices, slices, rank);
  return weights.sum() > 0 ? whole_ns * weights.part(domains_of(layout)) / weights.sum() : 0;
}

/// Time that the once-per-step reductions and gathers of whole weights add to the last backward of
/// the rank and its first forward.
double LayoutEstimator::tail_ns(const Layout& layout, const LayerPrices& prices,
                                const std::vector<StageSlice>& slices, int rank,
                                std::span<const StageTimes> stages) const {
  if (layout.shard == ShardKind::kParameters) {
    return 0;
  }
  const ScheduleOptions schedule = schedule_of(config_, layout);
  double forward = 0;
  double backward = 0;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    if (place_of(schedule, stage).rank == rank) {
      const StageTimes& times = stages[static_cast<size_t>(stage)];
      forward += static_cast<double>(times.forward_ns);
      backward += static_cast<double>(times.dgrad_ns + times.wgrad_ns);
    }
  }
  const RankParts parts = parts_of(schedule, slices, rank);
  const Weights weights = weights_of(layout, prices, slices, rank);
  const Weights unit = Weights::of(largest_layer(parts.layers, prices));
  const DataTimes rest =
      data_times(layout, {weights.dense - unit.dense, weights.experts - unit.experts});
  const DataTimes last = data_times(layout, unit);
  const double gather = rest.cost_ns(rest.gather_ns + last.gather_ns, forward);
  const double reduce =
      shards_gradients(layout) ? 0 : rest.cost_ns(rest.reduce_ns, backward) + last.reduce_ns;
  return gather + reduce;
}

int64_t LayoutEstimator::message_ns(const Layout& layout) const {
  if (layout.pipeline == 1) {
    return 0;
  }
  const Mesh mesh = mesh_of(layout);
  const std::array<int, 2> ends{0, mesh.rank_at({.pipeline = 1})};
  const int64_t rows = layout.microbatch * config_.train.sequence / layout.context;
  const int64_t columns = spec_.width / (layout.sequence_parallel ? layout.tensor : 1);
  const auto bytes = static_cast<double>(rows * columns) * compute_bytes_;
  return cheapest_comm(model_, CommKind::kSendRecv, place_group(model_.cluster(), ends),
                       std::llround(bytes))
      .ns;
}

std::shared_ptr<const PipelineClock> LayoutEstimator::clock(const ScheduleOptions& options) const {
  return cached(clocks_, schedule_key(options), [&] { return PipelineClock(options); });
}

double LayoutEstimator::step_ns(const Layout& layout, const LayerPrices& prices) const {
  const ScheduleOptions schedule = schedule_of(config_, layout);
  const Slices shared_slices = slices_of(layout);
  const std::vector<StageSlice>& slices = *shared_slices;
  std::vector<DataTimes> layer_data;
  for (const PartPrice& kind : prices.kinds) {
    layer_data.push_back(data_times(layout, Weights::of(kind)));
  }
  std::vector<StageTimes> stages;
  for (const StageSlice& slice : slices) {
    stages.push_back(stage_times(layout, prices, slice, layer_data));
  }
  std::vector<int64_t> ends;
  if (schedule.num_ranks == 1) {
    const StageTimes& only = stages.front();
    ends.push_back(schedule.num_microbatches * (only.forward_ns + only.dgrad_ns + only.wgrad_ns));
  } else {
    ends = clock(schedule)->end_times(stages, message_ns(layout));
  }
  double all_reduced = 0;
  double update = 0;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    all_reduced = std::max(all_reduced, static_cast<double>(ends[static_cast<size_t>(rank)]) +
                                            tail_ns(layout, prices, slices, rank, stages));
    update = std::max(update, update_ns(layout, prices, slices, rank));
  }
  return all_reduced + update;
}

}  // namespace braid
