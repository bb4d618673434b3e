#pragma once

#include <compare>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

/// Finds the NCCL communicators that the programs of a rank need. Independent of CUDA.
namespace braid {

/// Suffix of the names of communicators of messages.
inline constexpr std::string_view kMessages = " messages";

/// A set of ranks whose calls NCCL runs one after the other.
struct CommunicatorKey {
  std::string name;        ///< of the group; with " messages" appended for messages
  std::vector<int> ranks;  ///< in group order; for messages sender, receiver
  bool by_copies = false;  ///< copy engines do its collectives if NCCL supports it (CTA policy
                           ///< zero)
  int max_sms = 0;         ///< Group::max_sms

  friend auto operator<=>(const CommunicatorKey&, const CommunicatorKey&) = default;
};

/// "tensor of ranks 0, 1, 2, 3", "tensor by copies of ranks 0, 1"
std::string describe_key(const CommunicatorKey& key);

/// The communicator of a task that communicates with other ranks; nullopt for all other tasks. The
/// collectives of a group share one. NCCL's messages have no channels and one order per
/// communicator, so the messages from one member to another have their own: the order that a
/// program gives by streams (passes/pipeline/p2p_streams.h) then causes no other waits.
std::optional<CommunicatorKey> communicator_key(const Program& program, const Task& task);

/// Selects tasks; must give the same answer for all tasks of one spec of a program.
using TaskFilter = std::function<bool(size_t program, TaskId task)>;

/// All communicators of a rank's programs, in the order in which every rank makes its own. This
/// order is global, so the first communicator that is not made yet has no member that waits for
/// another one. With a filter, only those that the selected tasks need.
std::vector<CommunicatorKey> communicator_keys(std::span<const Program> programs,
                                               const TaskFilter& is_needed = {});

}  // namespace braid
