#include "ops/collectives.h"

#include "ops/autodiff.h"
#include "ops/elementwise.h"
#include "ops/specs.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DType kF32 = DType::kF32;

OpSpec collective_spec(const char* op, std::vector<OperandSpec> operands) {
  return {op, to_attributes(CollectiveAttributes{.group = 1}), std::move(operands)};
}

OpSpec message_spec(const char* op, const MessageAttributes& attributes, OperandSpec operand) {
  return {op, to_attributes(attributes), {std::move(operand)}};
}

TEST(CollectiveCost, CountsTheLargestOperand) {
  const OperandSpec block = read(DType::kBF16, {2, 5});
  const OperandSpec whole = read(DType::kBF16, {6, 5});
  expect_cost(collective_spec("all_reduce", {read_write(kF32, {100})}),
              {.bytes_read = 400, .bytes_written = 400, .comm_bytes = 400});
  expect_cost(collective_spec("all_reduce", {whole, write(DType::kBF16, {6, 5})}),
              {.bytes_read = 60, .bytes_written = 60, .comm_bytes = 60});
  expect_cost(collective_spec("all_gather", {block, write(DType::kBF16, {6, 5})}),
              {.bytes_read = 20, .bytes_written = 60, .comm_bytes = 60});
  expect_cost(collective_spec("reduce_scatter", {whole, write(DType::kBF16, {2, 5})}),
              {.bytes_read = 60, .bytes_written = 20, .comm_bytes = 60});
  expect_cost(message_spec("send", {}, read(kF32, {7})), {.bytes_read = 28, .comm_bytes = 28});
  expect_cost(message_spec("recv", {}, write(kF32, {7})), {.bytes_written = 28, .comm_bytes = 28});
  expect_cost(collective_spec("identity", {block, write(DType::kBF16, {2, 5})}),
              {.bytes_read = 20, .bytes_written = 20});
}

TEST(CollectiveCheck, GroupIsAnIndex) {
  for (const char* const op :
       {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "identity"}) {
    const OpSpec spec = collective_spec(op, {read(kF32, {4}), write(kF32, {4})});
    EXPECT_NO_THROW(check_spec(spec));
    expect_refused(with_attribute(spec, "group", int64_t{-1}),
                   "group must be an index into the program's groups");
  }
}

TEST(CollectiveCheck, CopyEnginesDoWhatAddsNothing) {
  const OpSpec gather = collective_spec("all_gather", {read(kF32, {4}), write(kF32, {8})});
  const OpSpec copied = by_copy_engine(gather);
  EXPECT_NO_THROW(check_spec(copied));
  EXPECT_TRUE(is_by_copy_engine(copied));
  EXPECT_FALSE(is_by_copy_engine(gather));
  EXPECT_EQ(by_any_engine(copied), gather);
  EXPECT_EQ(by_copy_engine(copied), copied);
  EXPECT_EQ(spec_cost(copied).comm_bytes, spec_cost(gather).comm_bytes);
  expect_refused(with_attribute(copied, "engine", std::string("tape")), "engine must be copy");
  const OpSpec by_nccl = by_nccl_copies(copied);
  EXPECT_NO_THROW(check_spec(by_nccl));
  EXPECT_TRUE(is_by_nccl_copies(by_nccl));
  EXPECT_FALSE(is_by_copy_engine(by_nccl));
  EXPECT_TRUE(needs_no_sm(by_nccl) && needs_no_sm(copied) && !needs_no_sm(gather));
  EXPECT_EQ(by_any_engine(by_nccl), gather);
  const OpSpec shift = {.op = "ring_shift",
                        .attributes = to_attributes(RingShiftAttributes{.group = 0, .shift = 1}),
                        .operands = {read(kF32, {4}), write(kF32, {4})}};
  EXPECT_THAT(message_of<InternalError>([&] { by_nccl_copies(shift); }),
              HasSubstr("NCCL has no copies for op ring_shift"));
  expect_refused(with_attribute(by_copy_engine(shift), "engine", std::string("nccl_copy")),
                 "engine must be copy");
  const OpSpec sum = collective_spec("reduce_scatter", {read(kF32, {8}), write(kF32, {4})});
  EXPECT_THAT(message_of<InternalError>([&] { by_copy_engine(sum); }),
              HasSubstr("copy engines cannot do op reduce_scatter"));
}

TEST(CollectiveCheck, RootAndPeerAreMembersAndChannelsCount) {
  for (const char* const op : {"broadcast", "reduce"}) {
    const OpSpec spec{op,
                      to_attributes(RootAttributes{.group = 0, .root = 2}),
                      {read(kF32, {4}), write(kF32, {4})}};
    EXPECT_NO_THROW(check_spec(spec));
    expect_refused(with_attribute(spec, "root", int64_t{-1}), "root must be a member of the group");
  }
  for (const char* const op : {"send", "recv"}) {
    const OperandSpec operand =
        op == std::string("send") ? read(DType::kU8, {2, 3}) : write(DType::kU8, {2, 3});
    EXPECT_NO_THROW(check_spec(message_spec(op, {.peer = 3, .channel = 5}, operand)));
    expect_refused(message_spec(op, {.peer = -1}, operand), "peer must be a member of the group");
    expect_refused(message_spec(op, {.channel = -2}, operand), "channel must not be negative");
  }
}

TEST(AllReduceCheck, TakesOneOperandInPlaceOrTwo) {
  EXPECT_NO_THROW(check_spec(collective_spec("all_reduce", {read_write(kF32, {2, 3})})));
  EXPECT_NO_THROW(
      check_spec(collective_spec("all_reduce", {read(kF32, {2, 3}), write(kF32, {2, 3})})));
  expect_refused(collective_spec("all_reduce", {read(kF32, {6})}), "operand x has access");
  expect_refused(collective_spec("all_reduce", {read(kF32, {6}), read_write(kF32, {6})}),
                 "operand y has access");
  expect_refused(collective_spec("all_reduce", {read(kF32, {6}), write(kF32, {3})}),
                 "operand y is f32 [3], expected f32 [6]");
}

TEST(BlockCheck, OneOperandHoldsABlockOfTheOtherPerRank) {
  const auto gather = [](Shape x, Shape y) {
    return collective_spec("all_gather", {read(kF32, x), write(kF32, y)});
  };
  const auto scatter = [](Shape x, Shape y) {
    return collective_spec("reduce_scatter", {read(kF32, x), write(kF32, y)});
  };
  EXPECT_NO_THROW(check_spec(gather({2, 3}, {2, 3})));
  EXPECT_NO_THROW(check_spec(gather({2, 3}, {10, 3})));
  EXPECT_NO_THROW(check_spec(scatter({10, 3}, {2, 3})));
  EXPECT_NO_THROW(check_spec(gather({0, 3}, {0, 3})));
  const char* const blocks = "one of x and y must hold a block of the other per rank";
  expect_refused(gather({4, 3}, {10, 3}), blocks);
  expect_refused(scatter({10, 3}, {4, 3}), blocks);
  expect_refused(gather({10, 3}, {2, 3}), blocks);
  expect_refused(scatter({2, 3}, {10, 3}), blocks);
  expect_refused(gather({0, 3}, {2, 3}), blocks);
  expect_refused(gather({2, 3}, {0, 3}), blocks);
  expect_refused(gather({2, 3}, {10, 4}), "x and y may differ in the first dimension only");
  expect_refused(collective_spec("all_gather", {read(kF32, {2}), write(DType::kBF16, {4})}),
                 "x and y must have one dtype");
  expect_refused(gather({}, {4}), "operand x has shape [], expected 1 dimensions");
  expect_refused(collective_spec("all_to_all", {read(kF32, {}), write(kF32, {})}),
                 "operand x has shape [], expected 1 dimensions");
}

TEST(CollectiveCheck, SumsFloatingPointAndMovesAnything) {
  for (const char* const op : {"all_reduce", "reduce_scatter"}) {
    expect_refused(collective_spec(op, {read(DType::kI32, {4}), write(DType::kI32, {4})}),
                   "operand x is i32, expected floating point");
  }
  for (const char* const op : {"all_gather", "all_to_all", "identity"}) {
    EXPECT_NO_THROW(
        check_spec(collective_spec(op, {read(DType::kU8, {4}), write(DType::kU8, {4})})));
  }
}

/// A graph of communication between activations; `finish` makes every result lead to the loss, as
/// far as autodiff can see.
class CommunicationGraph {
 public:
  GraphBuilder& builder() { return builder_; }
  const StageGraph& graph() const { return graph_; }
  ValueId x() {
    return builder_.named_value(
        {.name = "x", .dtype = kF32, .shape = {6, 2}, .kind = ValueKind::kActivation});
  }

  /// "op {attributes} x -> y" of the backward, where a message gives the gradient of `y`.
  std::vector<std::string> backward(ValueId y) {
    send(builder_, y, {.group = "loss"}, "loss");
    differentiate(graph_);
    EXPECT_EQ(graph_.backward.front().spec.op, "recv");
    std::vector<std::string> list;
    for (size_t i = 1; i < graph_.backward.size(); ++i) {
      list.push_back(describe(graph_.backward[i]));
    }
    return list;
  }

 private:
  std::string describe(const Node& node) const {
    EXPECT_EQ(node.phase, node.spec.op == "add" ? Phase::kDgrad : Phase::kComm);
    std::string text = node.spec.op;
    for (const Attribute& attribute : node.spec.attributes) {
      text += fmt::format(" {}={}", attribute.name, std::get<int64_t>(attribute.value));
    }
    for (const ValueId value : node.operands) {
      text += fmt::format(" {}{}", graph_.value(value).name, to_string(graph_.value(value).shape));
    }
    return text;
  }

  StageGraph graph_;
  GraphBuilder builder_{graph_};
};

TEST(CollectiveGraph, NamesGroupsAndPhases) {
  CommunicationGraph made;
  const ValueId x = made.x();
  all_gather(made.builder(), all_reduce(made.builder(), x, "tensor", "reduce"), "context", 2,
             "gather");
  identity(made.builder(), x, "tensor", "copy");
  const StageGraph& graph = made.graph();
  EXPECT_THAT(graph.groups, ElementsAre("tensor", "context"));
  const auto group = [&](size_t node) {
    return std::get<int64_t>(*graph.forward[node].spec.find_attribute("group"));
  };
  EXPECT_EQ(group(0), 0);
  EXPECT_EQ(group(1), 1);
  EXPECT_EQ(group(2), 0);
  EXPECT_EQ(graph.forward[0].phase, Phase::kComm);
  EXPECT_EQ(graph.forward[1].phase, Phase::kComm);
  EXPECT_EQ(graph.forward[2].phase, Phase::kForward);
  EXPECT_EQ(graph.value(graph.forward[1].operands[1]).shape, (Shape{12, 2}));
}

TEST(CollectiveBackward, OfAllReduceHandsTheGradientOver) {
  CommunicationGraph made;
  const ValueId x = made.x();
  EXPECT_THAT(made.backward(all_reduce(made.builder(), x, "tensor", "y")), ElementsAre());
}

TEST(CollectiveBackward, OfIdentityIsAllReduce) {
  CommunicationGraph made;
  const ValueId y = identity(made.builder(), made.x(), "tensor", "y");
  EXPECT_THAT(made.backward(y), ElementsAre("all_reduce group=0 y.grad[6,2] x.grad[6,2]"));
}

TEST(CollectiveBackward, OfGatherIsScatterAndTheOtherWayRound) {
  CommunicationGraph made;
  const ValueId gathered = all_gather(made.builder(), made.x(), "tensor", 3, "gathered");
  const ValueId scattered = reduce_scatter(made.builder(), gathered, "context", 9, "scattered");
  EXPECT_THAT(made.backward(scattered),
              ElementsAre("all_gather group=1 scattered.grad[2,2] gathered.grad[18,2]",
                          "reduce_scatter group=0 gathered.grad[18,2] x.grad[6,2]"));
}

TEST(CollectiveBackward, OfBroadcastIsReduceAndTheOtherWayRound) {
  CommunicationGraph made;
  const ValueId sum = reduce(made.builder(), made.x(), "tensor", 2, "sum");
  const ValueId y = broadcast(made.builder(), sum, "tensor", 1, "y");
  EXPECT_THAT(made.backward(y), ElementsAre("reduce group=0 root=1 y.grad[6,2] sum.grad[6,2]",
                                            "broadcast group=0 root=2 sum.grad[6,2] x.grad[6,2]"));
}

TEST(CollectiveBackward, OfExchangesGoesBack) {
  CommunicationGraph made;
  const ValueId swapped = all_to_all(made.builder(), made.x(), "tensor", 2, "swapped");
  const ValueId y = ring_shift(made.builder(), swapped, "tensor", 3, "y");
  EXPECT_THAT(made.backward(y),
              ElementsAre("ring_shift group=0 shift=-3 y.grad[6,2] swapped.grad[6,2]",
                          "all_to_all group=0 swapped.grad[6,2] x.grad[6,2]"));
}

TEST(CollectiveBackward, OfAMessageIsAMessageBackOnTheChannelBeside) {
  CommunicationGraph made;
  send(made.builder(), made.x(), {.group = "pipeline", .peer = 2, .channel = 4}, "out");
  const ValueId y =
      recv(made.builder(), kF32, {6, 2}, {.group = "pipeline", .peer = 1, .channel = 7}, "in");
  EXPECT_THAT(made.backward(y), ElementsAre("send group=0 peer=1 channel=6 in.grad[6,2]",
                                            "recv group=0 peer=2 channel=5 x.grad[6,2]"));
}

TEST(CollectiveBackward, OfWhatIsSentAndUsedIsSummed) {
  CommunicationGraph made;
  const ValueId x = made.x();
  send(made.builder(), x, {.group = "pipeline"}, "out");
  const ValueId y = add(made.builder(), x, x, "y");
  EXPECT_THAT(made.backward(y),
              ElementsAre("add y.grad[6,2] y.grad[6,2] x.grad_sum[6,2]",
                          "recv group=0 peer=0 channel=1 x.grad_addend[6,2]",
                          "add x.grad_sum[6,2] x.grad_addend[6,2] x.grad_sum[6,2]"));
}

TEST(CollectiveBackward, RefusesWhatLeadsNowhere) {
  StageGraph graph;
  GraphBuilder builder(graph);
  recv(builder, kF32, {4}, {.group = "pipeline"}, "in");
  EXPECT_THAT(message_of<InternalError>([&] { differentiate(graph); }),
              HasSubstr("op recv at in: what it receives does not lead to the loss"));
}

TEST(CollectiveGraph, RefusesWhatRanksCannotShare) {
  CommunicationGraph made;
  const ValueId x = made.x();
  EXPECT_THAT(
      message_of<InternalError>([&] { reduce_scatter(made.builder(), x, "tensor", 4, "y"); }),
      HasSubstr("x [6,2] cannot be split over 4 ranks"));
  EXPECT_THAT(message_of<InternalError>([&] { all_to_all(made.builder(), x, "tensor", 5, "y"); }),
              HasSubstr("x [6,2] cannot be split over 5 ranks"));
}

}  // namespace
}  // namespace braid
