#include "ops/expert_exchange.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "ir/text.h"

#include "ops/activation.h"
#include "ops/attributes.h"
#include "ops/expert_rows.h"
#include "ops/forward_graph.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr DType kI32 = DType::kI32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

/// Of 8 rows of 6 elements between 2 ranks with 3 experts each, which have room for 20.
std::vector<Attribute> attributes(bool has_weights, int64_t copies = 1) {
  return to_attributes(
      ExpertExchangeAttributes{.experts = 6, .copies = copies, .has_weights = has_weights});
}
OpSpec dispatch_spec() {
  return {"dispatch_rows",
          attributes(true),
          {read(kBF16, {8, 6}), read(kF32, {8}), read(kI32, {14}), write(kBF16, {20, 6}),
           write(kF32, {20}), write(kI32, {4})}};
}
OpSpec combine_spec() {
  return {"combine_rows",
          attributes(false),
          {read(kBF16, {20, 6}), read(kI32, {14}), write(kBF16, {8, 6})}};
}

std::string program_text(std::string_view stream, std::string_view number) {
  return fmt::format(
      "program step rank=0 ranks=2 events=0\n"
      "stream compute kind=compute priority=0 left_sms=3\n"
      "stream comm.expert kind=comm priority=2\n"
      "group expert kind=expert ranks=0,1{}\n"
      "buffer rows f32 [8,4] io persistent device\n"
      "buffer come f32 [20,4] io persistent device\n"
      "buffer offsets i32 [14] io persistent device\n"
      "dispatch_rows(rows, offsets -> come) {{group=0, experts=6, copies=1, has_weights=false, "
      "drops=false}} {} comm\n",
      number, stream);
}

TEST(RowExchangeSms, AreThoseOfTheGroup) {
  const Program usual = parse_program(program_text("comm.expert", ""));
  const Program few = parse_program(program_text("comm.expert", " max_sms=8"));
  EXPECT_EQ(row_exchange_sms(usual), kRowExchangeSms);
  EXPECT_EQ(row_exchange_sms(few), 8);
  EXPECT_EQ(row_exchange_sms(parse_program("program step rank=0 ranks=1 events=0\n")), 0);
}

// Products leave SMs to exchanges beside them, and not to those that wait for products anyway.
TEST(LeftSms, AreWhatExchangesBesideComputeTake) {
  const auto of = [](std::string_view stream, std::string_view number) {
    const Program program = parse_program(program_text(stream, number));
    return left_sms({&program, 1});
  };
  EXPECT_EQ(of("comm.expert", "").to_exchanges, kRowExchangeSms);
  EXPECT_EQ(of("comm.expert", " max_sms=8").to_exchanges, 8);
  EXPECT_EQ(of("compute", " max_sms=8").to_exchanges, 0);
  EXPECT_EQ(of("compute", "").by_all, 3);
}

TEST(ExpertExchangeCost, IsThatOfTheOwnersRows) {
  const double with_weights = 8 * (2 * 6 + 4);
  expect_cost(
      dispatch_spec(),
      {.bytes_read = with_weights, .bytes_written = with_weights, .comm_bytes = with_weights});
  expect_cost(combine_spec(), {.bytes_read = 96, .bytes_written = 96, .comm_bytes = 96});
  OpSpec twice = combine_spec();
  twice.attributes = attributes(false, 2);
  expect_cost(twice, {.bytes_read = 192, .bytes_written = 192, .comm_bytes = 192});
}

TEST(ExpertExchangeCheck, RefusesSizesThatContradictEachOther) {
  EXPECT_NO_THROW(check_spec(dispatch_spec()));
  EXPECT_NO_THROW(check_spec(combine_spec()));
  expect_refused(with_operand(dispatch_spec(), 0, read(kBF16, {8, 5})), "rows like x");
  expect_refused(with_operand(dispatch_spec(), 1, read(kF32, {9})), "operand weights");
  expect_refused(with_operand(dispatch_spec(), 2, read(kI32, {13})), "E + 1 of each member");
  expect_refused(with_operand(dispatch_spec(), 4, write(kF32, {8})), "operand y_weights");
  expect_refused(with_operand(dispatch_spec(), 5, write(kI32, {7})), "operand offsets");
  expect_refused(with_operand(dispatch_spec(), 2, read(kI32, {7 * 5})), "equal numbers of experts");
  expect_refused(with_operand(combine_spec(), 2, write(kF32, {8, 6})), "rows like x");
}

/// FP8 rows of 256 elements with their scales.
OpSpec scaled_spec(bool has_weights) {
  const auto attributes = to_attributes(ExpertExchangeAttributes{
      .experts = 6, .has_weights = has_weights, .scales = {.has_scales = true}});
  OpSpec spec{"dispatch_rows", attributes, {read(DType::kF8E4M3, {8, 256})}};
  const auto add = [&](std::initializer_list<OperandSpec> operands) {
    spec.operands.insert(spec.operands.end(), operands);
  };
  if (has_weights) {
    add({read(kF32, {8})});
  }
  add({read(kF32, {8, 2}), read(kI32, {14}), write(DType::kF8E4M3, {20, 256})});
  if (has_weights) {
    add({write(kF32, {20})});
  }
  add({write(kF32, {20, 2})});
  if (has_weights) {
    add({write(kI32, {4})});
  }
  return spec;
}

TEST(ExpertExchangeCost, OfFp8RowsIsThatOfOneByteAndScales) {
  const double with_weights = 8 * (256 + 4 + 2 * 4);
  expect_cost(
      scaled_spec(true),
      {.bytes_read = with_weights, .bytes_written = with_weights, .comm_bytes = with_weights});
  const double without = 8 * (256 + 2 * 4);
  expect_cost(scaled_spec(false),
              {.bytes_read = without, .bytes_written = without, .comm_bytes = without});
}

TEST(ExpertExchangeCheck, OnlyFp8RowsThatAreDispatchedHaveScales) {
  EXPECT_NO_THROW(check_spec(scaled_spec(true)));
  EXPECT_NO_THROW(check_spec(scaled_spec(false)));
  expect_refused(with_operand(scaled_spec(true), 2, read(kF32, {8, 1})), "operand scales");
  expect_refused(with_operand(scaled_spec(true), 6, write(kF32, {20, 1})), "operand y_scales");
  expect_refused(with_operand(scaled_spec(true), 0, read(kBF16, {8, 256})), "have scales");
  expect_refused(with_operand(dispatch_spec(), 0, read(DType::kF8E4M3, {8, 6})), "have scales");
  OpSpec combine = scaled_spec(false);
  combine.op = combine_spec().op;
  expect_refused(combine, "only dispatch_rows has FP8 rows");
}

TEST(ExpertExchangeOperands, AreWhereAttributesSay) {
  const ExpertExchangeOperands all(scaled_spec(true));
  EXPECT_EQ(all.weights, 1);
  EXPECT_EQ(all.scales, 2);
  EXPECT_EQ(all.offsets_of_all, 3);
  EXPECT_EQ(all.y, 4);
  EXPECT_EQ(all.y_weights, 5);
  EXPECT_EQ(all.y_scales, 6);
  EXPECT_EQ(all.offsets, 7);
  EXPECT_EQ(all.tally, -1);
  const ExpertExchangeOperands few(combine_spec());
  EXPECT_EQ(few.weights, -1);
  EXPECT_EQ(few.scales, -1);
  EXPECT_EQ(few.offsets_of_all, 1);
  EXPECT_EQ(few.y, 2);
  EXPECT_EQ(few.offsets, -1);
}

TEST(ExpertExchangeBackward, IsTheOtherOp) {
  Forward forward(kF32);
  GraphBuilder& b = forward.builder();
  const ExpertGroup group{
      .name = "expert.exchange", .num_ranks = 2, .experts = 6, .copies = 1, .max_rows = 20};
  const ValueId offsets =
      b.named_value({.name = "offsets", .dtype = kI32, .shape = {14}, .kind = ValueKind::kInput});
  const DispatchedRows rows = dispatch_rows(b,
                                            {.x = forward.activation("x", {kRows, 4}),
                                             .weights = forward.activation("w", {kRows}),
                                             .offsets_of_all = offsets},
                                            group, std::nullopt, "dispatched");
  const ValueId y = gelu(b, rows.x, "act");
  const ValueId weighted = routed_swiglu(b, y, rows.weights, rows.offsets, "weighted");
  forward.loss_of(combine_rows(b, weighted, offsets, kRows, group, "combined"));
  const std::vector<std::string> backward = backward_of(forward.differentiated());
  EXPECT_EQ(backward.back(),
            "combine_rows(dispatched.grad, dispatched.weights.grad, offsets -> x.grad, w.grad)");
  EXPECT_THAT(backward,
              testing::Contains("dispatch_rows(combined.grad, offsets -> weighted.grad)"));
}

TEST(ExpertExchangeCheck, OnlyDispatchWithWeightsHasATally) {
  OpSpec watching = dispatch_spec();
  watching.attributes = to_attributes(ExpertExchangeAttributes{.experts = 6, .watch = {true}});
  expect_refused(watching, "operand 6 (tally) is missing");
  watching.operands.push_back(tally_spec(RoomTally::kSize));
  EXPECT_NO_THROW(check_spec(watching));
  EXPECT_EQ(tally_kind(watching), TallyKind::kRowRoom);
  EXPECT_EQ(without_tally(watching), dispatch_spec());
  OpSpec combine = combine_spec();
  combine.attributes =
      to_attributes(ExpertExchangeAttributes{.experts = 6, .has_weights = false, .watch = {true}});
  expect_refused(combine, "only dispatch_rows counts rows");
}

TEST(ValidIntegers, OfOffsetsOfAllMembers) {
  const std::vector<int32_t> offsets = valid_integers(dispatch_spec(), 2);
  const std::vector<int32_t> expected = {0, 1, 2, 4, 5, 6, 8};
  EXPECT_EQ(std::vector<int32_t>(offsets.begin(), offsets.begin() + 7), expected);
  EXPECT_EQ(std::vector<int32_t>(offsets.begin() + 7, offsets.end()), expected);
}

}  // namespace
}  // namespace braid
