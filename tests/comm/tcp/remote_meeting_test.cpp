#include "comm/tcp/remote_meeting.h"

#include "comm/comm_fixture.h"

namespace braid {
namespace {

/// What a process of the group sends of its call, without elements.
std::unique_ptr<RemoteCall> sent(const CommCall& call, int64_t number) {
  auto remote = std::make_unique<RemoteCall>();
  remote->group = *call.group;
  remote->call = call;
  remote->call.group = &remote->group;
  remote->number = number;
  return remote;
}

class Remote : public testing::Test {
 protected:
  const Group all_ = all_ranks(3);
  std::vector<float> value_ = std::vector<float>(4);
  const CommCall call_ = all_reduce_of(all_, value_, "own");
  RemoteMeeting remote_{call_, 1};
};

TEST_F(Remote, CallsMeetInWhateverOrderTheyCome) {
  EXPECT_FALSE(remote_.add(2, sent(call_, 1)));  // nobody waits for it yet
  remote_.open(1, call_);
  EXPECT_FALSE(remote_.all_here());
  EXPECT_FALSE(remote_.add(2, sent(call_, 2)));  // of the next call
  EXPECT_TRUE(remote_.add(0, sent(call_, 1)));
  EXPECT_TRUE(remote_.all_here());
  EXPECT_EQ(remote_.meeting().find_mismatch(), "");
  ++remote_.meeting().num_met;
  const auto taken = remote_.take(1);
  EXPECT_EQ(taken[0]->number, 1);
  EXPECT_EQ(taken[1], nullptr);
  EXPECT_EQ(taken[2]->number, 1);
  remote_.close();

  remote_.open(1, call_);
  EXPECT_FALSE(remote_.all_here());  // rank 0 has not come back
  EXPECT_TRUE(remote_.add(0, sent(call_, 2)));
  EXPECT_TRUE(remote_.all_here());
}

TEST_F(Remote, APartyIsThereUntilTheCallIsClosed) {
  remote_.open(1, call_);
  remote_.add(0, sent(call_, 1));
  remote_.add(2, sent(call_, 1));
  ++remote_.meeting().num_met;
  remote_.take(1);  // what was taken has gone
  EXPECT_TRUE(remote_.all_here());
  EXPECT_EQ(remote_.meeting().find_mismatch(), "");
  EXPECT_FALSE(remote_.add(0, sent(call_, 2)));
  remote_.close();
  EXPECT_FALSE(remote_.all_here());
}

TEST_F(Remote, TwoCallsAtOnceAreABug) {
  remote_.open(1, call_);
  const CommCall other = all_reduce_of(all_, value_, "other");
  EXPECT_EQ(message_of<InternalError>([&] { remote_.open(1, other); }),
            "rank 1 is in two calls of group all at once: all_reduce of 4 f32 (own) and all_reduce "
            "of 4 f32 (other)");
}

TEST_F(Remote, ACallOfAnotherNumberIsABug) {
  remote_.open(1, call_);
  remote_.add(0, sent(call_, 1));
  remote_.add(2, sent(call_, 2));
  ++remote_.meeting().num_met;
  EXPECT_EQ(message_of<InternalError>([&] { remote_.take(1); }),
            "call 2 of rank 2 in group all comes as call 1");
}

TEST(MeetingKey, IsThatOfTheCallsThatMeet) {
  const Group line = make_group("pipeline", {4, 2, 7});
  std::vector<float> value(3);
  const auto key = [](const CommCall& call, size_t member) {
    return meeting_key(Meeting(call, member));
  };
  EXPECT_EQ(key(send_of(line, value, 2), 0), key(recv_of(line, value, 0), 2));
  EXPECT_NE(key(send_of(line, value, 2), 0), key(send_of(line, value, 1), 0));
  EXPECT_NE(key(send_of(line, value, 2), 0), key(send_of(line, value, 0), 2));
  EXPECT_NE(key(send_of(line, value, 2, 1), 0), key(send_of(line, value, 2), 0));
  EXPECT_NE(key(all_reduce_of(line, value), 0),
            key(all_reduce_of(make_group("pipeline", {4, 2}), value), 0));
}

}  // namespace
}  // namespace braid
