#include "ops/host_slots.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "base/expect_error.h"
#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/collectives.h"
#include "ops/expert_rows.h"

namespace braid {
namespace {

OpSpec spec_of(const HostSlotsAttributes& attributes, int64_t tokens = 8) {
  const auto i32 = [](Access access, const Shape& shape) {
    return OperandSpec{.dtype = DType::kI32, .access = access, .shape = shape};
  };
  return {"host_slots",
          to_attributes(attributes),
          {i32(Access::kRead, {tokens, 3}), i32(Access::kWrite, {4, 2}), i32(Access::kWrite, {6}),
           i32(Access::kWrite, {8, 1}), i32(Access::kWrite, {6}), i32(Access::kWrite, {6, 3})}};
}

TEST(HostSlotsCheck, NamesWhatDoesNotFit) {
  const HostSlotsAttributes fits{.member = 1, .hosts = 2, .experts = 6, .block_rows = 3};
  EXPECT_NO_THROW(check_spec(spec_of(fits)));
  const auto message = [](const OpSpec& spec) {
    return message_of<InternalError>([&] { check_spec(spec); });
  };
  const auto expect_refused = [&](const auto& change, const std::string& reason) {
    HostSlotsAttributes attributes = fits;
    change(attributes);
    EXPECT_NE(message(spec_of(attributes)).find(reason), std::string::npos) << reason;
  };
  expect_refused([](auto& it) { it.member = 2; }, "member must be one of the hosts");
  expect_refused([](auto& it) { it.experts = 7; }, "hosts must hold equal numbers of experts");
  expect_refused([](auto& it) { it.block_rows = 0; }, "block_rows and rows must be at least 1");
  EXPECT_NE(message(spec_of(fits, 7)).find("equally many tokens of each host"), std::string::npos);
}

/// The way of tokens to hosts and back, without experts.
StageGraph there_and_back() {
  StageGraph graph;
  GraphBuilder b(graph);
  const auto value = [&](const std::string& name, DType dtype, const Shape& shape,
                         ValueKind kind = ValueKind::kActivation) {
    return b.named_value({.name = name, .dtype = dtype, .shape = shape, .kind = kind});
  };
  const ValueId x = value("x", DType::kBF16, {4, 16});
  graph.stage_input = x;
  const HostSlots slots =
      host_slots(b, value("experts", DType::kI32, {8, 3}, ValueKind::kInput),
                 {.member = 1, .hosts = 2, .experts = 6, .block_rows = 3}, std::nullopt, "slots");
  const ExpertRows sent{.row_of = slots.slot_of, .pair_of = slots.token_of, .partial = {4}};
  const ValueId came = all_to_all(b, gather_rows(b, x, sent, "sent"), "expert.rail", 2, "came");
  graph.stage_output = sum_rows(b, all_to_all(b, came, "expert.rail", 2, "back"), sent, "sum");
  differentiate(graph);
  return graph;
}

TEST(HostSlots, GradientsGoTheSameWayInTheOtherDirection) {
  const StageGraph graph = there_and_back();
  std::vector<std::string> ops;
  for (const Node& node : graph.backward) {
    check_spec(node.spec);
    ops.push_back(node.spec.op);
    if (node.spec.op == "gather_rows" || node.spec.op == "sum_rows") {
      EXPECT_EQ(attributes_of<MovedRowsAttributes>(node.spec).partial.expected_rows, 4);
    }
  }
  EXPECT_EQ(ops, (std::vector<std::string>{"gather_rows", "all_to_all", "all_to_all", "sum_rows"}));
}

// 4 of 6 slots have a token: 32 bytes each are read and written, beside the map of 6 numbers.
TEST(PartialMaps, ArePricedByTheExpectedRows) {
  for (const Node& node : there_and_back().forward) {
    const OpDefinition& op = find_op(node.spec.op);
    if (node.spec.op == "gather_rows") {
      EXPECT_EQ(op.cost(node.spec).bytes_read, 4 * 32 + 6 * 4);
      EXPECT_EQ(op.cost(node.spec).bytes_written, 4 * 32);
    } else if (node.spec.op == "sum_rows") {
      EXPECT_EQ(op.cost(node.spec).bytes_read, 4 * 32 + 8 * 4);
      EXPECT_EQ(op.cost(node.spec).bytes_written, 4 * 32);
    }
  }
}

}  // namespace
}  // namespace braid
