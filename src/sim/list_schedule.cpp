#include "sim/list_schedule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "parallel/rank_calls.h"
#include "parallel/rendezvous_run.h"
#include "sim/list_plan.h"
#include "sim/list_run.h"

namespace braid {
namespace {

/// nullopt if the programs do not fit together in this order of messages.
std::optional<RankCalls> matched(const RankPrograms& ranks, MessageOrder order,
                                 std::vector<std::string>& faults) {
  std::optional<RankCalls> calls = match_calls(ranks, faults, {}, order);
  if (calls) {
    if (auto deadlock = find_deadlock(*calls, RunOrder::kStreams)) {
      faults.push_back(std::move(*deadlock));
    }
  }
  return faults.empty() ? std::move(calls) : std::nullopt;
}

/// Matches messages of all channels together if the programs already order them like that.
RankCalls calls_of(const RankPrograms& ranks, const CostModel& model) {
  check(ranks.num_ranks() <= model.cluster().num_devices, "{} ranks on the {} devices of {}",
        ranks.num_ranks(), model.cluster().num_devices, model.cluster().name);
  std::vector<std::string> faults;
  if (std::optional<RankCalls> calls = matched(ranks, MessageOrder::kPerPair, faults)) {
    return std::move(*calls);
  }
  faults.clear();
  std::optional<RankCalls> calls = matched(ranks, MessageOrder::kPerChannel, faults);
  check(calls.has_value(), "the programs of {} ranks cannot be scheduled: {}", ranks.num_ranks(),
        join(faults, "; "));
  return std::move(*calls);
}

}  // namespace

struct ListScheduler::State {
  RankPrograms ranks;
  RankCalls calls;
  ListPlan plan;

  State(const RankPrograms& given, const CostModel& model, const SpecTimes& spec_ns)
      : ranks(given), calls(calls_of(ranks, model)), plan(calls, model, spec_ns) {}
};

ListScheduler::ListScheduler(const RankPrograms& ranks, const CostModel& model,
                             const SpecTimes& spec_ns)
    : state_(std::make_unique<State>(ranks, model, spec_ns)) {}
ListScheduler::~ListScheduler() = default;

std::optional<ListSchedule> ListScheduler::run(const ListScheduleOptions& options) const {
  const size_t num_programs = state_->ranks.programs.size();
  check(options.live_bytes_limit.empty() || options.live_bytes_limit.size() == num_programs,
        "{} limits for {} programs", options.live_bytes_limit.size(), num_programs);
  return ListRun(state_->plan, options).run();
}

std::optional<ListSchedule> list_schedule(const RankPrograms& ranks, const CostModel& model,
                                          const ListScheduleOptions& options) {
  return ListScheduler(ranks, model).run(options);
}

int64_t peak_live_bytes(const Program& program) {
  const std::vector<int64_t> live = live_bytes_in_order(program);
  return live.empty() ? 0 : *std::max_element(live.begin(), live.end());
}

}  // namespace braid
