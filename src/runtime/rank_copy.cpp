#include "runtime/rank_copy.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "state/state_transfer.h"

namespace braid {
namespace {

int64_t elem_bytes(const StateMap& map, size_t buffer) {
  return static_cast<int64_t>(dtype_bytes(map.buffers()[buffer].dtype));
}

}  // namespace

std::vector<CopiedRange> joined_ranges(std::vector<CopiedRange> ranges) {
  std::ranges::sort(ranges, {},
                    [](const CopiedRange& range) { return std::tuple(range.buffer, range.begin); });
  std::vector<CopiedRange> joined;
  for (const CopiedRange& range : ranges) {
    if (!joined.empty() && joined.back().buffer == range.buffer &&
        range.begin <= joined.back().end()) {
      CopiedRange& last = joined.back();
      last.num_elems = std::max(last.end(), range.end()) - last.begin;
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

RankCopy::RankCopy(const StateMap& map, std::vector<CopiedRange> ranges, Executor& executor)
    : map_(map), ranges_(std::move(ranges)), executor_(executor) {
  int64_t size_bytes = 0;
  for (const CopiedRange& range : ranges_) {
    offsets_bytes_.push_back(size_bytes);
    size_bytes += range.num_elems * elem_bytes(map, range.buffer);
  }
  block_ = executor.host_block(size_bytes);
  // The first save would otherwise wait for the system to provide the pages.
  std::ranges::fill(block_.bytes, std::byte{0});
}

std::span<std::byte> RankCopy::bytes_of(size_t range) const {
  const int64_t size_bytes = ranges_[range].num_elems * elem_bytes(map_, ranges_[range].buffer);
  return block_.bytes.subspan(static_cast<size_t>(offsets_bytes_[range]),
                              static_cast<size_t>(size_bytes));
}

void RankCopy::take() {
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const CopiedRange& range = ranges_[i];
    executor_.read(map_.buffers()[range.buffer].name, range.begin * elem_bytes(map_, range.buffer),
                   bytes_of(i));
  }
}

void RankCopy::read(size_t buffer, int64_t begin, std::span<float> out) const {
  const auto count = static_cast<int64_t>(out.size());
  const auto after = std::ranges::upper_bound(
      ranges_, std::tuple(buffer, begin), {},
      [](const CopiedRange& range) { return std::tuple(range.buffer, range.begin); });
  check(after != ranges_.begin(), "no element of buffer {} is copied", buffer);
  const auto range = std::prev(after);
  check(range->buffer == buffer && begin + count <= range->end(),
        "elements from {} to {} of buffer {} are not copied", begin, begin + count, buffer);
  const int64_t size = elem_bytes(map_, buffer);
  widen_elements(map_.buffers()[buffer].dtype,
                 bytes_of(static_cast<size_t>(range - ranges_.begin()))
                     .subspan(static_cast<size_t>((begin - range->begin) * size),
                              static_cast<size_t>(count * size)),
                 out);
}

}  // namespace braid
