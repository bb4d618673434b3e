#pragma once

#include <string>
#include <utility>

#include "sim/analytic_model.h"
#include "sim/cost_model.h"

namespace braid {

/// Costs that can be added up in the head: a task takes as many nanoseconds as its first operand
/// has elements, a communication `latency_ns` and as many more as its whole buffer has f32
/// elements, or `ns_per_elem` times as many.
class FixedCosts final : public CostModel {
 public:
  explicit FixedCosts(Cluster cluster, Contention contention = {})
      : cluster_(std::move(cluster)), contention_(contention) {}

  int64_t latency_ns = 0;
  int64_t ns_per_elem = 1;

  Cost task_cost(const OpSpec& spec) const override {
    return {.ns = spec.operands.at(0).shape.num_elems()};
  }
  Cost comm_cost(const CommSpec& spec) const override {
    return {.ns = spec.placement.num_ranks == 1 ? 0 : latency_ns + ns_per_elem * spec.bytes / 4};
  }
  Cost host_copy_cost(HostCopy /*direction*/, int64_t bytes) const override {
    return {.ns = bytes / 4};
  }
  const Contention& contention() const override { return contention_; }
  const Cluster& cluster() const override { return cluster_; }
  int64_t launch_ns() const override { return 0; }
  int64_t step_overhead_ns() const override { return 0; }
  std::string description() const override { return "fixed"; }

 private:
  Cluster cluster_;
  Contention contention_;
};

/// `num_devices` of H100 in nodes of `per_node`, whose clock is always that of products alone.
inline Cluster small_cluster(int num_devices, int per_node) {
  Cluster cluster = make_cluster(*find_device("h100"), num_devices);
  cluster.device.most_clock = 1;
  cluster.devices_per_node = per_node;
  return cluster;
}

}  // namespace braid
