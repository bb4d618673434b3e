#include "comm/comm_call.h"

#include <array>
#include <set>

#include "comm/comm_fixture.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr DType kF32 = DType::kF32;

/// Where operands lie in these tests: nothing is read.
class CommCallTest : public ::testing::Test {
 protected:
  CommCall make(const OpSpec& spec, const Group& group) {
    check_spec(spec);
    std::vector<std::byte*> operands;
    for (size_t i = 0; i < spec.operands.size(); ++i) {
      operands.push_back(arrays_[i].data());
    }
    return make_comm_call(spec, group, operands, "task");
  }

  std::vector<Attribute> attributes_ = to_attributes(CollectiveAttributes{.group = 3});
  std::array<std::array<std::byte, 4096>, 2> arrays_{};
  Group three_ = make_group("three", {4, 0, 2});
};

TEST_F(CommCallTest, TakesOperandsAndSizesOfTheSpec) {
  const CommCall gather =
      make({"all_gather", attributes_, {read(kF32, {2, 5}), write(kF32, {6, 5})}}, three_);
  EXPECT_EQ(gather.op, CommOp::kAllGather);
  EXPECT_EQ(gather.group, &three_);
  EXPECT_EQ(gather.send, arrays_[0].data());
  EXPECT_EQ(gather.recv, arrays_[1].data());
  EXPECT_EQ(gather.send_elems, 10);
  EXPECT_EQ(gather.recv_elems, 30);
  EXPECT_EQ(gather.num_elems(), 30);
  EXPECT_EQ(gather.num_bytes(), 120);
  EXPECT_EQ(describe_call(gather), "all_gather of 30 f32 (task)");
}

TEST_F(CommCallTest, OfOneOperandIsInPlaceOrOneEndOfAMessage) {
  const CommCall sum = make({"all_reduce", attributes_, {read_write(DType::kBF16, {7})}}, three_);
  EXPECT_EQ(sum.send, arrays_[0].data());
  EXPECT_EQ(sum.recv, arrays_[0].data());
  EXPECT_EQ(sum.send_elems, 7);
  EXPECT_EQ(sum.recv_elems, 7);
  const auto ends = to_attributes(MessageAttributes{.group = 3, .peer = 2, .channel = 9});
  const CommCall send = make({"send", ends, {read(kF32, {7})}}, three_);
  EXPECT_EQ(send.send, arrays_[0].data());
  EXPECT_EQ(send.recv, nullptr);
  EXPECT_EQ(send.recv_elems, 0);
  EXPECT_EQ(send.peer, 2);
  EXPECT_EQ(send.channel, 9);
  const CommCall recv = make({"recv", ends, {write(kF32, {7})}}, three_);
  EXPECT_EQ(recv.send, nullptr);
  EXPECT_EQ(recv.recv, arrays_[0].data());
  EXPECT_EQ(describe_call(recv), "recv of 7 f32 (task)");
}

TEST_F(CommCallTest, TakesRootsAndShifts) {
  const std::vector<OperandSpec> operands{read(kF32, {7}), write(kF32, {7})};
  const CommCall broadcast =
      make({"broadcast", to_attributes(RootAttributes{.group = 3, .root = 2}), operands}, three_);
  EXPECT_EQ(describe_call(broadcast), "broadcast of 7 f32 with root 2 (task)");
  const CommCall shift =
      make({"ring_shift", to_attributes(RingShiftAttributes{.group = 3, .shift = -4}), operands},
           three_);
  EXPECT_EQ(describe_call(shift), "ring_shift of 7 f32 by -4 (task)");
}

TEST_F(CommCallTest, IsMadeOfEveryOpThatCommunicates) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kNumCommOps; ++i) {
    names.insert(comm_op_name(static_cast<CommOp>(i)));
  }
  for (const OpDefinition* op : all_ops()) {
    if (op->op_class == OpClass::kCommunication) {
      EXPECT_TRUE(names.erase(op->name)) << op->name;
    }
  }
  EXPECT_TRUE(names.empty());
  EXPECT_THAT(message_of<InternalError>([&] {
                make({"copy", {}, {read(kF32, {7}), write(kF32, {7})}}, three_);
              }),
              ::testing::HasSubstr("op copy does not communicate"));
}

TEST_F(CommCallTest, RefusesSizesThatDoNotFitTheGroup) {
  const auto message = [&](const OpSpec& spec) {
    return message_of<InternalError>([&] { make(spec, three_); });
  };
  EXPECT_EQ(message({"all_gather", attributes_, {read(kF32, {2}), write(kF32, {4})}}),
            "all_gather of 4 f32 (task) in group three of 3 ranks: 2 elements there and 4 elements "
            "back");
  EXPECT_THAT(message({"reduce_scatter", attributes_, {read(kF32, {4}), write(kF32, {2})}}),
              ::testing::HasSubstr("4 elements there and 2 elements back"));
  EXPECT_THAT(message({"all_to_all", attributes_, {read(kF32, {4}), write(kF32, {4})}}),
              ::testing::HasSubstr("of 3 ranks"));
  EXPECT_THAT(message({"broadcast",
                       to_attributes(RootAttributes{.root = 3}),
                       {read(kF32, {4}), write(kF32, {4})}}),
              ::testing::HasSubstr("member 3 does not exist"));
  EXPECT_THAT(message({"send", to_attributes(MessageAttributes{.peer = 5}), {read(kF32, {4})}}),
              ::testing::HasSubstr("member 5 does not exist"));
}

TEST_F(CommCallTest, RefusesSumsOfWhatCannotBeAdded) {
  CommCall call = make({"all_reduce", attributes_, {read_write(kF32, {7})}}, three_);
  call.dtype = DType::kU8;
  EXPECT_THAT(message_of<InternalError>([&] { check_comm_call(call, 0); }),
              ::testing::HasSubstr("all_reduce of 7 u8 (task) in group three: no sum of this"));
  call.op = CommOp::kBroadcast;
  EXPECT_EQ(check_comm_call(call, 0), 1u);
}

TEST_F(CommCallTest, FindsTheMember) {
  const CommCall call = make({"all_reduce", attributes_, {read_write(kF32, {7})}}, three_);
  EXPECT_EQ(check_comm_call(call, 4), 0u);
  EXPECT_EQ(check_comm_call(call, 2), 2u);
  EXPECT_THAT(message_of<InternalError>([&] { check_comm_call(call, 1); }),
              ::testing::HasSubstr("rank 1 is not in group three"));
}

/// x is elements [x_begin, +x_elems) of an array, y likewise.
struct Overlap {
  CommOp op;
  int64_t x_begin;
  int64_t x_elems;
  int64_t y_begin;
  int64_t y_elems;
  bool permitted;  ///< for rank 2, member 2 of 3
};

TEST_F(CommCallTest, RefusesOverlapsInWhichARankWouldReadWhatAnotherWrote) {
  const Overlap overlaps[] = {
      {CommOp::kAllReduce, 0, 12, 0, 12, true},     {CommOp::kAllReduce, 0, 12, 4, 12, false},
      {CommOp::kAllReduce, 0, 12, 12, 12, true},    {CommOp::kBroadcast, 0, 12, 0, 12, true},
      {CommOp::kBroadcast, 4, 12, 0, 12, false},    {CommOp::kReduce, 0, 12, 0, 12, false},
      {CommOp::kRingShift, 0, 12, 0, 12, false},    {CommOp::kAllToAll, 0, 12, 0, 12, false},
      {CommOp::kAllGather, 8, 4, 0, 12, true},      {CommOp::kAllGather, 4, 4, 0, 12, false},
      {CommOp::kAllGather, 12, 4, 0, 12, true},     {CommOp::kReduceScatter, 0, 12, 8, 4, true},
      {CommOp::kReduceScatter, 0, 12, 4, 4, false}, {CommOp::kReduceScatter, 0, 12, 12, 4, true}};
  for (const Overlap& overlap : overlaps) {
    CommCall call{.op = overlap.op,
                  .group = &three_,
                  .send = arrays_[0].data() + 4 * overlap.x_begin,
                  .recv = arrays_[0].data() + 4 * overlap.y_begin,
                  .send_elems = overlap.x_elems,
                  .recv_elems = overlap.y_elems,
                  .what = "task"};
    SCOPED_TRACE(
        fmt::format("{} at {}, {}", comm_op_name(overlap.op), overlap.x_begin, overlap.y_begin));
    if (overlap.permitted) {
      EXPECT_NO_THROW(check_comm_call(call, 2));
    } else {
      EXPECT_THAT(message_of<InternalError>([&] { check_comm_call(call, 2); }),
                  ::testing::HasSubstr("x and y overlap"));
    }
  }
}

TEST_F(CommCallTest, OfOneRankCopies) {
  const Group one = make_group("one", {0});
  arrays_[0][5] = std::byte{42};
  for (const char* const op : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}) {
    arrays_[1] = {};
    run_alone(make({op, attributes_, {read(kF32, {7}), write(kF32, {7})}}, one));
    EXPECT_EQ(arrays_[1][5], std::byte{42});
  }
  run_alone(make({"all_reduce", attributes_, {read_write(kF32, {7})}}, one));
  EXPECT_EQ(arrays_[0][5], std::byte{42});
}

}  // namespace
}  // namespace braid
