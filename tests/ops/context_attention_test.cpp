#include "ops/context_attention.h"

#include <algorithm>
#include <map>

#include "ops/attention_step.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr int64_t kHeads = 2;
constexpr int64_t kHeadSize = 2;
constexpr int64_t kWidth = 3 * kHeads * kHeadSize;

/// The nodes of one rank's attention to a sequence of `local` tokens per rank.
std::vector<Node> nodes_of(int64_t ranks, int64_t index, int64_t local, int64_t window,
                           ContextMethod method) {
  StageGraph graph;
  GraphBuilder builder(graph);
  const ValueId qkv = builder.add_activation("qkv", DType::kF32, {local, kWidth});
  context_attention(builder, qkv,
                    {.core = {.heads = kHeads,
                              .kv_heads = kHeads,
                              .head_size = kHeadSize,
                              .sequence = local,
                              .window = {window}},
                     .outer = ranks,
                     .outer_index = index,
                     .method = method},
                    "core");
  return {graph.forward.begin(), graph.forward.end()};
}

/// How often each key of the sequence is seen by each query of the rank, by position.
std::map<std::pair<int64_t, int64_t>, int> seen_pairs(const std::vector<Node>& nodes,
                                                      const TokenPositions& queries,
                                                      int64_t sequence) {
  std::map<std::pair<int64_t, int64_t>, int> seen;
  for (const Node& node : nodes) {
    if (node.spec.op != kAttentionStepOp.name) {
      continue;
    }
    const auto step = attributes_of<AttentionStepAttributes>(node.spec);
    for (int64_t query = 0; query < step.queries; ++query) {
      const int64_t position = queries.of(step.query_begin + query);
      const SeenKeys keys = seen_keys(step, query);
      for (int64_t key = keys.first; key < keys.end; ++key) {
        const int64_t at = step.key_begin + key;
        const int64_t key_position = step.kv_sequence == sequence ? at : step.key_positions.of(at);
        ++seen[{position, key_position}];
      }
    }
  }
  return seen;
}

TokenPositions zigzag(int64_t ranks, int64_t index, int64_t local) {
  const int64_t half = local / 2;
  return {
      .first_begin = index * half, .second_begin = (2 * ranks - 1 - index) * half, .split = half};
}

// Each rank's steps have the pairs inside the window, each once.
TEST(ContextAttention, StepsSeeThePairsOfTheWindowOnce) {
  constexpr int64_t kLocal = 6;
  for (const ContextMethod method : {ContextMethod::kRing, ContextMethod::kAllGather}) {
    for (const int64_t ranks : {2, 3, 5}) {
      for (const int64_t window : {1, 2, 3, 4, 5, 7, 11, 13, 29}) {
        for (int64_t index = 0; index < ranks; ++index) {
          const TokenPositions queries = zigzag(ranks, index, kLocal);
          std::map<std::pair<int64_t, int64_t>, int> expected;
          for (int64_t query = 0; query < kLocal; ++query) {
            const int64_t at = queries.of(query);
            for (int64_t key = std::max<int64_t>(0, at - window + 1); key <= at; ++key) {
              expected[{at, key}] = 1;
            }
          }
          const auto seen =
              seen_pairs(nodes_of(ranks, index, kLocal, window, method), queries, kLocal * ranks);
          EXPECT_EQ(seen, expected) << ranks << " ranks, rank " << index << ", window " << window;
        }
      }
    }
  }
}

std::vector<int64_t> shifts(const std::vector<Node>& nodes) {
  std::vector<int64_t> list;
  for (const Node& node : nodes) {
    if (node.spec.op == "ring_shift") {
      list.push_back(attributes_of<RingShiftAttributes>(node.spec).shift);
    }
  }
  return list;
}

int64_t num_steps(const std::vector<Node>& nodes) {
  return std::ranges::count_if(
      nodes, [](const Node& node) { return node.spec.op == kAttentionStepOp.name; });
}

// Chunks of 2 tokens, of which ring rank r has numbers r and 2 * ranks - 1 - r. A window of 3
// reaches into the chunk before, of 4 into two.
TEST(ContextAttention, RingJumpsOverRanksWhoseKeysNobodySees) {
  const auto shifts_of = [](int64_t window, int64_t index) {
    const auto nodes = nodes_of(6, index, 4, window, ContextMethod::kRing);
    EXPECT_EQ(num_steps(nodes), std::ssize(shifts(nodes)) + 1);
    return shifts(nodes);
  };
  for (int64_t index = 0; index < 6; ++index) {
    EXPECT_EQ(shifts_of(0, index), (std::vector<int64_t>{1, 1, 1, 1, 1}));
    EXPECT_EQ(shifts_of(24, index), (std::vector<int64_t>{1, 1, 1, 1, 1}));
    EXPECT_EQ(shifts_of(4, index), (std::vector<int64_t>{1, 1, 2, 1}));
    EXPECT_EQ(shifts_of(3, index), (std::vector<int64_t>{1, 4}));
    EXPECT_EQ(shifts_of(1, index), std::vector<int64_t>{});
  }
}

}  // namespace
}  // namespace braid
