#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "ir/op_spec.h"
#include "ir/program.h"
#include "ops/op_traits.h"

namespace braid {

/// The name of the op, such as "all_reduce".
std::string_view comm_op_name(CommOp op);

/// What dispatch_rows and combine_rows have besides x and y (ops/expert_exchange.h).
struct RowExchange {
  int64_t experts = 1;
  int64_t copies = 1;
  bool drops = false;
  int64_t send_rows = 0;  ///< of x
  int64_t recv_rows = 0;  ///< of y
  const int32_t* offsets_of_all = nullptr;
  DType weight_dtype = DType::kF32;
  bool has_weights = false;
  const std::byte* send_weights = nullptr;
  std::byte* recv_weights = nullptr;
  int64_t scales_of_row = 0;  ///< f32, of FP8 rows; 0: rows have none
  const std::byte* send_scales = nullptr;
  std::byte* recv_scales = nullptr;
  int32_t* offsets = nullptr;  ///< of dispatch_rows with weights
  int64_t* tally = nullptr;    ///< [RoomTally::kSize]; null: rows are not counted
};

/// One rank's part in one communication: made once per task, run in every step.
struct CommCall {
  CommOp op = CommOp::kAllReduce;
  const Group* group = nullptr;     ///< must outlive the call
  const std::byte* send = nullptr;  ///< x; null for recv
  /// y; null for send. In all-reduce and broadcast it may equal x. In all-gather x may be this
  /// rank's block of y; in reduce-scatter y may be this rank's block of x. Otherwise x and y do not
  /// overlap.
  std::byte* recv = nullptr;
  int64_t send_elems = 0;
  int64_t recv_elems = 0;
  DType dtype = DType::kF32;
  int64_t root = 0;     ///< broadcast, reduce: a member of the group
  int64_t peer = 0;     ///< send, recv: the member at the other end
  int64_t channel = 0;  ///< send, recv
  int64_t shift = 0;    ///< ring_shift
  RowExchange rows;     ///< dispatch_rows, combine_rows
  std::string what;     ///< names the task in messages; equal on all ranks of a collective

  /// Elements of the larger operand.
  int64_t num_elems() const { return send_elems > recv_elems ? send_elems : recv_elems; }
  int64_t num_bytes() const { return num_elems() * static_cast<int64_t>(dtype_bytes(dtype)); }
  int64_t result_bytes() const { return recv_elems * static_cast<int64_t>(dtype_bytes(dtype)); }
  bool is_message() const { return op == CommOp::kSend || op == CommOp::kRecv; }
  bool exchanges_rows() const { return op == CommOp::kDispatchRows || op == CommOp::kCombineRows; }
  bool sums() const;
};

/// The call of a task. `operands` are the addresses of the spec's operands; `group` is the group
/// named by the spec's attribute and must outlive the call. Throws InternalError if the spec does
/// not communicate, or does not fit a group of that many ranks (sizes, root, peer).
CommCall make_comm_call(const OpSpec& spec, const Group& group,
                        std::span<std::byte* const> operands, std::string what);

/// This rank's index in the call's group. Throws InternalError, naming call and group, if the rank
/// is not in the group or is in it more than once, if sizes, root, peer or dtype do not fit the
/// group and the op, or if x and y overlap in a way that is not allowed.
size_t check_comm_call(const CommCall& call, int rank);

/// "all_reduce of 128 f32 (layers.3)": equal for the calls of one collective.
std::string describe_call(const CommCall& call);

/// Whether two calls may be part of one communication: a send with a recv, any other call with an
/// equal one.
bool fit_together(const CommCall& a, const CommCall& b);

/// Runs a call of a group of one rank: y = x.
void run_alone(const CommCall& call);

}  // namespace braid
