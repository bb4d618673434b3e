#include "config/validate.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/nearest_divisor.h"
#include "base/text.h"
#include "config/blend.h"
#include "config/choices.h"
#include "config/mistakes.h"
#include "config/validate_overlap.h"
#include "config/value.h"
#include "model/blocks/registry.h"
#include "model/families.h"

namespace braid {
namespace {

/// Throws ConfigError with the formatted reason unless the rule holds.
template <class... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) {
    throw_config_error(format, std::forward<Args>(args)...);
  }
}

/// "the nearest are 4 and 8".
std::string nearest_multiples(int64_t value, int64_t factor) {
  const int64_t below = value / factor * factor;
  return below == 0 ? fmt::format("the nearest is {}", factor)
                    : fmt::format("the nearest are {} and {}", below, below + factor);
}

void check_each_key(const RunConfig& config, Mistakes& mistakes) {
  for (const Field& field : config_fields()) {
    const std::optional<ConfigValue> value = value_of(field, config);
    const auto broken = value ? broken_limit(field, *value) : std::nullopt;
    mistakes.require(!broken, "{} = {}: {}", full_name(field), value ? to_text(*value, 60) : "",
                     broken.value_or(""));
  }
}

/// Ranks of one copy of the model. Expert-parallel ranks count as data-parallel ranks, except for
/// the experts.
int64_t ranks_per_copy(const ParallelConfig& parallel) {
  return parallel.tensor * parallel.pipeline * parallel.context;
}

int64_t data_ranks(const ParallelConfig& parallel) {
  return parallel.data != 0 ? parallel.data : parallel.ranks / ranks_per_copy(parallel);
}

void check_layout(const ParallelConfig& parallel) {
  const int64_t copy = ranks_per_copy(parallel);
  const int64_t data = std::max<int64_t>(data_ranks(parallel), 1);
  require(parallel.ranks == data * copy,
          "parallel.ranks = {}: must be data * tensor * pipeline * context = {} * {} * {} * {}; "
          "set parallel.ranks = {}{}",
          parallel.ranks, data, parallel.tensor, parallel.pipeline, parallel.context, data * copy,
          parallel.ranks % copy == 0 ? ", or parallel.data = 0 to derive it" : "");
}

/// Ranks that hold different experts, or parts of them, are neighbours within a stage.
void check_expert_layout(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t stage = parallel.ranks / parallel.pipeline;
  require(stage % parallel.expert_tensor == 0,
          "parallel.expert_tensor = {}: must divide the {} ranks of a stage (tensor * context * "
          "data); set parallel.expert_tensor = {}",
          parallel.expert_tensor, stage, nearest_divisor(stage, parallel.expert_tensor));
  const int64_t left = stage / parallel.expert_tensor;
  require(
      left % parallel.expert == 0,
      "parallel.expert = {}: must divide the {} ranks of a stage (tensor * context * data) over "
      "parallel.expert_tensor = {}, which are {}; set parallel.expert = {}",
      parallel.expert, stage, parallel.expert_tensor, left, nearest_divisor(left, parallel.expert));
  require(config.moe.expert_capacity == 0 || config.moe.capacity == 0,
          "moe.capacity = {}: with moe.expert_capacity = {}, ranks have room for all rows that "
          "experts take; remove one of the keys",
          config.moe.capacity, config.moe.expert_capacity);
  require(config.moe.expert_capacity > 0 || config.moe.drop == MoeConfig().drop,
          "moe.drop = {}: says which rows are dropped, but moe.expert_capacity is 0, so none are; "
          "set moe.expert_capacity, or remove the key",
          quote(config.moe.drop));
  require(parallel.expert * parallel.expert_tensor > 1 || config.moe.capacity == 0,
          "moe.capacity = {}: one rank has room for all rows; set parallel.expert, or remove the "
          "key",
          config.moe.capacity);
}

/// Checks keys that are read only together with others. Whether schedules and stages fit together
/// is checked where they are created.
void check_parallel_keys(const ParallelConfig& parallel, Mistakes& mistakes) {
  mistakes.require(
      parallel.microbatch_group_size == 0 || parallel.schedule == "interleaved",
      "parallel.microbatch_group_size = {}: is read with schedule = \"interleaved\" only; "
      "schedule is {}; set parallel.schedule = \"interleaved\" or remove the key",
      parallel.microbatch_group_size, quote(parallel.schedule));
  mistakes.require(
      parallel.context_inner == 0 || parallel.context_method == "a2a+ring",
      "parallel.context_inner = {}: is read with context_method = \"a2a+ring\" only; "
      "context_method is {}; set parallel.context_method = \"a2a+ring\" or remove the key",
      parallel.context_inner, quote(parallel.context_method));
  mistakes.require(
      parallel.bucket == "bytes" || parallel.bucket_bytes == ParallelConfig().bucket_bytes,
      "parallel.bucket_bytes = {}: is read with bucket = \"bytes\" only; bucket is {}; set "
      "parallel.bucket = \"bytes\" or remove the key",
      parallel.bucket_bytes, quote(parallel.bucket));
}

/// A rank has two chunks of a sequence, unless ranks exchange heads: then the model decides (see
/// model/context_shard.h).
void check_context(const RunConfig& config) {
  const int64_t ranks = config.parallel.context;
  const bool exchanges = config.parallel.context_method.starts_with("a2a");
  const int64_t factor = ranks == 1 || exchanges ? ranks : 2 * ranks;
  require(config.train.sequence % factor == 0,
          "train.sequence = {}: must be a multiple of {}parallel.context = {}; {}",
          config.train.sequence, factor == ranks ? "" : "2 * ", factor,
          nearest_multiples(config.train.sequence, factor));
  const int64_t inner = config.parallel.context_inner;
  require(inner == 0 || ranks % inner == 0,
          "parallel.context_inner = {}: must divide parallel.context = {}; the nearest is {}",
          inner, ranks, inner == 0 ? 0 : nearest_divisor(ranks, inner));
}

void check_replicas(const ParallelConfig& parallel, int64_t data, Mistakes& mistakes) {
  const int64_t ranks = data * parallel.context;
  mistakes.require(
      ranks % parallel.shard_replicas == 0,
      "parallel.shard_replicas = {}: must divide data * context = {} * {} = {}; the nearest is "
      "{}",
      parallel.shard_replicas, data, parallel.context, ranks,
      nearest_divisor(ranks, parallel.shard_replicas));
  mistakes.require(
      parallel.shard_replicas == 1 || parallel.shard != "none",
      "parallel.shard_replicas = {}: shard = \"none\" makes no shards; set parallel.shard = "
      "\"optimizer\" or parallel.shard_replicas = 1",
      parallel.shard_replicas);
  mistakes.require(!parallel.shard_over_replicas || parallel.shard != "none",
                   "parallel.shard_over_replicas = true: shard = \"none\" makes no shards; set "
                   "parallel.shard = \"optimizer\" or parallel.shard_over_replicas = false");
}

void check_batch(const TrainConfig& train, int64_t data) {
  const int64_t at_once = train.microbatch * data;
  require(
      train.global_batch % at_once == 0,
      "train.global_batch = {}: must be a multiple of train.microbatch * data-parallel ranks = {} "
      "* {} = {}; {}",
      train.global_batch, train.microbatch, data, at_once,
      nearest_multiples(train.global_batch, at_once));
}

/// Without a preset the sizes must be given; with one, src/model checks the combination.
void check_model_given(const RunConfig& config) {
  constexpr std::string_view kMissing =
      "not given; set it, or choose a published model with model.preset";
  const ModelConfig& model = config.model;
  if (!model.preset.empty()) {
    return;
  }
  require(model.layers || model.pattern, "model.layers: {}", kMissing);
  require(model.width.has_value(), "model.width: {}", kMissing);
  const LayerPattern layers = model.pattern ? LayerPattern::parse(*model.pattern) : 1;
  for (const BlockDefinition* const block : all_blocks()) {
    for (const SizeKey& key : block->needed_sizes) {
      const bool is_given = value_of(*find_field("model", key.name), config).has_value();
      require(is_given || !layers.has(*block), "model.{}: {}", key.name, kMissing);
    }
  }
}

void check_heads(const ModelConfig& model) {
  const int64_t width = model.width.value_or(0);
  const int64_t heads = model.heads.value_or(0);
  const int64_t kv_heads = model.kv_heads.value_or(0);
  const int64_t head_size = model.head_size.value_or(0);
  if (heads > 0 && kv_heads > 0) {
    require(heads % kv_heads == 0,
            "model.kv_heads = {}: must divide model.heads = {}; the nearest is {}", kv_heads, heads,
            nearest_divisor(heads, kv_heads));
  }
  // Latent attention has sizes of its own; src/model checks a model that has both.
  if (heads > 0 && width > 0 && head_size == 0 && !model.kv_lora_rank) {
    require(width % heads == 0,
            "model.width = {}: must be a multiple of model.heads = {}; {}, or set model.head_size",
            width, heads, nearest_multiples(width, heads));
  }
}

/// Head size if the keys alone determine it, else 0.
int64_t known_head_size(const ModelConfig& model) {
  const int64_t given = model.head_size.value_or(0);
  return given != 0 || !model.width || !model.heads || model.kv_lora_rank
             ? given
             : *model.width / *model.heads;
}

void refuse_learned_positions(const ModelConfig& model, std::string_view family) {
  require(model.max_positions.value_or(0) == 0,
          "model.max_positions = {}: a {} model has no learned positions; remove the key",
          model.max_positions.value_or(0), family);
}

void refuse_theta(const ModelConfig& model, std::string_view family) {
  require(!model.rope_theta,
          "model.rope_theta = {}: a {} model has no rotary positions; remove the key",
          model.rope_theta.value_or(0), family);
}

void check_rope(const ModelConfig& model, std::string_view family) {
  const int64_t head_size = known_head_size(model);
  require(head_size % 2 == 0,
          "model.head_size = {}: must be even, because rotary positions rotate pairs; the nearest "
          "are {} and {}",
          head_size, std::max<int64_t>(head_size - 1, 2), head_size + 1);
  refuse_learned_positions(model, family);
}

void check_learned_positions(const ModelConfig& model, std::string_view family,
                             const TrainConfig& train) {
  refuse_theta(model, family);
  const int64_t positions = model.max_positions.value_or(0);
  require(
      positions == 0 || train.sequence <= positions,
      "train.sequence = {}: must be at most model.max_positions = {}; set train.sequence = {} or "
      "model.max_positions = {}",
      train.sequence, positions, positions, train.sequence);
}

void check_model(const RunConfig& config) {
  const ModelConfig& model = config.model;
  check_model_given(config);
  check_heads(model);
  if (!model.preset.empty() && !model.family) {
    return;  // its positions are its own
  }
  const ModelFamily& family = model.family ? find_family(*model.family) : kModelFamilies.front();
  switch (family.style.positions) {
    case PositionKind::kRope:
      return check_rope(model, family.name);
    case PositionKind::kLearned:
      return check_learned_positions(model, family.name, config.train);
    case PositionKind::kNone:
      refuse_theta(model, family.name);
      return refuse_learned_positions(model, family.name);
  }
}

/// A run that is shorter than its warmup, as in a trial of few steps, warms up to its end.
int64_t warmup_within(const OptimizerConfig& optimizer, int64_t steps) {
  return std::min(optimizer.warmup_steps, steps);
}

/// The steps that are left for the decay at the end of the run.
int64_t steps_after_warmup(const OptimizerConfig& optimizer, int64_t steps) {
  return steps - warmup_within(optimizer, steps);
}

void check_wsd(const OptimizerConfig& optimizer, int64_t steps) {
  require(optimizer.decay_steps > 0,
          "optimizer.decay_steps = 0: schedule = \"wsd\" needs the length of the decay; set "
          "optimizer.decay_steps = {} for a tenth of the run",
          std::max<int64_t>(steps / 10, 1));
}

/// Schedules that decay from the end of the warmup to a step.
bool decays_until_a_step(std::string_view schedule) {
  return schedule == "cosine" || schedule == "linear" || schedule == "polynomial";
}

void check_decay(const OptimizerConfig& optimizer, int64_t steps) {
  const int64_t warmup = warmup_within(optimizer, steps);
  require(optimizer.decay_steps == 0 || optimizer.decay_steps >= warmup,
          "optimizer.decay_steps = {}: must be 0 or at least warmup_steps = {}; set "
          "optimizer.decay_steps = 0 to decay until train.steps",
          optimizer.decay_steps, warmup);
}

void check_no_decay_steps(const OptimizerConfig& optimizer, std::string_view reason) {
  require(optimizer.decay_steps == 0,
          "optimizer.decay_steps = {}: schedule = {} {}; set optimizer.decay_steps = 0",
          optimizer.decay_steps, quote(optimizer.schedule), reason);
}

void check_schedule(const OptimizerConfig& optimizer, int64_t steps) {
  if (optimizer.schedule == "wsd") {
    check_wsd(optimizer, steps);
  } else if (decays_until_a_step(optimizer.schedule)) {
    check_decay(optimizer, steps);
  } else if (optimizer.schedule == "inverse_sqrt") {
    check_no_decay_steps(optimizer, "decays with each step");
  } else {
    check_no_decay_steps(optimizer, "does not decay");
    require(optimizer.min_learning_rate == 0,
            "optimizer.min_learning_rate = {}: schedule = {} does not decay; set "
            "optimizer.min_learning_rate = 0",
            optimizer.min_learning_rate, quote(optimizer.schedule));
  }
}

/// As in a run file.
std::string value_text(double value) {
  return fmt::format("{}", value);
}
std::string value_text(int64_t value) {
  return fmt::format("{}", value);
}
std::string value_text(bool value) {
  return value ? "true" : "false";
}
std::string value_text(const std::string& value) {
  return quote(value);
}

/// The key and value with which an optimizer or a schedule reads a key that no other does.
struct KeyReader {
  bool is_there;
  std::string_view name;
};

template <class T>
void check_read_with(std::string_view key, const T& value, const T& usual, const KeyReader& reader,
                     Mistakes& mistakes) {
  mistakes.require(reader.is_there || value == usual,
                   "optimizer.{} = {}: is read with optimizer.{} only; set optimizer.{} = {}", key,
                   value_text(value), reader.name, key, value_text(usual));
}

void check_update(const OptimizerConfig& optimizer, Mistakes& mistakes) {
  const OptimizerConfig usual;
  const KeyReader sgd{optimizer.name == "sgd", "name = \"sgd\""};
  const KeyReader muon{optimizer.name == "muon", "name = \"muon\""};
  check_read_with("momentum", optimizer.momentum, usual.momentum, sgd, mistakes);
  check_read_with("nesterov", optimizer.nesterov, usual.nesterov, sgd, mistakes);
  check_read_with("muon_momentum", optimizer.muon_momentum, usual.muon_momentum, muon, mistakes);
  check_read_with("muon_nesterov", optimizer.muon_nesterov, usual.muon_nesterov, muon, mistakes);
  check_read_with("muon_steps", optimizer.muon_steps, usual.muon_steps, muon, mistakes);
  check_read_with("muon_scale", optimizer.muon_scale, usual.muon_scale, muon, mistakes);
  check_read_with("muon_dtype", optimizer.muon_dtype, usual.muon_dtype, muon, mistakes);
  mistakes.require(!optimizer.nesterov || optimizer.momentum > 0,
                   "optimizer.nesterov = true: looks ahead by optimizer.momentum, which is 0; set "
                   "optimizer.momentum = 0.9, or optimizer.nesterov = false");
}

void check_optimizer(const OptimizerConfig& optimizer, int64_t steps, Mistakes& mistakes) {
  mistakes.require(
      optimizer.min_learning_rate <= optimizer.learning_rate,
      "optimizer.min_learning_rate = {}: must be at most optimizer.learning_rate = {}; set "
      "optimizer.min_learning_rate = {}",
      optimizer.min_learning_rate, optimizer.learning_rate, optimizer.learning_rate);
  mistakes.require(
      optimizer.schedule == "wsd" || optimizer.decay_shape == OptimizerConfig().decay_shape,
      "optimizer.decay_shape = {}: is read with schedule = \"wsd\" only; schedule is {}; set "
      "optimizer.schedule = \"wsd\" or remove the key",
      quote(optimizer.decay_shape), quote(optimizer.schedule));
  check_read_with("decay_power", optimizer.decay_power, OptimizerConfig().decay_power,
                  {optimizer.schedule == "polynomial", "schedule = \"polynomial\""}, mistakes);
  mistakes.check([&] { check_schedule(optimizer, steps); });
  check_update(optimizer, mistakes);
}

void check_main_grads(const RunConfig& config, Mistakes& mistakes) {
  if (choice<DType>(config.optimizer.main_grads_dtype) == DType::kF32) {
    return;
  }
  constexpr std::string_view kKey = "optimizer.main_grads_dtype = \"bfloat16\"";
  mistakes.require(choice<DType>(config.train.dtype) == DType::kBF16,
                   "{}: gradients would be narrower than weights and activations, and train.dtype "
                   "is {}; set optimizer.main_grads_dtype = \"float32\", or train.dtype = "
                   "\"bfloat16\"",
                   kKey, quote(config.train.dtype));
  const ParallelConfig& parallel = config.parallel;
  const bool is_reduced = data_ranks(parallel) * parallel.context > 1;
  mistakes.require(
      !is_reduced || choice<DType>(parallel.grad_reduce_dtype) == DType::kBF16,
      "{} with parallel.grad_reduce_dtype = {}: ranks send gradients in the type in which they "
      "keep them; set parallel.grad_reduce_dtype = \"bfloat16\"",
      kKey, quote(parallel.grad_reduce_dtype));
}

void check_memory(const MemoryConfig& memory, Mistakes& mistakes) {
  mistakes.require(
      memory.recompute_layers == 0 || memory.recompute != "auto",
      "memory.recompute_layers = {}: recompute = \"auto\" chooses the layers; remove it, or "
      "set recompute to \"norms\", \"attention\" or \"full\"",
      memory.recompute_layers);
  mistakes.require(
      memory.recompute_layers == 0 || memory.recompute != "none",
      "memory.recompute_layers = {}: is read with recompute = \"norms\", \"attention\" or "
      "\"full\" only; recompute is \"none\"; set memory.recompute = \"full\" or remove the key",
      memory.recompute_layers);
  const MemoryConfig defaults;
  const bool offloads = memory.offload_layers > 0;
  mistakes.require(offloads || memory.offload_prefetch_layers == defaults.offload_prefetch_layers,
                   "memory.offload_prefetch_layers = {}: is read with offload_layers above 0 only; "
                   "offload_layers is 0; set memory.offload_layers = 1 or remove the key",
                   memory.offload_prefetch_layers);
  mistakes.require(
      offloads || memory.offload_min_bytes == defaults.offload_min_bytes,
      "memory.offload_min_bytes = {}: is read with offload_layers above 0 only; offload_layers "
      "is 0; set memory.offload_layers = 1 or remove the key",
      memory.offload_min_bytes);
}

/// A key of [memory] for buffers that there are with some kinds of `parallel.shard` only.
struct BudgetKey {
  std::string_view name;
  const std::string& value;
  std::string_view what;  ///< it limits
  std::vector<std::string_view> shards;
  std::string_view other_values;
};

void check_budget(const BudgetKey& key, std::string_view shard) {
  if (key.value.empty()) {
    return;
  }
  const bool is_auto = key.value == kAutoBudget && !key.other_values.empty();
  require(is_auto || parse_byte_size(key.value).value_or(0) >= 1,
          "memory.{} = {}: must be a size with its unit, such as \"2GiB\" or \"500MB\"{}, or \"\"; "
          "set memory.{} = \"2GiB\"",
          key.name, quote(key.value, 64), key.other_values, key.name);
  require(std::ranges::find(key.shards, shard) != key.shards.end(),
          "memory.{} = {}: limits {}, but parallel.shard is {}; set parallel.shard = {} or remove "
          "the key",
          key.name, quote(key.value, 64), key.what, quote(shard), quote(key.shards.front()));
}

void check_budgets(const RunConfig& config, Mistakes& mistakes) {
  const MemoryConfig& memory = config.memory;
  const std::string& shard = config.parallel.shard;
  const auto check = [&](const BudgetKey& key) {
    mistakes.check([&] { check_budget(key, shard); });
  };
  check({"gather_budget",
         memory.gather_budget,
         "weights that ranks gather for each use",
         {"parameters"},
         ", \"auto\""});
  check({"grad_budget",
         memory.grad_budget,
         "whole gradients that wait until ranks have reduced them",
         {"gradients", "parameters"},
         ""});
}

void check_data(const RunConfig& config, Mistakes& mistakes) {
  const DataConfig& data = config.data;
  const EvalConfig& eval = config.eval;
  const PreferenceConfig& preference = config.preference;
  mistakes.require(
      !data.tokenizer.empty(),
      "data.tokenizer = \"\": must be a tokenizer.json, a SentencePiece model or \"bytes\"; "
      "set data.tokenizer = \"bytes\"");
  mistakes.require(
      data.train.empty() || data.blend.empty(),
      "data.train = {}: data.blend has {} entries, and only one of the two keys can be given; "
      "add data.train to the blend or remove one of them",
      quote(data.train, 60), data.blend.size());
  mistakes.check([&] { parse_blend(data.blend); });
  mistakes.check([&] { parse_blend(data.valid, "data.valid"); });
  mistakes.require(
      data.valid.empty() || data.split == DataConfig().split,
      "data.split = {}: data.valid has {} entries, and all data are read whole then; remove either "
      "key",
      quote(data.split), data.valid.size());
  mistakes.require(
      data.document_mask || data.document_length == 0,
      "data.document_length = {}: is read with data.document_mask only, which is false; set "
      "data.document_mask = true or remove the key",
      data.document_length);
  double validation = 1;
  mistakes.check([&] { validation = parse_split(data.split)[1]; });
  mistakes.require(
      eval.interval == 0 || validation > 0 || !preference.held_out.empty() || !data.valid.empty(),
      "data.split = {}: eval.interval = {} needs a validation share, the second number, above "
      "0; set eval.interval = 0 to turn evaluation off",
      quote(data.split), eval.interval);
}

void check_fp8(const TrainConfig& train, Mistakes& mistakes) {
  mistakes.require(
      !train.fp8_head || train.fp8 != "off",
      "train.fp8_head = true: is read with train.fp8 only, which is \"off\"; set train.fp8 = "
      "\"block\" or remove the key");
  mistakes.require(
      !train.fp8_experts || train.fp8 == "block",
      "train.fp8_experts = true: products of experts are FP8 with train.fp8 = \"block\" only, "
      "and train.fp8 is {}; remove the key or set train.fp8 = \"block\"",
      quote(train.fp8));
  mistakes.require(
      !train.fp8_dispatch || train.fp8_experts,
      "train.fp8_dispatch = true: rows travel as FP8 for products of experts that are FP8, and "
      "train.fp8_experts is false; remove the key or set train.fp8_experts = true");
  mistakes.require(
      train.fp8_watch == 0 || train.fp8 != "off",
      "train.fp8_watch = {}: counts what FP8 copies lose, but train.fp8 is \"off\"; set "
      "train.fp8_watch = 0, or train.fp8 = \"block\"",
      train.fp8_watch);
  mistakes.require(
      train.fp8_weight_blocks == "rows" || train.fp8 == "mxfp8",
      "train.fp8_weight_blocks = {}: is read with train.fp8 = \"mxfp8\" only, and train.fp8 is {}; "
      "remove the key or set train.fp8 = \"mxfp8\"",
      quote(train.fp8_weight_blocks), quote(train.fp8));
}

/// Of one sequence for each answer, two for a pair. The layout of data is that of pairs whatever
/// the keys of other layouts say, so these must be as they are by default.
void check_pairs(const RunConfig& config, Mistakes& mistakes) {
  const TrainConfig& train = config.train;
  const DataConfig& data = config.data;
  const int64_t sequences = microbatch_sequences(config);
  const bool halves = sequences != train.microbatch;
  mistakes.require(
      sequences % 2 == 0,
      "train.microbatch = {}: must be even{} with preference.loss = {}, because the two answers of "
      "a "
      "pair share a microbatch; the nearest is {}",
      train.microbatch,
      halves ? ", and so must the halves of overlap.pair_forward_backward = \"halves\"," : "",
      quote(config.preference.loss),
      halves ? (train.microbatch / 4 + 1) * 4 : train.microbatch + 1);
  mistakes.require(
      data.blend.empty(),
      "data.blend: pairs of preference.loss = {} come from one source; give data.train",
      quote(config.preference.loss));
  mistakes.require(data.valid.empty(),
                   "data.valid: pairs for evaluations are those of preference.held_out with "
                   "preference.loss = {}; set that key instead",
                   quote(config.preference.loss));
  mistakes.require(
      data.packing == "concatenate",
      "data.packing = {}: with preference.loss = {} a sequence holds one answer; remove the key",
      quote(data.packing), quote(config.preference.loss));
  mistakes.require(!data.document_mask,
                   "data.document_mask = true: with preference.loss = {} a sequence holds one "
                   "document; remove the key",
                   quote(config.preference.loss));
  mistakes.require(train.z_loss == 0,
                   "train.z_loss = {}: is part of the usual loss, and preference.loss is {}; set "
                   "train.z_loss = 0",
                   train.z_loss, quote(config.preference.loss));
  mistakes.require(config.preference.label_smoothing == 0 || config.preference.loss == "dpo",
                   "preference.label_smoothing = {}: is read with preference.loss = \"dpo\" only; "
                   "preference.loss is {}; set preference.label_smoothing = 0",
                   config.preference.label_smoothing, quote(config.preference.loss));
}

void check_preference(const RunConfig& config, Mistakes& mistakes) {
  PreferenceConfig others = config.preference;
  others.loss = PreferenceConfig().loss;
  if (config.preference.loss != others.loss) {
    check_pairs(config, mistakes);
    return;
  }
  mistakes.require(others == PreferenceConfig(),
                   "preference.beta = {}, preference.label_smoothing = {}, preference.held_out = "
                   "{}: are read with preference.loss only, which is \"none\"; set preference.loss "
                   "= \"dpo\", or remove these keys",
                   others.beta, others.label_smoothing, quote(others.held_out, 60));
}

void check_folders(const RunConfig& config, Mistakes& mistakes) {
  mistakes.require(!config.logging.run_folder.empty(),
                   "logging.run_folder = \"\": must name a folder, such as \"runs/first\"");
  mistakes.require(
      !config.checkpoint.resume.empty(),
      "checkpoint.resume = \"\": must be \"auto\", \"none\" or the path of a checkpoint");
}

void check_rate(std::string_view key, double gb_per_s, Mistakes& mistakes) {
  constexpr double kLeast = 1e-6;  // slower, a step takes days, and its nanoseconds leave 64 bits
  mistakes.require(
      gb_per_s == 0 || gb_per_s >= kLeast,
      "links.{} = {}: must be 0 (no limit) or at least {:.6f}, which is 1 kB/s; set links.{} = "
      "{:.6f}",
      key, gb_per_s, kLeast, key, kLeast);
}

void check_links(const LinksConfig& links, Mistakes& mistakes) {
  check_rate("data_gb_per_s", links.data_gb_per_s, mistakes);
  check_rate("tensor_gb_per_s", links.tensor_gb_per_s, mistakes);
  check_rate("pipeline_gb_per_s", links.pipeline_gb_per_s, mistakes);
  check_rate("context_gb_per_s", links.context_gb_per_s, mistakes);
}

void check_parallel(const RunConfig& config, Mistakes& mistakes) {
  const ParallelConfig& parallel = config.parallel;
  check_parallel_keys(parallel, mistakes);
  const bool has_layout = mistakes.check([&] { check_layout(parallel); });
  if (has_layout) {
    mistakes.check([&] { check_expert_layout(config); });
  }
  mistakes.check([&] { check_context(config); });
  if (has_layout) {
    check_replicas(parallel, data_ranks(parallel), mistakes);
    mistakes.check([&] { check_batch(config.train, data_ranks(parallel)); });
  }
}

}  // namespace

void validate(const RunConfig& config) {
  Mistakes mistakes;
  check_each_key(config, mistakes);
  mistakes.throw_if_any();  // rules between keys need values within their limits
  check_parallel(config, mistakes);
  mistakes.check([&] { check_model(config); });
  check_optimizer(config.optimizer, config.train.steps, mistakes);
  check_main_grads(config, mistakes);
  check_memory(config.memory, mistakes);
  check_budgets(config, mistakes);
  mistakes.check([&] { validate_overlap(config); });
  check_fp8(config.train, mistakes);
  check_data(config, mistakes);
  check_preference(config, mistakes);
  check_folders(config, mistakes);
  check_links(config.links, mistakes);
  mistakes.throw_if_any();
}

RunConfig resolved(RunConfig config) {
  config.parallel.data = data_ranks(config.parallel);
  if (config.data.seed == 0) {
    config.data.seed = config.train.seed;
  }
  if (config.optimizer.schedule == "wsd") {
    const int64_t left = steps_after_warmup(config.optimizer, config.train.steps);
    config.optimizer.decay_steps =
        std::min(config.optimizer.decay_steps, std::max<int64_t>(left, 1));
  }
  config.optimizer.warmup_steps = warmup_within(config.optimizer, config.train.steps);
  if (decays_until_a_step(config.optimizer.schedule) && config.optimizer.decay_steps == 0) {
    config.optimizer.decay_steps = config.train.steps;
  }
  if (config.checkpoint.folder.empty()) {
    config.checkpoint.folder = config.logging.run_folder + "/checkpoints";
  }
  config.runtime.fuse_swiglu = fuses_swiglu(config) ? "on" : "off";
  return config;
}

std::vector<std::string> shortened_schedule(const RunConfig& config) {
  const OptimizerConfig& optimizer = config.optimizer;
  const int64_t steps = config.train.steps;
  const int64_t left = steps_after_warmup(optimizer, steps);
  std::vector<std::string> lines;
  if (optimizer.warmup_steps > steps) {
    lines.push_back(
        fmt::format("optimizer.warmup_steps = {}: the run has train.steps = {}, and warms up in {}",
                    optimizer.warmup_steps, steps, steps));
  }
  if (optimizer.schedule == "wsd" && optimizer.decay_steps > left) {
    lines.push_back(fmt::format(
        "optimizer.decay_steps = {}: the run has train.steps = {}, and decays in the {} "
        "after its warmup",
        optimizer.decay_steps, steps, left));
  }
  return lines;
}

int64_t microbatch_sequences(const RunConfig& config) {
  return config.overlap.pair_forward_backward == "halves" ? config.train.microbatch / 2
                                                          : config.train.microbatch;
}

int64_t num_microbatches(const RunConfig& config) {
  return config.train.global_batch / (microbatch_sequences(config) * data_ranks(config.parallel));
}

bool copies_state(const RunConfig& config) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  return checkpoint.async && checkpoint.interval > 0 && checkpoint.interval < config.train.steps;
}

bool fuses_swiglu(const RunConfig& config) {
  const bool may_be_gpu = config.train.dtype == "bfloat16" && config.runtime.device != "cpu";
  return config.runtime.fuse_swiglu == "on" || (config.runtime.fuse_swiglu == "auto" && may_be_gpu);
}

bool emulates_links(const LinksConfig& links) {
  return !(links == LinksConfig());
}

std::array<double, 3> parse_split(std::string_view split) {
  std::array<double, 3> shares = {};
  const std::vector<std::string> pieces = split_text(split, ',');
  bool good = pieces.size() == shares.size();
  for (size_t i = 0; good && i < shares.size(); ++i) {
    const char* end = pieces[i].data() + pieces[i].size();
    const auto [stop, error] = std::from_chars(pieces[i].data(), end, shares[i]);
    good = error == std::errc() && stop == end && std::isfinite(shares[i]) && shares[i] >= 0;
  }
  const double sum = shares[0] + shares[1] + shares[2];
  require(
      good && shares[0] > 0 && std::isfinite(sum),
      "data.split = {}: expected three numbers >= 0 for training, validation and test data, the "
      "first above 0, such as \"969,30,1\"",
      quote(split, 60));
  for (double& share : shares) {
    share /= sum;
  }
  return shares;
}

}  // namespace braid
