#include "sim/task_prices.h"

#include <algorithm>

#include "ops/expert_exchange.h"
#include "ops/routed_rows.h"
#include "sim/analytic_model.h"
#include "sim/op_family.h"
#include "sim/step_clock.h"

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

/// Products and attention's backward held exchanges up in traces of 4 H100, its forward did not.
bool fills_all_sms(OpFamily family, const OpSpec& spec) {
  return family == OpFamily::kGemm ||
         (family == OpFamily::kAttention && attention_shape(spec).backward);
}

/// By spec: the sequence of its calls (all calls of a spec belong to one), or kNone.
std::vector<uint32_t> sequence_of_specs(const ProgramCalls& calls) {
  std::vector<uint32_t> sequences(calls.program->specs.size(), ProgramCalls::kNone);
  for (const ProgramCalls::Call& call : calls.calls) {
    sequences[calls.program->tasks[call.task.index()].spec.index()] = call.sequence;
  }
  return sequences;
}

int64_t changed_work(int64_t work_ns, double factor) {
  return factor == kSamePrice
             ? work_ns
             : std::min(round_cost_ns(static_cast<double>(work_ns) * factor), kMaxWorkNs);
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

bool TaskPricer::shares_sms() const {
  return model_.links() == nullptr && model_.cluster().device.num_sms > 0;
}

TaskPrice TaskPricer::with_left_sms(TaskPrice price, const OpSpec& spec,
                                    const LeftSms& left) const {
  const DeviceSpec& device = model_.cluster().device;
  const bool stays = stays_on_its_sms(device, spec);
  const int sms = stays ? left.by_long_blocks() : price.family == OpFamily::kGemm ? left.by_all : 0;
  if (sms > 0) {
    const double slowdown = slowdown_by_left_sms(device, spec, sms);
    price.work_ns =
        std::min(round_cost_ns(static_cast<double>(price.work_ns) * slowdown), kMaxWorkNs);
  } else if (left.to_exchanges > 0 && fills_all_sms(price.family, spec)) {
    price.sm_use = SmUse::kAll;
  }
  return price;
}

/// The group of the class's first rank; the program may name that of another rank.
Group TaskPricer::placed_group(uint32_t rank_class, uint32_t use) const {
  const ProgramCalls& calls = calls_.calls_of(rank_class);
  Group group = calls.program->groups[calls.groups[use].group.index()];
  group.ranks = calls_.classes()[rank_class].groups[use].ranks;
  return group;
}

TaskPrice TaskPricer::changed(TaskPrice price, const OpSpec& spec, uint32_t rank_class) const {
  if (price.unit == SimUnit::kCompute) {
    const auto rank = static_cast<size_t>(calls_.first_rank(rank_class));
    const double of_rank =
        changes_.rank_compute.empty() ? kSamePrice : changes_.rank_compute.at(rank);
    const double of_clock = changes_.rank_clock.empty()
                                ? kSamePrice
                                : clock_change(price.family, changes_.rank_clock.at(rank));
    price.work_ns = changed_work(price.work_ns,
                                 of_rank * of_clock * compute_change(changes_, spec, price.family));
  }
  return price;
}

TaskPrice TaskPricer::changed_call(TaskPrice price, GroupKind kind) const {
  const double factor =
      comm_change(changes_, model_.cluster(), kind, calls_.meetings()[price.meeting].ranks);
  price.work_ns = changed_work(price.work_ns, factor);
  price.own_ns = changed_work(price.own_ns, factor);
  return price;
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
                                   : comm_demand(model_, comm.spec, comm.cost.ns, comm.slowdown),
                     .link = comm.link,
                     .link_kind = placed.kind,
                     .own_ns = comm.own_cost.ns};
    if (exchanges_rows(spec) && shares_sms()) {
      found->second.demand.row_exchanges = 1;
      found->second.demand.sms = 0;
    }
  }
  TaskPrice price = found->second;
  price.meeting = calls_.meeting_of(rank_class, sequence);
  return changed_call(price, price.link_kind);
}

std::vector<TaskPrice> TaskPricer::prices_of(uint32_t rank_class) {
  const ProgramCalls& calls = calls_.calls_of(rank_class);
  const std::vector<uint32_t> sequences = sequence_of_specs(calls);
  const std::vector<OpSpec>& specs = calls.program->specs.all();
  const RoutedRows rows(*calls.program, routed_load_);
  const LeftSms left = shares_sms() ? left_sms({calls.program, 1}) : LeftSms();
  std::vector<TaskPrice> prices(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    if (sequences[i] != ProgramCalls::kNone) {
      prices[i] = comm_price(rank_class, sequences[i], rows.priced(specs[i]));
    } else if (!comm_kind_of(specs[i])) {  // otherwise no task has it
      const OpSpec spec = rows.priced(specs[i]);
      const TaskPrice& price = own_price(spec);
      prices[i] = changed(with_left_sms(price, spec, left), spec, rank_class);
    }
  }
  return prices;
}

}  // namespace braid
