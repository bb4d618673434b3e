#include "comm/emulated_call.h"

#include <bit>
#include <cmath>
#include <numeric>

#include "comm/comm_fixture.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kStockBytes = 512;

/// Rank 2 is the second of three.
class EmulatedCallTest : public ::testing::Test {
 protected:
  EmulatedCallTest() { fill_stock(stock_); }

  /// y after the call, which is NaN before it.
  std::vector<float> y_of(CommOp op, size_t y_elems, std::vector<float> x) {
    std::vector<float> y(y_elems, std::nanf(""));
    CommCall call = call_between(op, group_, x, y);
    if (op == CommOp::kRecv) {
      call.send = nullptr;
    }
    run(call, 0);
    return y;
  }

  void run(const CommCall& call, int64_t duration_ns) const {
    run_emulated({.copies = stand_in_copies(call, 2, kStockBytes), .duration_ns = duration_ns},
                 call, stock_, /*is_first_step=*/false);
  }

  const Group group_ = make_group("three", {5, 2, 7});
  std::vector<std::byte> stock_ = std::vector<std::byte>(kStockBytes);
};

TEST_F(EmulatedCallTest, TakesOwnValuesForThoseOfTheOthers) {
  using Values = std::vector<float>;
  const Values four{1, 2, 3, 4};
  EXPECT_EQ(y_of(CommOp::kAllGather, 12, four), (Values{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}));
  EXPECT_EQ(y_of(CommOp::kReduceScatter, 4, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}),
            (Values{5, 6, 7, 8}));
  EXPECT_EQ(y_of(CommOp::kAllToAll, 3, {1, 2, 3}), (Values{1, 2, 3}));
  EXPECT_EQ(y_of(CommOp::kAllReduce, 2, {1, 2}), (Values{1, 2}));
  EXPECT_EQ(y_of(CommOp::kBroadcast, 2, {1, 2}), (Values{1, 2}));
  EXPECT_EQ(y_of(CommOp::kRingShift, 2, {1, 2}), (Values{1, 2}));
}

// Rows of experts must fit the offsets, which are this rank's: it is the second of three.
TEST_F(EmulatedCallTest, TakesTheBlockOfRowsForItselfFromAllMembers) {
  std::vector<uint8_t> x(48);
  std::iota(x.begin(), x.end(), uint8_t{0});
  std::vector<uint8_t> y(48, 255);
  const CommCall call{.op = CommOp::kAllToAll,
                      .group = &group_,
                      .send = bytes_of(x),
                      .recv = bytes_of(y),
                      .send_elems = 48,
                      .recv_elems = 48,
                      .dtype = DType::kU8,
                      .what = "a test"};
  run(call, 0);
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(y[i], 16 + i % 16);
  }
}

// Blocks of 8 bytes: the second is not aligned as x is.
TEST_F(EmulatedCallTest, TakesTheStockWhereBlocksAreAlignedOtherwise) {
  const std::vector<float> y = y_of(CommOp::kAllGather, 6, {1, 2});
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 2);
  EXPECT_EQ(y[4], 1);
  EXPECT_EQ(y[5], 2);
  for (const float value : {y[2], y[3]}) {
    EXPECT_TRUE(std::isfinite(value));
    EXPECT_LT(std::abs(value), 0.5f);
  }
}

// Offsets of rows are places in memory.
TEST_F(EmulatedCallTest, TakesOwnIntegersHoweverTheyAreAligned) {
  std::vector<int32_t> x{4, 9, 12};
  std::vector<int32_t> y(9, -1);
  CommCall call{.op = CommOp::kAllGather,
                .group = &group_,
                .send = bytes_of(x),
                .recv = bytes_of(y),
                .send_elems = 3,
                .recv_elems = 9,
                .dtype = DType::kI32,
                .what = "offsets"};
  run(call, 0);
  EXPECT_EQ(y, (std::vector<int32_t>{4, 9, 12, 4, 9, 12, 4, 9, 12}));
}

TEST_F(EmulatedCallTest, TakesPlacesOfTheStockThatAreAlignedAsY) {
  std::vector<float> y(200);
  CommCall call = recv_of(group_, y, 0);
  call.recv += sizeof(float);
  call.recv_elems -= 1;
  int64_t written = 0;
  for (const StandInCopy& copy : stand_in_copies(call, 2, kStockBytes)) {
    const auto to = reinterpret_cast<uintptr_t>(call.recv + copy.to_bytes);
    EXPECT_EQ(to % kStockAlignment, static_cast<uintptr_t>(copy.from_bytes) % kStockAlignment);
    EXPECT_LE(copy.from_bytes + copy.num_bytes, static_cast<int64_t>(kStockBytes));
    EXPECT_EQ(copy.to_bytes, written);
    written += copy.num_bytes;
  }
  EXPECT_EQ(written, call.num_bytes());
}

TEST_F(EmulatedCallTest, WritesAllOfWhatIsReceivedWithFiniteNumbers) {
  for (const size_t elems : {size_t{1}, size_t{64}, size_t{333}}) {  // 64 at once
    const std::vector<float> y = y_of(CommOp::kRecv, elems, {});
    EXPECT_TRUE(std::ranges::all_of(y, [](float value) { return std::isfinite(value); }));
    EXPECT_TRUE(std::ranges::any_of(y, [](float value) { return value != 0; }));
  }
}

TEST_F(EmulatedCallTest, LeavesOperandsInPlaceAlone) {
  std::vector<float> y{0, 0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5};
  std::vector<float> none;
  CommCall call = call_between(CommOp::kAllGather, group_, none, y);
  call.send = bytes_of(y) + 4 * sizeof(float);  // this rank's block
  call.send_elems = 4;
  const auto copies = stand_in_copies(call, 2, kStockBytes);
  ASSERT_EQ(copies.size(), 3u);
  EXPECT_FALSE(copies_nothing(copies[0], call));
  EXPECT_TRUE(copies_nothing(copies[1], call));
  run(call, 0);
  EXPECT_EQ(y, (std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}));
}

TEST_F(EmulatedCallTest, SendsNothing) {
  std::vector<float> x{1, 2};
  EXPECT_TRUE(stand_in_copies(send_of(group_, x, 0), 2, kStockBytes).empty());
}

TEST_F(EmulatedCallTest, LeavesResultsOfTheFirstStepWhereTheyAre) {
  std::vector<float> x{1, 2};
  std::vector<float> y(2, 0);
  const CommCall call = call_between(CommOp::kBroadcast, group_, x, y);
  const EmulatedCall once{.copies = stand_in_copies(call, 2, kStockBytes), .every_step = false};
  run_emulated(once, call, stock_, /*is_first_step=*/true);
  EXPECT_EQ(y, x);
  x = {3, 4};
  run_emulated(once, call, stock_, /*is_first_step=*/false);
  EXPECT_EQ(y, (std::vector<float>{1, 2}));
}

TEST_F(EmulatedCallTest, TakesItsTime) {
  std::vector<float> x{1, 2};
  constexpr std::chrono::milliseconds kDuration{3};
  const auto begin = Clock::now();
  run(all_reduce_of(group_, x), std::chrono::nanoseconds(kDuration).count());
  EXPECT_GE(Clock::now() - begin, kDuration);
}

TEST_F(EmulatedCallTest, RefusesCallsThatAreBugs) {
  std::vector<float> x(6);
  std::vector<float> y(6);
  EXPECT_THAT(message_of<InternalError>([&] {
                stand_in_copies(call_between(CommOp::kAllGather, group_, x, y), 2, kStockBytes);
              }),
              ::testing::HasSubstr("of 3 ranks: 6 elements there and 6 elements back"));
  EXPECT_THAT(message_of<InternalError>([&] { stand_in_copies(recv_of(group_, y, 0), 2, 0); }),
              ::testing::HasSubstr("a stock of 0 bytes"));
}

TEST(Stock, IsNormalInBf16AndFiniteInWiderTypes) {
  std::vector<std::byte> stock(1 << 16);
  fill_stock(stock);
  const auto as = [&]<class T>(T) {
    std::vector<T> values(stock.size() / sizeof(T));
    std::memcpy(values.data(), stock.data(), stock.size());
    return values;
  };
  double sum = 0;
  double squares = 0;
  const auto words = as(uint16_t{});
  for (const uint16_t word : words) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(word) << 16);
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const auto count = static_cast<double>(words.size());
  EXPECT_NEAR(sum / count, 0, 0.0004);
  EXPECT_NEAR(squares / count, 0.0004, 0.00002);
  EXPECT_TRUE(std::ranges::all_of(as(0.0f), [](float value) { return std::isfinite(value); }));
  EXPECT_TRUE(std::ranges::all_of(as(0.0), [](double value) { return std::isfinite(value); }));
}

}  // namespace
}  // namespace braid
