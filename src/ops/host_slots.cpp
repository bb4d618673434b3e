#include "ops/host_slots.h"

#include <fmt/format.h>

#include <vector>

#include "ops/attributes.h"
#include "ops/expert_exchange.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_host_slots(const OpSpec& spec) {
  const auto attributes = attributes_of<HostSlotsAttributes>(spec);
  OperandChecker operands(spec);
  const int64_t hosts = attributes.hosts;
  operands.require(attributes.member >= 0 && attributes.member < hosts,
                   "member must be one of the hosts");
  operands.require(attributes.experts > 0 && attributes.experts % hosts == 0,
                   "hosts must hold equal numbers of experts");
  operands.require(attributes.block_rows > 0 && attributes.rows > 0,
                   "block_rows and rows must be at least 1");
  const OperandSpec& experts = operands.next("experts_of_all", Access::kRead, 2);
  operands.require(experts.dtype == DType::kI32 && experts.shape[0] % hosts == 0,
                   "experts_of_all must be i32, of equally many tokens of each host");
  const int64_t slots = hosts * attributes.block_rows;
  operands.expect("slot_of", Access::kWrite, DType::kI32, {experts.shape[0] / hosts, hosts});
  operands.expect("token_of", Access::kWrite, DType::kI32, {slots});
  operands.expect("came_slot_of", Access::kWrite, DType::kI32, {experts.shape[0], 1});
  operands.expect("came_token_of", Access::kWrite, DType::kI32, {slots});
  operands.expect("choices", Access::kWrite, DType::kI32, {slots, experts.shape[1]});
  if (attributes.watch.watch) {
    const OperandSpec tally = tally_spec(RoomTally::kSize);
    operands.expect("tally", tally.access, tally.dtype, tally.shape);
  }
  operands.done();
}

OpCost host_slots_cost(const OpSpec& spec) {
  return elementwise_cost<1>(without_tally(spec));
}

IntegerNeed expert_needs(const OpSpec& spec, size_t /*operand*/) {
  return {.limit = attributes_of<HostSlotsAttributes>(spec).experts};
}

}  // namespace

const OpDefinition kHostSlotsOp{
    .name = "host_slots",
    .summary = "Which tokens go to which host, once each, in blocks of fixed size.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_host_slots,
    .cost = host_slots_cost,
    .kernel_rate = {.least_ns = 14000},  // of sort_rows; not measured
    .recompute = Recompute::kNone,       // as the sort
    .split = kNeverSplit,
    .part_begin = "member",
    .integers = expert_needs,
    .tally = TallyKind::kRowRoom,
};

HostSlots host_slots(GraphBuilder& builder, ValueId experts_of_all, HostSlotsAttributes attributes,
                     std::optional<ValueId> tally, std::string_view site) {
  const Shape all = builder.value(experts_of_all).shape;
  const int64_t slots = attributes.hosts * attributes.block_rows;
  const auto add = [&](std::string_view suffix, const Shape& shape) {
    return builder.add_activation(fmt::format("{}{}", site, suffix), DType::kI32, shape);
  };
  const HostSlots result{.slot_of = add(".slot_of", {all[0] / attributes.hosts, attributes.hosts}),
                         .token_of = add(".token_of", {slots}),
                         .came_slot_of = add(".came_slot_of", {all[0], 1}),
                         .came_token_of = add(".came_token_of", {slots}),
                         .choices = add(".choices", {slots, all[1]})};
  std::vector<Operand> operands{{experts_of_all},
                                {result.slot_of, Access::kWrite},
                                {result.token_of, Access::kWrite},
                                {result.came_slot_of, Access::kWrite},
                                {result.came_token_of, Access::kWrite},
                                {result.choices, Access::kWrite}};
  if (tally) {
    operands.push_back({*tally, Access::kReadWrite});
  }
  attributes.watch = {tally.has_value()};
  builder.add_node("host_slots", to_attributes(attributes), operands, site);
  return result;
}

}  // namespace braid
