#include "comm/comm_call.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "comm/reduce.h"
#include "comm/row_exchange.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/expert_exchange.h"
#include "ops/op.h"
#include "ops/quantize_grouped.h"

namespace braid {
namespace {

CommOp comm_op_of(const OpSpec& spec) {
  const Communication* const communication = communication_of(spec);
  check(communication != nullptr, "op {} does not communicate", spec.op);
  return communication->op;
}

void set_attributes(const OpSpec& spec, CommCall& call) {
  if (call.op == CommOp::kBroadcast || call.op == CommOp::kReduce) {
    call.root = attributes_of<RootAttributes>(spec).root;
  } else if (call.op == CommOp::kRingShift) {
    call.shift = attributes_of<RingShiftAttributes>(spec).shift;
  } else if (call.is_message()) {
    const auto attributes = attributes_of<MessageAttributes>(spec);
    call.peer = attributes.peer;
    call.channel = attributes.channel;
  }
}

void set_rows(const OpSpec& spec, std::span<std::byte* const> operands, CommCall& call) {
  const auto attributes = attributes_of<ExpertExchangeAttributes>(spec);
  const ExpertExchangeOperands at(spec);
  const auto address = [&](int operand) {
    return operand < 0 ? nullptr : operands[static_cast<size_t>(operand)];
  };
  const auto y = static_cast<size_t>(at.y);
  call.send = operands[0];
  call.send_elems = spec.operands[0].shape.num_elems();
  call.recv = operands[y];
  call.recv_elems = spec.operands[y].shape.num_elems();
  call.rows = {.experts = attributes.experts,
               .copies = attributes.copies,
               .drops = attributes.drops,
               .send_rows = spec.operands[0].shape[0],
               .recv_rows = spec.operands[y].shape[0],
               .offsets_of_all = reinterpret_cast<const int32_t*>(address(at.offsets_of_all)),
               .has_weights = attributes.has_weights,
               .send_weights = address(at.weights),
               .recv_weights = address(at.y_weights),
               .send_scales = address(at.scales),
               .recv_scales = address(at.y_scales),
               .offsets = reinterpret_cast<int32_t*>(address(at.offsets)),
               .tally = reinterpret_cast<int64_t*>(address(at.tally))};
  if (attributes.has_weights) {
    call.rows.weight_dtype = spec.operands[static_cast<size_t>(at.weights)].dtype;
  }
  if (attributes.scales.has_scales) {
    call.rows.scales_of_row = spec.operands[static_cast<size_t>(at.scales)].shape[1];
  }
}

void set_operands(const OpSpec& spec, std::span<std::byte* const> operands, CommCall& call) {
  call.dtype = spec.operands[0].dtype;
  if (call.exchanges_rows()) {
    return set_rows(spec, operands, call);
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    const int64_t num_elems = spec.operands[i].shape.num_elems();
    if (reads(spec.operands[i].access)) {
      call.send = operands[i];
      call.send_elems = num_elems;
    }
    if (writes(spec.operands[i].access)) {
      call.recv = operands[i];
      call.recv_elems = num_elems;
    }
  }
}

/// Whether members hold whole experts, rows of x and y are equally long, and scales are as many as
/// a row has blocks.
bool rows_fit(const CommCall& call) {
  const auto n = static_cast<int64_t>(call.group->ranks.size());
  const RowExchange& rows = call.rows;
  const bool holds = rows.copies > 0 && n % rows.copies == 0 && rows.experts > 0 &&
                     rows.experts % (n / rows.copies) == 0;
  if (!holds || rows.send_rows <= 0 || rows.recv_rows <= 0 ||
      call.send_elems % rows.send_rows != 0 || call.recv_elems % rows.recv_rows != 0) {
    return false;
  }
  const int64_t elems = call.send_elems / rows.send_rows;
  return elems == call.recv_elems / rows.recv_rows &&
         (rows.scales_of_row == 0 || rows.scales_of_row * GroupedColumns::kBlock == elems);
}

bool sizes_fit(const CommCall& call) {
  const auto n = static_cast<int64_t>(call.group->ranks.size());
  switch (find_op(call.op).communication->shape) {
    case CommShape::kGather:
      return call.recv_elems == n * call.send_elems;
    case CommShape::kScatter:
      return call.send_elems == n * call.recv_elems;
    case CommShape::kBlocks:
      return call.send_elems == call.recv_elems && call.send_elems % n == 0;
    case CommShape::kMessage:
      return (call.op == CommOp::kSend ? call.recv_elems : call.send_elems) == 0;
    case CommShape::kRows:
      return rows_fit(call);
    case CommShape::kSame:
      break;
  }
  return call.send_elems == call.recv_elems;
}

/// A separate function: calls are checked on every run, so a valid call must not format a message.
[[noreturn]] void refuse(const CommCall& call, const std::string& why) {
  throw_internal_error("{} in group {}{}", describe_call(call), call.group->name, why);
}

void check_fits_group(const CommCall& call) {
  const auto n = static_cast<int64_t>(call.group->ranks.size());
  if (n == 0) {
    refuse(call, ", which has no ranks");
  }
  if (!sizes_fit(call)) {
    refuse(call, fmt::format(" of {} ranks: {} elements there and {} elements back", n,
                             call.send_elems, call.recv_elems));
  }
  for (const int64_t member : {call.root, call.peer}) {
    if (member < 0 || member >= n) {
      refuse(call, fmt::format(" of {} ranks: member {} does not exist", n, member));
    }
  }
  if (call.sums() && !can_sum(call.dtype)) {
    refuse(call, ": no sum of this dtype");
  }
}

size_t member_index(const Group& group, int rank) {
  const size_t none = group.ranks.size();
  size_t index = none;
  for (size_t i = 0; i < group.ranks.size(); ++i) {
    if (group.ranks[i] == rank) {
      check(index == none, "group {} has rank {} twice", group.name, rank);
      index = i;
    }
  }
  check(index != none, "rank {} is not in group {}", rank, group.name);
  return index;
}

/// Whether x and y overlap so that a rank would read data that another has written.
bool overlaps_badly(const CommCall& call, size_t member) {
  const auto elem_bytes = static_cast<int64_t>(dtype_bytes(call.dtype));
  const std::byte* const x = call.send;
  const std::byte* const y = call.recv;
  const int64_t x_bytes = call.send_elems * elem_bytes;
  const int64_t y_bytes = call.recv_elems * elem_bytes;
  if (x == nullptr || y == nullptr) {
    return false;  // a call of another process comes without operands
  }
  if (x_bytes == 0 || y_bytes == 0 || x + x_bytes <= y || y + y_bytes <= x) {
    return false;
  }
  const auto index = static_cast<int64_t>(member);
  switch (call.op) {
    case CommOp::kAllReduce:
    case CommOp::kAllReduceMax:
    case CommOp::kBroadcast:
      return x != y;
    case CommOp::kAllGather:
      return x != y + index * x_bytes;
    case CommOp::kReduceScatter:
      return y != x + index * y_bytes;
    default:
      return call.group->ranks.size() > 1 || x != y;
  }
}

bool alike(const RowExchange& a, const RowExchange& b) {
  return a.experts == b.experts && a.copies == b.copies && a.send_rows == b.send_rows &&
         a.recv_rows == b.recv_rows && a.has_weights == b.has_weights &&
         a.weight_dtype == b.weight_dtype && a.scales_of_row == b.scales_of_row;
}

}  // namespace

std::string_view comm_op_name(CommOp op) {
  return find_op(op).name;
}

bool CommCall::sums() const {
  return find_op(op).communication->sums;
}

CommCall make_comm_call(const OpSpec& spec, const Group& group,
                        std::span<std::byte* const> operands, std::string what) {
  CommCall call{.op = comm_op_of(spec), .group = &group, .what = std::move(what)};
  check(!spec.operands.empty() && operands.size() == spec.operands.size(),
        "op {}: {} addresses for {} operands", spec.op, operands.size(), spec.operands.size());
  set_attributes(spec, call);
  set_operands(spec, operands, call);
  check_fits_group(call);
  return call;
}

size_t check_comm_call(const CommCall& call, int rank) {
  check_fits_group(call);
  const size_t member = member_index(*call.group, rank);
  if (call.is_message() && static_cast<size_t>(call.peer) == member) {
    refuse(call, fmt::format(": rank {} cannot exchange messages with itself", rank));
  }
  if (overlaps_badly(call, member)) {
    refuse(call, ": x and y overlap");
  }
  return member;
}

std::string describe_call(const CommCall& call) {
  std::string how;
  if (call.op == CommOp::kBroadcast || call.op == CommOp::kReduce) {
    how = fmt::format(" with root {}", call.root);
  } else if (call.op == CommOp::kRingShift) {
    how = fmt::format(" by {}", call.shift);
  } else if (call.exchanges_rows()) {
    how = fmt::format(" of {} experts{}{}{}", call.rows.experts,
                      call.rows.copies > 1 ? fmt::format(" on {} ranks", call.rows.copies) : "",
                      call.rows.has_weights ? " with weights" : "",
                      call.rows.scales_of_row > 0 ? " with scales" : "");
  }
  return fmt::format("{} of {} {}{} ({})", comm_op_name(call.op), call.num_elems(),
                     dtype_name(call.dtype), how, call.what);
}

bool fit_together(const CommCall& a, const CommCall& b) {
  if (a.num_elems() != b.num_elems() || a.dtype != b.dtype) {
    return false;
  }
  if (a.is_message() && b.is_message()) {
    return a.op != b.op;
  }
  return a.op == b.op && a.root == b.root && a.shift == b.shift && a.what == b.what &&
         alike(a.rows, b.rows);
}

void run_alone(const CommCall& call) {
  if (call.exchanges_rows()) {
    const RowsOfMember own = rows_given(call);
    return exchange_rows(call, 0, {&own, 1});
  }
  if (call.send != call.recv && call.num_bytes() > 0) {
    std::memcpy(call.recv, call.send, static_cast<size_t>(call.num_bytes()));
  }
}

}  // namespace braid
