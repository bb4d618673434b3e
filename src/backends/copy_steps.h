#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/comm_call.h"
#include "ir/program.h"

/// Communication by copies: each rank pushes blocks into the memory of the others, and words of
/// memory ("flags") synchronize them. This file computes the operations that an executor with
/// peer-visible memory enqueues. Exchanges of rows of experts (ops/expert_exchange.h), which
/// kernels move, use the same flags. It needs no device, so it can be tested on any machine
/// (tests/executor/copy_steps_test.cpp).
///
/// For a call, a rank has two flags per member: `credit`, which the member sets when its y may be
/// written, and `arrived`, which it sets when its block is in this rank's y. One rank sets a flag
/// to 1 and another takes it (waits for it, then sets it to 0), once per run of the call. A rank
/// first gives credit to all ranks that will push to it. Then, step by step, it takes the credit of
/// the rank `j` places ahead, pushes a block to it, sets its arrived flag, and takes its own
/// arrived flag from the rank `j` places behind. This is correct for these reasons:
///
///  - No unread data is overwritten. A push follows the receiver's credit, which the receiver gives
///    when its task begins: by program order and events, all earlier reads and writes of y have
///    ended, in this step or an earlier one. The task ends when all blocks have arrived, so no rank
///    pushes after its end.
///  - Flags of different runs are not confused, and none is lost: the next 1 of an arrived flag
///    needs the credit of the next run, which the receiver gives after it has taken the flag of
///    this run; the next credit is given after the block of this run has arrived, and the sender
///    took the credit before sending it. Each call of a program has its own flags, so the order of
///    calls on other streams does not matter.
///  - No deadlock beyond those of collectives that all ranks must have begun, and of messages that
///    end when the receiver has arrived: a call only waits for the beginning of the same call on
///    other ranks, and for their copies. `verify_ranks` excludes the other deadlocks.
///  - Ranks stay in step: a rank does not begin step j + 1 before the block of step j has arrived,
///    so two ranks do not push to one receiver for long.
///
/// In an exchange of rows, each rank reads the rows of its y from x on other ranks. `credit` then
/// says that x may be read, and `arrived` that its rank has read all of its rows: a rank gives
/// credit to all, takes that of all, fetches its rows, tells all, and takes the answers of all. So
/// nobody reads x after the end of the call.
namespace braid {

/// One rank's part in a call, without addresses.
struct CopyShape {
  CommOp op = CommOp::kAllGather;
  int place = 0;            ///< this rank's index among the members; for a message 0 sends and 1
                            ///< receives
  int size = 2;             ///< number of members
  int64_t block_bytes = 0;  ///< bytes of one push
  int64_t shift = 0;        ///< ring_shift
};

enum class CopyAction : uint8_t {
  kSignal,     ///< set a flag of the peer to 1, after all preceding steps
  kAwait,      ///< wait until a flag of this rank is 1, then set it to 0
  kPush,       ///< copy from x of this rank to y of the peer
  kKeep,       ///< copy from x of this rank to its y, unless they are the same bytes
  kFetchRows,  ///< copy rows from x of all members to y of this rank
};

struct CopyStep {
  CopyAction action = CopyAction::kSignal;
  int peer = 0;            ///< a member
  int64_t flag = 0;        ///< kSignal: index among the peer's flags of the call; kAwait: among
                           ///< this rank's
  int64_t from_bytes = 0;  ///< offsets into x and y
  int64_t to_bytes = 0;
  int64_t num_bytes = 0;

  friend bool operator==(const CopyStep&, const CopyStep&) = default;
};

/// The number of flags that a rank has for a call of that many members.
constexpr int64_t num_copy_flags(int size) {
  return int64_t{2} * size;
}

/// The steps in stream order. Throws InternalError for an op that needs more than copies.
std::vector<CopyStep> copy_steps(const CopyShape& shape);

/// Whether ranks access each other's memory for a call: copy engines do it (`is_by_copy_engine`),
/// or it exchanges rows.
bool accesses_peers(const OpSpec& spec);

/// A task that `accesses_peers`, with the name that identifies it on all ranks.
struct CopyCall {
  size_t program = 0;
  TaskId task;
  std::string name;        ///< equal on all of its ranks, and unique to this call
  std::vector<int> ranks;  ///< members; for a message sender, receiver
  CopyShape shape;
  int64_t first_flag = 0;  ///< of this rank, counted over all of its calls
  size_t send_operand = 0;
  /// The operands of this rank that others access: y of copies, if there is one; x, then its
  /// weights, of exchanges of rows.
  std::vector<size_t> reached_operands;

  bool fetches_rows() const {
    return shape.op == CommOp::kDispatchRows || shape.op == CommOp::kCombineRows;
  }
};

/// The copy calls of a rank's programs, in their order. Ranks number the calls of a group, and the
/// messages of a channel, in program order, which is the same on all of them.
std::vector<CopyCall> find_copy_calls(std::span<const Program> programs);

}  // namespace braid
