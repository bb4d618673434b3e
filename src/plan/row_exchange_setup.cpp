#include "plan/row_exchange_setup.h"

#include <string>
#include <utility>

#include "base/errors.h"
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

/// Whether each group has all GPUs of several hosts, and these hold whole experts.
bool has_whole_hosts(const ParallelConfig& parallel, int64_t ranks_per_host) {
  const int64_t ranks = exchanging_ranks(parallel);
  return ranks > ranks_per_host && ranks % ranks_per_host == 0 &&
         parallel.expert % (ranks / ranks_per_host) == 0;
}

ExchangeChoice best_exchange(const RunConfig& config, int64_t ranks_per_host) {
  if (!spans_hosts(config.parallel, ranks_per_host)) {
    return ExchangeChoice::kDirect;
  }
  return has_whole_hosts(config.parallel, ranks_per_host) && ranks_per_host > 1 &&
                 config.moe.expert_capacity == 0
             ? ExchangeChoice::kHosts
             : ExchangeChoice::kBlocks;
}

}  // namespace

RunConfig with_exchange(RunConfig config, int64_t ranks_per_host) {
  const int64_t ranks = exchanging_ranks(config.parallel);
  if (ranks == 1) {
    return config;
  }
  if (choice<ExchangeChoice>(config.moe.exchange) == ExchangeChoice::kAuto) {
    config.moe.exchange = std::string(choice_name(best_exchange(config, ranks_per_host)));
  }
  if (choice<ExchangeChoice>(config.moe.exchange) == ExchangeChoice::kHosts &&
      config.moe.exchange_hosts == 0) {
    if (!has_whole_hosts(config.parallel, ranks_per_host)) {
      throw_config_error(
          "moe.exchange = \"hosts\": the {} ranks of a group (parallel.expert * "
          "parallel.expert_tensor) are not all GPUs of several hosts of {}; set moe.exchange = "
          "\"auto\"",
          ranks, ranks_per_host);
    }
    config.moe.exchange_hosts = ranks / ranks_per_host;
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
    config.moe.exchange_hosts = 0;
  }
  return config;
}

ExchangeSetup exchange_setup(const RunConfig& config, const Cluster* cluster) {
  if (exchanging_ranks(config.parallel) == 1) {
    return {};
  }
  const MoeConfig moe = cluster == nullptr ? config.moe : with_exchange(config, *cluster).moe;
  switch (choice<ExchangeChoice>(moe.exchange)) {
    case ExchangeChoice::kBlocks:
      return {.by_blocks = true};
    case ExchangeChoice::kHosts:
      if (moe.exchange_hosts == 0) {
        throw_config_error(
            "moe.exchange = \"hosts\": moe.exchange_hosts is 0, and nothing says how many hosts "
            "there are; set moe.exchange_hosts");
      }
      return {.hosts = moe.exchange_hosts};
    case ExchangeChoice::kAuto:
    case ExchangeChoice::kDirect:
      break;
  }
  return {};
}

}  // namespace braid
