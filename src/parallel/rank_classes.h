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

/// Ranks that cannot be distinguished: they run the same program, and their groups consist, member
/// by member, of ranks that cannot be distinguished either. If all ranks start at once and nothing
/// depends on time, ranks of one class do the same at any moment, so one of them represents all.
struct RankClass {
  uint32_t program = 0;  ///< index into RankPrograms::programs
  /// A group with calls; ordered as in ProgramCalls::groups.
  struct GroupUse {
    uint32_t kind = 0;       ///< groups of one kind cannot be distinguished
    uint32_t position = 0;   ///< of this rank in the group
    std::vector<int> ranks;  ///< ranks in the group of the class's first rank
  };
  std::vector<GroupUse> groups;
};

struct RankClasses {
  AlikeRanks ranks;                ///< its kinds are the classes
  std::vector<RankClass> classes;  ///< by kind
  uint32_t num_group_kinds = 0;
};

/// Returns a property of the ranks of a group, in group order, that distinguishes groups that are
/// equal otherwise, for example how the ranks are placed on nodes.
using GroupColor = std::function<std::vector<uint32_t>(std::span<const int> ranks)>;

/// Classifies ranks by partition refinement: starts from ranks with equal programs and splits
/// classes until they are stable. `calls` is by program. Appends one line per fault to `faults`,
/// and the result is then invalid: a group does not contain its own rank, lists a rank twice, has
/// another size than its program says, or two members disagree about its ranks. With `color`,
/// groups of different colors are of different kinds.
RankClasses classify_ranks(const RankPrograms& ranks, const std::vector<ProgramCalls>& calls,
                           std::vector<std::string>& faults, const GroupColor& color = {});

}  // namespace braid
