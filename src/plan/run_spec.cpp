#include "plan/run_spec.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "config/choices.h"
#include "config/validate.h"
#include "model/blocks/registry.h"
#include "model/mtp.h"
#include "parallel/parameter_layout.h"
#include "passes/gradients/overlap_grad_reduce.h"
#include "passes/gradients/prefetch_parameters.h"
#include "passes/memory/offload.h"
#include "passes/memory/recompute.h"
#include "passes/pipeline/fill_cooldown.h"
#include "passes/tensor/fuse_swiglu.h"
#include "passes/tensor/halve_forward.h"
#include "plan/fp8_sites.h"
#include "plan/model_setup.h"
#include "plan/optimizer_setup.h"
#include "plan/parallel_setup.h"
#include "plan/recompute_policies.h"
#include "plan/row_exchange_setup.h"
#include "plan/run_costs.h"
#include "plan/schedule_plan.h"

namespace braid {
namespace {

/// Larger programs need too much memory and time to build, and sizes in bytes would not fit 64
/// bits.
constexpr double kMaxParameters = 0x1p44;
constexpr double kMaxTensorElems = 0x1p44;

void check_model_size(const ModelSpec& model) {
  const double parameters =
      model_cost(model, 0).weights + mtp_cost(model, 0).weights +
      2 * static_cast<double>(model.width) * static_cast<double>(model.padded_vocabulary());
  if (parameters > kMaxParameters) {
    throw_config_error(
        "a model of {:.3g} parameters is too large to plan, the limit is {:.3g}; lower "
        "model.layers "
        "= {}, model.width = {}, model.ffn = {} or model.vocabulary = {}",
        parameters, kMaxParameters, model.layers.size(), model.width, model.ffn, model.vocabulary);
  }
}

void check_batch_size(const TrainConfig& train, const ModelSpec& model) {
  const double widest =
      std::max(model_cost(model, 0).widest, static_cast<double>(model.padded_vocabulary()));
  const double elems =
      static_cast<double>(train.microbatch) * static_cast<double>(train.sequence) * widest;
  if (elems > kMaxTensorElems) {
    throw_config_error(
        "train.microbatch = {} x train.sequence = {} makes a tensor of {:.3g} values, the limit is "
        "{:.3g}; lower either",
        train.microbatch, train.sequence, elems, kMaxTensorElems);
  }
}

/// Nothing for "", and for "auto" until the memory is known (choose_gather_budget.h).
std::optional<int64_t> budget_bytes(const std::string& size) {
  return size.empty() || size == kAutoBudget ? std::nullopt : parse_byte_size(size);
}

/// HalveForwardOptions::whole_because.
std::string reason_for_whole_forwards(const RunSpec& run) {
  if (run.model.layers.has(kMoeBlock)) {
    return "experts take all rows";
  }
  if (run.config.parallel.sequence_parallel && run.fp8 && run.fp8->block > 0 &&
      run.fp8->gathers_copies) {
    return "ranks gather FP8 copies of all rows; train.fp8_gather = false gathers values, which "
           "may be halves";
  }
  return "";
}

OverlapSetup passes_of(const RunSpec& run) {
  const RunConfig& config = run.config;
  const MemoryConfig& memory = config.memory;
  OverlapSetup passes = overlap_setup(config.overlap);
  PipelineOptions& options = passes.options;
  const RecomputeOptions recompute{
      .policy = recompute_policy(choice<RecomputeChoice>(memory.recompute)),
      .num_layers = memory.recompute_layers};
  options.of<RecomputeOptions>() = recompute;
  options.of<FillCooldownOptions>().recompute = recompute;
  options.of<OffloadOptions>() = {.num_layers = memory.offload_layers,
                                  .prefetch_layers = memory.offload_prefetch_layers,
                                  .min_bytes = memory.offload_min_bytes};
  options.of<PrefetchParametersOptions>().budget_bytes = budget_bytes(memory.gather_budget);
  options.of<OverlapGradReduceOptions>().budget_bytes = budget_bytes(memory.grad_budget);
  options.of<FuseSwigluOptions>() = {.enabled = fuses_swiglu(config)};
  options.of<HalveForwardOptions>() = {
      .rows = halves_forwards(config.overlap) ? config.train.microbatch * config.train.sequence : 0,
      .whole_because = reason_for_whole_forwards(run)};
  return passes;
}

LearningRateSpec learning_rate_of(const RunConfig& config) {
  const OptimizerConfig& optimizer = config.optimizer;
  return {.schedule = choice<RateSchedule>(optimizer.schedule),
          .decay_shape = choice<DecayShape>(optimizer.decay_shape),
          .highest = optimizer.learning_rate,
          .lowest = optimizer.min_learning_rate,
          .power = optimizer.decay_power,
          .warmup_steps = optimizer.warmup_steps,
          .decay_steps = optimizer.decay_steps,
          .num_steps = config.train.steps};
}

std::optional<Fp8Recipe> fp8_recipe(const RunConfig& config, const ModelSpec& model) {
  const TrainConfig& train = config.train;
  if (config.lora.rank > 0 && choice<Fp8Choice>(train.fp8) != Fp8Choice::kOff) {
    throw_config_error(
        "lora.rank = {} with train.fp8 = {}: products with adapters are in train.dtype; set "
        "train.fp8 = \"off\"",
        config.lora.rank, quote(train.fp8));
  }
  if (train.fp8_experts && !model.layers.has(kMoeBlock)) {
    throw_config_error(
        "train.fp8_experts = true: the model has no experts; remove the key, or set model.experts");
  }
  std::optional<Fp8Recipe> recipe;
  switch (choice<Fp8Choice>(train.fp8)) {
    case Fp8Choice::kOff:
      return std::nullopt;
    case Fp8Choice::kTensor:
      recipe = Fp8Recipe::tensor();
      break;
    case Fp8Choice::kBlock:
      recipe = Fp8Recipe::blocks();
      break;
    case Fp8Choice::kMxfp8:
      recipe = Fp8Recipe::mx();
      recipe->square_weights =
          choice<WeightBlocks>(train.fp8_weight_blocks) == WeightBlocks::kSquares;
  }
  recipe->keep = train.fp8_filter;
  recipe->head = train.fp8_head;
  recipe->experts = train.fp8_experts;
  recipe->dispatches_copies = train.fp8_dispatch;
  recipe->sums.hopper_sums = choice<Fp8SumsChoice>(train.fp8_sums) == Fp8SumsChoice::kHopper;
  recipe->gathers_copies = train.fp8_gather;
  recipe->fuses_copies = fuses_swiglu(config);
  recipe->watch = train.fp8_watch > 0;
  return recipe;
}

/// The losses of the model's routers, if it has any.
RouterLosses router_losses(const RunConfig& config, const ModelSpec& model) {
  const double rate = config.moe.bias_update_rate;
  if (!model.router.bias && rate != MoeConfig().bias_update_rate && model.layers.has(kMoeBlock)) {
    throw_config_error(
        "moe.bias_update_rate = {}: routers of the model have no biases; remove the key, or set "
        "model.router_bias = true",
        rate);
  }
  if (model.layers.has(kMoeBlock)) {
    return {.balance = config.moe.balance_loss,
            .sequence_balance = config.moe.sequence_balance_loss,
            .z = config.moe.z_loss};
  }
  if (config.moe != MoeConfig()) {
    throw_config_error(
        "moe.balance_loss = {}, moe.sequence_balance_loss = {}, moe.z_loss = {}, "
        "moe.bias_update_rate = {}, moe.expert_capacity = {}, moe.drop = {}, moe.capacity = {}, "
        "moe.on_overflow = {}, moe.exchange = {}, moe.exchange_hosts = {}, moe.watch = {}, "
        "moe.watch_counts = {}, "
        "moe.force_balance = {}, "
        "moe.force_skew = {}, moe.replay = {}, moe.record = {}, moe.record_steps = {}: the model "
        "has no experts; remove these keys, or set model.experts",
        config.moe.balance_loss, config.moe.sequence_balance_loss, config.moe.z_loss, rate,
        config.moe.expert_capacity, quote(config.moe.drop), config.moe.capacity,
        quote(config.moe.on_overflow), quote(config.moe.exchange), config.moe.exchange_hosts,
        config.moe.watch, config.moe.watch_counts, config.moe.force_balance, config.moe.force_skew,
        quote(config.moe.replay), quote(config.moe.record), config.moe.record_steps);
  }
  return {};
}

/// Rows travel as copies to where a direct exchange takes them.
void check_travelling_copies(const RunSpec& run) {
  if (!run.fp8 || !run.fp8->dispatches_copies) {
    return;
  }
  if (run.parallel.blocks_of_rows) {
    throw_config_error(
        "train.fp8_dispatch = true: rows that are exchanged in blocks (moe.exchange, as between "
        "hosts) do not travel as FP8; set train.fp8_dispatch = false");
  }
  const MeshSizes& sizes = run.mesh.sizes();
  if (sizes.expert_hosts > 1 && sizes.expert_hosts == sizes.expert * sizes.expert_tensor) {
    throw_config_error(
        "train.fp8_dispatch = true: with moe.exchange_hosts = {} each host has one rank of a "
        "group, and rows do not travel as FP8; set train.fp8_dispatch = false",
        sizes.expert_hosts);
  }
}

/// What section [preference] says.
std::optional<PreferenceLossAttributes> preference_of(const RunConfig& config,
                                                      const ModelSpec& model) {
  const PreferenceConfig& preference = config.preference;
  PreferenceKind kind = PreferenceKind::kDpo;
  switch (choice<PreferenceChoice>(preference.loss)) {
    case PreferenceChoice::kNone:
      return std::nullopt;
    case PreferenceChoice::kDpo:
      break;
    case PreferenceChoice::kHinge:
      kind = PreferenceKind::kHinge;
      break;
    case PreferenceChoice::kIpo:
      kind = PreferenceKind::kIpo;
  }
  if (model.mtp_depth > 0) {
    throw_config_error(
        "preference.loss = {} with model.mtp_depth = {}: there is no loss of pairs for multi-token "
        "prediction; set model.mtp_depth = 0",
        quote(preference.loss), model.mtp_depth);
  }
  return PreferenceLossAttributes{.kind = static_cast<int64_t>(kind),
                                  .beta = preference.beta,
                                  .label_smoothing = preference.label_smoothing,
                                  .pairs = config.train.global_batch / 2};
}

/// What data.document_mask says.
AttentionDocuments documents_of(const RunConfig& config, const ModelSpec& model) {
  if (!config.data.document_mask) {
    return {};
  }
  for (const BlockDefinition* const block : all_blocks()) {
    if (block->carries_state && model.layers.has(*block)) {
      throw_config_error(
          "data.document_mask = true: layers with {} carry a state from one document of a sequence "
          "to the next; set data.document_mask = false, or use no {} in model.pattern",
          quote(block->name), quote(block->name));
    }
  }
  return {.documents = true, .document_length = config.data.document_length};
}

/// Who chooses experts. At most one of the keys that replace routers is set.
RoutingUse routing_use(const MoeConfig& moe) {
  const bool given = moe.force_skew > 0 || !moe.replay.empty();
  if ((moe.force_balance ? 1 : 0) + (moe.force_skew > 0 ? 1 : 0) + (moe.replay.empty() ? 0 : 1) >
      1) {
    throw_config_error(
        "moe.force_balance = {}, moe.force_skew = {}, moe.replay = {}: each chooses the experts; "
        "set one of them",
        moe.force_balance, moe.force_skew, quote(moe.replay));
  }
  if (given && !moe.record.empty()) {
    throw_config_error(
        "moe.record = {}: moe.force_skew = {}, moe.replay = {} chooses the experts, so there is "
        "nothing to record; remove one of these keys",
        quote(moe.record), moe.force_skew, quote(moe.replay));
  }
  return given                ? RoutingUse::kGiven
         : moe.record.empty() ? RoutingUse::kScores
                              : RoutingUse::kRecorded;
}

RunSpec resolve_with(const RunConfig& config, int64_t tokenizer_vocabulary,
                     std::shared_ptr<const CostModel> costs) {
  RunSpec run{.config = config, .tokenizer_vocabulary = tokenizer_vocabulary};
  run.model = with_adapters(
      resolve_model(config.model, config.train.sequence, tokenizer_vocabulary), config.lora);
  run.model.router.force_balance = config.moe.force_balance;
  run.model.router.expert_capacity = config.moe.expert_capacity;
  run.model.router.drops_by_position = choice<DropChoice>(config.moe.drop) == DropChoice::kPosition;
  check_model_size(run.model);
  check_batch_size(config.train, run.model);
  const ExchangeSetup exchange =
      exchange_setup(config, costs == nullptr ? nullptr : &costs->cluster());
  run.mesh = Mesh(mesh_sizes(config, run.model, exchange.hosts));
  run.parallel = parallel_options(config, run.model, run.mesh);
  run.parallel.blocks_of_rows = exchange.by_blocks;
  run.dtype = choice<DType>(config.train.dtype);
  run.fp8 = fp8_recipe(config, run.model);
  check_travelling_copies(run);
  run.router_losses = router_losses(config, run.model);
  run.preference = preference_of(config, run.model);
  run.documents = documents_of(config, run.model);
  run.watch_experts = run.model.layers.has(kMoeBlock) && config.moe.watch > 0;
  const auto on_overflow = choice<OverflowChoice>(config.moe.on_overflow);
  // With a capacity of experts, ranks have room for all rows, and its tallies count.
  const bool exchanges =
      config.parallel.expert * config.parallel.expert_tensor > 1 && config.moe.expert_capacity == 0;
  run.routing = routing_use(config.moe);
  run.reruns_overflow = on_overflow == OverflowChoice::kRerun;
  run.watch_room = exchanges && (run.watch_experts ||
                                 (config.moe.capacity > 0 && on_overflow != OverflowChoice::kDrop));
  run.optimizer = optimizer_options(config);
  run.parallel.groups = parameter_groups(config.optimizer, run.model);
  run.parallel.muon = uses_muon(config, run.model);
  run.microbatch_sequences = microbatch_sequences(config);
  run.num_microbatches = num_microbatches(config);
  run.parallel.fp8_weights = fp8_weights(run);
  run.passes = passes_of(run);
  run.is_scheduled = is_scheduled(config.overlap);
  run.cost_model = std::move(costs);
  run.links = link_options(config.links);
  run.learning_rate = learning_rate_of(config);
  run.detect_nan = choice<NanCheck>(config.runtime.detect_nan);
  return run;
}

bool have_equal_costs(const RunConfig& a, const RunConfig& b) {
  return a.overlap.cost == b.overlap.cost && a.parallel.ranks == b.parallel.ranks &&
         a.links == b.links;
}

}  // namespace

ScheduleOptions RunSpec::schedule() const {
  return schedule_options(mesh, parallel, num_microbatches);
}

RunSpec resolve_run(const RunConfig& config, int64_t tokenizer_vocabulary) {
  return resolve_with(config, tokenizer_vocabulary, overlap_cost_model(config));
}

RunSpec resolve_again(const RunSpec& run, const RunConfig& config) {
  return resolve_with(
      config, run.tokenizer_vocabulary,
      have_equal_costs(run.config, config) ? run.cost_model : overlap_cost_model(config));
}

}  // namespace braid
