#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/program.h"
#include "ir/verify.h"

namespace braid {

/// The programs of all ranks of a step. Ranks may share a program if their programs differ only in
/// the ranks of their groups.
struct RankPrograms {
  std::vector<const Program*> programs;  ///< distinct programs, not owned
  std::vector<uint32_t> program_of;      ///< by rank: index into `programs`
  /// Returns the global ranks, in group order, of a group of the rank's program. If not set,
  /// Program::groups is used, which is correct if every rank has its own program.
  std::function<std::vector<int>(int rank, GroupId group)> ranks_of_group;
  /// Returns the first rank of what `ranks_of_group` returns, which is then the same for each of
  /// these ranks and is listed once for all of them. If not set, it is listed for each rank.
  std::function<int(int rank, GroupId group)> first_of_group = {};

  int num_ranks() const { return static_cast<int>(program_of.size()); }
};

/// `programs[r]` belongs to rank r. The programs must outlive the result.
RankPrograms one_program_per_rank(std::span<const Program> programs);

struct VerifyRanksOptions {
  size_t max_violations = 16;
  /// Also requires that collectives (not messages) finish if each rank runs its collectives one
  /// after another in program order, regardless of streams. Then no two ranks enter collectives of
  /// two groups in opposite orders, which deadlocks libraries whose collectives occupy the device
  /// (NCCL).
  bool one_order_of_collectives = false;
  /// Also requires that messages from one group member to another are sent and received in one
  /// order over all their channels, and that this order does not deadlock. Libraries without
  /// message channels (NCCL) have one order per communicator.
  bool one_order_of_messages = false;
};

/// Checks what the programs of a step require of each other. Each program must be valid on its own
/// (`verify`). Groups are the same if name and ranks are equal.
///   - groups: every member's program has the group, with the same ranks; a group's attributes
///     (root, peer) and operand shapes fit its size;
///   - order: calls that match by order (collectives of one group; messages of one group, sender,
///     receiver and channel) are ordered on each rank by streams and events;
///   - collectives: all members make the same calls in the same order, with equal op, attributes,
///     dtypes and shapes. Swapped calls of equal form are found by label: a call is wrong if
///     another rank uses its label for a later call. Pieces of a call that has been cut have one
///     label, and are told apart by their first element;
///   - messages: the numbers of sends and recvs are equal, as are dtype and shape; microbatches are
///     compared like labels of collectives;
///   - deadlock: all programs run to their end. Streams run concurrently. A task starts after the
///     previous task on its stream and the events that it waits for. A collective ends when all
///     members have begun it; a send and its recv end when both have begun. The result does not
///     depend on time: a task that can start never has to wait for one that has not started.
/// Each message names ranks, tasks and group, and for a deadlock what each rank waits for.
///
/// Cost: ranks that cannot be distinguished (same program, and groups of the same structure over
/// ranks that cannot be distinguished either) behave alike, so one of each class is run. The rest
/// is near-linear in ranks x groups + group sizes, and in the tasks of the distinct programs.
std::vector<Violation> verify_ranks(const RankPrograms& ranks,
                                    const VerifyRanksOptions& options = {});

/// Throws InternalError with the first violations. `after` names the pass that ran last, or
/// "builder".
void verify_ranks_or_throw(const RankPrograms& ranks, std::string_view after,
                           const VerifyRanksOptions& options = {});

}  // namespace braid
