#include "comm/ended_steps.h"

#include "comm/comm_fixture.h"

namespace braid {
namespace {

using std::chrono::milliseconds;

class Ended : public testing::Test {
 protected:
  std::optional<std::string> overdue(int rank, int64_t at_ms) const {
    return steps_.describe_overdue(rank, milliseconds(500), at(at_ms), ledger_);
  }
  static EndedSteps::Time at(int64_t ms) { return EndedSteps::Time(milliseconds(ms)); }

  Ledger ledger_{3};
  EndedSteps steps_{3};
};

TEST_F(Ended, ARankIsMissedOnceAnotherOneHasWaitedForLonger) {
  steps_.add(2, at(1000));
  EXPECT_EQ(overdue(1, 1500), std::nullopt);
  EXPECT_EQ(overdue(1, 1501),
            "rank 1 has not ended the step that rank 2 ended 0.5 s ago; rank 1: no call yet");
  EXPECT_EQ(overdue(2, 9000), std::nullopt);
  steps_.add(1, at(1600));
  EXPECT_EQ(overdue(1, 9000), std::nullopt);
  EXPECT_NE(overdue(0, 9000), std::nullopt);
}

TEST_F(Ended, CountsSteps) {
  for (int64_t step = 1; step <= 3; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      steps_.add(rank, at(1000 * step + rank));
    }
  }
  steps_.add(0, at(4000));
  EXPECT_NE(overdue(1, 5000), std::nullopt);
  steps_.add(1, at(5000));
  EXPECT_EQ(overdue(1, 6000), std::nullopt);
}

TEST_F(Ended, OneThatIsInACallWillBeToldThere) {
  const Group all = all_ranks(3);
  std::vector<float> value(1);
  const CommCall call = all_reduce_of(all, value);
  const Meeting meeting(call, 1);
  steps_.add(0, at(0));
  ledger_.begin(1, meeting, call);
  EXPECT_EQ(overdue(1, 1000), std::nullopt);
  ledger_.end(1, meeting);
  EXPECT_NE(overdue(1, 1000), std::nullopt);
}

}  // namespace
}  // namespace braid
