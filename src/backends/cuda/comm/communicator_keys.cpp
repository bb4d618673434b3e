#include "backends/cuda/comm/communicator_keys.h"

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/meets_others.h"
#include "ops/op.h"

namespace braid {

std::string describe_key(const CommunicatorKey& key) {
  std::vector<std::string> ranks;
  for (const int rank : key.ranks) {
    ranks.push_back(std::to_string(rank));
  }
  return fmt::format("{}{} of ranks {}", key.name, key.by_copies ? " by copies" : "",
                     join(ranks, ", "));
}

std::optional<CommunicatorKey> communicator_key(const Program& program, const Task& task) {
  if (!meets_others(program, task)) {
    return std::nullopt;
  }
  const OpSpec& spec = program.spec(task);
  const Group& group = program.groups[group_of(program, spec)->index()];
  if (!is_message(spec)) {
    return CommunicatorKey{group.name, group.ranks, is_by_nccl_copies(spec), group.max_sms};
  }
  const auto peer = static_cast<size_t>(attributes_of<MessageAttributes>(spec).peer);
  check(peer < group.ranks.size(), "op {} has peer {} in a group of {}", spec.op, peer,
        group.ranks.size());
  std::vector<int> ends{program.rank, group.ranks[peer]};
  if (communicates_as(spec, CommOp::kRecv)) {
    std::swap(ends[0], ends[1]);
  }
  return CommunicatorKey{group.name + std::string(kMessages), std::move(ends), false,
                         group.max_sms};
}

std::vector<CommunicatorKey> communicator_keys(std::span<const Program> programs,
                                               const TaskFilter& is_needed) {
  std::vector<CommunicatorKey> keys;
  for (size_t i = 0; i < programs.size(); ++i) {
    const Program& program = programs[i];
    std::vector<bool> seen(program.specs.size());  // few specs, perhaps a million tasks
    for (size_t task = 0; task < program.tasks.size(); ++task) {
      const size_t spec = program.tasks[task].spec.index();
      if (seen[spec]) {
        continue;
      }
      seen[spec] = true;
      auto key = communicator_key(program, program.tasks[task]);
      if (key && (!is_needed || is_needed(i, TaskId(task)))) {
        keys.push_back(*std::move(key));
      }
    }
  }
  std::ranges::sort(keys);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

}  // namespace braid
