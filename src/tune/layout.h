#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/choices.h"
#include "config/run_config.h"
#include "parallel/parallel_options.h"
#include "parallel/schedule.h"
#include "plan/recompute_policies.h"

namespace braid {

/// One layout of a run over its ranks: the keys that a search chooses, named as in the run file.
struct Layout {
  int64_t tensor = 1;
  int64_t context = 1;
  int64_t data = 1;
  int64_t pipeline = 1;
  int64_t expert = 1;
  int64_t virtual_stages = 1;
  int64_t microbatch = 1;
  int64_t shard_replicas = 1;
  ContextExchange context_method = ContextExchange::kRing;
  MambaContext mamba_context = MambaContext::kHeads;
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  ShardKind shard = ShardKind::kNone;
  RecomputeChoice recompute = RecomputeChoice::kNone;
  bool sequence_parallel = false;
  bool shard_over_replicas = false;
  bool account_for_embedding = false;
  bool account_for_loss = false;
  DType moments = DType::kF32;     ///< in which the optimizer keeps them
  DType main_grads = DType::kF32;  ///< in which gradients are added up and, in bf16, reduced

  friend bool operator==(const Layout&, const Layout&) = default;
};

/// The layout of a resolved configuration.
Layout layout_of(const RunConfig& config);

/// "tp4 pp4 v5 cp2 dp2 shard=optimizer mb1 recompute=norms". Dimensions of size 1 and defaults are
/// left out, except the microbatch.
std::string layout_name(const Layout& layout);

/// Those of a layout's ranks (plan/recompute_policies.h); `expert_tensor` as in [parallel].
std::vector<RecomputeChoice> recompute_policies(const Layout& layout, int64_t expert_tensor);

/// Returns `config` with this layout; parallel.ranks is the product of the dimensions. The result
/// is resolved if `config` is. Keys that the layout does not permit get their defaults, such as
/// moe.capacity without ranks that exchange rows.
RunConfig with_layout(RunConfig config, const Layout& layout);

/// The keys that `with_layout` sets, as values of `--set`: "parallel.tensor=4". Defaults are left
/// out, unless `config` has another value.
std::vector<std::string> layout_overrides(const RunConfig& config, const Layout& layout);

/// Keys that a search chooses unless the user fixes them: "parallel.tensor", ...
const std::vector<std::string_view>& searched_keys();

/// Keys that a search chooses only if asked, because they change the numbers of the training:
/// "optimizer.moments_dtype", "optimizer.main_grads_dtype".
const std::vector<std::string_view>& varied_keys();

/// Throws ConfigError, with the nearest name and the searched keys, if `key` is not a searched key.
void check_searched_key(std::string_view key);

/// The same of `varied_keys`.
void check_varied_key(std::string_view key);

}  // namespace braid
