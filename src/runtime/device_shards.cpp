#include "runtime/device_shards.h"

#include <algorithm>
#include <array>
#include <future>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "runtime/rank_copy.h"
#include "state/state_transfer.h"

namespace braid {
namespace {

/// The runs that one rank holds, by part and unit of the whole model, ascending.
struct RankRuns {
  std::array<std::vector<std::vector<StateRun>>, kStateParts.size()> by_part;
};

/// For the ranks that have an executor in this process.
std::vector<RankRuns> runs_by_rank(const StateMap& map, const ParameterLayout& whole,
                                   std::span<Executor* const> executors) {
  std::vector<RankRuns> ranks(executors.size());
  for (size_t part = 0; part < kStateParts.size(); ++part) {
    for (RankRuns& rank : ranks) {
      rank.by_part[part].resize(whole.units.size());
    }
    for (size_t unit = 0; unit < whole.units.size(); ++unit) {
      map.for_each_copy(
          buffer_of(kStateParts[part], map, unit), unit, 0, whole.units[unit].num_elems,
          [&](const StateRun& run) { ranks.at(run.rank).by_part[part][unit].push_back(run); },
          [&](size_t rank) { return executors[rank] != nullptr; });
      for (RankRuns& rank : ranks) {
        std::ranges::sort(rank.by_part[part][unit], {}, &StateRun::unit_begin);
      }
    }
  }
  return ranks;
}

}  // namespace

/// The state of one rank's executor, or a copy of it.
class RankState final : public StateSource {
 public:
  RankState(const StateMap& map, RankRuns runs, Executor& executor)
      : map_(map), runs_(std::move(runs)), executor_(executor) {}

  void read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
            WorkerPool&) const override {
    const auto end = begin + static_cast<int64_t>(out.size());
    int64_t reached = begin;
    for (auto run = first_run(part, unit, begin);
         run != runs_of(part, unit).end() && run->unit_begin <= reached && reached < end; ++run) {
      reached = read_run(*run, reached, begin, end, out);
    }
    check(reached == end, "elements from {} to {} of unit {} are not on their rank", reached, end,
          unit);
  }

  /// Blocks of an executor may only be made between steps.
  HostBlock host_block(int64_t size_bytes) const override {
    return copy_ ? StateSource::host_block(size_bytes) : executor_.host_block(size_bytes);
  }

  void prepare_copy(const ParameterLayout& whole, std::span<const StatePiece> pieces) {
    std::vector<CopiedRange> ranges;
    for (const StatePiece& piece : pieces) {
      const ParameterSlot& slot = whole.slots[piece.parameter];
      const int64_t pitch = row_elems(whole.parameters[piece.parameter].shape);
      for (int64_t run = 0; run < piece.range.num_runs; ++run) {
        add_ranges(piece.part, slot.unit, slot.begin + piece.range.begin + run * pitch,
                   piece.range.run_elems, ranges);
      }
    }
    copy_.emplace(map_, joined_ranges(std::move(ranges)), executor_);
  }

  void take_copy() {
    check(copy_.has_value(), "no copy is prepared");
    copy_->take();
  }

  int64_t copy_bytes() const { return copy_ ? copy_->size_bytes() : 0; }

 private:
  /// Adds where the elements are in the rank's buffers.
  void add_ranges(StatePart part, size_t unit, int64_t begin, int64_t count,
                  std::vector<CopiedRange>& ranges) const {
    const int64_t end = begin + count;
    for (auto run = first_run(part, unit, begin);
         run != runs_of(part, unit).end() && run->unit_begin < end; ++run) {
      const int64_t from = std::max(begin, run->unit_begin);
      ranges.push_back({.buffer = run->buffer,
                        .begin = run->buffer_begin + from - run->unit_begin,
                        .num_elems = std::min(end, run->unit_begin + run->num_elems) - from});
    }
  }

  const std::vector<StateRun>& runs_of(StatePart part, size_t unit) const {
    return runs_.by_part[static_cast<size_t>(part)].at(unit);
  }

  /// The first run that ends after this element.
  std::vector<StateRun>::const_iterator first_run(StatePart part, size_t unit,
                                                  int64_t begin) const {
    return std::ranges::partition_point(runs_of(part, unit), [&](const StateRun& candidate) {
      return candidate.unit_begin + candidate.num_elems <= begin;
    });
  }

  /// Reads the run from element `from` on, up to `end`; returns the position after the last element
  /// read.
  int64_t read_run(const StateRun& run, int64_t from, int64_t begin, int64_t end,
                   std::span<float> out) const {
    const int64_t to = std::min(end, run.unit_begin + run.num_elems);
    const int64_t place = run.buffer_begin + from - run.unit_begin;
    const auto part =
        out.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from));
    if (copy_) {
      copy_->read(run.buffer, place, part);
    } else {
      read_elements(executor_, map_.buffers()[run.buffer], place, part);
    }
    return to;
  }

  const StateMap& map_;
  RankRuns runs_;
  Executor& executor_;
  std::optional<RankCopy> copy_;
};

DeviceShards::DeviceShards(const StateMap& map, const ParameterLayout& whole,
                           const ModelSpec& model, std::span<Executor* const> executors)
    : whole_(whole) {
  std::vector<std::vector<StatePiece>> pieces = assign_pieces(map, whole, model);
  std::vector<RankRuns> runs = runs_by_rank(map, whole, executors);
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    Executor* const executor = executors[rank];
    sources_.push_back(executor == nullptr
                           ? nullptr
                           : std::make_unique<RankState>(map, std::move(runs.at(rank)), *executor));
    shards_.push_back({.source = sources_.back().get(), .pieces = std::move(pieces[rank])});
  }
}

DeviceShards::DeviceShards(DeviceShards&& other) noexcept = default;
DeviceShards::~DeviceShards() = default;

void DeviceShards::prepare_copy() {
  for (size_t rank = 0; rank < sources_.size(); ++rank) {
    if (sources_[rank] != nullptr) {
      sources_[rank]->prepare_copy(whole_, shards_[rank].pieces);
    }
  }
}

void DeviceShards::take_copy() {
  std::vector<std::future<void>> copies;
  for (const auto& source : sources_) {
    if (source != nullptr) {
      copies.push_back(std::async(std::launch::async, [&source] { source->take_copy(); }));
    }
  }
  for (std::future<void>& copy : copies) {
    copy.get();
  }
}

int64_t DeviceShards::copy_bytes() const {
  int64_t bytes = 0;
  for (const auto& source : sources_) {
    bytes += source == nullptr ? 0 : source->copy_bytes();
  }
  return bytes;
}

int64_t copied_bytes(const StateMap& map, const ParameterLayout& whole, const ModelSpec& model,
                     std::span<const int> ranks) {
  const std::vector<std::vector<StatePiece>> pieces = assign_pieces(map, whole, model);
  int64_t bytes = 0;
  for (const int rank : ranks) {
    for (const StatePiece& piece : pieces.at(static_cast<size_t>(rank))) {
      const size_t unit = whole.slots[piece.parameter].unit;
      const auto blocks = map.blocks(buffer_of(piece.part, map, unit), unit);
      const auto own = std::ranges::find(blocks, static_cast<size_t>(rank), &StateBlock::rank);
      check(own != blocks.end(), "rank {} writes what it does not hold", rank);
      bytes += piece.range.num_elems() *
               static_cast<int64_t>(dtype_bytes(map.buffers()[own->buffer].dtype));
    }
  }
  return bytes;
}

}  // namespace braid
