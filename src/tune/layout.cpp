#include "tune/layout.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "base/errors.h"
#include "base/text.h"
#include "config/value.h"

namespace braid {
namespace {

const Field& field_of(std::string_view key) {
  const size_t dot = key.find('.');
  const Field* const field = find_field(key.substr(0, dot), key.substr(dot + 1));
  check(field != nullptr, "there is no key {}", key);
  return *field;
}

/// Keys and values of a layout, in the order of the run file.
std::vector<std::pair<std::string_view, ConfigValue>> keys_of(const Layout& layout) {
  const auto text = [](std::string_view name) { return ConfigValue(std::string(name)); };
  std::vector<std::pair<std::string_view, ConfigValue>> keys = {
      {"train.microbatch", layout.microbatch},
      {"parallel.ranks", layout.tensor * layout.context * layout.data * layout.pipeline},
      {"parallel.data", layout.data},
      {"parallel.tensor", layout.tensor},
      {"parallel.pipeline", layout.pipeline},
      {"parallel.context", layout.context},
      {"parallel.expert", layout.expert},
      {"parallel.virtual_stages", layout.virtual_stages},
      {"parallel.schedule", text(schedule_name(layout.schedule))},
      {"parallel.sequence_parallel", layout.sequence_parallel},
      {"parallel.account_for_embedding", layout.account_for_embedding},
      {"parallel.account_for_loss", layout.account_for_loss},
      {"parallel.context_method", text(choice_name(layout.context_method))},
      {"parallel.mamba_context", text(choice_name(layout.mamba_context))},
      {"parallel.shard", text(choice_name(layout.shard))},
      {"parallel.shard_replicas", layout.shard_replicas},
      {"parallel.shard_over_replicas", layout.shard_over_replicas},
      {"memory.recompute", text(choice_name(layout.recompute))},
      {"optimizer.moments_dtype", text(choice_name(layout.moments))},
      {"optimizer.main_grads_dtype", text(choice_name(layout.main_grads))}};
  if (layout.main_grads == DType::kBF16) {
    keys.emplace_back("parallel.grad_reduce_dtype", text(choice_name(DType::kBF16)));
  }
  return keys;
}

}  // namespace

Layout layout_of(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  return {.tensor = parallel.tensor,
          .context = parallel.context,
          .data = parallel.data,
          .pipeline = parallel.pipeline,
          .expert = parallel.expert,
          .virtual_stages = parallel.virtual_stages,
          .microbatch = config.train.microbatch,
          .shard_replicas = parallel.shard_replicas,
          .context_method = choice<ContextExchange>(parallel.context_method),
          .mamba_context = choice<MambaContext>(parallel.mamba_context),
          .schedule = schedule_kind(parallel.schedule),
          .shard = choice<ShardKind>(parallel.shard),
          .recompute = choice<RecomputeChoice>(config.memory.recompute),
          .sequence_parallel = parallel.sequence_parallel,
          .shard_over_replicas = parallel.shard_over_replicas,
          .account_for_embedding = parallel.account_for_embedding,
          .account_for_loss = parallel.account_for_loss,
          .moments = choice<DType>(config.optimizer.moments_dtype),
          .main_grads = choice<DType>(config.optimizer.main_grads_dtype)};
}

std::string layout_name(const Layout& layout) {
  std::string name;
  const auto add_size = [&](std::string_view letters, int64_t size) {
    name += size > 1 ? fmt::format("{}{} ", letters, size) : "";
  };
  const auto add_text = [&](std::string_view text, bool shown) {
    name += shown ? fmt::format("{} ", text) : "";
  };
  add_size("tp", layout.tensor);
  add_size("pp", layout.pipeline);
  add_size("v", layout.schedule == ScheduleKind::kInterleaved ? layout.virtual_stages : 1);
  add_text(schedule_name(layout.schedule),
           layout.schedule != ScheduleKind::kInterleaved &&
               layout.schedule != ScheduleKind::kOneForwardOneBackward);
  add_text(layout.account_for_embedding ? "ends=layers" : "loss=layer", layout.account_for_loss);
  add_size("cp", layout.context);
  add_text(choice_name(layout.context_method), layout.context > 1);
  add_text("states", layout.context > 1 && layout.mamba_context == MambaContext::kStates);
  add_size("dp", layout.data);
  add_size("ep", layout.expert);
  if (layout.shard != ShardKind::kNone) {
    name += fmt::format("shard={} ", choice_name(layout.shard));
    add_size("copies=", layout.shard_replicas);
    add_text("shared", layout.shard_over_replicas);
  }
  add_text("moments=bfloat16", layout.moments == DType::kBF16);
  add_text("grads=bfloat16", layout.main_grads == DType::kBF16);
  name += fmt::format("mb{}", layout.microbatch);
  return layout.recompute == RecomputeChoice::kNone
             ? name
             : name + fmt::format(" recompute={}", choice_name(layout.recompute));
}

std::vector<RecomputeChoice> recompute_policies(const Layout& layout, int64_t expert_tensor) {
  ParallelConfig parallel;
  parallel.tensor = layout.tensor;
  parallel.context = layout.context;
  parallel.context_method = choice_name(layout.context_method);
  parallel.expert = layout.expert;
  parallel.expert_tensor = expert_tensor;
  return recompute_policies(parallel);
}

RunConfig with_layout(RunConfig config, const Layout& layout) {
  for (const auto& [key, value] : keys_of(layout)) {
    set_value(field_of(key), config, value);
  }
  if (layout.schedule != ScheduleKind::kInterleaved) {
    config.parallel.microbatch_group_size = 0;
  }
  if (layout.context_method != ContextExchange::kAllToAllRing) {
    config.parallel.context_inner = 0;
  }
  if (layout.expert * config.parallel.expert_tensor == 1) {
    config.moe.capacity = 0;
    config.overlap.overlap_moe_expert_parallel_comm = false;
  }
  if (layout.recompute == RecomputeChoice::kNone) {
    config.memory.recompute_layers = 0;
  }
  return config;
}

std::vector<std::string> layout_overrides(const RunConfig& config, const Layout& layout) {
  const RunConfig laid_out = with_layout(config, layout);
  const RunConfig defaults;
  std::vector<std::string> overrides;
  for (const Field& field : config_fields()) {
    const std::optional<ConfigValue> value = value_of(field, laid_out);
    const std::string key = full_name(field);
    const bool searched = std::ranges::find(searched_keys(), key) != searched_keys().end();
    const bool shown = searched || key == "parallel.ranks" || key == "parallel.data";
    if (value != value_of(field, config) || (shown && value != value_of(field, defaults))) {
      const auto* const text = value ? std::get_if<std::string>(&*value) : nullptr;
      overrides.push_back(fmt::format("{}={}", key, text ? *text : to_text(*value)));
    }
  }
  return overrides;
}

const std::vector<std::string_view>& searched_keys() {
  static const std::vector<std::string_view> kKeys = {"train.microbatch",
                                                      "parallel.data",
                                                      "parallel.tensor",
                                                      "parallel.pipeline",
                                                      "parallel.context",
                                                      "parallel.expert",
                                                      "parallel.virtual_stages",
                                                      "parallel.schedule",
                                                      "parallel.sequence_parallel",
                                                      "parallel.microbatch_group_size",
                                                      "parallel.pipeline_layout",
                                                      "parallel.first_stage_layers",
                                                      "parallel.last_stage_layers",
                                                      "parallel.account_for_embedding",
                                                      "parallel.account_for_loss",
                                                      "parallel.context_method",
                                                      "parallel.context_inner",
                                                      "parallel.mamba_context",
                                                      "parallel.shard",
                                                      "parallel.shard_replicas",
                                                      "parallel.shard_over_replicas",
                                                      "memory.recompute"};
  return kKeys;
}

const std::vector<std::string_view>& varied_keys() {
  static const std::vector<std::string_view> kKeys = {"optimizer.moments_dtype",
                                                      "optimizer.main_grads_dtype"};
  return kKeys;
}

void check_varied_key(std::string_view key) {
  if (std::ranges::find(varied_keys(), key) == varied_keys().end()) {
    throw_config_error("--vary {}: the search does not choose this key{}; on request it chooses {}",
                       quote(key, 64), did_you_mean(key, varied_keys()), join(varied_keys(), ", "));
  }
}

void check_searched_key(std::string_view key) {
  if (std::ranges::find(searched_keys(), key) == searched_keys().end()) {
    throw_config_error("--fix {}: the search does not choose this key{}; it chooses {}",
                       quote(key, 64), did_you_mean(key, searched_keys()),
                       join(searched_keys(), ", "));
  }
}

}  // namespace braid
