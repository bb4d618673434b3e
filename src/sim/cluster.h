#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sim/device_spec.h"

namespace braid {

/// Devices of one kind in nodes of one size. Rank r runs on device r % devices_per_node of node
/// r / devices_per_node.
struct Cluster {
  std::string name;  ///< "h200x8"; with the size of nodes if it is not 8: "h200x8:4"
  DeviceSpec device;
  int num_devices = 1;
  int devices_per_node = 8;
  FabricSpec intra_node;  ///< between devices of a node
  FabricSpec inter_node;  ///< between nodes; every device has its own link. Its levels are those of
                          ///< DeviceSpec::node

  int num_nodes() const { return (num_devices + devices_per_node - 1) / devices_per_node; }
};

inline constexpr int kMaxClusterDevices = 1 << 20;

/// `num_devices` devices of that kind in nodes of `devices_per_node` (0: as DeviceSpec::node says;
/// one node for CPUs), with the links of such nodes.
Cluster make_cluster(const DeviceSpec& device, int num_devices, int devices_per_node = 0);

/// The smallest such cluster with a device for each rank: a part of a node, or whole nodes.
Cluster cluster_for_ranks(const DeviceSpec& device, int num_ranks, int devices_per_node = 0);
/// The same with the devices and nodes of another cluster.
Cluster cluster_for_ranks(const Cluster& like, int num_ranks);

/// Parses a name like "h200x8", "h100x1024", "h100x16:4" (in nodes of 4) or "cpu" (one device). The
/// device may be the path of a device file: "my.tomlx64"; "my.toml" alone is the cluster of
/// NodeSpec::nodes. A cluster of more than one node must consist of whole nodes. Throws ConfigError
/// with the known kinds, the limit or the nearest size, and as `load_device`.
Cluster parse_cluster(std::string_view name);

/// Whether the name of a cluster begins with the path of a device file.
bool names_device_file(std::string_view name);

/// The units around a device: its node (level 0), and its unit in each of DeviceSpec::node's
/// levels (1, 2, ...), by number.
size_t num_unit_levels(const Cluster& cluster);
int64_t unit_of(const Cluster& cluster, int rank, size_t level);

/// The distribution of a group's ranks over nodes.
struct GroupPlacement {
  int num_ranks = 1;
  int num_nodes = 1;
  int fewest_per_node = 1;  ///< ranks on the node that has the fewest: its links limit the traffic
                            ///< between nodes
  double oversubscription = 1;  ///< of the network between them (NetworkLevel)

  friend bool operator==(const GroupPlacement&, const GroupPlacement&) = default;
};

/// Throws InternalError for a rank without a device in the cluster, and for an empty group.
GroupPlacement place_group(const Cluster& cluster, std::span<const int> ranks);

/// The same for `num_ranks` neighbouring ranks, the first of which is the first of a node.
GroupPlacement place_neighbours(const Cluster& cluster, int num_ranks);

}  // namespace braid
