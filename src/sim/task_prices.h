#pragma once

#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/expert_exchange.h"
#include "parallel/rank_calls.h"
#include "sim/cost_model.h"
#include "sim/price_changes.h"
#include "sim/sim_plan.h"

namespace braid {

/// Prices the specs of all classes of ranks, each distinct spec once.
class TaskPricer {
 public:
  /// `routed_load`: that of RoutedRows, on all ranks.
  TaskPricer(const RankCalls& calls, const CostModel& model, double routed_load = 1.0,
             PriceChanges changes = {})
      : calls_(calls), model_(model), routed_load_(routed_load), changes_(std::move(changes)) {}

  /// Prices by spec of the class's program. Specs without a task may have no price.
  std::vector<TaskPrice> prices_of(uint32_t rank_class);

 private:
  struct Hash {
    size_t operator()(const OpSpec& spec) const { return hash_value(spec); }
  };
  /// Kind of group, and for messages the caller's index in it.
  using Place = std::pair<uint32_t, uint32_t>;

  const TaskPrice& own_price(const OpSpec& spec);
  /// Whether kernels share the SMs of a device.
  bool shares_sms() const;
  /// The price of a compute task of a program whose products leave SMs to communication.
  TaskPrice with_left_sms(TaskPrice price, const OpSpec& spec, const LeftSms& left) const;
  Group placed_group(uint32_t rank_class, uint32_t use) const;
  /// `price` as `changes_` say for compute of that class, and for one of its calls.
  TaskPrice changed(TaskPrice price, const OpSpec& spec, uint32_t rank_class) const;
  TaskPrice changed_call(TaskPrice price, GroupKind kind) const;
  TaskPrice comm_price(uint32_t rank_class, uint32_t sequence, const OpSpec& spec);

  const RankCalls& calls_;
  const CostModel& model_;
  double routed_load_;
  PriceChanges changes_;
  std::unordered_map<OpSpec, TaskPrice, Hash> own_;
  std::map<Place, std::unordered_map<OpSpec, TaskPrice, Hash>> comm_;
};

}  // namespace braid
