#include "parallel/task_writer.h"

#include <utility>
#include <vector>

#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/elementwise.h"

namespace braid {
namespace {

constexpr std::array kInto{Access::kRead, Access::kWrite};

}  // namespace

ProgramGroups::Entry& ProgramGroups::entry(std::string_view name) {
  const auto found = entries_.find(name);
  if (found != entries_.end()) {
    return found->second;
  }
  return entries_.emplace(name, Entry{mesh_.group(name, rank_), GroupId()}).first->second;
}

GroupId ProgramGroups::id(std::string_view name) {
  Entry& known = entry(name);
  if (!known.id.valid()) {
    known.id = builder_.add_group(known.group);
  }
  return known.id;
}

int64_t ProgramGroups::size(std::string_view name) {
  return static_cast<int64_t>(entry(name).group.ranks.size());
}

BufferId TaskWriter::step_buffer(std::string name, DType dtype, int64_t num_elems,
                                 BufferRole role) {
  return builder_.add_buffer({.name = std::move(name),
                              .dtype = dtype,
                              .shape = {num_elems},
                              .role = role,
                              .lifetime = Lifetime::kStep});
}

DType TaskWriter::dtype_of(BufferRange range) const {
  return builder_.program().buffers[range.buffer.index()].dtype;
}

OperandSpec TaskWriter::operand(BufferRange range, Access access) const {
  return {.dtype = dtype_of(range), .access = access, .shape = {range.end - range.begin}};
}

template <class Attributes>
void TaskWriter::add(std::string_view op, Attributes attributes,
                     std::span<const BufferRange> ranges, std::span<const Access> accesses,
                     StreamId stream, const Label& label) {
  OpSpec spec{.op = std::string(op), .attributes = to_attributes(attributes), .operands = {}};
  for (size_t i = 0; i < ranges.size(); ++i) {
    spec.operands.push_back(operand(ranges[i], accesses[i]));
  }
  builder_.add_task(spec, ranges, stream, label);
}

void TaskWriter::fill_zero(BufferRange range, const Label& label) {
  add(kFillOp.name, FillAttributes{.value = 0.0}, std::array{range}, std::array{Access::kWrite},
      stream_, label);
}

void TaskWriter::cast(BufferRange from, BufferRange to, const Label& label) {
  add(kCastOp.name, NoAttributes{}, std::array{from, to}, kInto, stream_, label);
}

void TaskWriter::copy(BufferRange from, BufferRange to, const Label& label) {
  add(kCopyOp.name, NoAttributes{}, std::array{from, to}, kInto, stream_, label);
}

void TaskWriter::accumulate(BufferRange from, BufferRange to, const Label& label) {
  add(kAccumulateOp.name, NoAttributes{}, std::array{from, to},
      std::array{Access::kRead, Access::kReadWrite}, stream_, label);
}

void TaskWriter::all_reduce(const BufferRange& range, std::string_view group, const Label& label) {
  combine(kAllReduceOp.name, range, group, label);
}

void TaskWriter::all_reduce_max(const BufferRange& range, std::string_view group,
                                const Label& label) {
  combine(kAllReduceMaxOp.name, range, group, label);
}

void TaskWriter::combine(std::string_view op, BufferRange range, std::string_view group,
                         const Label& label) {
  if (groups_.size(group) > 1) {
    const auto id = static_cast<int64_t>(groups_.id(group).index());
    add(op, CollectiveAttributes{.group = id}, std::array{range}, std::array{Access::kReadWrite},
        stream_, label);
  }
}

void TaskWriter::reduce_scatter(BufferRange whole, BufferRange part, std::string_view group,
                                const Label& label) {
  const auto id = static_cast<int64_t>(groups_.id(group).index());
  add(kReduceScatterOp.name, CollectiveAttributes{.group = id}, std::array{whole, part}, kInto,
      stream_, label);
}

void TaskWriter::all_gather(BufferRange part, BufferRange whole, std::string_view group,
                            const Label& label) {
  const auto id = static_cast<int64_t>(groups_.id(group).index());
  add(kAllGatherOp.name, CollectiveAttributes{.group = id}, std::array{part, whole}, kInto, stream_,
      label);
}

void TaskWriter::send(BufferRange range, std::string_view group, int64_t peer, int64_t channel,
                      StreamId stream, const Label& label) {
  const auto id = static_cast<int64_t>(groups_.id(group).index());
  add(kSendOp.name, MessageAttributes{.group = id, .peer = peer, .channel = channel},
      std::array{range}, std::array{Access::kRead}, stream, label);
}

void TaskWriter::recv(BufferRange range, std::string_view group, int64_t peer, int64_t channel,
                      StreamId stream, const Label& label) {
  const auto id = static_cast<int64_t>(groups_.id(group).index());
  add(kRecvOp.name, MessageAttributes{.group = id, .peer = peer, .channel = channel},
      std::array{range}, std::array{Access::kWrite}, stream, label);
}

}  // namespace braid
