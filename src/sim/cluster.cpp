#include "sim/cluster.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "sim/device_file.h"

namespace braid {
namespace {

constexpr std::string_view kFileEnd = ".toml";

std::string examples() {
  return fmt::format(
      "a cluster is a device ({}, or the path of a device file that ends in .toml) and a number, "
      "such as h200x8 or h100x1024; for nodes of a size other than 8 write h100x16:4",
      known_device_names());
}

int usual_per_node(const DeviceSpec& device, int num_devices) {
  // Ranks on a CPU are threads of one process.
  return device.is_host ? num_devices : static_cast<int>(device.node.devices);
}

std::string name_of(const DeviceSpec& device, int num_devices, int devices_per_node) {
  if (num_devices == 1) {
    return device.kind;
  }
  const bool is_usual = devices_per_node == usual_per_node(device, num_devices);
  return fmt::format("{}x{}{}", device.kind, num_devices,
                     is_usual ? "" : fmt::format(":{}", devices_per_node));
}

const DeviceSpec& device_of(std::string_view name, std::string_view kind) {
  if (const DeviceSpec* device = find_device(kind)) {
    return *device;
  }
  std::vector<std::string_view> kinds;
  for (const DeviceSpec& device : known_devices()) {
    kinds.push_back(device.kind);
  }
  throw_config_error("cluster {}: unknown device {}{}; {}", quote(name, 64), quote(kind, 64),
                     did_you_mean(kind, kinds), examples());
}

int count_of(std::string_view name, std::string_view digits) {
  int count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (error != std::errc() || end != digits.data() + digits.size() || count < 1 ||
      count > kMaxClusterDevices) {
    throw_config_error("cluster {}: {} is not a number of devices from 1 to {}; {}",
                       quote(name, 64), quote(digits, 64), kMaxClusterDevices, examples());
  }
  return count;
}

void check_whole_nodes(std::string_view name, const Cluster& cluster) {
  const int size = cluster.devices_per_node;
  const int count = cluster.num_devices;
  if (count > size && count % size != 0) {
    throw_config_error(
        "cluster {}: {} devices do not fill whole nodes of {}; the nearest are {} and {}",
        quote(name, 64), count, size, name_of(cluster.device, count / size * size, size),
        name_of(cluster.device, (count / size + 1) * size, size));
  }
}

struct ClusterCounts {
  int devices = 1;
  int per_node = 0;  // 0: not given
};

ClusterCounts counts_of(std::string_view name, std::string_view text) {
  const size_t colon = text.find(':');
  ClusterCounts counts{.devices = count_of(name, text.substr(0, colon))};
  if (colon != std::string_view::npos) {
    counts.per_node = count_of(name, text.substr(colon + 1));
  }
  return counts;
}

/// Position of the "x" behind the device; npos if there is none.
size_t find_separator(std::string_view name) {
  if (find_device(name) != nullptr) {
    return std::string_view::npos;  // "rtx4090"
  }
  const size_t at = name.rfind('x');
  return at == 0 ? std::string_view::npos : at;
}

/// The number of devices that a file says, unless the name has one.
ClusterCounts counts_of_file(const DeviceSpec& device) {
  return {.devices = device.node.nodes == 0
                         ? 1
                         : static_cast<int>(std::min<int64_t>(
                               kMaxClusterDevices, device.node.nodes * device.node.devices))};
}

Cluster parse_file_cluster(std::string_view name) {
  const size_t end = name.find(kFileEnd) + kFileEnd.size();
  const DeviceSpec device = load_device(std::string(name.substr(0, end)));
  const std::string_view rest = name.substr(end);
  if (!rest.empty() && rest.front() != 'x') {
    throw_config_error("cluster {}: behind the file stands {}; {}", quote(name, 64),
                       quote(rest, 64), examples());
  }
  const ClusterCounts counts =
      rest.empty() ? counts_of_file(device) : counts_of(name, rest.substr(1));
  Cluster cluster = make_cluster(device, counts.devices, counts.per_node);
  check_whole_nodes(name, cluster);
  return cluster;
}

/// Of the largest units that ranks of the group lie outside of.
double oversubscription_between(const Cluster& cluster, std::span<const int> ranks) {
  for (size_t level = num_unit_levels(cluster) - 1; level > 0; --level) {
    const int64_t unit = unit_of(cluster, ranks.front(), level);
    if (std::any_of(ranks.begin(), ranks.end(),
                    [&](int rank) { return unit_of(cluster, rank, level) != unit; })) {
      return cluster.device.node.levels[level - 1].oversubscription;
    }
  }
  return 1;
}

}  // namespace

Cluster make_cluster(const DeviceSpec& device, int num_devices, int devices_per_node) {
  check(num_devices >= 1, "a cluster of {} devices", num_devices);
  const int usual = usual_per_node(device, num_devices);
  const bool is_usual = devices_per_node == 0 ||
                        std::min(devices_per_node, num_devices) == std::min(usual, num_devices);
  Cluster cluster;
  cluster.device = device;
  cluster.num_devices = num_devices;
  cluster.devices_per_node = is_usual ? usual : std::min(devices_per_node, num_devices);
  cluster.name = name_of(device, num_devices, cluster.devices_per_node);
  cluster.intra_node = device.node.inside;
  cluster.inter_node = device.node.network;
  return cluster;
}

Cluster cluster_for_ranks(const DeviceSpec& device, int num_ranks, int devices_per_node) {
  const int per_node = devices_per_node == 0 ? usual_per_node(device, num_ranks) : devices_per_node;
  const int in_whole_nodes = (num_ranks + per_node - 1) / per_node * per_node;
  return make_cluster(device, num_ranks <= per_node ? num_ranks : in_whole_nodes, per_node);
}

Cluster cluster_for_ranks(const Cluster& like, int num_ranks) {
  const bool is_usual = like.devices_per_node == usual_per_node(like.device, like.num_devices);
  return cluster_for_ranks(like.device, num_ranks, is_usual ? 0 : like.devices_per_node);
}

bool names_device_file(std::string_view name) {
  return name.find(kFileEnd) != std::string_view::npos;
}

Cluster parse_cluster(std::string_view name) {
  if (names_device_file(name)) {
    return parse_file_cluster(name);
  }
  const size_t separator = find_separator(name);
  const DeviceSpec& device = device_of(name, name.substr(0, separator));
  const ClusterCounts counts = separator == std::string_view::npos
                                   ? ClusterCounts{}
                                   : counts_of(name, name.substr(separator + 1));
  Cluster cluster = make_cluster(device, counts.devices, counts.per_node);
  check_whole_nodes(name, cluster);
  return cluster;
}

size_t num_unit_levels(const Cluster& cluster) {
  return 1 + cluster.device.node.levels.size();
}

int64_t unit_of(const Cluster& cluster, int rank, size_t level) {
  const int64_t node = rank / cluster.devices_per_node;
  return level == 0 ? node : node / cluster.device.node.levels[level - 1].nodes;
}

GroupPlacement place_group(const Cluster& cluster, std::span<const int> ranks) {
  check(!ranks.empty(), "a group without ranks has no place");
  std::map<int, int> ranks_of_node;
  for (const int rank : ranks) {
    check(rank >= 0 && rank < cluster.num_devices, "rank {} has no device in {}", rank,
          cluster.name);
    ++ranks_of_node[rank / cluster.devices_per_node];
  }
  int fewest = static_cast<int>(ranks.size());
  for (const auto& [node, count] : ranks_of_node) {
    fewest = std::min(fewest, count);
  }
  return {.num_ranks = static_cast<int>(ranks.size()),
          .num_nodes = static_cast<int>(ranks_of_node.size()),
          .fewest_per_node = fewest,
          .oversubscription = oversubscription_between(cluster, ranks)};
}

GroupPlacement place_neighbours(const Cluster& cluster, int num_ranks) {
  std::vector<int> ranks(static_cast<size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return place_group(cluster, ranks);
}

}  // namespace braid
