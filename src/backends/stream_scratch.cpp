#include "backends/stream_scratch.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ops/offload.h"
#include "ops/op.h"

namespace braid {

size_t StreamScratch::add(const Stream& stream) {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& block) {
    return block.name == stream.name && block.kind == stream.kind;
  });
  const auto index = static_cast<size_t>(found - blocks_.begin());
  if (found == blocks_.end()) {
    blocks_.push_back({.name = stream.name, .kind = stream.kind});
  }
  return index;
}

void StreamScratch::need(size_t stream, size_t size_bytes) {
  int64_t& known = blocks_.at(stream).size_bytes;
  known = std::max(known, static_cast<int64_t>(size_bytes));
}

int64_t StreamScratch::size_bytes() const {
  int64_t sum = 0;
  for (const Block& block : blocks_) {
    sum += block.size_bytes;
  }
  return sum;
}

void count_scratch(const Program& program, const ScratchOf& scratch_of, StreamScratch& scratch) {
  std::set<std::pair<uint32_t, uint32_t>> seen;
  for (const Task& task : program.tasks) {
    if (!seen.insert({task.stream.value, task.spec.value}).second) {
      continue;
    }
    const Stream& stream = program.streams[task.stream.index()];
    const OpSpec& spec = program.spec(task);
    const size_t index = scratch.add(stream);
    if (!does_nothing(spec) && find_op(spec.op).op_class != OpClass::kCommunication) {
      scratch.need(index, scratch_of(spec, stream));
    }
  }
}

}  // namespace braid
