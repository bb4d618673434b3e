#include "runtime/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

/// The number in a file of the control group file system; the largest there is if the file is
/// missing or says "max".
int64_t limit_in(const std::string& path) {
  std::ifstream file(path);
  int64_t bytes = 0;
  return file >> bytes && bytes > 0 ? bytes : std::numeric_limits<int64_t>::max();
}

/// fp32 weights and two fp32 moments of every parameter.
int64_t state_bytes(const RunPlan& plan) {
  int64_t num_elems = 0;
  for (const ParameterUnit& unit : plan.layout.units) {
    num_elems += unit.num_elems;
  }
  return num_elems * 3 * static_cast<int64_t>(sizeof(float));
}

int64_t persistent_bytes(const MemoryPlan& memory, BufferRole role) {
  const auto found = memory.persistent_by_role.find(role);
  return found == memory.persistent_by_role.end() ? 0 : found->second;
}

}  // namespace

int64_t host_memory_bytes() {
  const int64_t physical = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return std::min({physical, limit_in("/sys/fs/cgroup/memory.max"),
                   limit_in("/sys/fs/cgroup/memory/memory.limit_in_bytes")});
}

int64_t training_bytes(const RunPlan& plan) {
  int64_t bytes = state_bytes(plan);
  for (const RankPlan& rank : plan.ranks) {
    bytes += rank.memory.peak_bytes();
  }
  return bytes;
}

void check_fits_host(const RunPlan& plan, const RunConfig& config, int64_t available_bytes) {
  const int64_t needed_bytes = training_bytes(plan);
  if (needed_bytes <= available_bytes) {
    return;
  }
  const MemoryPlan& memory = plan.ranks.front().memory;
  const int64_t weights = persistent_bytes(memory, BufferRole::kParam) +
                          persistent_bytes(memory, BufferRole::kMainWeight);
  const int64_t moments = persistent_bytes(memory, BufferRole::kOptimizerState);
  throw_config_error(
      "the run needs {} of memory, {} are there: {} ranks with {} of weights, {} of optimizer "
      "state and {} in a step each, and {} to load and save; lower train.microbatch = {}, "
      "train.sequence = {}, parallel.ranks = {} or the sizes in [model]",
      format_bytes(needed_bytes), format_bytes(available_bytes), plan.ranks.size(),
      format_bytes(weights), format_bytes(moments), format_bytes(memory.step_bytes),
      format_bytes(state_bytes(plan)), config.train.microbatch, config.train.sequence,
      config.parallel.ranks);
}

}  // namespace braid
