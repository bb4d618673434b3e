#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/comm_call.h"
#include "ir/program.h"

/// Communication by copies: each rank pushes blocks into the memory of the others, and words of
/// memory ("flags") say when. What an executor with peer-visible memory enqueues, without the
/// device: so it can be tested on any machine (tests/executor/copy_steps_test.cpp).
///
/// Of a call, a rank has two flags per member: `credit`, which the member sets when its y may be
/// written, and `arrived`, which it sets when its block is in this rank's y. A flag is set to 1 by
/// one rank and taken (awaited, then set to 0) by another, once per run of the call. A rank first
/// gives credit to all who will push to it; then, step by step, it takes the credit of the rank
/// `j` places on, pushes a block to it, sets its arrived flag, and takes its own from the rank `j`
/// places back. Why that is right:
///
///  - No unread data is overwritten. A push follows the receiver's credit, which the receiver gives
///    when its task begins: by program order and events whatever reads or writes y before is over,
///    in this step or an earlier one. It ends when all blocks have arrived, so nobody pushes behind
///    its end.
///  - Flags of one run are not taken for those of another, and none is lost: the next 1 of an
///    arrived flag needs the credit of the next run, which the receiver gives after it has taken
///    the flag of this one; the next credit is given after the block of this run has arrived,
///    before which the sender took the credit. Each call of a program has flags of its own, so that
///    calls of other streams, in whatever order, make no difference.
///  - No deadlock beyond those of collectives that all ranks must have begun, and of messages that
///    end when the receiver has come: a call waits for nothing but the beginning of the same call
///    on other ranks, and for their copies. `verify_ranks` excludes the others.
///  - Ranks stay in step: a rank does not begin step j + 1 before the block of step j has arrived,
///    so that not two of them push to one receiver for long.
namespace braid {

/// One rank's part in a call, without addresses.
struct CopyShape {
  CommOp op = CommOp::kAllGather;
  int place = 0;            ///< this rank's among the members; of a message 0 sends and 1 receives
  int size = 2;             ///< members
  int64_t block_bytes = 0;  ///< what one push moves
  int64_t shift = 0;        ///< ring_shift
};

enum class CopyAction : uint8_t {
  kSignal,  ///< set a flag of the peer to 1, behind all that is in front
  kAwait,   ///< wait until a flag of this rank is 1, then set it to 0
  kPush,    ///< copy from x of this rank to y of the peer
  kKeep,    ///< copy from x of this rank to its y, unless they are the same bytes
};

struct CopyStep {
  CopyAction action = CopyAction::kSignal;
  int peer = 0;            ///< a member
  int64_t flag = 0;        ///< kSignal: of the peer's flags for the call; kAwait: of this rank's
  int64_t from_bytes = 0;  ///< offsets into x and y
  int64_t to_bytes = 0;
  int64_t num_bytes = 0;

  friend bool operator==(const CopyStep&, const CopyStep&) = default;
};

/// Flags that a rank has for a call of so many members.
constexpr int64_t num_copy_flags(int size) {
  return int64_t{2} * size;
}

/// In the order of a stream. Throws InternalError for an op that copies do not suffice for.
std::vector<CopyStep> copy_steps(const CopyShape& shape);

/// A task that copy engines are to do (`is_by_copy_engine`), with what other ranks know it by.
struct CopyCall {
  size_t program = 0;
  TaskId task;
  std::string name;        ///< equal on all of its ranks, and no other call's
  std::vector<int> ranks;  ///< members; of a message sender, receiver
  CopyShape shape;
  int64_t first_flag = 0;  ///< of this rank, counted over all of its calls
  size_t send_operand = 0;
  size_t recv_operand = 0;

  bool sends() const { return shape.op != CommOp::kRecv; }
  bool receives() const { return shape.op != CommOp::kSend; }
};

/// Those of a rank's programs, in their order. Ranks count the calls of a group, and the messages
/// of a channel, in program order, which is the same on all of them.
std::vector<CopyCall> find_copy_calls(std::span<const Program> programs);

}  // namespace braid
