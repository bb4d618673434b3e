#include <functional>

#include "ops/elementwise.h"
#include "ops/specs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void check_nothing(const OpSpec& /*spec*/) {}
void no_backward(BackwardBuilder& /*builder*/, const Node& /*node*/) {}
GemmShape no_shape(const OpSpec& /*spec*/) {
  return {};
}

OpDefinition compute_op() {
  return {.name = "halve",
          .summary = "y = x / 2.",
          .family = OpFamily::kMemoryBound,
          .kind = OpKind::kElementwise,
          .check = check_nothing,
          .cost = elementwise_cost<1>,
          .split = kSplitByRows};
}

OpDefinition communication_op() {
  return {.name = "shuffle",
          .summary = "Sends x somewhere.",
          .op_class = OpClass::kCommunication,
          .family = OpFamily::kCommunication,
          .kind = OpKind::kCommunication,
          .check = check_nothing,
          .cost = elementwise_cost<0>,
          .recompute = Recompute::kFull,
          .communication = Communication{.op = CommOp::kBroadcast}};
}

struct Fault {
  std::string field;  ///< that the message names
  std::function<void(OpDefinition& op)> make;
};

void expect_refused(const OpDefinition& good, const std::vector<Fault>& faults) {
  EXPECT_NO_THROW(validate_op(good));
  for (const Fault& fault : faults) {
    OpDefinition op = good;
    fault.make(op);
    EXPECT_THAT(message_of<InternalError>([&] { validate_op(op); }),
                AllOf(HasSubstr("op " + std::string(op.name)), HasSubstr(fault.field)));
  }
}

TEST(ValidateOps, TakesAllOfThem) {
  EXPECT_NO_THROW(validate_ops(all_ops()));
}

TEST(ValidateOp, NamesOpAndFieldOfAComputeOp) {
  expect_refused(
      compute_op(),
      {
          {"summary", [](OpDefinition& op) { op.summary = {}; }},
          {"check", [](OpDefinition& op) { op.check = nullptr; }},
          {"cost", [](OpDefinition& op) { op.cost = nullptr; }},
          {"family is missing", [](OpDefinition& op) { op.family.reset(); }},
          {"kind is missing", [](OpDefinition& op) { op.kind.reset(); }},
          {"split is missing", [](OpDefinition& op) { op.split = {}; }},
          {"kernel_rate must be", [](OpDefinition& op) { op.kernel_rate.part = 0; }},
          {"kernel_rate must be", [](OpDefinition& op) { op.kernel_rate.part = 1.01; }},
          {"kernel_rate must be", [](OpDefinition& op) { op.kernel_rate.least_ns = -1; }},
          {"kernel_rate contradicts",
           [](OpDefinition& op) {
             op.family = OpFamily::kGemm;
             op.gemm_shape = no_shape;
             op.kernel_rate.part = 0.5;
           }},
          {"source rounds no operand",
           [](OpDefinition& op) { op.source = {.num_operands = 2, .result = 2}; }},
          {"gemm_shape is missing", [](OpDefinition& op) { op.family = OpFamily::kGemm; }},
          {"gemm_shape contradicts", [](OpDefinition& op) { op.gemm_shape = no_shape; }},
          {"attention_shape is missing",
           [](OpDefinition& op) { op.family = OpFamily::kAttention; }},
          {"host_copy is missing", [](OpDefinition& op) { op.family = OpFamily::kHostCopy; }},
          {"host_copy contradicts", [](OpDefinition& op) { op.host_copy = HostCopy::kToHost; }},
          {"family contradicts", [](OpDefinition& op) { op.family = OpFamily::kNothing; }},
          {"family contradicts", [](OpDefinition& op) { op.family = OpFamily::kCommunication; }},
          {"kind contradicts", [](OpDefinition& op) { op.kind = OpKind::kCommunication; }},
          {"communication contradicts", [](OpDefinition& op) { op.communication.emplace(); }},
          {"backward is missing", [](OpDefinition& op) { op.dual = "double"; }},
          {"must be kSplitByRows",
           [](OpDefinition& op) {
             op.values = ValueRule::kByRow;
             op.split = kNeverSplit;
           }},
      });
}

TEST(ValidateOp, NamesOpAndFieldOfACommunicationOp) {
  expect_refused(
      communication_op(),
      {
          {"communication is missing", [](OpDefinition& op) { op.communication.reset(); }},
          {"family contradicts", [](OpDefinition& op) { op.family = OpFamily::kMemoryBound; }},
          {"kind contradicts", [](OpDefinition& op) { op.kind = OpKind::kCopy; }},
          {"recompute must not be", [](OpDefinition& op) { op.recompute = Recompute::kCompute; }},
          {"sums",
           [](OpDefinition& op) {
             op.communication->sums = true;
             op.communication->copies = CommCopies::kCopyEngine;
           }},
          {"is a message",
           [](OpDefinition& op) {
             op.communication->shape = CommShape::kMessage;
             op.communication->waits_for_all = true;
           }},
      });
}

TEST(ValidateOps, RefusesNamesThatDoNotFitTogether) {
  const auto message_with = [](const OpDefinition& op) {
    std::vector<const OpDefinition*> ops(all_ops().begin(), all_ops().end());
    ops.push_back(&op);
    return message_of<InternalError>([&] { validate_ops(ops); });
  };
  OpDefinition op = compute_op();
  op.name = kAddOp.name;
  EXPECT_THAT(message_with(op), HasSubstr("op add: name is that of another op"));
  op = compute_op();
  op.replay.op = "nothing";
  EXPECT_THAT(message_with(op), HasSubstr("op halve: replay names no op"));
  op = compute_op();
  op.backward = no_backward;
  op.dual = "all_gather";
  EXPECT_THAT(message_with(op), HasSubstr("op halve: dual all_gather has another dual"));
  EXPECT_THAT(message_with(communication_op()),
              HasSubstr("op shuffle: communication is that of another op"));
}

TEST(FindOp, OfEveryWayToCommunicate) {
  for (size_t i = 0; i < kNumCommOps; ++i) {
    const auto op = static_cast<CommOp>(i);
    EXPECT_EQ(find_op(op).communication->op, op);
  }
}

TEST(KnownOp, IsNullForOthersWhichHaveNoTraits) {
  const OpSpec unknown{.op = "halve"};
  EXPECT_EQ(find_known_op(unknown.op), nullptr);
  EXPECT_EQ(find_known_op(""), nullptr);
  EXPECT_EQ(find_known_op("add"), &kAddOp);
  EXPECT_EQ(communication_of(unknown), nullptr);
  EXPECT_EQ(value_rule(unknown), ValueRule::kComputed);
  EXPECT_FALSE(is_message(unknown) || has_role(unknown, OpRole::kProduct) ||
               is_product_or_attention(unknown) || communicates_as(unknown, CommOp::kAllReduce));
}

}  // namespace
}  // namespace braid
