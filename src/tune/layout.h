#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/choices.h"
#include "config/run_config.h"
#include "parallel/parallel_options.h"
#include "parallel/schedule.h"

namespace braid {

/// One way to lay a run out over its ranks: the keys that a search chooses. Names are those of the
/// run file.
struct Layout {
  int64_t tensor = 1;
  int64_t context = 1;
  int64_t data = 1;
  int64_t pipeline = 1;
  int64_t virtual_stages = 1;
  int64_t microbatch = 1;
  int64_t shard_replicas = 1;
  ContextExchange context_method = ContextExchange::kRing;
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  ShardKind shard = ShardKind::kNone;
  RecomputeChoice recompute = RecomputeChoice::kNone;
  bool sequence_parallel = false;
  bool account_for_embedding = false;
  bool account_for_loss = false;

  friend bool operator==(const Layout&, const Layout&) = default;
};

/// "tp4 pp4 v5 cp2 dp2 shard=optimizer mb1 recompute=norms": dimensions of size 1 and defaults left
/// out, but for the microbatch.
std::string layout_name(const Layout& layout);

/// `config` laid out so; parallel.ranks is the product of the dimensions. Resolved if `config` is.
RunConfig with_layout(RunConfig config, const Layout& layout);

/// What `with_layout` sets, as values of `--set`: "parallel.tensor=4". Defaults are left out, but
/// for those that `config` says otherwise.
std::vector<std::string> layout_overrides(const RunConfig& config, const Layout& layout);

/// Keys that a search chooses unless they are fixed: "parallel.tensor", ...
const std::vector<std::string_view>& searched_keys();

/// Throws ConfigError with the nearest name and the searched keys for a key that is not one of
/// them.
void check_searched_key(std::string_view key);

}  // namespace braid
