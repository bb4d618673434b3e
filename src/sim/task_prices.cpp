#include "sim/task_prices.h"

#include <algorithm>

#include "ops/routed_rows.h"
#include "sim/op_family.h"

namespace braid {
namespace {

SimUnit unit_of(const OpSpec& spec, OpFamily family) {
  if (family == OpFamily::kNothing) {
    return SimUnit::kNothing;
  }
  if (family == OpFamily::kHostCopy) {
    return host_copy_of(spec) == HostCopy::kToDevice ? SimUnit::kToDevice : SimUnit::kToHost;
  }
  return SimUnit::kCompute;
}

/// By spec: the sequence of its calls (all calls of a spec belong to one), or kNone.
std::vector<uint32_t> sequence_of_specs(const ProgramCalls& calls) {
  std::vector<uint32_t> sequences(calls.program->specs.size(), ProgramCalls::kNone);
  for (const ProgramCalls::Call& call : calls.calls) {
    sequences[calls.program->tasks[call.task.index()].spec.index()] = call.sequence;
  }
  return sequences;
}

}  // namespace

const TaskPrice& TaskPricer::own_price(const OpSpec& spec) {
  const auto [found, is_new] = own_.try_emplace(spec);
  if (is_new) {
    const OpFamily family = family_of(spec);
    found->second = {.work_ns = std::min(model_.task_ns(spec), kMaxWorkNs),
                     .unit = unit_of(spec, family),
                     .family = family};
  }
  return found->second;
}

/// The group of the class's first rank; the program may name that of another rank.
Group TaskPricer::placed_group(uint32_t rank_class, uint32_t use) const {
  const ProgramCalls& calls = calls_.calls_of(rank_class);
  Group group = calls.program->groups[calls.groups[use].group.index()];
  group.ranks = calls_.classes()[rank_class].groups[use].ranks;
  return group;
}

TaskPrice TaskPricer::comm_price(uint32_t rank_class, uint32_t sequence, const OpSpec& spec) {
  const ProgramCalls::Sequence& calls = calls_.calls_of(rank_class).sequences[sequence];
  const RankClass::GroupUse& group = calls_.classes()[rank_class].groups[calls.group];
  const bool is_message = calls.kind != CallKind::kCollective;
  const auto [found, is_new] =
      comm_[{group.kind, is_message ? group.position : RankCalls::kNone}].try_emplace(spec);
  if (is_new) {
    const Group placed = placed_group(rank_class, calls.group);
    const ProgramComm comm = comm_of(model_, spec, calls_.first_rank(rank_class), placed);
    found->second = {.work_ns = std::min(comm.cost.ns, kMaxWorkNs),
                     .unit = SimUnit::kLinks,
                     .family = OpFamily::kCommunication,
                     .sends = calls.kind != CallKind::kRecv,
                     .receives = calls.kind != CallKind::kSend,
                     .demand = model_.links() != nullptr
                                   ? core_demand(model_, comm.own_cost.ns, comm.cost.ns)
                                   : comm_demand(model_, comm.spec, comm.cost.ns),
                     .link = comm.link,
                     .link_kind = placed.kind,
                     .own_ns = comm.own_cost.ns};
  }
  TaskPrice price = found->second;
  price.meeting = calls_.meeting_of(rank_class, sequence);
  return price;
}

std::vector<TaskPrice> TaskPricer::prices_of(uint32_t rank_class) {
  const ProgramCalls& calls = calls_.calls_of(rank_class);
  const std::vector<uint32_t> sequences = sequence_of_specs(calls);
  const std::vector<OpSpec>& specs = calls.program->specs.all();
  const RoutedRows rows(*calls.program, routed_load_);
  std::vector<TaskPrice> prices(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    if (sequences[i] != ProgramCalls::kNone) {
      prices[i] = comm_price(rank_class, sequences[i], rows.priced(specs[i]));
    } else if (!comm_kind_of(specs[i])) {  // otherwise no task has it
      prices[i] = own_price(rows.priced(specs[i]));
    }
  }
  return prices;
}

}  // namespace braid
