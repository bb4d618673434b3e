#include "plan/communicators.h"

#include <set>
#include <utility>

#include "backends/registry/registry.h"

namespace braid {

std::vector<int64_t> count_message_pairs(const ScheduleOptions& schedule) {
  std::set<std::pair<int, int>> forward;  // a backward message goes the other way
  for (int stage = 0; stage + 1 < schedule.num_stages(); ++stage) {
    const int from = place_of(schedule, stage).rank;
    const int to = place_of(schedule, stage + 1).rank;
    if (from != to) {
      forward.emplace(from, to);
    }
  }
  std::vector<int64_t> counts(static_cast<size_t>(schedule.num_ranks), 0);
  for (const auto& [from, to] : forward) {
    counts[static_cast<size_t>(from)] += 2;
    counts[static_cast<size_t>(to)] += 2;
  }
  return counts;
}

int64_t communicator_bytes(const DeviceSpec& device, const Mesh& mesh,
                           std::span<const ParameterDomain> domains, bool has_tied_table,
                           int64_t num_message_pairs) {
  const Backend& backend = backend_named(device.backend);
  const MeshSizes& sizes = mesh.sizes();
  int64_t bytes = 0;
  const auto add = [&](int64_t num_ranks) {
    bytes += num_ranks > 1 ? backend.communicator_bytes({.num_ranks = num_ranks}) : 0;
  };
  bool has_world = false;
  for (const ParameterDomain& domain : domains) {
    const bool is_dense = domain.kind == DomainKind::kDense;
    const int64_t copies = is_dense ? sizes.gradient() : sizes.expert_data();
    const int64_t whole =
        (is_dense ? sizes.tensor : sizes.expert * sizes.expert_tensor) * sizes.pipeline;
    add(domain.shard == ShardKind::kNone ? copies : domain.num_shards);
    add(domain.shard == ShardKind::kNone ? 1 : copies / domain.num_shards);
    if (!domain.splits_shards()) {
      add(whole * domain.num_shards);
    } else if (!std::exchange(has_world, true)) {
      add(sizes.num_ranks());
    }
  }
  add(int64_t{sizes.gradient()} * sizes.pipeline);  // the loss
  add(has_tied_table && sizes.pipeline > 1 ? 2 : 1);
  return bytes +
         num_message_pairs * backend.communicator_bytes({.num_ranks = 2, .is_for_messages = true});
}

}  // namespace braid
