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

/// Choices of `chosen` of `all` things.
double choices(int64_t all, int64_t chosen) {
  double count = chosen < 0 || chosen > all ? 0 : 1;
  for (int64_t i = 0; i < chosen && count > 0; ++i) {
    count *= static_cast<double>(all - i) / static_cast<double>(i + 1);
  }
  return count;
}

/// The share of them that have exactly `there` of `some` of the things.
double share_with(int64_t there, int64_t some, int64_t all, int64_t chosen) {
  return choices(some, there) * choices(all - some, chosen - there) / choices(all, chosen);
}

/// All hosts have whole ranks, and experts are not dropped before they are sent.
void check_hosts(const ModelSpec& spec, const ExpertShard& experts) {
  if (experts.size % experts.hosts != 0) {
    throw_config_error(
        "moe.exchange_hosts = {}: must divide parallel.expert = {}; the nearest that does is {}",
        experts.hosts, experts.size, nearest_divisor(experts.size, experts.hosts));
  }
  if (experts.over_hosts() && spec.router.expert_capacity > 0) {
    throw_config_error(
        "moe.expert_capacity = {}: rows that experts drop are not known where one copy of a token "
        "goes to a host (moe.exchange = \"hosts\"); set moe.exchange = \"blocks\"",
        spec.router.expert_capacity);
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

HostRoom host_room(const ModelSpec& spec, const ExpertShard& experts, int64_t tokens) {
  const int64_t per_token = spec.experts_per_token;
  const auto of = [&](double equal, int64_t all) {
    return experts.capacity == 0
               ? all
               : std::clamp<int64_t>(std::llround(std::ceil(equal * experts.capacity)), 1, all);
  };
  const double of_host = share_of_host(spec, experts.hosts) * static_cast<double>(tokens);
  HostRoom room;
  room.block_rows = of(of_host, tokens);
  room.expected_slots =
      std::clamp<int64_t>(std::llround(of_host * static_cast<double>(experts.hosts)), 1,
                          experts.hosts * room.block_rows);
  room.rows = of(static_cast<double>(tokens * per_token),
                 experts.hosts * tokens * std::min(per_token, spec.experts / experts.hosts));
  room.expected_rows = std::min(tokens * per_token, room.rows);
  return room;
}

double share_of_host(const ModelSpec& spec, int64_t hosts) {
  const int64_t per_token = spec.experts_per_token;
  const int64_t groups = spec.router.groups;
  const int64_t kept = spec.router.kept_groups;
  const int64_t of_group = spec.experts / groups;
  const int64_t of_host = spec.experts / hosts;
  const bool is_aligned = of_host % of_group == 0 || of_group % of_host == 0;
  if (kept == groups || !is_aligned) {
    return 1 - share_with(0, of_host, spec.experts, per_token);
  }
  const int64_t groups_of_host = std::max<int64_t>(1, of_host / of_group);
  double without = 0;
  for (int64_t there = 0; there <= std::min(groups_of_host, kept); ++there) {
    const int64_t reached = there * std::min(of_group, of_host);
    without += share_with(there, groups_of_host, groups, kept) *
               share_with(0, reached, kept * of_group, per_token);
  }
  return 1 - without;
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
  check_hosts(spec, experts);
}

}  // namespace braid
