#include <algorithm>
#include <tuple>

#include "comm/wires.h"

namespace braid {
namespace {

using ::testing::Each;

template <class T>
using PerRank = std::vector<std::vector<T>>;

/// One communication on ranks 0..n-1: what each rank gives and gets.
struct Case {
  CommOp op;
  int num_ranks;
  int64_t block;  ///< elements of the smaller operand of a gather or scatter, of x otherwise
  int64_t root = 0;
  int64_t shift = 0;
  Wire wire = Wire::kThreads;

  size_t send_elems() const {
    const bool has_blocks = op == CommOp::kReduceScatter || op == CommOp::kAllToAll;
    return static_cast<size_t>(has_blocks ? num_ranks * block : block);
  }
  size_t recv_elems() const {
    const bool has_blocks = op == CommOp::kAllGather || op == CommOp::kAllToAll;
    return static_cast<size_t>(has_blocks ? num_ranks * block : block);
  }
};

template <class T>
PerRank<T> inputs(const Case& given) {
  PerRank<T> x;
  for (int rank = 0; rank < given.num_ranks; ++rank) {
    x.push_back(random_values<T>(given.send_elems(), static_cast<uint32_t>(1000 * rank + 7)));
  }
  return x;
}

/// Sums of element i over the ranks in their order, accumulated in `Sum`.
template <class T, class Sum>
std::vector<T> naive_sums(const PerRank<T>& x) {
  std::vector<T> sums(x[0].size());
  for (size_t i = 0; i < sums.size(); ++i) {
    Sum sum = static_cast<Sum>(x[0][i]);
    for (size_t rank = 1; rank < x.size(); ++rank) {
      sum += static_cast<Sum>(x[rank][i]);
    }
    sums[i] = static_cast<T>(sum);
  }
  return sums;
}

template <class T, class Sum>
std::vector<T> naive_result(const Case& given, const PerRank<T>& x, int rank) {
  const auto n = static_cast<int64_t>(given.num_ranks);
  const int64_t m = given.block;
  std::vector<T> y;
  const auto append = [&](const std::vector<T>& from, int64_t begin, int64_t count) {
    y.insert(y.end(), from.begin() + begin, from.begin() + begin + count);
  };
  switch (given.op) {
    case CommOp::kAllReduce:
      return naive_sums<T, Sum>(x);
    case CommOp::kReduce:
      return rank == given.root ? naive_sums<T, Sum>(x) : std::vector<T>(static_cast<size_t>(m));
    case CommOp::kReduceScatter:
      append(naive_sums<T, Sum>(x), rank * m, m);
      return y;
    case CommOp::kAllGather:
      for (int64_t i = 0; i < n; ++i) {
        append(x[static_cast<size_t>(i)], 0, m);
      }
      return y;
    case CommOp::kAllToAll:
      for (int64_t i = 0; i < n; ++i) {
        append(x[static_cast<size_t>(i)], rank * m, m);
      }
      return y;
    case CommOp::kBroadcast:
      return x[static_cast<size_t>(given.root)];
    case CommOp::kRingShift:
      return x[static_cast<size_t>((((rank - given.shift) % n) + n) % n)];
    default:
      ADD_FAILURE() << "not a collective";
      return y;
  }
}

/// Runs the case several times in a row, after random delays, and expects the same bytes each time.
template <class T, class Sum>
void expect_naive_results(const Case& given, uint32_t seed) {
  const PerRank<T> x = inputs<T>(given);
  const Transports transports = make_transports(given.wire, {.num_ranks = given.num_ranks});
  const Group group = all_ranks(given.num_ranks);
  const auto errors = on_threads(given.num_ranks, [&](int rank) {
    std::mt19937 random(seed + static_cast<uint32_t>(rank));
    std::vector<T> own = x[static_cast<size_t>(rank)];
    std::vector<T> y(given.recv_elems(), static_cast<T>(77.0f));
    CommCall call = call_between(given.op, group, own, y);
    call.root = given.root;
    call.shift = given.shift;
    for (int run = 0; run < 3; ++run) {
      random_delay(random);
      std::fill(y.begin(), y.end(), static_cast<T>(77.0f));
      transports[static_cast<size_t>(rank)]->run(call);
      EXPECT_TRUE(same_bytes(y, naive_result<T, Sum>(given, x, rank)))
          << comm_op_name(given.op) << " of " << given.block << " on rank " << rank << " of "
          << given.num_ranks;
      EXPECT_TRUE(same_bytes(own, x[static_cast<size_t>(rank)]));
    }
  });
  EXPECT_THAT(errors, Each(""));
}

constexpr CommOp kSums[] = {CommOp::kAllReduce, CommOp::kReduceScatter, CommOp::kReduce};
constexpr CommOp kMoves[] = {CommOp::kAllGather, CommOp::kAllToAll, CommOp::kBroadcast,
                             CommOp::kRingShift};
constexpr Wire kWires[] = {Wire::kThreads, Wire::kSockets};

/// Elements of blocks: fewer where each case connects its ranks anew.
std::vector<int64_t> blocks_for(Wire wire) {
  return wire == Wire::kThreads ? std::vector<int64_t>{0, 1, 3, 33, 1009, 5000}
                                : std::vector<int64_t>{0, 33, 5000};
}

class CollectivesOf : public ::testing::TestWithParam<std::tuple<Wire, int>> {
 protected:
  Wire wire() const { return std::get<0>(GetParam()); }
  int num_ranks() const { return std::get<1>(GetParam()); }
};

TEST_P(CollectivesOf, SumsAreThoseInRankOrderBitwise) {
  const int n = num_ranks();
  for (const CommOp op : kSums) {
    for (const int64_t block : blocks_for(wire())) {
      const Case given{.op = op, .num_ranks = n, .block = block, .root = n / 2, .wire = wire()};
      expect_naive_results<float, float>(given, 1);
      expect_naive_results<BFloat16, float>(given, 2);
      expect_naive_results<double, double>(given, 3);
      expect_naive_results<int32_t, int32_t>(given, 4);
    }
  }
}

// Bits of infinity and NaN are larger than those of all numbers.
TEST_P(CollectivesOf, TheLargestAreThoseOfAllRanks) {
  const Case given{
      .op = CommOp::kAllReduceMax, .num_ranks = num_ranks(), .block = 5000, .wire = wire()};
  PerRank<int32_t> x = inputs<int32_t>(given);
  x.front()[7] = 0x7F80'0000;
  x.back()[8] = 0x7FC0'0000;
  std::vector<int32_t> expected = x[0];
  for (const std::vector<int32_t>& its : x) {
    std::ranges::transform(its, expected, expected.begin(),
                           [](int32_t a, int32_t b) { return std::max(a, b); });
  }
  const Transports transports = make_transports(wire(), {.num_ranks = num_ranks()});
  const Group group = all_ranks(num_ranks());
  const auto errors = on_threads(num_ranks(), [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    std::vector<int32_t> y(x[index].size(), -1);
    transports[index]->run(call_between(CommOp::kAllReduceMax, group, x[index], y));
    EXPECT_EQ(y, expected);
    transports[index]->run(call_between(CommOp::kAllReduceMax, group, x[index], x[index]));
    EXPECT_EQ(x[index], expected);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(CollectivesOf, MovesBringTheRightBlocks) {
  const int n = num_ranks();
  for (const CommOp op : kMoves) {
    for (const int64_t block : blocks_for(wire())) {
      const Case given{
          .op = op, .num_ranks = n, .block = block, .root = n - 1, .shift = 1, .wire = wire()};
      expect_naive_results<float, float>(given, 5);
      expect_naive_results<BFloat16, float>(given, 6);
      expect_naive_results<int64_t, int64_t>(given, 7);
    }
  }
}

TEST_P(CollectivesOf, RingsShiftByAnyNumber) {
  const int n = num_ranks();
  for (const int64_t shift : {-9, -2, -1, 0, 2, 5, 8, 123456789}) {
    expect_naive_results<float, float>(
        {.op = CommOp::kRingShift, .num_ranks = n, .block = 21, .shift = shift, .wire = wire()}, 8);
  }
}

TEST_P(CollectivesOf, AllRootsAreRoots) {
  const int n = num_ranks();
  for (int64_t root = 0; root < n; ++root) {
    for (const CommOp op : {CommOp::kBroadcast, CommOp::kReduce}) {
      expect_naive_results<float, float>(
          {.op = op, .num_ranks = n, .block = 19, .root = root, .wire = wire()}, 9);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesOf,
                         ::testing::Combine(::testing::Values(Wire::kThreads),
                                            ::testing::Values(1, 2, 3, 5, 8)));
INSTANTIATE_TEST_SUITE_P(RanksOverSockets, CollectivesOf,
                         ::testing::Combine(::testing::Values(Wire::kSockets),
                                            ::testing::Values(3)));

/// Each rank's x and y are parts of one array; runs the calls that `make` makes of it.
using MakeCall = std::function<CommCall(const Group&, std::vector<float>&, int rank)>;

PerRank<float> run_in_place_on(Wire wire, int num_ranks, size_t array_elems, const MakeCall& make) {
  const Transports transports = make_transports(wire, {.num_ranks = num_ranks});
  const Group group = all_ranks(num_ranks);
  PerRank<float> arrays;
  for (int rank = 0; rank < num_ranks; ++rank) {
    arrays.push_back(random_values<float>(array_elems, static_cast<uint32_t>(1000 * rank + 7)));
  }
  const auto errors = on_threads(num_ranks, [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    transports[index]->run(make(group, arrays[index], rank));
  });
  EXPECT_THAT(errors, Each(""));
  return arrays;
}

PerRank<float> run_in_place(int num_ranks, size_t array_elems, const MakeCall& make) {
  PerRank<float> arrays = run_in_place_on(Wire::kThreads, num_ranks, array_elems, make);
  EXPECT_EQ(run_in_place_on(Wire::kSockets, num_ranks, array_elems, make), arrays);
  return arrays;
}

TEST(InPlace, AllReduceAndBroadcastTakeOneArray) {
  const Case sum{.op = CommOp::kAllReduce, .num_ranks = 3, .block = 1009};
  const Case copy{.op = CommOp::kBroadcast, .num_ranks = 3, .block = 1009, .root = 1};
  for (const Case& given : {sum, copy}) {
    const auto results = run_in_place(3, 1009, [&](const Group& group, std::vector<float>& x, int) {
      CommCall call = call_between(given.op, group, x, x);
      call.root = given.root;
      return call;
    });
    for (const auto& result : results) {
      EXPECT_TRUE(same_bytes(result, naive_result<float, float>(given, inputs<float>(given), 0)));
    }
  }
}

TEST(InPlace, AGatheredBlockMayLieWhereItBelongs) {
  constexpr int64_t kBlock = 100;
  const Case given{.op = CommOp::kAllGather, .num_ranks = 5, .block = kBlock};
  const auto results =
      run_in_place(5, 5 * kBlock, [&](const Group& group, std::vector<float>& y, int rank) {
        const auto own = random_values<float>(kBlock, static_cast<uint32_t>(1000 * rank + 7));
        std::copy(own.begin(), own.end(), y.begin() + rank * kBlock);
        CommCall call = call_between(CommOp::kAllGather, group, y, y);
        call.send += rank * kBlock * static_cast<int64_t>(sizeof(float));
        call.send_elems = kBlock;
        return call;
      });
  for (const auto& result : results) {
    EXPECT_TRUE(same_bytes(result, naive_result<float, float>(given, inputs<float>(given), 0)));
  }
}

TEST(InPlace, AScatteredSumMayLieInItsBlock) {
  constexpr int64_t kBlock = 100;
  const Case given{.op = CommOp::kReduceScatter, .num_ranks = 5, .block = kBlock};
  const auto results =
      run_in_place(5, 5 * kBlock, [&](const Group& group, std::vector<float>& x, int rank) {
        CommCall call = call_between(CommOp::kReduceScatter, group, x, x);
        call.recv += rank * kBlock * static_cast<int64_t>(sizeof(float));
        call.recv_elems = kBlock;
        return call;
      });
  for (int rank = 0; rank < 5; ++rank) {
    const auto& array = results[static_cast<size_t>(rank)];
    const std::vector<float> block(array.begin() + rank * kBlock,
                                   array.begin() + (rank + 1) * kBlock);
    EXPECT_TRUE(same_bytes(block, naive_result<float, float>(given, inputs<float>(given), rank)));
  }
}

class Sums : public ::testing::TestWithParam<Wire> {};

INSTANTIATE_TEST_SUITE_P(Wires, Sums, ::testing::ValuesIn(kWires), wire_name);

TEST_P(Sums, AreInGroupOrderAndNotInRankOrder) {
  const Transports transports = make_transports(GetParam(), {.num_ranks = 3});
  const Group group = make_group("turned", {0, 2, 1});
  const float values[] = {1e8f, 1.0f, -1e8f};  // 1e8 - 1e8 + 1, and not 1e8 + 1 - 1e8
  std::vector<float> results(3);
  on_threads(3, [&](int rank) {
    std::vector<float> value{values[rank]};
    transports[static_cast<size_t>(rank)]->run(all_reduce_of(group, value));
    results[static_cast<size_t>(rank)] = value[0];
  });
  EXPECT_THAT(results, Each(1.0f));
}

TEST_P(Sums, RoundOnceToBf16) {
  // 256 + 1 rounds back to 256 in bf16, so sums rounded after each addition would stay at 256.
  const Transports transports = make_transports(GetParam(), {.num_ranks = 9});
  const Group group = all_ranks(9);
  on_threads(9, [&](int rank) {
    std::vector<BFloat16> value(40, BFloat16(rank == 0 ? 256.0f : 1.0f));
    transports[static_cast<size_t>(rank)]->run(all_reduce_of(group, value));
    EXPECT_THAT(value, Each(264.0f));
  });
}

// The gradient of an op is its dual: <A x, u> = <x, A' u>, summed over the ranks. Small integers
// make the sums exact. (all_reduce and identity are no such pair: what an all-reduce gives is one
// value that all ranks hold, and its gradient is complete on each.)
struct Dual {
  CommOp op;
  CommOp dual;
  int64_t shift = 0;
};

double inner_product(const PerRank<float>& a, const PerRank<float>& b) {
  double sum = 0;
  for (size_t rank = 0; rank < a.size(); ++rank) {
    sum += std::inner_product(a[rank].begin(), a[rank].end(), b[rank].begin(), 0.0);
  }
  return sum;
}

PerRank<float> small_integers(int num_ranks, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  PerRank<float> values(static_cast<size_t>(num_ranks), std::vector<float>(count));
  for (auto& of_rank : values) {
    for (float& value : of_rank) {
      value = static_cast<float>(random() % 17) - 8.0f;
    }
  }
  return values;
}

PerRank<float> apply(const Case& given, const PerRank<float>& x) {
  const Transports transports = make_in_process_transports({.num_ranks = given.num_ranks});
  const Group group = all_ranks(given.num_ranks);
  PerRank<float> y(x.size(), std::vector<float>(given.recv_elems()));
  const auto errors = on_threads(given.num_ranks, [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    std::vector<float> own = x[index];
    CommCall call = call_between(given.op, group, own, y[index]);
    call.root = given.root;
    call.shift = given.shift;
    transports[index]->run(call);
  });
  EXPECT_THAT(errors, Each(""));
  return y;
}

TEST(Duals, AreAdjoint) {
  const Dual duals[] = {
      {CommOp::kAllGather, CommOp::kReduceScatter}, {CommOp::kReduceScatter, CommOp::kAllGather},
      {CommOp::kAllToAll, CommOp::kAllToAll},       {CommOp::kBroadcast, CommOp::kReduce},
      {CommOp::kReduce, CommOp::kBroadcast},        {CommOp::kRingShift, CommOp::kRingShift, 1},
      {CommOp::kRingShift, CommOp::kRingShift, -2}};
  for (const int n : {1, 2, 3, 5}) {
    for (const Dual& dual : duals) {
      const Case forward{
          .op = dual.op, .num_ranks = n, .block = 11, .root = n - 1, .shift = dual.shift};
      const Case backward{
          .op = dual.dual, .num_ranks = n, .block = 11, .root = n - 1, .shift = -dual.shift};
      const PerRank<float> x = small_integers(n, forward.send_elems(), 1);
      const PerRank<float> u = small_integers(n, forward.recv_elems(), 2);
      EXPECT_EQ(inner_product(apply(forward, x), u), inner_product(x, apply(backward, u)))
          << comm_op_name(dual.op) << " of " << n;
    }
  }
}

}  // namespace
}  // namespace braid
