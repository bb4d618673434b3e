#pragma once

#include <compare>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

/// Which communicators of NCCL the programs of a rank need. Knows nothing of CUDA.
namespace braid {

/// What names of communicators of messages end with.
inline constexpr std::string_view kMessages = " messages";

/// A set of ranks whose calls NCCL takes one after the other.
struct CommunicatorKey {
  std::string name;        ///< of the group; of messages with " messages" behind it
  std::vector<int> ranks;  ///< in group order; of messages sender, receiver
  bool by_copies = false;  ///< its collectives are by copy engines where NCCL can (CTA policy zero)

  friend auto operator<=>(const CommunicatorKey&, const CommunicatorKey&) = default;
};

/// "tensor of ranks 0, 1, 2, 3", "tensor by copies of ranks 0, 1"
std::string describe_key(const CommunicatorKey& key);

/// The communicator of a task that communicates with other ranks; nullopt for all other tasks.
/// Collectives of a group have one. NCCL's messages have no channels and one order per
/// communicator, so those from one member to another have one of their own: what a program orders
/// by streams (passes/pipeline/p2p_streams.h) then waits for nothing else.
std::optional<CommunicatorKey> communicator_key(const Program& program, const Task& task);

/// Which tasks are asked about: it gives the same answer for tasks of one spec of a program.
using TaskFilter = std::function<bool(size_t program, TaskId task)>;

/// All of the programs of a rank, in the one order in which every rank makes its own: then the
/// first in that order that is not made yet has no member that waits for another one. With a filter
/// those that its tasks need.
std::vector<CommunicatorKey> communicator_keys(std::span<const Program> programs,
                                               const TaskFilter& is_needed = {});

}  // namespace braid
