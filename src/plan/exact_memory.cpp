#include "plan/exact_memory.h"

#include <vector>

namespace braid {

MemoryPlan exact_memory(const RankPlan& rank) {
  std::vector<const Program*> programs;
  for (const Program& program : rank.programs) {
    programs.push_back(&program);
  }
  return plan_memory(programs);
}

}  // namespace braid
