#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "parallel/alike_ranks.h"
#include "parallel/communication_calls.h"
#include "parallel/verify_ranks.h"

namespace braid {

/// Ranks that cannot be told apart: they have the same program, and its groups consist, member by
/// member, of ranks that cannot be told apart either. If all ranks start at once and nothing
/// depends on time, the ranks of one class do the same at any moment, so one of them stands for
/// all.
struct RankClass {
  uint32_t program = 0;  ///< index into RankPrograms::programs
  /// A group with calls, by their order in ProgramCalls::groups.
  struct GroupUse {
    uint32_t kind = 0;       ///< groups of one kind cannot be told apart
    uint32_t position = 0;   ///< of this rank in the group
    std::vector<int> ranks;  ///< of the first rank's group
  };
  std::vector<GroupUse> groups;
};

struct RankClasses {
  AlikeRanks ranks;                ///< its kinds are the classes
  std::vector<RankClass> classes;  ///< by kind
  uint32_t num_group_kinds = 0;
};

/// Something about the ranks of a group, in group order, by which groups are told apart that would
/// otherwise be alike, for example how they lie on nodes.
using GroupColor = std::function<std::vector<uint32_t>(std::span<const int> ranks)>;

/// Partition refinement, from equal programs down to a stable partition. `calls` is by program.
/// Appends one line per fault to `faults` (the result is then of no use): a group without its own
/// rank, with a rank twice, of another size than its program says, or of which two members have
/// different ranks. With `color`, groups of different colors are of different kinds.
RankClasses classify_ranks(const RankPrograms& ranks, const std::vector<ProgramCalls>& calls,
                           std::vector<std::string>& faults, const GroupColor& color = {});

}  // namespace braid
