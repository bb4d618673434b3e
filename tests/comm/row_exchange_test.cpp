#include "comm/row_exchange.h"

#include <cmath>
#include <limits>
#include <random>

#include "comm/wires.h"
#include "ops/expert_exchange.h"
#include "support/row_exchange_cases.h"

namespace braid {
namespace {

using ::testing::Each;

constexpr int64_t kWidth = 3;
constexpr float kUnwritten = -77.0f;

/// A row of an expert that came from a member, in the order of a member that holds the expert.
struct HeldRow {
  int64_t source;
  int64_t source_row;
};

/// By local expert.
std::vector<std::vector<HeldRow>> held_rows(const Experts& given, int64_t member) {
  std::vector<std::vector<HeldRow>> held;
  for (int64_t e = given.first(member); e < given.first(member) + given.local(); ++e) {
    auto& rows = held.emplace_back();
    for (int64_t source = 0; source < given.members(); ++source) {
      const auto& counts = given.counts[static_cast<size_t>(source)];
      const int64_t begin = std::reduce(counts.begin(), counts.begin() + e);
      for (int64_t i = 0; i < counts[static_cast<size_t>(e)]; ++i) {
        rows.push_back({source, begin + i});
      }
    }
  }
  return held;
}

std::vector<HeldRow> all_held(const Experts& given, int64_t member) {
  std::vector<HeldRow> all;
  for (const auto& rows : held_rows(given, member)) {
    all.insert(all.end(), rows.begin(), rows.end());
  }
  all.resize(static_cast<size_t>(std::min(std::ssize(all), given.room)));
  return all;
}

/// Rows and weights of a member.
struct Rows {
  std::vector<float> x;
  std::vector<float> weights;

  Rows(int64_t count, float value)
      : x(static_cast<size_t>(count * kWidth), value), weights(static_cast<size_t>(count), value) {}
  Rows(int64_t count, uint32_t seed)
      : x(random_values<float>(static_cast<size_t>(count * kWidth), seed)),
        weights(random_values<float>(static_cast<size_t>(count), seed + 1)) {}

  std::vector<float> row(int64_t r) const {
    std::vector<float> all(x.begin() + r * kWidth, x.begin() + (r + 1) * kWidth);
    all.push_back(weights[static_cast<size_t>(r)]);
    return all;
  }
};

CommCall call_of(CommOp op, const Group& group, const Experts& given,
                 const std::vector<int32_t>& offsets, Rows& x, Rows& y) {
  CommCall call = call_between(op, group, x.x, y.x);
  call.rows = {.experts = given.experts(),
               .copies = given.copies,
               .drops = given.drops,
               .send_rows = std::ssize(x.weights),
               .recv_rows = std::ssize(y.weights),
               .offsets_of_all = offsets.data(),
               .has_weights = true,
               .send_weights = bytes_of(x.weights),
               .recv_weights = bytes_of(y.weights)};
  return call;
}

class RowExchangeOver : public ::testing::TestWithParam<Wire> {
 protected:
  /// Runs `body(rank, call, x, y)` with a call of each rank.
  template <class Body>
  void on_ranks(CommOp op, const Experts& given, const Body& body) {
    const int n = static_cast<int>(given.members());
    const Transports transports = make_transports(GetParam(), {.num_ranks = n});
    const Group group = all_ranks(n);
    const std::vector<int32_t> offsets = offsets_of_all(given);
    const int64_t owned = given.rows();
    const bool dispatches = op == CommOp::kDispatchRows;
    const auto errors = on_threads(n, [&](int rank) {
      Rows x(dispatches ? owned : given.room, static_cast<uint32_t>(100 * rank + 5));
      Rows y(dispatches ? given.room : owned, kUnwritten);
      CommCall call = call_of(op, group, given, offsets, x, y);
      std::vector<int32_t> local(static_cast<size_t>(given.local() + 1), -1);
      call.rows.offsets = dispatches ? local.data() : nullptr;
      transports[static_cast<size_t>(rank)]->run(call);
      body(rank, y, local);
    });
    EXPECT_THAT(errors, Each(""));
  }
};

Rows rows_of_member(const Experts& given, CommOp op, int64_t member) {
  return {op == CommOp::kDispatchRows ? given.rows() : given.room,
          static_cast<uint32_t>(100 * member + 5)};
}

TEST_P(RowExchangeOver, DispatchBringsRowsInTheOrderOfExpertsAndMembers) {
  for (const Experts& given : awkward_experts()) {
    on_ranks(CommOp::kDispatchRows, given, [&](int rank, const Rows& y, const auto& offsets) {
      const std::vector<HeldRow> held = all_held(given, rank);
      for (size_t r = 0; r < held.size(); ++r) {
        const Rows source = rows_of_member(given, CommOp::kDispatchRows, held[r].source);
        EXPECT_EQ(y.row(static_cast<int64_t>(r)), source.row(held[r].source_row));
      }
      for (int64_t r = std::ssize(held); r < given.room; ++r) {
        EXPECT_EQ(y.row(r), std::vector<float>(kWidth + 1, kUnwritten));
      }
      int64_t end = 0;
      EXPECT_EQ(offsets[0], 0);
      const auto by_expert = held_rows(given, rank);
      for (size_t e = 0; e < by_expert.size(); ++e) {
        end = std::min(end + std::ssize(by_expert[e]), given.room);
        EXPECT_EQ(offsets[e + 1], end);
      }
    });
  }
}

TEST_P(RowExchangeOver, CombineBringsEachRowBackAsTheSumOfItsCopies) {
  for (const Experts& given : awkward_experts()) {
    on_ranks(CommOp::kCombineRows, given, [&](int rank, const Rows& y, const auto&) {
      std::vector<std::vector<float>> expected(static_cast<size_t>(given.rows()),
                                               std::vector<float>(kWidth + 1));
      for (int64_t holder = 0; holder < given.members(); ++holder) {
        const Rows its = rows_of_member(given, CommOp::kCombineRows, holder);
        const std::vector<HeldRow> held = all_held(given, holder);
        for (size_t r = 0; r < held.size(); ++r) {
          std::vector<float>& sum = expected[static_cast<size_t>(held[r].source_row)];
          const std::vector<float> addend = its.row(static_cast<int64_t>(r));
          for (size_t i = 0; held[r].source == rank && i < sum.size(); ++i) {
            sum[i] = holder % given.copies == 0 ? addend[i] : sum[i] + addend[i];
          }
        }
      }
      for (int64_t r = 0; r < given.rows(); ++r) {
        EXPECT_EQ(y.row(r), expected[static_cast<size_t>(r)]);
      }
    });
  }
}

// 8 rows for rank 0, 6 for rank 1: there is no room for the last row of expert 1, from rank 1.
TEST_P(RowExchangeOver, RowsWithoutRoomComeBackAsNan) {
  const Experts given{.counts = {{2, 1, 0, 4}, {0, 5, 1, 1}}, .room = 7};
  on_ranks(CommOp::kDispatchRows, given, [&](int rank, const Rows& /*y*/, const auto& offsets) {
    EXPECT_EQ(offsets.back(), rank == 0 ? 7 : 6);
  });
  on_ranks(CommOp::kCombineRows, given, [&](int rank, const Rows& y, const auto&) {
    for (int64_t r = 0; r < given.rows(); ++r) {
      for (const float value : y.row(r)) {
        EXPECT_EQ(std::isnan(value), rank == 1 && r == 4) << r;
      }
    }
  });
}

TEST(RowExchange, AddsToTheTallyOfItsRank) {
  const Group group = all_ranks(3);
  Experts given{.counts = {{2, 2}, {4, 0}, {1, 3}}, .copies = 3, .room = 7};
  const std::vector<int32_t> offsets = offsets_of_all(given);
  Rows x(4, 1u);
  Rows y(7, kUnwritten);
  for (const size_t member : {size_t{0}, size_t{1}}) {
    CommCall call = call_of(CommOp::kDispatchRows, group, given, offsets, x, y);
    std::vector<int32_t> local(3);
    std::vector<int64_t> tally{100, 10, 11, 0, 0};
    call.rows.offsets = local.data();
    call.rows.tally = tally.data();
    const std::vector<RowsOfMember> members(3, rows_given(call));
    exchange_rows(call, member, members);
    // All three members get the same 12 rows: the first counts them for all.
    EXPECT_THAT(tally, member == 0 ? testing::ElementsAre(112, 15, 12, 7, 12)
                                   : testing::ElementsAre(100, 10, 12, 7, 12));
    exchange_rows(call, member, members);
    EXPECT_EQ(tally[RoomTally::kRows], member == 0 ? 124 : 100);
    EXPECT_EQ(tally[RoomTally::kMost], 12);
  }
}

constexpr int64_t kScales = 2;
constexpr int64_t kFp8Width = 256;

/// FP8 rows of a member, as bytes, and their scales.
struct ScaledRows {
  std::vector<std::byte> x;
  std::vector<float> scales;

  ScaledRows(int64_t count, uint32_t seed)
      : x(static_cast<size_t>(count * kFp8Width)),
        scales(random_values<float>(static_cast<size_t>(count * kScales), seed)) {
    std::mt19937 random(seed);
    std::ranges::generate(x, [&] { return static_cast<std::byte>(random() % 256); });
  }
  static ScaledRows unwritten(int64_t count) {
    ScaledRows rows(count, 0);
    std::ranges::fill(rows.x, std::byte{0xA5});
    std::ranges::fill(rows.scales, kUnwritten);
    return rows;
  }

  bool same_row(int64_t r, const ScaledRows& other, int64_t of_other) const {
    return std::equal(x.begin() + r * kFp8Width, x.begin() + (r + 1) * kFp8Width,
                      other.x.begin() + of_other * kFp8Width) &&
           std::equal(scales.begin() + r * kScales, scales.begin() + (r + 1) * kScales,
                      other.scales.begin() + of_other * kScales);
  }
};

TEST_P(RowExchangeOver, DispatchBringsFp8RowsWithTheirScales) {
  for (const Experts& given : awkward_experts()) {
    for (const bool has_weights : {true, false}) {
      const int n = static_cast<int>(given.members());
      const Transports transports = make_transports(GetParam(), {.num_ranks = n});
      const Group group = all_ranks(n);
      const std::vector<int32_t> offsets = offsets_of_all(given);
      const auto errors = on_threads(n, [&](int rank) {
        const auto seed = [](int64_t member) { return static_cast<uint32_t>(100 * member + 7); };
        ScaledRows x(given.rows(), seed(rank));
        ScaledRows y = ScaledRows::unwritten(given.room);
        Rows weights(given.rows(), seed(rank));
        Rows y_weights(given.room, kUnwritten);
        CommCall call = call_of(CommOp::kDispatchRows, group, given, offsets, weights, y_weights);
        std::vector<int32_t> local(static_cast<size_t>(given.local() + 1));
        call.rows.offsets = has_weights ? local.data() : nullptr;
        call.rows.has_weights = has_weights;
        call.send = x.x.data();
        call.recv = y.x.data();
        call.send_elems = std::ssize(x.x);
        call.recv_elems = std::ssize(y.x);
        call.dtype = DType::kF8E4M3;
        call.rows.scales_of_row = kScales;
        call.rows.send_scales = bytes_of(x.scales);
        call.rows.recv_scales = bytes_of(y.scales);
        EXPECT_EQ(bytes_per_row(call), kFp8Width + 4 * kScales + (has_weights ? 4 : 0));
        transports[static_cast<size_t>(rank)]->run(call);
        const std::vector<HeldRow> held = all_held(given, rank);
        for (size_t r = 0; r < held.size(); ++r) {
          const ScaledRows source(given.rows(), seed(held[r].source));
          EXPECT_TRUE(y.same_row(static_cast<int64_t>(r), source, held[r].source_row)) << r;
        }
        for (int64_t r = std::ssize(held); r < given.room; ++r) {
          EXPECT_TRUE(y.same_row(r, ScaledRows::unwritten(1), 0)) << r;
        }
        const bool brings = has_weights && !held.empty();
        EXPECT_EQ(y_weights.weights[0] != kUnwritten, brings);
      });
      EXPECT_THAT(errors, Each(""));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, RowExchangeOver, testing::Values(Wire::kThreads, Wire::kSockets),
                         wire_name);

TEST(RowExchange, IsRefusedIfMembersDoNotHoldWholeExperts) {
  const Experts given{.counts = {{2, 2, 1}, {4, 0, 1}}};
  const Group group = all_ranks(2);
  Rows x(5, 1u);
  Rows y(20, kUnwritten);
  const std::vector<int32_t> offsets(8);
  const CommCall call = call_of(CommOp::kDispatchRows, group, given, offsets, x, y);
  EXPECT_THROW(check_comm_call(call, 0), InternalError);
}

TEST(RowExchange, IsRefusedIfRowsHaveOtherScalesThanBlocks) {
  const Experts given{.counts = {{2, 2}, {4, 0}}};
  const Group group = all_ranks(2);
  const std::vector<int32_t> offsets = offsets_of_all(given);
  std::vector<std::byte> bytes(2 * 4 * kFp8Width);
  CommCall call{.op = CommOp::kDispatchRows,
                .group = &group,
                .send = bytes.data(),
                .recv = bytes.data() + 4 * kFp8Width,
                .send_elems = 4 * kFp8Width,
                .recv_elems = 4 * kFp8Width,
                .dtype = DType::kF8E4M3};
  call.rows = {.experts = 2, .send_rows = 4, .recv_rows = 4, .offsets_of_all = offsets.data()};
  for (const int64_t scales : {1, 2, 3}) {
    call.rows.scales_of_row = scales;
    if (scales == kScales) {
      EXPECT_NO_THROW(check_comm_call(call, 0));
    } else {
      EXPECT_THROW(check_comm_call(call, 0), InternalError);
    }
  }
}

TEST(PackedRows, OfAnotherSizeThanTheOffsetsSayAreRefused) {
  const Experts given{.counts = {{2, 1}, {0, 3}}, .room = 6};
  const Group group = all_ranks(2);
  const std::vector<int32_t> offsets = offsets_of_all(given);
  Rows x(3, 1u);
  Rows y(6, kUnwritten);
  std::vector<int32_t> local(2);
  CommCall call = call_of(CommOp::kDispatchRows, group, given, offsets, x, y);
  call.rows.offsets = local.data();
  const std::string own = pack_rows(call, 0, 0);
  EXPECT_EQ(std::ssize(own), 2 * bytes_per_row(call));
  const std::string_view good[] = {own, ""};
  EXPECT_NO_THROW(exchange_packed_rows(call, 0, good));
  const std::string_view more[] = {own, own};
  EXPECT_THAT(message_of<DeviceError>([&] { exchange_packed_rows(call, 0, more); }),
              testing::HasSubstr("rank 1 sent 32 bytes, but its offsets say 0 rows of 16"));
}

}  // namespace
}  // namespace braid
