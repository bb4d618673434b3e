#include "sim/analytic_model.h"

#include <utility>

#include "base/errors.h"
#include "ops/op.h"
#include "sim/op_family.h"

namespace braid {
namespace {

class AnalyticModel final : public CostModel {
 public:
  explicit AnalyticModel(Cluster cluster) : cluster_(std::move(cluster)) {}

  Cost task_cost(const OpSpec& spec) const override {
    return analytic(analytic_task_ns(cluster_.device, spec));
  }
  Cost comm_cost(const CommSpec& spec) const override {
    return analytic(analytic_comm_ns(cluster_, spec));
  }
  Cost host_copy_cost(HostCopy /*direction*/, int64_t bytes) const override {
    return analytic(analytic_host_copy_ns(cluster_.device, bytes));
  }
  const Contention& contention() const override { return contention_; }
  const Cluster& cluster() const override { return cluster_; }
  int64_t launch_ns() const override { return cluster_.device.launch_ns; }
  int64_t step_overhead_ns() const override {
    return cluster_.device.step_overhead_ns + cluster_.device.stack.step_ns;
  }
  std::string description() const override {
    const std::string& stack = cluster_.device.stack.name;
    return fmt::format("{}, analytic: {}{}", cluster_.name, cluster_.device.description,
                       stack == StackSpec{}.name ? "" : ", stack " + stack);
  }

 private:
  static Cost analytic(double ns) {
    return {.ns = round_cost_ns(ns), .source = CostSource::kAnalytic};
  }

  Cluster cluster_;
  Contention contention_ = default_contention();
};

}  // namespace

std::unique_ptr<CostModel> make_analytic_model(Cluster cluster) {
  return std::make_unique<AnalyticModel>(std::move(cluster));
}

double analytic_host_copy_ns(const DeviceSpec& device, int64_t bytes) {
  check(bytes >= 0, "a copy of {} bytes", bytes);
  return static_cast<double>(device.host_latency_ns) +
         static_cast<double>(bytes) / device.host_bytes_per_s * 1e9;
}

// With back-to-back products of 345 us on 8 x H200, an all-gather or a reduce-scatter of NCCL of
// 128 MiB, 399 and 392 us alone, delayed the products by 171 and 161 us: 0.42 of its time.
// Memory-bound kernels share the bandwidth with it: a collective reads and writes 2 x 0.34 of 4.2
// TB/s. Copies by copy engines to a neighbour had no measurable cost. Exchanges of rows take 16 of
// 132 SMs; beside compute they lasted 1.5 times as long as alone on 4 H100 (bench/notes.md,
// "Training with expert ranks on 4 H100").
Contention default_contention() {
  return {.gemm_and_sm_comm = {.compute = 0.58, .communication = 1.0},
          .memory_bound_and_sm_comm = {.compute = 0.84, .communication = 1.0},
          .compute_and_copy_engine = {.compute = 1.0, .communication = 1.0},
          .compute_and_row_exchange = {.compute = 116.0 / 132, .communication = 1 / 1.5}};
}

}  // namespace braid
