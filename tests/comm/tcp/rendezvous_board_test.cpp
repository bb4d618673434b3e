#include "comm/tcp/rendezvous_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/byte_fields.h"
#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using Message = RendezvousMessage;

/// A board at which two processes have come.
class Board : public testing::Test {
 protected:
  Board() {
    board_.come(0, {});
    board_.come(1, {});
  }

  void take(int process, Message type, ByteWriter body) {
    board_.take(process, {static_cast<uint8_t>(type), body.take()});
  }
  std::string fault_of(int process, Message type, ByteWriter body) {
    return message_of<DeviceError>([&] { take(process, type, body); });
  }

  /// The messages for a process, which are then gone.
  std::vector<std::pair<Message, std::string>> said_to(int process) {
    FrameBuffer in;
    in.bytes() = std::exchange(board_.out(process), {});
    std::vector<std::pair<Message, std::string>> messages;
    while (const std::optional<Frame> frame = in.next(kMaxMessageBytes)) {
      messages.emplace_back(static_cast<Message>(frame->type), frame->body);
    }
    return messages;
  }

  RendezvousBoard board_{2};
};

TEST_F(Board, TellsWhoIsMissing) {
  EXPECT_EQ(board_.missing(), std::nullopt);
  RendezvousBoard other(3);
  other.come(0, {});
  other.come(2, {});
  EXPECT_EQ(other.missing(), 1);
}

TEST_F(Board, WhoComesAfterAnAbortHearsOfIt) {
  RendezvousBoard board(2);
  board.come(0, {});
  board.abort("first");
  board.abort("second");
  board.come(1, {});
  EXPECT_EQ(board.reason(), "first");
  const std::string aborted = pack_frame(static_cast<uint8_t>(Message::kAborted), "first");
  EXPECT_EQ(board.out(0), aborted);
  EXPECT_EQ(board.out(1), aborted);
}

TEST_F(Board, WhoHasLeftHearsNothing) {
  take(1, Message::kGoodbye, ByteWriter());
  board_.abort("why");
  EXPECT_THAT(said_to(0), ElementsAre(Pair(Message::kAborted, "why")));
  EXPECT_THAT(said_to(1), IsEmpty());
}

TEST_F(Board, OneProcessCannotBeInAGatheringTwice) {
  const auto own = [] {
    return ByteWriter().number(uint32_t{7}).text("all").number(uint8_t{1}).text("x");
  };
  take(1, Message::kGather, own());
  EXPECT_EQ(fault_of(1, Message::kGather, own()), "is in all twice at once");
}

TEST_F(Board, AnswersGoToRanksThatExist) {
  const auto answer_to = [](int32_t rank) {
    return ByteWriter().number(rank).number(uint32_t{7}).number(uint8_t{0});
  };
  EXPECT_EQ(fault_of(1, Message::kAnswer, answer_to(2)), "answers rank 2, which does not exist");
  EXPECT_EQ(fault_of(1, Message::kAnswer, answer_to(-1)), "answers rank -1, which does not exist");
  take(1, Message::kAnswer, answer_to(0));
  const std::string told =
      ByteWriter().number(uint32_t{7}).number(int32_t{1}).number(uint8_t{0}).take();
  EXPECT_THAT(said_to(0), ElementsAre(Pair(Message::kAnswered, told)));
}

TEST_F(Board, RefusesMessagesThatNoProcessSends) {
  EXPECT_EQ(fault_of(0, Message::kDone, ByteWriter()), "a message of unknown type 80");
  EXPECT_EQ(fault_of(0, Message::kPut, ByteWriter().number(uint32_t{7}).number(uint64_t{100})),
            "a message of another process is cut short");
}

}  // namespace
}  // namespace braid
