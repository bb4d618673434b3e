#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/program.h"
#include "ir/verify.h"

namespace braid {

/// The programs of all ranks of a step. Ranks whose programs are equal (but for the ranks of their
/// groups) may share one.
struct RankPrograms {
  std::vector<const Program*> programs;  ///< the distinct ones, not owned
  std::vector<uint32_t> program_of;      ///< by rank: index into `programs`
  /// Global ranks, in group order, of a group of the rank's program. Empty: those in
  /// Program::groups, which fits where every rank has a program of its own.
  std::function<std::vector<int>(int rank, GroupId group)> ranks_of_group;

  int num_ranks() const { return static_cast<int>(program_of.size()); }
};

/// `programs[r]` is rank r's. They must outlive the result.
RankPrograms one_program_per_rank(std::span<const Program> programs);

struct VerifyRanksOptions {
  size_t max_violations = 16;
  /// Also demand that collectives (not messages) finish if each rank makes its own one after the
  /// other in program order, whatever their streams: then no two ranks meet in two groups in
  /// opposite orders, which libraries whose collectives occupy the device (NCCL) cannot bear.
  bool one_order_of_collectives = false;
  /// Also demand that messages from one member of a group to another are sent and received in one
  /// order over all their channels, and that nobody waits for ever if they meet in that order:
  /// libraries whose messages have no channels (NCCL) take one order per communicator.
  bool one_order_of_messages = false;
};

/// Checks what the programs of a step ask of each other; each must be sound on its own
/// (`verify`). Groups are the same if name and ranks are.
///  - groups: every member's program has the group, with the same ranks; a group's attributes
///    (root, peer) and operand shapes fit its size;
///  - order: calls that meet by their order (collectives of one group; messages of one group,
///    sender, receiver and channel) are ordered on each rank by streams and events;
///  - collectives: all members make the same calls in the same order: op, attributes, dtypes and
///    shapes. Equal ones in another order are found by their labels: a call whose label another
///    rank has for a later call;
///  - messages: as many sends as recvs, of equal dtype and shape, and of equal microbatch in the
///    sense above;
///  - deadlock: all programs run to their end, streams side by side, where a task starts after the
///    one before it on its stream and the events it waits for, a collective ends when all members
///    have begun it, and a send and its recv end when both have begun. Nothing depends on time:
///    what can start never has to wait for what has not.
/// Each message names ranks, tasks and group, and for a deadlock what each rank waits for.
///
/// Cost: ranks that cannot be told apart (same program, and groups of the same structure over ranks
/// that cannot be told apart either) behave alike, so one of each kind is run; the rest is
/// near-linear in ranks x groups + group sizes, and in the tasks of the distinct programs.
std::vector<Violation> verify_ranks(const RankPrograms& ranks,
                                    const VerifyRanksOptions& options = {});

/// Throws InternalError with the first violations, naming `after` (a pass, or "builder").
void verify_ranks_or_throw(const RankPrograms& ranks, std::string_view after,
                           const VerifyRanksOptions& options = {});

}  // namespace braid
