#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "sim/cluster.h"

namespace braid {

/// `config` with moe.exchange = "auto" replaced by how the ranks of parallel.expert exchange rows
/// on hosts of `ranks_per_host` GPUs: in blocks if a group has GPUs of several hosts, otherwise
/// directly. Unchanged if ranks exchange none.
RunConfig with_exchange(RunConfig config, int64_t ranks_per_host);

/// The same for a cluster; unchanged for ranks on CPUs, which exchange rows over any links.
RunConfig with_exchange(RunConfig config, const Cluster& cluster);

/// `config` for the simulation of other software than braid: it sends the rows that there are, over
/// any network.
RunConfig with_exact_exchange(RunConfig config);

/// Whether ranks exchange rows in blocks. `cluster`: that of overlap.cost, by which "auto" is
/// decided; null: none, so that "auto" means directly.
bool exchanges_blocks(const RunConfig& config, const Cluster* cluster);

}  // namespace braid
