#include "plan/parallel_setup.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "base/errors.h"
#include "config/choices.h"
#include "config/validate.h"
#include "model/blocks/attention/heads.h"
#include "model/blocks/registry.h"
#include "model/context_shard.h"
#include "model/expert_shard.h"
#include "model/mtp.h"
#include "model/tensor_shard.h"
#include "parallel/check_schedule.h"
#include "parallel/parameter_layout.h"
#include "parallel/pipeline_layout.h"
#include "plan/overlap_setup.h"

namespace braid {
namespace {

/// Ranks that exchange heads for sequence. If the configuration leaves this open: the largest
/// number that divides both the context ranks and the heads of a tensor rank.
int64_t context_inner(const ParallelConfig& parallel, int64_t exchanged) {
  switch (choice<ContextExchange>(parallel.context_method)) {
    case ContextExchange::kAllToAll:
      return parallel.context;
    case ContextExchange::kAllToAllRing:
      return parallel.context_inner != 0 ? parallel.context_inner
                                         : std::gcd(parallel.context, exchanged);
    case ContextExchange::kRing:
    case ContextExchange::kAllGather:
      return 1;
  }
  throw_internal_error("no context exchange");
}

ContextShard context_of(const ParallelConfig& parallel, int64_t exchanged) {
  return {.size = parallel.context,
          .index = 0,
          .inner = context_inner(parallel, exchanged),
          .mamba = choice<MambaContext>(parallel.mamba_context)};
}

/// Copies of the experts' sharded state: as many as there are of the others, as far as that divides
/// the ranks that hold the same experts.
int64_t expert_replicas(const ParallelConfig& parallel) {
  const int64_t stage = parallel.tensor * parallel.context * parallel.data;
  return std::gcd(parallel.shard_replicas, stage / (parallel.expert * parallel.expert_tensor));
}

LinkSpec link_spec(double latency_us, double gb_per_s) {
  return {.latency_ns = std::llround(latency_us * 1e3), .bytes_per_s = gb_per_s * 1e9};
}

}  // namespace

MeshSizes mesh_sizes(const RunConfig& config, const ModelSpec& model, int64_t expert_hosts) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t rows = microbatch_sequences(config) * config.train.sequence / parallel.context;
  const TensorShard tensor{
      .size = parallel.tensor, .index = 0, .sequence_parallel = parallel.sequence_parallel};
  check_tensor_parallel(model, tensor, rows);
  const ContextShard context = context_of(parallel, exchanged_heads(model, tensor));
  check_context_parallel(model, tensor, context, config.train.sequence);
  check_expert_parallel(
      model, {.size = parallel.expert, .tensor = parallel.expert_tensor, .hosts = expert_hosts});
  return {.tensor = static_cast<int>(parallel.tensor),
          .context = static_cast<int>(parallel.context),
          .data = static_cast<int>(parallel.data),
          .pipeline = static_cast<int>(parallel.pipeline),
          .context_inner = static_cast<int>(context.inner),
          .replicas = static_cast<int>(parallel.shard_replicas),
          .kv_replicas = static_cast<int>(kv_sharers(model, tensor.size)),
          .expert = static_cast<int>(parallel.expert),
          .expert_tensor = static_cast<int>(parallel.expert_tensor),
          .expert_replicas = static_cast<int>(expert_replicas(parallel)),
          .expert_hosts = static_cast<int>(expert_hosts)};
}

ParallelOptions parallel_options(const RunConfig& config, const ModelSpec& model,
                                 const Mesh& mesh) {
  const ParallelConfig& parallel = config.parallel;
  ParallelOptions options{
      .sequence_parallel = parallel.sequence_parallel,
      .context_method =
          choice<ContextExchange>(parallel.context_method) == ContextExchange::kAllGather
              ? ContextMethod::kAllGather
              : ContextMethod::kRing,
      .mamba_context = choice<MambaContext>(parallel.mamba_context),
      .schedule = schedule_kind(parallel.schedule),
      .virtual_stages = static_cast<int>(parallel.virtual_stages),
      .group_size = parallel.microbatch_group_size,
      .pairs = job_pairs(config.overlap),
      .shard = choice<ShardKind>(parallel.shard),
      .expert_shard = choice<ShardKind>(parallel.shard),
      .shard_over_replicas = parallel.shard_over_replicas,
      .expert_capacity = config.moe.capacity,
      .drops_rows = choice<OverflowChoice>(config.moe.on_overflow) == OverflowChoice::kDrop,
      .buckets = {.kind = choice<BucketKind>(parallel.bucket),
                  .bucket_bytes = parallel.bucket_bytes},
      .weight_gather = weight_gather(config.overlap),
      .whole_units = config.overlap.param_gather_whole_units,
      .reduce_dtype = choice<DType>(parallel.grad_reduce_dtype)};
  if (mesh.sizes().gradient() == 1) {
    options.shard = ShardKind::kNone;  // the one shard is the whole
  }
  const ScheduleOptions schedule = schedule_options(mesh, options, num_microbatches(config));
  check_schedule(schedule, microbatch_sequences(config) * mesh.sizes().data);
  options.stages = make_pipeline_layout({.layers = model.layers.size(),
                                         .schedule = schedule,
                                         .costs = part_costs(model, config.train.sequence),
                                         .layout = parallel.pipeline_layout,
                                         .first_stage_layers = parallel.first_stage_layers,
                                         .last_stage_layers = parallel.last_stage_layers,
                                         .account_for_embedding = parallel.account_for_embedding,
                                         .account_for_loss = parallel.account_for_loss});
  return options;
}

PartCosts part_costs(const ModelSpec& model, int64_t sequence) {
  constexpr double kLayer = 10'000;     // of a forward: far finer than FLOPs tell times
  constexpr double kActivations = 100;  // of a layer
  const auto num_layers = static_cast<double>(model.layers.size());
  const BlockCost all = model_cost(model, sequence);
  const double forward = (all.weights + all.mixing) / num_layers;
  const auto units = [&](double multiplications) {
    return static_cast<int64_t>(std::llround(std::min(multiplications / forward, 100.0) * kLayer));
  };
  BlockCost head = mtp_cost(model, sequence);
  head.weights += static_cast<double>(model.width * model.padded_vocabulary());
  PartCosts costs{.embedding = {},
                  .head = {.forward = units(head.weights + head.mixing),
                           .dgrad = units(head.weights + head.mixing_backward),
                           .wgrad = units(head.weights)}};
  costs.kinds.clear();
  costs.kind_of_layer = model.layers.kind_indices();
  for (const LayerSpec& kind : model.layers.kinds()) {
    const BlockCost cost = layer_cost(model, kind, sequence);
    const double kept = cost.kept_elems * num_layers / all.kept_elems;
    costs.kinds.push_back({.forward = units(cost.weights + cost.mixing),
                           .dgrad = units(cost.weights + cost.mixing_backward),
                           .wgrad = units(cost.weights),
                           .activations = std::llround(kept * kActivations)});
  }
  return costs;
}

LinkOptions link_options(const LinksConfig& links) {
  LinkOptions options;
  options[GroupKind::kData] = link_spec(links.data_latency_us, links.data_gb_per_s);
  options[GroupKind::kTensor] = link_spec(links.tensor_latency_us, links.tensor_gb_per_s);
  options[GroupKind::kPipeline] = link_spec(links.pipeline_latency_us, links.pipeline_gb_per_s);
  options[GroupKind::kExpert] = options[GroupKind::kData];
  options[GroupKind::kContext] = link_spec(links.context_latency_us, links.context_gb_per_s);
  return options;
}

}  // namespace braid
