#include "tune/layout_space.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "config/choices.h"
#include "model/context_shard.h"
#include "model/layer_pattern.h"
#include "model/tensor_shard.h"
#include "plan/parallel_setup.h"

namespace braid {
namespace {

constexpr std::array kRing = {ContextExchange::kRing};
constexpr std::array kExchanges = {ContextExchange::kRing, ContextExchange::kAllGather,
                                   ContextExchange::kAllToAll, ContextExchange::kAllToAllRing};
constexpr std::array kHeads = {MambaContext::kHeads};
constexpr std::array kMambaContexts = {MambaContext::kHeads, MambaContext::kStates};
constexpr std::array kNoShard = {ShardKind::kNone};
constexpr std::array kShards = {ShardKind::kNone, ShardKind::kOptimizer, ShardKind::kGradients,
                                ShardKind::kParameters};
constexpr std::array kOneStage = {ScheduleKind::kOneForwardOneBackward};
/// gpipe is left out: it is 1f1b with more memory.
constexpr std::array kSchedules = {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kInterleaved,
                                   ScheduleKind::kZbH1, ScheduleKind::kZbV,
                                   ScheduleKind::kDualpipeV};

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> list;
  for (int64_t divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) {
      list.push_back(divisor);
    }
  }
  return list;
}

/// Enumerates every layout, from the slowest dimension to the fastest. Inner loops skip what an
/// outer loop refuses.
class Enumerator {
 public:
  Enumerator(const RunConfig& config, const ModelSpec& model, const Cluster& cluster,
             const LayoutLimits& limits)
      : config_(config), model_(model), cluster_(cluster), limits_(limits) {}

  LayoutSpace run() {
    const int64_t ranks = config_.parallel.ranks;
    for (const int64_t tensor : sizes("parallel.tensor", config_.parallel.tensor, ranks)) {
      for (const int64_t context :
           sizes("parallel.context", config_.parallel.context, ranks / tensor)) {
        for (const int64_t pipeline :
             sizes("parallel.pipeline", config_.parallel.pipeline, ranks / tensor / context)) {
          add_mesh(tensor, context, pipeline);
        }
      }
    }
    return std::move(space_);
  }

 private:
  bool is_fixed(std::string_view key) const { return limits_.fixed.contains(key); }

  /// The divisors of the remaining ranks, or the one size that is fixed.
  std::vector<int64_t> sizes(std::string_view key, int64_t given, int64_t ranks) {
    if (!is_fixed(key)) {
      return divisors(ranks);
    }
    space_.num_refused += ranks % given == 0 ? 0 : 1;
    return ranks % given == 0 ? std::vector<int64_t>{given} : std::vector<int64_t>{};
  }

  /// The values of a key, or the one that is fixed.
  template <class T, class Range>
  std::vector<T> values(std::string_view key, T given, const Range& all) const {
    return is_fixed(key) ? std::vector<T>{given} : std::vector<T>(all.begin(), all.end());
  }

  int64_t max_tensor() const {
    const int64_t node = std::min<int64_t>(cluster_.devices_per_node, cluster_.num_devices);
    return limits_.max_tensor > 0 ? std::min(limits_.max_tensor, node) : node;
  }

  bool may_be_mesh(int64_t tensor, int64_t context, int64_t pipeline) const {
    const int64_t most_context = limits_.max_context > 0
                                     ? limits_.max_context
                                     : std::max<int64_t>(config_.train.sequence / kLeastTokens, 1);
    const bool tensor_fits = is_fixed("parallel.tensor") ||
                             (tensor <= max_tensor() && cluster_.devices_per_node % tensor == 0);
    return tensor_fits && (is_fixed("parallel.context") || context <= most_context) &&
           pipeline <= model_.layers.size() &&
           (!is_fixed("parallel.data") ||
            config_.parallel.data == data_of(tensor, context, pipeline));
  }

  int64_t data_of(int64_t tensor, int64_t context, int64_t pipeline) const {
    return config_.parallel.ranks / (tensor * context * pipeline);
  }

  /// Numbers of ranks over which the experts are distributed; 1 without experts. On GPUs, those
  /// that exchange rows are in one node.
  std::vector<int64_t> expert_sizes(int64_t stage_ranks) const {
    const int64_t split = config_.parallel.expert_tensor;
    if (is_fixed("parallel.expert")) {
      const int64_t given = config_.parallel.expert;
      return stage_ranks % (given * split) == 0 ? std::vector<int64_t>{given}
                                                : std::vector<int64_t>{};
    }
    if (!model_.layers.has(kMoeBlock) || stage_ranks % split != 0) {
      return {1};
    }
    std::vector<int64_t> list = divisors(std::gcd(stage_ranks / split, model_.experts));
    std::erase_if(list, [&](int64_t size) {
      return !cluster_.device.is_host && cluster_.devices_per_node % (size * split) != 0;
    });
    return list;
  }

  void add_mesh(int64_t tensor, int64_t context, int64_t pipeline) {
    const int64_t data = data_of(tensor, context, pipeline);
    if (!may_be_mesh(tensor, context, pipeline) || config_.train.global_batch % data != 0) {
      ++space_.num_refused;
      return;
    }
    Layout layout{.tensor = tensor, .context = context, .data = data, .pipeline = pipeline};
    layout.sequence_parallel =
        is_fixed("parallel.sequence_parallel") ? config_.parallel.sequence_parallel : tensor > 1;
    for (const int64_t expert : expert_sizes(tensor * context * data)) {
      layout.expert = expert;
      add_microbatches(layout);
    }
  }

  void add_microbatches(Layout layout) {
    for (const int64_t microbatch : microbatches(layout.data)) {
      layout.microbatch = microbatch;
      for (const ContextExchange method : context_methods(layout.context)) {
        layout.context_method = method;
        add_mamba_contexts(layout);
      }
    }
  }

  void add_mamba_contexts(Layout layout) {
    const bool has_choice = layout.context > 1 && model_.layers.has(kMambaBlock);
    const auto given = choice<MambaContext>(config_.parallel.mamba_context);
    for (const MambaContext states : has_choice
                                         ? values("parallel.mamba_context", given, kMambaContexts)
                                         : values("parallel.mamba_context", given, kHeads)) {
      layout.mamba_context = states;
      if (splits_model(layout)) {
        add_pipelines(layout);
      } else {
        ++space_.num_refused;
      }
    }
  }

  std::vector<int64_t> microbatches(int64_t data) {
    const int64_t sequences = config_.train.global_batch / data;
    if (is_fixed("train.microbatch")) {
      const int64_t given = config_.train.microbatch;
      return sequences % given == 0 ? std::vector<int64_t>{given} : std::vector<int64_t>{};
    }
    std::vector<int64_t> list = divisors(sequences);
    const bool pairs = choice<PreferenceChoice>(config_.preference.loss) != PreferenceChoice::kNone;
    std::erase_if(list, [&](int64_t size) {
      return size > limits_.max_microbatch || (pairs && size % 2 != 0);
    });
    return list;
  }

  std::vector<ContextExchange> context_methods(int64_t context) const {
    const auto given = choice<ContextExchange>(config_.parallel.context_method);
    return context == 1 ? values("parallel.context_method", given, kRing)
                        : values("parallel.context_method", given, kExchanges);
  }

  /// Whether heads, rows and the sequence are divisible. Also requires that a2a+ring differs from
  /// a2a alone and from ring alone.
  bool splits_model(const Layout& layout) const {
    const TensorShard tensor{
        .size = layout.tensor, .index = 0, .sequence_parallel = layout.sequence_parallel};
    const int64_t rows = layout.microbatch * config_.train.sequence / layout.context;
    try {
      check_tensor_parallel(model_, tensor, rows);
      const int64_t exchange = std::gcd(layout.context, exchanged_heads(model_, tensor));
      const bool mixes = layout.context_method == ContextExchange::kAllToAllRing;
      const int64_t inner = layout.context_method == ContextExchange::kAllToAll ? layout.context
                            : !mixes                                            ? 1
                            : config_.parallel.context_inner > 0 ? config_.parallel.context_inner
                                                                 : exchange;
      check_context_parallel(
          model_, tensor,
          {.size = layout.context, .index = 0, .inner = inner, .mamba = layout.mamba_context},
          config_.train.sequence);
      return !mixes || is_fixed("parallel.context_method") || (inner > 1 && inner < layout.context);
    } catch (const ConfigError&) {
      return false;
    }
  }

  std::vector<int64_t> virtual_stages(ScheduleKind schedule, int64_t pipeline) const {
    std::vector<int64_t> list;
    if (schedule == ScheduleKind::kInterleaved) {
      for (int64_t stages = 2; stages * pipeline <= model_.layers.size() + 2; ++stages) {
        list.push_back(stages);
      }
    } else {
      list.push_back(schedule == ScheduleKind::kZbV || schedule == ScheduleKind::kDualpipeV ? 2
                                                                                            : 1);
    }
    const int64_t given = config_.parallel.virtual_stages;
    if (is_fixed("parallel.virtual_stages")) {
      std::erase_if(list, [&](int64_t stages) { return stages != given; });
    }
    return list;
  }

  void add_pipelines(Layout layout) {
    const ScheduleKind given = schedule_kind(config_.parallel.schedule);
    const auto schedules = layout.pipeline == 1 ? values("parallel.schedule", given, kOneStage)
                                                : values("parallel.schedule", given, kSchedules);
    for (const ScheduleKind schedule : schedules) {
      layout.schedule = schedule;
      for (const int64_t stages : virtual_stages(schedule, layout.pipeline)) {
        layout.virtual_stages = stages;
        add_stage_layouts(layout);
      }
    }
  }

  bool has_schedule(const Layout& layout) const {
    try {
      check_schedule(schedule_of(config_, layout));
      return true;
    } catch (const ConfigError&) {
      return false;
    }
  }

  /// Whether stages have about the same size. Interleaved stages run in lockstep, so uneven sizes
  /// do not pay.
  bool has_like_stages(const Layout& layout) const {
    const int64_t stages = layout.pipeline * layout.virtual_stages;
    return layout.virtual_stages == 1 || model_.layers.size() % stages == 0 ||
           (model_.layers.size() + 1) % stages == 0 || (model_.layers.size() + 2) % stages == 0;
  }

  /// Whether the layers can be placed on the stages as the fixed keys say, or balanced.
  bool has_stages(const Layout& layout) const {
    const ParallelConfig& given = config_.parallel;
    const bool balanced = given.pipeline_layout.empty() || given.pipeline_layout == "balanced";
    if (balanced && given.first_stage_layers == 0 && given.last_stage_layers == 0 &&
        !layout.account_for_embedding && !layout.account_for_loss) {
      return model_.layers.size() + 2 >= layout.pipeline * layout.virtual_stages &&
             has_like_stages(layout);
    }
    try {
      make_pipeline_layout(pipeline_layout_options(config_, model_, layout));
      return true;
    } catch (const ConfigError&) {
      return false;
    }
  }

  void add_stage_layouts(Layout layout) {
    layout.account_for_embedding =
        is_fixed("parallel.account_for_embedding") && config_.parallel.account_for_embedding;
    layout.account_for_loss =
        is_fixed("parallel.account_for_loss") && config_.parallel.account_for_loss;
    if (has_schedule(layout) && has_stages(layout)) {
      add_states(layout);
    } else {
      ++space_.num_refused;
    }
  }

  /// One copy of sharded state, and one copy per group of shards that fits a node together with the
  /// tensor ranks.
  std::vector<int64_t> replicas(const Layout& layout, ShardKind shard) const {
    if (is_fixed("parallel.shard_replicas")) {
      return {config_.parallel.shard_replicas};
    }
    std::vector<int64_t> list{1};
    const int64_t sharers = layout.data * layout.context;
    const int64_t in_node = cluster_.devices_per_node / layout.tensor;
    if (shard != ShardKind::kNone && in_node > 1 && in_node < sharers && sharers % in_node == 0) {
      list.push_back(sharers / in_node);
    }
    return list;
  }

  /// Whether copies of a shard share its update and its state.
  std::vector<bool> shared_states(ShardKind shard, int64_t copies) {
    if (!is_fixed("parallel.shard_over_replicas")) {
      return copies > 1 ? std::vector{false, true} : std::vector{false};
    }
    const bool given = config_.parallel.shard_over_replicas;
    space_.num_refused += given && shard == ShardKind::kNone ? 1 : 0;
    return given && shard == ShardKind::kNone ? std::vector<bool>{} : std::vector{given};
  }

  void add_states(Layout layout) {
    const bool alone = layout.data * layout.context == 1;
    const auto given = choice<ShardKind>(config_.parallel.shard);
    const auto shards = alone ? values("parallel.shard", given, kNoShard)
                              : values("parallel.shard", given, kShards);
    const auto policy = choice<RecomputeChoice>(config_.memory.recompute);
    const auto all = recompute_policies(layout, config_.parallel.expert_tensor);
    const auto policies =
        policy == RecomputeChoice::kAuto ? all : values("memory.recompute", policy, all);
    for (const ShardKind shard : shards) {
      layout.shard = shard;
      for (const int64_t copies : replicas(layout, shard)) {
        layout.shard_replicas = copies;
        for (const bool shared : shared_states(shard, copies)) {
          layout.shard_over_replicas = shared;
          for (const RecomputeChoice recompute : policies) {
            layout.recompute = recompute;
            add_types(layout);
          }
        }
      }
    }
  }

  std::vector<DType> types_of(const std::string& key, const std::string& given) const {
    return limits_.varied.contains(key) ? std::vector{DType::kF32, DType::kBF16}
                                        : std::vector{choice<DType>(given)};
  }

  void add_types(Layout layout) {
    const OptimizerConfig& optimizer = config_.optimizer;
    const bool has_bf16 = choice<DType>(config_.train.dtype) == DType::kBF16;
    for (const DType moments : types_of("optimizer.moments_dtype", optimizer.moments_dtype)) {
      for (const DType main_grads :
           types_of("optimizer.main_grads_dtype", optimizer.main_grads_dtype)) {
        if (main_grads == DType::kF32 || has_bf16) {
          layout.moments = moments;
          layout.main_grads = main_grads;
          space_.layouts.push_back(layout);
        }
      }
    }
  }

  const RunConfig& config_;
  const ModelSpec& model_;
  const Cluster& cluster_;
  const LayoutLimits& limits_;
  LayoutSpace space_;
};

}  // namespace

bool is_usual(const Layout& layout) {
  const bool is_one_stage = layout.pipeline == 1;
  const bool shards_all = is_one_stage && layout.tensor == 1 &&
                          layout.shard == ShardKind::kParameters && layout.shard_replicas == 1;
  const bool shards_optimizer = layout.shard == ShardKind::kOptimizer && layout.shard_replicas == 1;
  const bool is_alone = layout.data * layout.context == 1 && layout.shard == ShardKind::kNone;
  return layout.microbatch == 1 && layout.context_method == ContextExchange::kRing &&
         layout.mamba_context == MambaContext::kHeads &&
         std::has_single_bit(static_cast<uint64_t>(layout.tensor)) &&
         std::has_single_bit(static_cast<uint64_t>(layout.context)) &&
         (layout.schedule == ScheduleKind::kInterleaved ||
          layout.schedule == ScheduleKind::kOneForwardOneBackward) &&
         (shards_all || shards_optimizer || is_alone);
}

ScheduleOptions schedule_of(const RunConfig& config, const Layout& layout) {
  return {.kind = layout.schedule,
          .num_ranks = static_cast<int>(layout.pipeline),
          .virtual_stages = static_cast<int>(layout.virtual_stages),
          .num_microbatches = config.train.global_batch / (layout.data * layout.microbatch),
          .group_size = layout.schedule == ScheduleKind::kInterleaved
                            ? config.parallel.microbatch_group_size
                            : 0};
}

PipelineLayoutOptions pipeline_layout_options(const RunConfig& config, const ModelSpec& model,
                                              const Layout& layout) {
  return {.layers = model.layers.size(),
          .schedule = schedule_of(config, layout),
          .costs = part_costs(model, config.train.sequence),
          .effort = BalanceEffort::kRough,
          .layout = config.parallel.pipeline_layout,
          .first_stage_layers = config.parallel.first_stage_layers,
          .last_stage_layers = config.parallel.last_stage_layers,
          .account_for_embedding = layout.account_for_embedding,
          .account_for_loss = layout.account_for_loss};
}

LayoutSpace enumerate_layouts(const RunConfig& config, const ModelSpec& model,
                              const Cluster& cluster, const LayoutLimits& limits) {
  for (const std::string& key : limits.fixed) {
    check_searched_key(key);
  }
  for (const std::string& key : limits.varied) {
    check_varied_key(key);
  }
  return Enumerator(config, model, cluster, limits).run();
}

}  // namespace braid
