#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "sim/cluster.h"

namespace braid {

/// `config` with moe.exchange = "auto" replaced by how the ranks of parallel.expert exchange rows
/// on hosts of `ranks_per_host` GPUs: directly if a group has GPUs of one host; in two stages
/// ("hosts") if it has all GPUs of several; otherwise, or with one GPU on each host, or with a
/// capacity of experts, in blocks. With "hosts", moe.exchange_hosts = 0 is replaced by the number
/// of hosts. Unchanged if ranks exchange none. Throws ConfigError if "hosts" is asked for and a
/// group has not all GPUs of several hosts.
RunConfig with_exchange(RunConfig config, int64_t ranks_per_host);

/// The same for a cluster; unchanged for ranks on CPUs, which exchange rows over any links.
RunConfig with_exchange(RunConfig config, const Cluster& cluster);

/// `config` for the simulation of other software than braid: it sends the rows that there are, over
/// any network.
RunConfig with_exact_exchange(RunConfig config);

/// How ranks exchange rows.
struct ExchangeSetup {
  bool by_blocks = false;
  int64_t hosts = 1;  ///< ExpertShard::hosts
};

/// `cluster`: that of overlap.cost, by which "auto" is decided; null: none, so that "auto" means
/// directly. Throws ConfigError if the number of hosts is needed and not known.
ExchangeSetup exchange_setup(const RunConfig& config, const Cluster* cluster);

}  // namespace braid
