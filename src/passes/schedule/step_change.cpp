#include "passes/schedule/step_change.h"

#include <utility>

#include "memory/quick_plan.h"
#include "passes/rearrange.h"
#include "passes/schedule/follow_leader.h"
#include "passes/streams/insert_events.h"

namespace braid {
namespace {

Program reordered(const Program& program, std::span<const TaskId> order) {
  return insert_events(rearrange(program, order, {})).program;
}

Program moved_by(const Program& program, std::span<const TaskEngine> engines) {
  return insert_events(with_engines(program, engines)).program;
}

Program followed(const Program& leader, const Program& follower, const StepChange& change,
                 size_t index) {
  return change.orders.empty()
             ? moved_by(follower, follow_engines(leader, change.engines[index], follower))
             : reordered(follower, follow_order(leader, change.orders[index], follower));
}

MemoryPlan memory_of(const std::vector<Program>& programs, bool quickly) {
  std::vector<const Program*> pointers;
  for (const Program& program : programs) {
    pointers.push_back(&program);
  }
  return quickly ? plan_memory_quickly(pointers) : plan_memory(pointers);
}

}  // namespace

Program with_change(const Program& program, const StepChange& change, size_t leader) {
  return change.orders.empty() ? moved_by(program, change.engines[leader])
                               : reordered(program, change.orders[leader]);
}

void change_followers(AllRanks& all, const std::vector<StepChange>& changes) {
  for (size_t i = 0; i < all.planned.size(); ++i) {
    const size_t index = all.leader_of[i];
    if (index == i) {
      continue;
    }
    Program leader = all.planned[index].programs->front();
    Program& follower = all.planned[i].programs->front();
    for (const StepChange& change : changes) {
      follower = followed(leader, follower, change, index);
      leader = with_change(leader, change, index);
    }
    *all.planned[i].memory = memory_of(*all.planned[i].programs, all.quick_memory);
  }
}

}  // namespace braid
