#pragma once

#include "sim/cost_model.h"

namespace braid {

/// The time of a collective between nodes alone, by an algorithm of NCCL: the least of its
/// protocols (Simple, LL128, LL). Latencies and the shape of each formula are those by which NCCL
/// itself chooses (src/graph/tuning.cc, 2.28); docs/profiles.md has the formulas, and which numbers
/// were fitted to published outputs of nccl-tests.
/// Requires: `comm_fault` accepts the spec, and its group is on several nodes.
double between_nodes_ns(const Cluster& cluster, const CommSpec& spec);

}  // namespace braid
