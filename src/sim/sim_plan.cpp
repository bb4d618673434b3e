#include "sim/sim_plan.h"

#include <algorithm>

#include "ops/expert_exchange.h"
#include "sim/task_prices.h"

namespace braid {
namespace {

/// What exchanges of rows take, in the program where they take most.
int exchange_sms(const RankCalls& calls) {
  int most = 0;
  for (const ProgramCalls& program : calls.programs()) {
    most = std::max(most, row_exchange_sms(*program.program));
  }
  return most > 0 ? most : kRowExchangeSms;
}

}  // namespace

SimPlan::Streams SimPlan::streams_of(const Program& program) {
  Streams streams{.tasks = std::vector<uint32_t>(program.tasks.size()),
                  .first = std::vector<uint32_t>(program.streams.size() + 1)};
  for (const Task& task : program.tasks) {
    ++streams.first[task.stream.index() + 1];
  }
  for (size_t i = 1; i < streams.first.size(); ++i) {
    streams.first[i] += streams.first[i - 1];
  }
  std::vector<uint32_t> next = streams.first;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    streams.tasks[next[program.tasks[i].stream.index()]++] = static_cast<uint32_t>(i);
  }
  return streams;
}

SimPlan::SimPlan(const RankCalls& calls, const CostModel& model, double routed_load,
                 const PriceChanges& changes)
    : contention_(model.contention(), exchange_sms(calls)) {
  for (const ProgramCalls& program : calls.programs()) {
    streams_.push_back(streams_of(*program.program));
  }
  TaskPricer pricer(calls, model, routed_load, changes);
  std::vector<size_t> first_price;
  for (uint32_t rank_class = 0; rank_class < calls.classes().size(); ++rank_class) {
    const std::vector<TaskPrice> prices = pricer.prices_of(rank_class);
    first_price.push_back(prices_.size());
    prices_.insert(prices_.end(), prices.begin(), prices.end());
  }
  for (uint32_t rank_class = 0; rank_class < calls.classes().size(); ++rank_class) {
    add_class(calls, rank_class, first_price[rank_class]);
  }
  first_arrival_.push_back(0);
  for (const RankCalls::Meeting& meeting : calls.meetings()) {
    first_arrival_.push_back(first_arrival_.back() + static_cast<uint32_t>(meeting.ends.size()));
  }
}

void SimPlan::add_class(const RankCalls& calls, uint32_t rank_class, size_t first_price) {
  const ProgramCalls& its_calls = calls.calls_of(rank_class);
  const Program& program = *its_calls.program;
  const Streams& streams = streams_[calls.classes()[rank_class].program];
  const auto num_lanes = static_cast<uint32_t>(program.streams.size());
  classes_.push_back({.program = &program,
                      .first_lane = static_cast<uint32_t>(lanes_.size()),
                      .num_lanes = num_lanes,
                      .first_event = num_events_,
                      .first_running = num_running_,
                      .first_task = num_tasks_,
                      .prices = prices_.data() + first_price});
  for (uint32_t stream = 0; stream < num_lanes; ++stream) {
    const uint32_t first = streams.first[stream];
    lanes_.push_back({.rank_class = rank_class,
                      .priority = program.streams[stream].priority,
                      .tasks = streams.tasks.data() + first,
                      .num_tasks = streams.first[stream + 1] - first});
  }
  num_events_ += program.num_events;
  // A message of a rank to itself counts for both ends.
  num_running_ += static_cast<uint32_t>(its_calls.sequences.size());
  num_tasks_ += program.tasks.size();
}

}  // namespace braid
