#include "parallel/sent_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ScheduleOptions kTwoRanks = {
    .kind = ScheduleKind::kOneForwardOneBackward, .num_ranks = 2, .num_microbatches = 4};
constexpr BufferId kFirst{10};
constexpr BufferId kSecond{11};

// Rank 1 does F0 B0 F1 B1 F2 B2 F3 B3.
TEST(SentMessages, HaveArrivedWhenALaterResultOfTheReceiverIsThere) {
  SentMessages sent(kTwoRanks, 0);
  sent.add(1, {JobKind::kForward, 0, 0}, kFirst);
  sent.add(1, {JobKind::kForward, 1, 0}, kSecond);
  EXPECT_THAT(sent.take_arrived({JobKind::kBackward, 0, 0}), ElementsAre(kFirst));
  EXPECT_THAT(sent.take_arrived({JobKind::kBackward, 0, 0}), IsEmpty());
  EXPECT_THAT(sent.take_arrived({JobKind::kBackward, 1, 0}), ElementsAre(kSecond));
}

// Rank 0 does F0 F1 B0 F2 B1 F3 B2 B3: that it has made F2 does not say that it has come for B1.
TEST(SentMessages, OfTheBackwardArriveBeforeLaterForwards) {
  SentMessages sent(kTwoRanks, 1);
  sent.add(0, {JobKind::kBackward, 0, 0}, kFirst);
  sent.add(0, {JobKind::kBackward, 1, 0}, kSecond);
  EXPECT_THAT(sent.take_arrived({JobKind::kForward, 1, 0}), IsEmpty());
  EXPECT_THAT(sent.take_arrived({JobKind::kForward, 2, 0}), ElementsAre(kFirst));
  EXPECT_THAT(sent.take_arrived({JobKind::kForward, 3, 0}), ElementsAre(kSecond));
}

TEST(SentMessages, ToAJobHaveArrivedWithItsResult) {
  SentMessages sent(
      {.kind = ScheduleKind::kZbV, .num_ranks = 2, .virtual_stages = 2, .num_microbatches = 4}, 0);
  sent.add(1, {JobKind::kForward, 0, 0}, kFirst);
  sent.add(1, {JobKind::kDgrad, 0, 1}, kSecond);
  EXPECT_THAT(sent.take_arrived({JobKind::kForward, 0, 1}), ElementsAre(kFirst));
  EXPECT_THAT(sent.take_arrived({JobKind::kDgrad, 0, 0}), ElementsAre(kSecond));
}

// The microbatch comes back from the last rank, to which the second rank has passed it on.
TEST(SentMessages, HaveArrivedWhenTheMicrobatchHasBeenAround) {
  SentMessages sent({.kind = ScheduleKind::kInterleaved,
                     .num_ranks = 4,
                     .virtual_stages = 2,
                     .num_microbatches = 8},
                    0);
  sent.add(1, {JobKind::kForward, 0, 0}, kFirst);
  sent.add(1, {JobKind::kForward, 1, 0}, kSecond);
  EXPECT_THAT(sent.take_arrived({JobKind::kForward, 0, 1}), ElementsAre(kFirst));
  EXPECT_THAT(sent.take_arrived({JobKind::kForward, 1, 1}), ElementsAre(kSecond));
}

TEST(SentMessages, RefusesAScheduleThatDoesNotExist) {
  EXPECT_THROW(SentMessages({.kind = ScheduleKind::kInterleaved, .num_ranks = 2}, 0), ConfigError);
}

}  // namespace
}  // namespace braid
