#include "comm/tcp/remote_call.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/byte_fields.h"
#include "base/errors.h"
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

bool is_sound(const RemoteCall& remote, SentPart part) {
  const CommCall& call = remote.call;
  const auto members = static_cast<int64_t>(remote.group.ranks.size());
  return static_cast<size_t>(call.op) < kNumCommOps && call.dtype <= DType::kU8 &&
         call.send_elems >= 0 && call.recv_elems >= 0 && part.begin >= 0 && part.count >= 0 &&
         call.peer >= 0 && call.peer < members && call.root >= 0 && call.root < members &&
         remote.number > 0 &&
         remote.bytes.size() == static_cast<size_t>(part.count) * dtype_bytes(call.dtype);
}

size_t member_of(const Group& group, int rank) {
  const auto found = std::ranges::find(group.ranks, rank);
  if (found == group.ranks.end()) {
    throw_device_error("a call of group {}, which rank {} is not in", group.name, rank);
  }
  return static_cast<size_t>(found - group.ranks.begin());
}

/// So that sums and products of these numbers cannot overflow.
bool has_possible_sizes(const CommCall& call) {
  constexpr int64_t kMost = int64_t{1} << 40;
  const auto members = static_cast<int64_t>(call.group->ranks.size());
  return call.send_elems <= kMost / members && call.recv_elems <= kMost / members &&
         std::abs(call.shift / kMost) == 0;
}

}  // namespace

SentPart sent_part(const CommCall& call, size_t member, size_t to) {
  const auto n = static_cast<int64_t>(call.group->ranks.size());
  const auto other = static_cast<int64_t>(to);
  const SentPart all{0, call.send_elems};
  switch (call.op) {
    case CommOp::kAllReduce:
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
      .text(call.what)
      .number(number)
      .number(part.begin)
      .number(part.count);
  return body.take();
}

std::unique_ptr<RemoteCall> unpack_call(std::string bytes, int num_ranks) {
  auto remote = std::make_unique<RemoteCall>();
  ByteReader body(bytes);
  remote->group = read_group(body, num_ranks);
  CommCall& call = remote->call;
  call.op = body.number<CommOp>();
  call.send_elems = body.number<int64_t>();
  call.recv_elems = body.number<int64_t>();
  call.dtype = body.number<DType>();
  call.root = body.number<int64_t>();
  call.peer = body.number<int64_t>();
  call.channel = body.number<int64_t>();
  call.shift = body.number<int64_t>();
  call.what = body.text();
  remote->number = body.number<int64_t>();
  SentPart part;
  part.begin = body.number<int64_t>();
  part.count = body.number<int64_t>();
  const size_t data = bytes.size() - body.rest().size();
  remote->bytes = std::move(bytes);
  remote->bytes.erase(0, data);
  call.group = &remote->group;
  if (!is_sound(*remote, part)) {
    throw_device_error("a call of another process is damaged");
  }
  return remote;
}

size_t sender_of(const RemoteCall& remote, int from, int to) {
  const size_t member = member_of(remote.group, from);
  const size_t receiver = member_of(remote.group, to);
  if (!has_possible_sizes(remote.call)) {
    throw_device_error("a call of another process has impossible sizes");
  }
  const SentPart part = sent_part(remote.call, member, receiver);
  const auto bytes = static_cast<size_t>(part.count) * dtype_bytes(remote.call.dtype);
  if (remote.bytes.size() != bytes) {
    throw_device_error("a call of another process comes with {} bytes, and not {}",
                       remote.bytes.size(), bytes);
  }
  return member;
}

}  // namespace braid
