#include "plan/exact_memory.h"

#include <vector>

#include "base/errors.h"

namespace braid {

MemoryPlan exact_memory(const RankPlan& rank) {
  if (rank.no_buffers) {
    throw_internal_error("rank {} keeps no buffers whose memory could be planned again",
                         rank.programs.front().rank);
  }
  std::vector<const Program*> programs;
  for (const Program& program : rank.programs) {
    programs.push_back(&program);
  }
  return plan_memory(programs);
}

}  // namespace braid
