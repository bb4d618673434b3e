#include "passes/context/delay_context_wgrad.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/choices.h"
#include "config/run_config.h"
#include "config/sm_budget.h"
#include "ir/dependencies.h"
#include "ops/expert_exchange.h"
#include "ops/op.h"
#include "passes/analysis/job_spans.h"
#include "passes/analysis/rank_independent.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline/late_moves.h"
#include "passes/pipeline_options.h"

namespace braid {
namespace {

/// Work beside a call must take at least this percentage of the call's time: copy engines, which
/// may be chosen later, take longer than the model's own choice.
constexpr int64_t kPercentOfCall = 110;

/// A call that the backward waits for: it sends values just computed and returns the next input.
bool is_exchange(const Program& program, const Task& task) {
  const OpSpec& spec = program.spec(task);
  const std::optional<GroupId> group = group_of(program, spec);
  if (task.label.phase != Phase::kComm || !group ||
      program.groups[group->index()].ranks.size() == 1) {
    return false;
  }
  const bool is_all_to_all = communicates_as(spec, CommOp::kAllToAll);
  switch (program.groups[group->index()].kind) {
    case GroupKind::kContext:
      return is_all_to_all || communicates_as(spec, CommOp::kReduceScatter);
    case GroupKind::kExpert:
      return is_all_to_all || exchanges_rows(spec);
    default:
      return exchanges_rows(spec);
  }
}

class Delayer {
 public:
  Delayer(const Program& program, const CostModel* model)
      : program_(program),
        model_(model),
        priced_(model == nullptr ? Program{} : at_first_ranks(program)),
        spans_(program),
        dependencies_(build_dependencies(program)) {
    for (const OpSpec& spec : program.specs.all()) {
      is_product_.push_back(is_product_or_attention(spec));
    }
  }

  std::vector<LateMove> moves() {
    std::vector<LateMove> moves;
    taken_.assign(program_.tasks.size(), false);
    for (uint32_t call = static_cast<uint32_t>(program_.tasks.size()); call-- > 0;) {
      if (!is_waited_for(call)) {
        continue;
      }
      ++num_calls_;
      for (const uint32_t wgrad : wgrads_for(call)) {
        taken_[wgrad] = true;
        moves.push_back({TaskId(wgrad), TaskId(call)});
      }
    }
    return moves;
  }

  int64_t num_calls() const { return num_calls_; }

 private:
  /// Whether the next compute task needs the result of the call.
  bool is_waited_for(uint32_t call) const {
    const uint32_t job = spans_.job_of(call);
    if (job == JobSpans::kNone || !spans_.jobs()[job].is_backward ||
        !is_exchange(program_, program_.tasks[call])) {
      return false;
    }
    for (uint32_t next = call + 1; next < program_.tasks.size(); ++next) {
      const Task& task = program_.tasks[next];
      if (task.label.phase != Phase::kComm) {
        return std::ranges::find(dependencies_.of(TaskId(next)), TaskId(call)) !=
               dependencies_.of(TaskId(next)).end();
      }
    }
    return false;
  }

  std::vector<uint32_t> wgrads_for(uint32_t call) const {
    const uint32_t job = spans_.job_of(call);
    int64_t missing = model_ == nullptr ? 1 : ns(call) / 100 * kPercentOfCall;
    std::vector<uint32_t> wgrads;
    for (uint32_t task = call; missing > 0 && task-- > spans_.jobs()[job].begin;) {
      if (is_product_of(task, job) && !taken_[task]) {
        wgrads.push_back(task);
        missing -= model_ == nullptr ? 1 : ns(task);
      }
    }
    return wgrads;
  }

  int64_t ns(uint32_t task) const { return rank_independent_ns(*model_, priced_, TaskId(task)); }

  bool is_product_of(uint32_t task, uint32_t job) const {
    const Task& it = program_.tasks[task];
    return it.label.phase == Phase::kWgrad && spans_.job_of(task) == job &&
           is_product_[it.spec.index()];
  }

  const Program& program_;
  const CostModel* model_;  // null: a product takes as long as a call
  Program priced_;          // with a model: at_first_ranks
  JobSpans spans_;
  DependencyGraph dependencies_;
  std::vector<bool> is_product_;  // by spec
  std::vector<bool> taken_;       // by task: waits for a call
  int64_t num_calls_ = 0;
};

/// Replaces the entry of expert ranks in overlap.comm_sms; 0: there is none.
void set_exchange_sms(OverlapConfig& overlap, int sms) {
  const std::string kind = fmt::format("{}=", group_kind_name(GroupKind::kExpert));
  std::erase_if(overlap.comm_sms, [&](const std::string& it) { return it.starts_with(kind); });
  if (sms > 0) {
    overlap.comm_sms.push_back(fmt::format("{}{}", kind, sms));
  }
}

/// Whether a search may give exchanges fewer SMs: on GPUs, if the run file gives no number. Rows
/// that NCCL moves in blocks keep its choice; over hosts it also adds up gradients.
bool may_take_fewer_sms(const RunConfig& config, const AxisLimits& limits) {
  const auto exchange = choice<ExchangeChoice>(config.moe.exchange);
  return limits.copy_engines && exchange != ExchangeChoice::kBlocks &&
         (exchange != ExchangeChoice::kHosts || config.overlap.may_change_rounding) &&
         !comm_sms_by_kind(config.overlap).contains(group_kind_name(GroupKind::kExpert));
}

/// Beside compute an exchange may take fewer SMs, which products beside it then have all along:
/// better if exchanges are short compared with the products.
std::vector<OverlapAxis> expert_axes(const RunConfig& config, const AxisLimits& limits) {
  if (config.parallel.expert * config.parallel.expert_tensor == 1) {
    return {};
  }
  OverlapAxis axis{
      "experts",
      {[](OverlapConfig& overlap) { overlap.overlap_moe_expert_parallel_comm = false; },
       [](OverlapConfig& overlap) { overlap.overlap_moe_expert_parallel_comm = true; }},
      AxisPlace::kContext};
  if (may_take_fewer_sms(config, limits)) {
    constexpr int kFewSms = kRowExchangeSms / 2;
    for (OverlapChange& change : axis.choices) {
      change = [plain = std::move(change)](OverlapConfig& overlap) {
        plain(overlap);
        set_exchange_sms(overlap, 0);
      };
    }
    axis.choices.push_back([](OverlapConfig& overlap) {
      overlap.overlap_moe_expert_parallel_comm = true;
      set_exchange_sms(overlap, kFewSms);
    });
  }
  return {axis};
}

}  // namespace

PassResult delay_context_wgrad(Program program, const PassContext& context) {
  std::vector<LateMove> moves;
  int64_t num_calls = 0;
  const auto exchanges = [&](const Task& task) { return is_exchange(program, task); };
  if (std::ranges::any_of(program.tasks, exchanges)) {
    Delayer delayer(program, context.cost_model);
    moves = delayer.moves();
    num_calls = delayer.num_calls();
  }
  return move_late(
      std::move(program), moves,
      fmt::format("weight gradients behind {} calls of context and expert ranks", num_calls));
}

Pass delay_context_wgrad_pass() {
  return {.name = "delay_context_wgrad",
          .summary =
              "Runs weight gradients during the exchanges between context ranks, and between ranks "
              "of experts, that the backward waits for.",
          .run = run_of(delay_context_wgrad),
          .only_overlaps = true,
          .keys = {"overlap.overlap_context_comm", "overlap.overlap_moe_expert_parallel_comm"},
          .is_wanted =
              [](const OverlapConfig& overlap) {
                return overlap.overlap_context_comm || overlap.overlap_moe_expert_parallel_comm;
              },
          .axes = expert_axes};
}

}  // namespace braid
