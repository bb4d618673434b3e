#include "memory/heaviest_clique.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "memory/greedy.h"
#include "memory/sweep.h"

namespace braid {
namespace {

constexpr int64_t kStepsPerEdge = 10;  // to add it
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 4;

/// The largest flow from node 0 to node 1.
class Flow {
 public:
  explicit Flow(size_t num_nodes, int64_t max_steps)
      : first_(num_nodes + 1), level_(num_nodes), next_(num_nodes), steps_left_(max_steps) {}

  /// Returns the number of the edge.
  size_t add_edge(uint32_t from, uint32_t to, int64_t capacity) {
    edges_.push_back({from, to, capacity, 0});
    return edges_.size() - 1;
  }

  /// A flow to begin with: call for all edges of a path.
  void add_flow(size_t edge, int64_t bytes) { edges_[edge].flow += bytes; }

  /// False if it takes too many steps.
  bool maximize() {
    link_edges();
    while (find_levels()) {
      if (level_[1] > kMaxDepth) {
        return false;
      }
      std::copy(first_.begin(), first_.end() - 1, next_.begin());
      push(0, kUnlimited);
      if (steps_left_ <= 0) {
        return false;
      }
    }
    return true;
  }

  /// After `maximize`: whether more could flow from node 0 to this one.
  bool is_reachable(uint32_t node) const { return level_[node] != kNoLevel; }

 private:
  static constexpr uint32_t kNoLevel = UINT32_MAX;
  static constexpr uint32_t kMaxDepth = 4096;  // of the recursion

  struct Edge {
    uint32_t from;
    uint32_t to;
    int64_t capacity;
    int64_t flow;
  };
  /// One direction of an edge.
  struct Arc {
    uint32_t to;
    uint32_t reverse;  // index of the other direction
    int64_t capacity;
  };

  /// Puts the arcs of each node next to each other, in the order of the edges.
  void link_edges() {
    for (const Edge& edge : edges_) {
      ++first_[edge.from + 1];
      ++first_[edge.to + 1];
    }
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    arcs_.resize(first_.back());
    std::copy(first_.begin(), first_.end() - 1, next_.begin());
    for (const Edge& edge : edges_) {
      const uint32_t there = next_[edge.from]++;
      const uint32_t back = next_[edge.to]++;
      arcs_[there] = {edge.to, back, edge.capacity - edge.flow};
      arcs_[back] = {edge.from, there, edge.flow};
    }
  }

  bool find_levels() {
    std::fill(level_.begin(), level_.end(), kNoLevel);
    level_[0] = 0;
    queue_.assign(1, 0);
    for (size_t front = 0; front < queue_.size(); ++front) {
      const uint32_t node = queue_[front];
      for (uint32_t index = first_[node]; index < first_[node + 1]; ++index) {
        const Arc& arc = arcs_[index];
        if (arc.capacity > 0 && level_[arc.to] == kNoLevel) {
          level_[arc.to] = level_[node] + 1;
          queue_.push_back(arc.to);
        }
      }
      steps_left_ -= first_[node + 1] - first_[node];
    }
    return level_[1] != kNoLevel;
  }

  int64_t push(uint32_t node, int64_t limit) {
    if (node == 1) {
      return limit;
    }
    int64_t pushed = 0;
    for (uint32_t& next = next_[node]; next < first_[node + 1]; ++next) {
      Arc& arc = arcs_[next];
      --steps_left_;
      if (arc.capacity == 0 || level_[arc.to] != level_[node] + 1) {
        continue;
      }
      const int64_t bytes = push(arc.to, std::min(limit - pushed, arc.capacity));
      arc.capacity -= bytes;
      arcs_[arc.reverse].capacity += bytes;
      pushed += bytes;
      if (pushed == limit || steps_left_ <= 0) {
        break;
      }
    }
    return pushed;
  }

  std::vector<Edge> edges_;
  std::vector<Arc> arcs_;        // node by node
  std::vector<uint32_t> first_;  // by node, and one more entry: index of its first arc
  std::vector<uint32_t> level_;
  std::vector<uint32_t> next_;
  std::vector<uint32_t> queue_;
  int64_t steps_left_;
};

/// Nodes of the flow: source, sink, two per buffer (its bytes once it is free, and its bytes when
/// it starts), and the positions of each queue at which buffers start. Bytes flow from a buffer to
/// those that reuse them.
class Reuse {
 public:
  Reuse(const LiveRanges& ranges, std::span<const uint32_t> buffers,
        std::span<const int64_t> sizes_bytes)
      : ranges_(ranges),
        buffers_(buffers),
        sizes_bytes_(sizes_bytes),
        index_of_(ranges.num_buffers()),
        starts_(ranges.num_queues()),
        chains_(ranges.num_queues()),
        edges_(buffers.size()),
        to_queues_(buffers.size() * ranges.num_queues()) {
    uint32_t num_indexed = 0;
    for (const uint32_t buffer : buffers) {
      index_of_[buffer] = num_indexed++;
      starts_[ranges.queue(buffer)].push_back(ranges.start(buffer));
    }
    num_nodes_ = 2 + 2 * buffers.size();
    for (std::vector<uint32_t>& starts : starts_) {
      std::sort(starts.begin(), starts.end());
      starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
      first_node_.push_back(static_cast<uint32_t>(num_nodes_));
      num_nodes_ += starts.size();
    }
  }

  size_t num_nodes() const { return num_nodes_; }
  static uint32_t node_when_free(size_t index) { return static_cast<uint32_t>(2 + 2 * index); }
  static uint32_t node_at_start(size_t index) { return static_cast<uint32_t>(3 + 2 * index); }

  void add_edges(Flow& flow) {
    for (size_t queue = 0; queue < starts_.size(); ++queue) {
      for (uint32_t i = 1; i < starts_[queue].size(); ++i) {
        chains_[queue].push_back(
            flow.add_edge(first_node_[queue] + i - 1, first_node_[queue] + i, kUnlimited));
      }
    }
    for (const uint32_t buffer : buffers_) {
      add_buffer(flow, buffer);
    }
  }

  /// Each buffer takes, when it starts, the bytes that became free last: those that have been free
  /// for longer are so in more queues. This leaves little to the search for the largest flow, which
  /// takes a round for each length of a path, and paths along queues are long.
  void add_first_flow(Flow& flow) const {
    const SweepInput input(ranges_, sizes_bytes_);
    std::vector<size_t> num_released(starts_.size(), 0);
    std::vector<std::vector<uint32_t>> free(starts_.size());  // by queue: buffers with bytes left
    std::vector<int64_t> left_bytes(sizes_bytes_.begin(), sizes_bytes_.end());
    QueueFlows along = no_flows();
    for (const uint32_t buffer : buffers_) {
      const size_t queue = ranges_.queue(buffer);
      for (size_t& next = num_released[queue];
           next < input.releases[queue].size() &&
           input.releases[queue][next].end <= ranges_.start(buffer);
           ++next) {
        free[queue].push_back(input.releases[queue][next].buffer);
      }
      for (int64_t missing = sizes_bytes_[buffer]; missing > 0 && !free[queue].empty();) {
        const uint32_t from = free[queue].back();
        const int64_t bytes = std::min(missing, left_bytes[from]);
        add_reuse(flow, from, buffer, bytes, along[queue]);
        missing -= bytes;
        left_bytes[from] -= bytes;
        if (left_bytes[from] == 0) {
          free[queue].pop_back();
        }
      }
    }
    add_flows(flow, along);
  }

 private:
  /// By queue and position: by how much the flow along the queue grows there.
  using QueueFlows = std::vector<std::vector<int64_t>>;

  struct Edges {
    size_t from_source = 0;
    size_t from_queue = 0;
    size_t to_sink = 0;
  };

  void add_buffer(Flow& flow, uint32_t buffer) {
    const size_t index = index_of_[buffer];
    Edges& edges = edges_[index];
    edges.from_source = flow.add_edge(0, node_when_free(index), sizes_bytes_[buffer]);
    for (size_t queue = 0; queue < starts_.size(); ++queue) {
      const size_t place = place_from(queue, ranges_.end(buffer, queue));
      if (place < starts_[queue].size()) {
        to_queues_[index * starts_.size() + queue] = flow.add_edge(
            node_when_free(index), first_node_[queue] + static_cast<uint32_t>(place), kUnlimited);
      }
    }
    const size_t queue = ranges_.queue(buffer);
    const size_t place = place_from(queue, ranges_.start(buffer));
    edges.from_queue = flow.add_edge(first_node_[queue] + static_cast<uint32_t>(place),
                                     node_at_start(index), kUnlimited);
    edges.to_sink = flow.add_edge(node_at_start(index), 1, sizes_bytes_[buffer]);
  }

  QueueFlows no_flows() const {
    QueueFlows along;
    for (const std::vector<uint32_t>& starts : starts_) {
      along.emplace_back(starts.size() + 1, 0);
    }
    return along;
  }

  /// `along`: that of the queue of `to`.
  void add_reuse(Flow& flow, uint32_t from, uint32_t to, int64_t bytes,
                 std::vector<int64_t>& along) const {
    const size_t queue = ranges_.queue(to);
    flow.add_flow(edges_[index_of_[from]].from_source, bytes);
    flow.add_flow(to_queues_[index_of_[from] * starts_.size() + queue], bytes);
    flow.add_flow(edges_[index_of_[to]].from_queue, bytes);
    flow.add_flow(edges_[index_of_[to]].to_sink, bytes);
    along[place_from(queue, ranges_.end(from, queue))] += bytes;
    along[place_from(queue, ranges_.start(to))] -= bytes;
  }

  void add_flows(Flow& flow, const QueueFlows& along) const {
    for (size_t queue = 0; queue < chains_.size(); ++queue) {
      int64_t bytes = 0;
      for (size_t place = 0; place < chains_[queue].size(); ++place) {
        bytes += along[queue][place];
        flow.add_flow(chains_[queue][place], bytes);
      }
    }
  }

  /// Index of the first start in the queue at or after the position.
  size_t place_from(size_t queue, uint32_t position) const {
    const std::vector<uint32_t>& starts = starts_[queue];
    return static_cast<size_t>(std::lower_bound(starts.begin(), starts.end(), position) -
                               starts.begin());
  }

  const LiveRanges& ranges_;
  std::span<const uint32_t> buffers_;
  std::span<const int64_t> sizes_bytes_;
  std::vector<uint32_t> index_of_;             // by buffer: its place in `buffers_`
  std::vector<std::vector<uint32_t>> starts_;  // by queue, ascending
  std::vector<std::vector<size_t>> chains_;    // by queue: edges from a position to the next one
  std::vector<uint32_t> first_node_;           // by queue
  std::vector<Edges> edges_;                   // by index
  std::vector<size_t> to_queues_;              // by index and queue: edges
  size_t num_nodes_ = 0;
};

}  // namespace

std::optional<std::vector<uint32_t>> find_heaviest_clique(const LiveRanges& ranges,
                                                          std::span<const int64_t> sizes_bytes,
                                                          int64_t max_steps) {
  const std::vector<uint32_t> buffers = buffers_by_first_task(ranges, sizes_bytes);
  max_steps -= kStepsPerEdge * static_cast<int64_t>(buffers.size() * (ranges.num_queues() + 3));
  if (max_steps <= 0) {
    return std::nullopt;
  }
  Reuse reuse(ranges, buffers, sizes_bytes);
  Flow flow(reuse.num_nodes(), max_steps);
  reuse.add_edges(flow);
  reuse.add_first_flow(flow);
  if (!flow.maximize()) {
    return std::nullopt;
  }
  std::vector<uint32_t> clique;
  for (size_t index = 0; index < buffers.size(); ++index) {
    if (flow.is_reachable(Reuse::node_when_free(index)) &&
        !flow.is_reachable(Reuse::node_at_start(index))) {
      clique.push_back(buffers[index]);
    }
  }
  std::sort(clique.begin(), clique.end());
  return clique;
}

}  // namespace braid
