#include "plan/row_exchange_setup.h"

#include <string>
#include <utility>

#include "config/choices.h"

namespace braid {
namespace {

/// Of parallel.expert and parallel.expert_tensor: neighbouring ranks, from a multiple of their
/// number on.
int64_t exchanging_ranks(const ParallelConfig& parallel) {
  return parallel.expert * parallel.expert_tensor;
}

bool spans_hosts(const ParallelConfig& parallel, int64_t ranks_per_host) {
  return parallel.ranks > ranks_per_host && ranks_per_host % exchanging_ranks(parallel) != 0;
}

}  // namespace

RunConfig with_exchange(RunConfig config, int64_t ranks_per_host) {
  if (choice<ExchangeChoice>(config.moe.exchange) == ExchangeChoice::kAuto &&
      exchanging_ranks(config.parallel) > 1) {
    config.moe.exchange = std::string(choice_name(spans_hosts(config.parallel, ranks_per_host)
                                                      ? ExchangeChoice::kBlocks
                                                      : ExchangeChoice::kDirect));
  }
  return config;
}

RunConfig with_exchange(RunConfig config, const Cluster& cluster) {
  return cluster.device.is_host ? std::move(config)
                                : with_exchange(std::move(config), cluster.devices_per_node);
}

RunConfig with_exact_exchange(RunConfig config) {
  if (exchanging_ranks(config.parallel) > 1) {
    config.moe.exchange = choice_name(ExchangeChoice::kDirect);
  }
  return config;
}

bool exchanges_blocks(const RunConfig& config, const Cluster* cluster) {
  const std::string exchange =
      cluster == nullptr ? config.moe.exchange : with_exchange(config, *cluster).moe.exchange;
  return exchanging_ranks(config.parallel) > 1 &&
         choice<ExchangeChoice>(exchange) == ExchangeChoice::kBlocks;
}

}  // namespace braid
