#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "model/forward.h"
#include "ops/autodiff.h"

namespace braid {
namespace {

/// One rank's graph of one layer; every rank has 8 tokens of a sequence.
StageGraph graph_of(int64_t ranks, int64_t index, ContextMethod method) {
  const ModelSpec spec{.layers = 1,
                       .width = 16,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_size = 4,
                       .ffn = 16,
                       .vocabulary = 128};
  ForwardOptions options{.microbatch = 1, .sequence = 8 * ranks, .dtype = DType::kBF16};
  options.context = {.size = ranks, .index = index, .method = method};
  StageGraph graph = build_forward(spec, options);
  differentiate(graph);
  return graph;
}

struct Lifetime {
  size_t first = 0;
  size_t last = 0;
};

/// Of packed keys and values and their gradients, in nodes of forward and backward.
std::map<ValueId, Lifetime> kv_lifetimes(const StageGraph& graph) {
  std::vector<const Node*> nodes;
  for (const std::vector<Node>* part : {&graph.forward, &graph.backward}) {
    for (const Node& node : *part) {
      nodes.push_back(&node);
    }
  }
  std::map<ValueId, Lifetime> lifetimes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const ValueId value : nodes[i]->operands) {
      const std::string& name = graph.value(value).name;
      if (name.find("core.kv") != std::string::npos ||
          name.find("core.d_kv") != std::string::npos) {
        const auto [at, is_new] = lifetimes.try_emplace(value, Lifetime{i, i});
        at->second.last = i;
      }
    }
  }
  return lifetimes;
}

int64_t max_live_bytes(const StageGraph& graph) {
  int64_t most = 0;
  const auto lifetimes = kv_lifetimes(graph);
  for (size_t node = 0; node < graph.forward.size() + graph.backward.size(); ++node) {
    int64_t live = 0;
    for (const auto& [id, lifetime] : lifetimes) {
      const Value& value = graph.value(id);
      live += lifetime.first <= node && node <= lifetime.last
                  ? value.shape.num_elems() * static_cast<int64_t>(dtype_bytes(value.dtype))
                  : 0;
    }
    most = std::max(most, live);
  }
  return most;
}

// 8 rows of 2 * 2 * 4 elements. While gradients travel: the own kv and those in use (2 bytes each;
// of two ranks, these are the same then), the gradient that has arrived, and the part that is made
// here (4 bytes each).
TEST(ContextGraph, RingHoldsNoMoreKvWithMoreRanks) {
  for (const int64_t ranks : {2, 3, 8, 16}) {
    for (const int64_t index : {int64_t{0}, ranks / 2, ranks - 1}) {
      EXPECT_EQ(max_live_bytes(graph_of(ranks, index, ContextMethod::kRing)),
                8 * 16 * ((ranks == 2 ? 2 : 2 + 2) + 4 + 4))
          << ranks << " ranks";
    }
  }
}

TEST(ContextGraph, AllGatherHoldsKvOfAllRanks) {
  const int64_t two = max_live_bytes(graph_of(2, 0, ContextMethod::kAllGather));
  EXPECT_EQ(max_live_bytes(graph_of(8, 0, ContextMethod::kAllGather)), 4 * two);
}

// Nothing that was received in forward is kept for the backward.
TEST(ContextGraph, BackwardCommunicatesAgainInsteadOfKeepingKv) {
  for (const ContextMethod method : {ContextMethod::kRing, ContextMethod::kAllGather}) {
    const StageGraph graph = graph_of(4, 1, method);
    for (const auto& [value, lifetime] : kv_lifetimes(graph)) {
      EXPECT_EQ(lifetime.first < graph.forward.size(), lifetime.last < graph.forward.size())
          << graph.value(value).name;
    }
  }
}

TEST(ContextGraph, OneRankHasThePlainGraph) {
  const StageGraph graph = graph_of(1, 0, ContextMethod::kRing);
  EXPECT_TRUE(graph.groups.empty());
  EXPECT_TRUE(kv_lifetimes(graph).empty());
  for (const Node& node : graph.forward) {
    EXPECT_EQ(node.spec.find_attribute("split"), nullptr);
  }
}

}  // namespace
}  // namespace braid
