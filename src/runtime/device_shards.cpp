#include "runtime/device_shards.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.h"
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

/// The state of one rank's executor.
class RankState final : public StateSource {
 public:
  RankState(const StateMap& map, RankRuns runs, Executor& executor)
      : map_(map), runs_(std::move(runs)), executor_(executor) {}

  void read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
            WorkerPool&) const override {
    const auto end = begin + static_cast<int64_t>(out.size());
    const std::vector<StateRun>& runs = runs_.by_part[static_cast<size_t>(part)].at(unit);
    auto run = std::partition_point(runs.begin(), runs.end(), [&](const StateRun& candidate) {
      return candidate.unit_begin + candidate.num_elems <= begin;
    });
    int64_t reached = begin;
    for (; run != runs.end() && run->unit_begin <= reached && reached < end; ++run) {
      reached = read_run(*run, reached, begin, end, out);
    }
    check(reached == end, "elements from {} to {} of unit {} are not on their rank", reached, end,
          unit);
  }

  HostBlock host_block(int64_t size_bytes) const override {
    return executor_.host_block(size_bytes);
  }

 private:
  /// Reads the run from element `from` on, up to `end`; returns the position after the last element
  /// read.
  int64_t read_run(const StateRun& run, int64_t from, int64_t begin, int64_t end,
                   std::span<float> out) const {
    const int64_t to = std::min(end, run.unit_begin + run.num_elems);
    const StateBufferFacts& buffer = map_.buffers()[run.buffer];
    read_elements(executor_, buffer, run.buffer_begin + from - run.unit_begin,
                  out.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from)));
    return to;
  }

  const StateMap& map_;
  RankRuns runs_;
  Executor& executor_;
};

}  // namespace

DeviceShards::DeviceShards(const StateMap& map, const ParameterLayout& whole,
                           const ModelSpec& model, std::span<Executor* const> executors) {
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

}  // namespace braid
