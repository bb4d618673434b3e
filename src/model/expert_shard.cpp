#include "model/expert_shard.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/errors.h"
#include "base/nearest_divisor.h"
#include "model/blocks/registry.h"

namespace braid {
namespace {

void require_divisor(std::string_view key, int64_t ranks, std::string_view size_key, int64_t size) {
  if (size % ranks != 0) {
    throw_config_error("parallel.{} = {}: must divide model.{} = {}; the nearest that does is {}",
                       key, ranks, size_key, size, nearest_divisor(size, ranks));
  }
}

}  // namespace

int64_t rows_of_expert(const ModelSpec& spec, int64_t tokens) {
  if (spec.router.expert_capacity == 0) {
    return tokens;
  }
  const double equal =
      static_cast<double>(tokens * spec.experts_per_token) / static_cast<double>(spec.experts);
  const double rows = std::ceil(equal * spec.router.expert_capacity);
  return rows >= static_cast<double>(tokens) ? tokens : std::max<int64_t>(1, std::llround(rows));
}

int64_t expert_room(const ModelSpec& spec, const ExpertShard& experts, int64_t tokens) {
  const int64_t local = spec.experts / experts.size;
  const int64_t all =
      experts.num_ranks() * std::min(tokens * std::min(spec.experts_per_token, local),
                                     local * rows_of_expert(spec, tokens));
  if (experts.capacity == 0) {
    return all;
  }
  const auto equal =
      static_cast<double>(tokens * spec.experts_per_token) * static_cast<double>(experts.tensor);
  const auto room = std::clamp<int64_t>(std::llround(std::ceil(equal * experts.capacity)), 1, all);
  const int64_t unit = experts.blocks ? experts.num_ranks() : 1;
  return (room + unit - 1) / unit * unit;
}

int64_t rows_of_block(const ModelSpec& spec, const ExpertShard& experts, int64_t tokens) {
  return experts.blocks ? expert_room(spec, experts, tokens) / experts.num_ranks() : 0;
}

double full_capacity(const ModelSpec& spec, const ExpertShard& experts) {
  const int64_t most_of_token = std::min(spec.experts_per_token, spec.experts / experts.size);
  return static_cast<double>(experts.size * most_of_token) /
         static_cast<double>(spec.experts_per_token);
}

bool may_overflow(const ModelSpec& spec, const ExpertShard& experts) {
  return experts.is_split() && experts.capacity > 0 &&
         experts.capacity < full_capacity(spec, experts);
}

void check_expert_parallel(const ModelSpec& spec, const ExpertShard& experts) {
  if (!experts.is_split()) {
    return;
  }
  if (!spec.layers.has(kMoeBlock)) {
    throw_config_error("parallel.expert{} = {}: the model has no experts; set it to 1",
                       experts.size > 1 ? "" : "_tensor",
                       experts.size > 1 ? experts.size : experts.tensor);
  }
  require_divisor("expert", experts.size, "experts", spec.experts);
  require_divisor("expert_tensor", experts.tensor, "expert_ffn", spec.expert_ffn);
}

}  // namespace braid
