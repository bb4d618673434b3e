#include "sim/contention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.h"
#include "ops/expert_exchange.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

std::vector<int64_t> rates_by_sms(double measured_rate, int comm_sms) {
  std::vector<int64_t> rates;
  for (int sms = 0; sms <= comm_sms; ++sms) {
    rates.push_back(rate_parts(1.0 - (1.0 - measured_rate) * sms / comm_sms));
  }
  return rates;
}

/// The fraction of the time alone in which bytes flow: all but the time of a call with zero bytes.
double bytes_part(const CostModel& model, const CommSpec& spec, int64_t cost_ns) {
  CommSpec empty = spec;
  empty.bytes = 0;
  const double latency_ns = static_cast<double>(model.comm_ns(empty));
  return cost_ns == 0 ? 0.0 : std::clamp(1.0 - latency_ns / static_cast<double>(cost_ns), 0.0, 1.0);
}

/// Of the device that sends, while bytes flow.
double sms_while_moving(const CostModel& model, const CommSpec& spec) {
  const LinkLoad load = analytic_link_load(model.cluster(), spec);
  // A ring hands on over NVLink what comes from other nodes; who sends to all ranks directly, or is
  // alone on its node, moves what its network link carries in addition.
  const bool is_direct = load.intra_node == 0 || spec.kind == CommKind::kAllToAll;
  const double network =
      model.cluster().inter_node.bytes_per_s / model.cluster().intra_node.bytes_per_s;
  const double moved = load.intra_node + (is_direct ? load.inter_node * network : 0.0);
  return model.contention().comm_sms * std::min(1.0, moved);
}

/// GB/s: a block moves so many, up to what the link takes.
double row_exchange_rate(int sms) {
  constexpr double kOfBlock = 22.2;
  constexpr double kOfLink = 326;
  constexpr double kSharpness = 7;
  check(sms > 0, "an exchange of rows by {} multiprocessors", sms);
  return std::pow(std::pow(kOfBlock * sms, -kSharpness) + std::pow(kOfLink, -kSharpness),
                  -1 / kSharpness);
}

/// What is left beside so many SMs where a rate was measured beside kRowExchangeSms.
double beside_sms(double measured, int sms) {
  constexpr double kLeast = 0.1;
  return std::max(kLeast, 1 - (1 - measured) * sms / kRowExchangeSms);
}

int64_t parts(double share) {
  return std::llround(share * static_cast<double>(kFullRate));
}

}  // namespace

bool wants_all_sms(OpFamily family) {
  return family == OpFamily::kGemm || family == OpFamily::kAttention;
}

int64_t rate_parts(double rate) {
  check(rate > 0 && rate <= 1, "a rate of {} relative to running alone", rate);
  return std::max<int64_t>(1, parts(rate));
}

double slowdown_by_sms(const CostModel& model, const CommSpec& spec, int max_sms) {
  return max_sms == 0 || uses_copy_engine(spec.algorithm)
             ? 1.0
             : std::max(1.0, sms_while_moving(model, spec) / max_sms);
}

double row_exchange_slowdown(int sms) {
  return row_exchange_rate(kRowExchangeSms) / row_exchange_rate(sms);
}

CommDemand comm_demand(const CostModel& model, const CommSpec& spec, int64_t cost_ns,
                       double slowdown) {
  const double bytes = bytes_part(model, spec, cost_ns);
  const LinkLoad load = analytic_link_load(model.cluster(), spec);
  const double sms = std::ceil(sms_while_moving(model, spec) / slowdown * bytes);
  return {.sms = uses_copy_engine(spec.algorithm) || cost_ns == 0
                     ? 0
                     : std::max(1, static_cast<int>(sms)),
          .bytes_part = parts(bytes),
          .load = {parts(load.intra_node / slowdown), parts(load.inter_node / slowdown),
                   parts(load.above_units / slowdown)}};
}

Cost slowed(const CostModel& model, const CommChoice& choice, double slowdown) {
  const double bytes = bytes_part(model, choice.spec, choice.cost.ns);
  Cost cost = choice.cost;
  cost.ns = round_cost_ns(static_cast<double>(cost.ns) * (1.0 + bytes * (slowdown - 1.0)));
  return cost;
}

CommDemand core_demand(const CostModel& model, int64_t own_ns, int64_t cost_ns) {
  const double share =
      cost_ns == 0 ? 0.0 : static_cast<double>(own_ns) / static_cast<double>(cost_ns);
  const double sms = std::round(model.contention().comm_sms * std::min(1.0, 2.0 * share));
  return {.sms = static_cast<int>(sms), .bytes_part = 0, .load = {}};
}

int64_t fair_share(std::span<int64_t> loads) {
  int64_t rest = kFullRate;
  while (!loads.empty()) {
    const int64_t share = std::max<int64_t>(1, rest / static_cast<int64_t>(loads.size()));
    const auto small =
        std::partition(loads.begin(), loads.end(), [&](int64_t load) { return load > share; });
    if (small == loads.end()) {
      return share;
    }
    rest -= std::accumulate(small, loads.end(), int64_t{0});
    loads = loads.first(static_cast<size_t>(small - loads.begin()));
  }
  return kFullRate;
}

ContentionTable::ContentionTable(const Contention& contention, int exchange_sms)
    : product_rates_(rates_by_sms(contention.gemm_and_sm_comm.compute, contention.comm_sms)),
      memory_rates_(rates_by_sms(contention.memory_bound_and_sm_comm.compute, contention.comm_sms)),
      comm_beside_products_(rate_parts(contention.gemm_and_sm_comm.communication)),
      comm_beside_memory_(rate_parts(contention.memory_bound_and_sm_comm.communication)),
      products_beside_rows_(
          rate_parts(beside_sms(contention.compute_and_row_exchange.compute, exchange_sms))),
      memory_beside_rows_(compute_rate(OpFamily::kMemoryBound, exchange_sms)),
      rows_beside_compute_(
          rate_parts(std::min(1.0, contention.compute_and_row_exchange.communication /
                                       row_exchange_slowdown(exchange_sms)))),
      compute_beside_copies_(rate_parts(contention.compute_and_copy_engine.compute)),
      copies_beside_compute_(rate_parts(contention.compute_and_copy_engine.communication)),
      compute_slows_sends_(comm_beside_products_ < kFullRate || comm_beside_memory_ < kFullRate) {}

int64_t ContentionTable::compute_rate(OpFamily family, int sms) const {
  const std::vector<int64_t>& rates = wants_all_sms(family) ? product_rates_ : memory_rates_;
  return rates[std::min(static_cast<size_t>(sms), rates.size() - 1)];
}

int64_t ContentionTable::compute_beside_rows(OpFamily family) const {
  return wants_all_sms(family) ? products_beside_rows_ : memory_beside_rows_;
}

int64_t ContentionTable::comm_rate(OpFamily family) const {
  return wants_all_sms(family) ? comm_beside_products_ : comm_beside_memory_;
}

}  // namespace braid
