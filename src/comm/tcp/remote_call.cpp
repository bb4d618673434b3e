#include "comm/tcp/remote_call.h"

#include <algorithm>
#include <utility>

#include "base/byte_fields.h"
#include "base/errors.h"
#include "comm/row_exchange.h"
#include "comm/tcp/frame.h"

namespace braid {
namespace {

Group read_group(ByteReader& body, int num_ranks) {
  Group group;
  group.name = body.text();
  group.kind = body.number<GroupKind>();
  const size_t count = body.count(sizeof(int32_t));
  for (size_t i = 0; i < count; ++i) {
    group.ranks.push_back(body.number<int32_t>());
    if (group.ranks.back() < 0 || group.ranks.back() >= num_ranks) {
      throw_device_error("group {} has rank {} of {}", group.name, group.ranks.back(), num_ranks);
    }
  }
  return group;
}

/// Whether the numbers are some of their kinds. Sizes are small enough for sums and products of
/// them.
bool is_in_range(const RemoteCall& remote) {
  constexpr int64_t kMaxElems = int64_t{1} << 40;
  const CommCall& call = remote.call;
  const auto is_size = [](int64_t elems) { return elems >= 0 && elems <= kMaxElems; };
  const auto is_count = [](int64_t number) { return number >= 0 && number <= INT32_MAX; };
  const RowExchange& rows = call.rows;
  return is_count(rows.experts) && is_count(rows.copies) && is_size(rows.send_rows) &&
         is_size(rows.recv_rows) && is_count(rows.scales_of_row) &&
         rows.weight_dtype <= DType::kU8 && remote.group.kind <= GroupKind::kWorld &&
         static_cast<size_t>(call.op) < kNumCommOps && call.dtype <= DType::kU8 &&
         is_size(call.send_elems) && is_size(call.recv_elems) && remote.number > 0;
}

/// Whether the announced part and the bytes are what `path.to` needs of a call that is in range.
bool has_its_part(const RemoteCall& remote, SentPart announced, const CallPath& path) {
  const CommCall& call = remote.call;
  const size_t from = check_comm_call(call, path.from);
  const std::vector<int>& ranks = remote.group.ranks;
  const auto to = static_cast<size_t>(std::ranges::find(ranks, path.to) - ranks.begin());
  if (to == ranks.size() || (call.is_message() && static_cast<size_t>(call.peer) != to)) {
    return false;
  }
  if (call.exchanges_rows()) {  // how many rows is data, which the receiver compares with its own
    return announced.begin == 0 && announced.count >= 0 && announced.count <= call.rows.send_rows &&
           std::ssize(remote.bytes) == announced.count * bytes_per_row(call);
  }
  const SentPart part = sent_part(call, from, to);
  return announced.begin == part.begin && announced.count == part.count &&
         remote.bytes.size() == static_cast<size_t>(part.count) * dtype_bytes(call.dtype);
}

void check_sound(const RemoteCall& remote, SentPart announced, const CallPath& path) {
  bool is_sound = is_in_range(remote);
  try {
    is_sound = is_sound && has_its_part(remote, announced, path);
  } catch (const InternalError& error) {  // as of a call of our own
    throw_device_error("a call of rank {} is damaged: {}", path.from, error.what());
  }
  if (!is_sound) {
    throw_device_error("a call of rank {} is damaged", path.from);
  }
}

}  // namespace

SentPart sent_part(const CommCall& call, size_t member, size_t to) {
  const auto n = static_cast<int64_t>(call.group->ranks.size());
  const auto other = static_cast<int64_t>(to);
  const SentPart all{0, call.send_elems};
  switch (call.op) {
    case CommOp::kAllReduce:
    case CommOp::kAllReduceMax:
    case CommOp::kAllGather:
    case CommOp::kSend:
      return all;
    case CommOp::kReduce:
      return other == call.root ? all : SentPart{};
    case CommOp::kReduceScatter:
      return {other * call.recv_elems, call.recv_elems};
    case CommOp::kAllToAll:
      return {other * (call.send_elems / n), call.send_elems / n};
    case CommOp::kBroadcast:
      return static_cast<int64_t>(member) == call.root ? all : SentPart{};
    case CommOp::kRingShift: {
      const int64_t target = ((static_cast<int64_t>(member) + call.shift) % n + n) % n;
      return target == other ? all : SentPart{};
    }
    case CommOp::kRecv:
      return {};
    case CommOp::kDispatchRows:
    case CommOp::kCombineRows:
      return {0, num_packed_rows(call, member, to)};
  }
  throw_internal_error("no such communication");
}

std::string pack_call(const CommCall& call, int64_t number, SentPart part) {
  ByteWriter body;
  body.text(call.group->name)
      .number(call.group->kind)
      .number(static_cast<uint64_t>(call.group->ranks.size()));
  for (const int rank : call.group->ranks) {
    body.number(static_cast<int32_t>(rank));
  }
  body.number(call.op)
      .number(call.send_elems)
      .number(call.recv_elems)
      .number(call.dtype)
      .number(call.root)
      .number(call.peer)
      .number(call.channel)
      .number(call.shift)
      .number(call.rows.experts)
      .number(call.rows.copies)
      .number(call.rows.send_rows)
      .number(call.rows.recv_rows)
      .number(call.rows.weight_dtype)
      .number(static_cast<uint8_t>(call.rows.has_weights))
      .number(call.rows.scales_of_row)
      .text(call.what)
      .number(number)
      .number(part.begin)
      .number(part.count);
  return body.take();
}

std::unique_ptr<RemoteCall> unpack_call(std::string bytes, const CallPath& path) {
  auto remote = std::make_unique<RemoteCall>();
  ByteReader body(bytes);
  remote->group = read_group(body, path.num_ranks);
  CommCall& call = remote->call;
  call.op = body.number<CommOp>();
  call.send_elems = body.number<int64_t>();
  call.recv_elems = body.number<int64_t>();
  call.dtype = body.number<DType>();
  call.root = body.number<int64_t>();
  call.peer = body.number<int64_t>();
  call.channel = body.number<int64_t>();
  call.shift = body.number<int64_t>();
  call.rows.experts = body.number<int64_t>();
  call.rows.copies = body.number<int64_t>();
  call.rows.send_rows = body.number<int64_t>();
  call.rows.recv_rows = body.number<int64_t>();
  call.rows.weight_dtype = body.number<DType>();
  call.rows.has_weights = body.number<uint8_t>() != 0;
  call.rows.scales_of_row = body.number<int64_t>();
  call.what = body.text();
  remote->number = body.number<int64_t>();
  SentPart part;
  part.begin = body.number<int64_t>();
  part.count = body.number<int64_t>();
  const size_t data = bytes.size() - body.rest().size();
  remote->bytes = std::move(bytes);
  remote->bytes.erase(0, data);
  call.group = &remote->group;
  check_sound(*remote, part, path);
  return remote;
}

}  // namespace braid
