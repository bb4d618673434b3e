#include "config/validate_overlap.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "config/fields.h"
#include "config/mistakes.h"
#include "config/sm_budget.h"
#include "config/tensor_sites.h"
#include "config/value.h"

namespace braid {
namespace {

/// Keys of [overlap] that every mode reads, or that are checked together with what they need.
constexpr std::array<std::string_view, 9> kNotOfManualAlone = {
    "mode",      "cost",     "may_change_rounding", "list_schedule", "comm_engine",
    "split_ops", "comm_sms", "product_sm_margin",   "disable_passes"};
constexpr std::string_view kTensorKeys = "tp_comm_";  // see validate_tensor_overlap

/// Keys that need a pipeline of several stages.
constexpr std::array<std::string_view, 8> kOfStages = {"overlap_p2p_comm",
                                                       "overlap_p2p_comm_warmup_flush",
                                                       "overlap_p2p_backward_on_comm_stream",
                                                       "overlap_p2p_wgrad_delayed_layer_number",
                                                       "overlap_p2p_with_transformer_layer_wgrad",
                                                       "defer_embedding_wgrad_compute",
                                                       "wgrad_deferral_limit",
                                                       "fill_cooldown"};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// Whether only mode = "manual" reads the key. This is the default for keys.
bool is_of_manual(const Field& field) {
  return field.section == "overlap" && !contains(kNotOfManualAlone, field.name) &&
         !field.name.starts_with(kTensorKeys);
}

void check_is_read(const RunConfig& config, Mistakes& mistakes) {
  const RunConfig defaults;
  for (const Field& field : config_fields()) {
    const auto value = is_of_manual(field) ? value_of(field, config) : std::nullopt;
    if (value == std::nullopt || value == value_of(field, defaults)) {
      continue;
    }
    const bool is_read = mistakes.require(
        config.overlap.mode == "manual",
        "overlap.{} = {}: is read with mode = \"manual\" only; mode is {}; set overlap.mode = "
        "\"manual\" or remove the key",
        field.name, to_text(*value), quote(config.overlap.mode));
    const bool has_stages = !contains(kOfStages, field.name) || config.parallel.pipeline > 1;
    mistakes.require(
        !is_read || has_stages,
        "overlap.{} = {}: needs messages between pipeline stages, but parallel.pipeline = 1; set "
        "parallel.pipeline above 1 or remove the key",
        field.name, to_text(*value));
  }
}

void check_permission(const OverlapConfig& overlap) {
  if (overlap.may_change_rounding && overlap.mode != "auto") {
    throw_config_error(
        "overlap.may_change_rounding = true: says what mode = \"auto\" may choose, but mode is {}; "
        "set overlap.mode = \"auto\" or remove the key",
        quote(overlap.mode));
  }
}

void check_messages(const OverlapConfig& overlap) {
  if (overlap.overlap_p2p_comm_warmup_flush && !overlap.overlap_p2p_comm) {
    throw_config_error(
        "overlap.overlap_p2p_comm_warmup_flush = true: extends overlap_p2p_comm to warm-up and "
        "flush, but overlap_p2p_comm is false; set overlap.overlap_p2p_comm = true");
  }
  if (overlap.overlap_p2p_backward_on_comm_stream && !overlap.overlap_p2p_comm) {
    throw_config_error(
        "overlap.overlap_p2p_backward_on_comm_stream = true: chooses the stream of messages that "
        "overlap_p2p_comm moves off the compute stream, but overlap_p2p_comm is false; set "
        "overlap.overlap_p2p_comm = true");
  }
}

/// A key that says how `overlap_param_gather` gathers weights.
struct GatherKey {
  std::string_view name;
  bool is_set;
  ConfigValue value;
  std::string_view about;  ///< weights that there are with some kinds of `parallel.shard` only
  std::vector<std::string_view> shards;
};

std::vector<GatherKey> gather_keys(const OverlapConfig& overlap) {
  constexpr std::string_view kUpdated =
      "applies to weights that every rank holds whole and updates in part";
  const bool gather = overlap.overlap_param_gather;
  const bool early = overlap.overlap_param_gather_with_optimizer_step;
  const bool align = overlap.align_param_gather;
  const int64_t units = overlap.param_gather_prefetch_units;
  const int64_t whole_units = overlap.param_gather_whole_units;
  return {{"overlap_param_gather",
           gather,
           gather,
           "needs weights that ranks hold or update in parts",
           {"optimizer", "gradients", "parameters"}},
          {"overlap_param_gather_with_optimizer_step",
           early,
           early,
           kUpdated,
           {"gradients", "optimizer"}},
          {"align_param_gather", align, align, kUpdated, {"gradients", "optimizer"}},
          {"param_gather_prefetch_units",
           units != 1,
           units,
           "applies to weights that ranks hold or update in parts",
           {"optimizer", "gradients", "parameters"}},
          {"param_gather_fills_budget",
           !overlap.param_gather_fills_budget,
           overlap.param_gather_fills_budget,
           "says how weights are gathered that ranks hold in parts",
           {"parameters"}},
          {"param_gather_whole_units",
           whole_units != 0,
           whole_units,
           "keeps weights whole that ranks hold in parts",
           {"parameters"}}};
}

/// Checks shards first: without them the switch itself is refused.
void check_gathers(const OverlapConfig& overlap, const ParallelConfig& parallel,
                   const MemoryConfig& memory) {
  for (const GatherKey& key : gather_keys(overlap)) {
    if (key.is_set && std::ranges::find(key.shards, parallel.shard) == key.shards.end()) {
      throw_config_error(
          "overlap.{} = {}: {}, but parallel.shard is {}; set parallel.shard = {} or remove the "
          "key",
          key.name, to_text(key.value), key.about, quote(parallel.shard),
          quote(key.shards.front()));
    }
    if (key.is_set && !overlap.overlap_param_gather) {
      throw_config_error(
          "overlap.{} = {}: says how overlap_param_gather gathers weights, but "
          "overlap_param_gather is false; set overlap.overlap_param_gather = true",
          key.name, to_text(key.value));
    }
  }
  if (!overlap.param_gather_fills_budget && memory.gather_budget.empty()) {
    throw_config_error(
        "overlap.param_gather_fills_budget = false: says how gathers use memory.gather_budget, "
        "which is \"\"; set memory.gather_budget = \"auto\" or remove the key");
  }
}

void check_context(const OverlapConfig& overlap, const ParallelConfig& parallel) {
  if (overlap.overlap_context_comm && parallel.context == 1) {
    throw_config_error(
        "overlap.overlap_context_comm = true: needs ranks that share a sequence, but "
        "parallel.context = 1; set parallel.context above 1 or remove the key");
  }
}

void check_experts(const RunConfig& config) {
  const OverlapConfig& overlap = config.overlap;
  const ParallelConfig& parallel = config.parallel;
  const bool exchanges = parallel.expert * parallel.expert_tensor > 1;
  const auto refuse_windows = [&](const std::string& key, const std::string& valid) {
    throw_config_error(
        "{}: ranks that exchange rows of experts (parallel.expert = {}, parallel.expert_tensor = "
        "{}) map each other's memory, which NCCL's windows do not allow; set {}, or "
        "moe.exchange = \"blocks\"",
        key, parallel.expert, parallel.expert_tensor, valid);
  };
  const bool maps_memory = exchanges && config.moe.exchange != "blocks";
  if (maps_memory && config.runtime.nccl_windows) {
    refuse_windows("runtime.nccl_windows = true", "runtime.nccl_windows = false");
  }
  if (maps_memory && overlap.comm_engine == "nccl_copy") {
    refuse_windows("overlap.comm_engine = \"nccl_copy\"", "overlap.comm_engine = \"copy\"");
  }
  if (overlap.overlap_moe_expert_parallel_comm && !exchanges) {
    throw_config_error(
        "overlap.overlap_moe_expert_parallel_comm = true: needs ranks that exchange rows of "
        "experts, but parallel.expert = 1; set parallel.expert above 1 or remove the key");
  }
}

void check_schedule_key(const OverlapConfig& overlap) {
  if (overlap.list_schedule && overlap.mode == "off") {
    throw_config_error(
        "overlap.list_schedule = true: fills waits for communication that other passes moved "
        "beside compute, but overlap.mode is \"off\"; set overlap.mode = \"auto\" or remove the "
        "key");
  }
  if (overlap.comm_engine == "hidden" && overlap.mode == "off") {
    throw_config_error(
        "overlap.comm_engine = \"hidden\": applies to communication that other passes moved beside "
        "compute, but overlap.mode is \"off\"; set overlap.mode = \"auto\" or overlap.comm_engine "
        "= \"auto\"");
  }
}

void check_pairs(const RunConfig& config) {
  const std::string& pairs = config.overlap.pair_forward_backward;
  const ParallelConfig& parallel = config.parallel;
  if (pairs == "none") {
    return;
  }
  if (parallel.tensor == 1 && parallel.context == 1 &&
      parallel.expert * parallel.expert_tensor == 1) {
    throw_config_error(
        "overlap.pair_forward_backward = {}: hides communication of tensor, context and expert "
        "ranks, but parallel.tensor = 1, parallel.context = 1 and parallel.expert = 1; set one of "
        "them above 1 or remove the key",
        quote(pairs));
  }
  const bool are_halves = pairs == "halves" || pairs == "forward_halves";
  if (pairs == "halves" && parallel.pipeline > 1) {
    throw_config_error(
        "overlap.pair_forward_backward = \"halves\": is for runs without a pipeline, but "
        "parallel.pipeline = {}; set overlap.pair_forward_backward = \"forward_halves\"",
        parallel.pipeline);
  }
  if (pairs == "forward_halves" && parallel.context > 1) {
    throw_config_error(
        "overlap.pair_forward_backward = \"forward_halves\": is for runs without context ranks, "
        "but parallel.context = {}; set overlap.pair_forward_backward = \"{}\"",
        parallel.context, parallel.pipeline > 1 ? "forward_backward" : "halves");
  }
  if (const int64_t odd = config.train.microbatch; are_halves && odd % 2 != 0) {
    throw_config_error(
        "overlap.pair_forward_backward = {}: cuts a microbatch in two, but train.microbatch = {} "
        "is odd; set train.microbatch = {}",
        quote(pairs), odd,
        odd == 1 ? "2" : fmt::format("{} or train.microbatch = {}", odd - 1, odd + 1));
  }
  if (pairs == "halves" && config.moe.expert_capacity > 0) {
    throw_config_error(
        "overlap.pair_forward_backward = \"halves\": moe.expert_capacity = {} would count half the "
        "tokens, so other rows would be dropped; set overlap.pair_forward_backward = \"{}\"",
        config.moe.expert_capacity, parallel.context > 1 ? "none" : "forward_halves");
  }
  const int64_t half = config.train.microbatch / 2 * config.train.sequence;
  if (pairs == "forward_halves" && parallel.sequence_parallel && half % parallel.tensor != 0) {
    throw_config_error(
        "overlap.pair_forward_backward = \"forward_halves\": with parallel.sequence_parallel = "
        "true, parallel.tensor = {} must divide the {} rows of half a microbatch (train.microbatch "
        "/ 2 * train.sequence); set parallel.sequence_parallel = false",
        parallel.tensor, half);
  }
}

void check_wgrads(const OverlapConfig& overlap) {
  if (overlap.overlap_grad_reduce_delayed_wgrad_layers != 0 && !overlap.overlap_grad_reduce) {
    throw_config_error(
        "overlap.overlap_grad_reduce_delayed_wgrad_layers = {}: says what hides a reduction that "
        "runs beside the backward, but overlap_grad_reduce is false; set "
        "overlap.overlap_grad_reduce = true",
        overlap.overlap_grad_reduce_delayed_wgrad_layers);
  }
  if (overlap.overlap_p2p_with_transformer_layer_wgrad &&
      overlap.overlap_p2p_wgrad_delayed_layer_number == 0) {
    throw_config_error(
        "overlap.overlap_p2p_with_transformer_layer_wgrad = true: says which weight gradients of "
        "delayed layers wait, but no layer is delayed; set "
        "overlap.overlap_p2p_wgrad_delayed_layer_number = 1");
  }
  if (overlap.wgrad_deferral_limit != 0 && !overlap.defer_embedding_wgrad_compute) {
    throw_config_error(
        "overlap.wgrad_deferral_limit = {}: limits defer_embedding_wgrad_compute, but that is "
        "false; set overlap.defer_embedding_wgrad_compute = true",
        overlap.wgrad_deferral_limit);
  }
}

void check_split_ops(const OverlapConfig& overlap, const ParallelConfig& parallel) {
  if (!overlap.split_ops) {
    return;
  }
  if (overlap.mode != "manual") {
    throw_config_error(
        "overlap.split_ops = true: is read with mode = \"manual\" only; mode is {}; set "
        "overlap.mode = \"manual\" or remove the key",
        quote(overlap.mode));
  }
  if (overlap.cost.empty()) {
    throw_config_error(
        "overlap.split_ops = true: cuts tasks where costs say that it pays, but overlap.cost is "
        "empty; remove the key, or set overlap.cost to a cluster like \"h200x8\" or to a profile "
        "of `braid calibrate`");
  }
  if (parallel.tensor == 1 && parallel.context > 1 && parallel.context_method == "a2a") {
    if (!overlap.overlap_context_comm) {
      throw_config_error(
          "overlap.split_ops = true: cuts tasks to run them beside exchanges of context ranks, but "
          "overlap.overlap_context_comm is false; set overlap.overlap_context_comm = true");
    }
    return;
  }
  if (parallel.tensor == 1 || !overlap.tp_comm_overlap) {
    throw_config_error(
        "overlap.split_ops = true: fills waits for communication of tensor ranks that runs beside "
        "compute, but {}",
        parallel.tensor == 1
            ? "parallel.tensor = 1; set parallel.tensor above 1 or remove the key"
            : "overlap.tp_comm_overlap is false; set overlap.tp_comm_overlap = true");
  }
  if (parallel.context > 1) {
    throw_config_error(
        "overlap.split_ops = true: needs equal work on all ranks, but the ranks of "
        "parallel.context = {} compute different parts; set parallel.context = 1 or remove the key",
        parallel.context);
  }
}

/// NCCL refuses two ranks of one GPU, and streams of one process would wait for each other.
void check_shared_gpus(const RunConfig& config) {
  const OverlapConfig& overlap = config.overlap;
  const auto refuse = [&](const std::string& what) {
    throw_config_error("runtime.ranks_per_gpu = {}: ranks that share a GPU {}",
                       config.runtime.ranks_per_gpu, what);
  };
  const std::string copies = "communicate by copy engines only (NCCL takes one rank per GPU), but ";
  if (config.runtime.ranks_per_gpu == 1) {
    return;
  }
  if (overlap.comm_engine != "copy") {
    refuse(copies + fmt::format("overlap.comm_engine is {}; set overlap.comm_engine = \"copy\"",
                                quote(overlap.comm_engine)));
  }
  if (std::ranges::find(overlap.disable_passes, "comm_engine") != overlap.disable_passes.end()) {
    refuse(copies +
           "overlap.disable_passes turns off comm_engine, which chooses them; remove it there");
  }
  if (config.runtime.nccl_windows) {
    refuse(copies + "runtime.nccl_windows is true; set runtime.nccl_windows = false");
  }
  if (config.runtime.processes == "one") {
    refuse("are processes, but runtime.processes is \"one\"; set runtime.processes = \"auto\"");
  }
}

}  // namespace

void validate_overlap(const RunConfig& config) {
  const OverlapConfig& overlap = config.overlap;
  const ParallelConfig& parallel = config.parallel;
  Mistakes mistakes;
  mistakes.check([&] { check_permission(overlap); });
  Mistakes unread;
  check_is_read(config, unread);
  if (!mistakes.check([&] { unread.throw_if_any(); })) {
    mistakes.throw_if_any();  // what follows would say the same of keys that nothing reads
  }
  mistakes.check([&] { check_gathers(overlap, parallel, config.memory); });
  mistakes.check([&] { check_context(overlap, parallel); });
  mistakes.check([&] { check_experts(config); });
  mistakes.check([&] { check_pairs(config); });
  mistakes.check([&] { check_messages(overlap); });
  mistakes.check([&] { check_schedule_key(overlap); });
  mistakes.check([&] { check_wgrads(overlap); });
  mistakes.check([&] { check_split_ops(overlap, parallel); });
  mistakes.check([&] { check_shared_gpus(config); });
  mistakes.check([&] { validate_tensor_overlap(overlap, parallel); });
  mistakes.check([&] { comm_sms_by_kind(overlap); });
  for (const std::string& pass : overlap.disable_passes) {
    mistakes.require(!pass.empty(),
                     "overlap.disable_passes = {}: has an empty name; `braid passes` lists the "
                     "names",
                     to_text(ConfigValue(overlap.disable_passes), 60));
  }
  mistakes.throw_if_any();
}

}  // namespace braid
