#pragma once

#include "sim/cost_model.h"

/// What a communication moves, and how often: shared by the prices inside a node and between nodes.
namespace braid {

/// Steps from rank to rank: all, and those between nodes.
struct CommSteps {
  double all = 0;
  double between_nodes = 0;
};

/// Of a ring; of a message or an all-to-all, which goes to all peers at once.
CommSteps ring_steps(CommKind kind, const GroupPlacement& place);

/// Bytes that each rank sends, per byte of the buffer.
double sent_part(CommKind kind, int num_ranks);

/// Whether one rank sends to one other, or a rank's buffer goes to or comes from all.
bool is_message(CommKind kind);

/// The rate of a device's link that long messages reach, in bytes per ns: inside a node, and
/// between nodes.
double inside_rate(const Cluster& cluster, const CommSpec& spec);
double outside_rate(const Cluster& cluster, const GroupPlacement& place);

/// The rate at which switches inside a node sum a buffer for all (NVLink SHARP), in bytes of the
/// buffer per ns; 0 if they cannot.
double multicast_rate(const Cluster& cluster);

/// Bytes over bandwidth of a ring, or of messages. Traffic between nodes uses the links of all
/// ranks of a node together, and is no faster than traffic inside; in an all-to-all and a send each
/// rank uses its own link.
double bytes_ns(const Cluster& cluster, const CommSpec& spec);

/// The least time of an NCCL call with long messages in a step: its kernels start, and the ranks
/// synchronize.
double call_ns(CommKind kind);

}  // namespace braid
