#include "state/state_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "parity/layout_config.h"
#include "plan/run_plan.h"
#include "support/shard_elements.h"
#include "support/thinned.h"

namespace braid {
namespace {

/// Rank, and element of its buffer.
using Place = std::pair<size_t, int64_t>;
/// By unit of the whole model and element of it: where it is.
using Places = std::map<std::pair<size_t, int64_t>, std::set<Place>>;

/// Element by element, from the layouts of the ranks. `is_whole`: ranks hold units whole.
Places expected_places(const RunPlan& plan, bool is_whole) {
  Places places;
  for (const RankPlan& rank : plan.ranks) {
    const int number = rank.programs[kTrainProgram].rank;
    const std::vector<int64_t> shards = shard_indices(plan.run.mesh, number, rank.layout.domains);
    for (size_t u = 0; u < rank.layout.units.size(); ++u) {
      const ParameterUnit& unit = rank.layout.units[u];
      const UnitRange range =
          is_whole ? UnitRange{0, unit.num_elems} : owned_range(rank.layout, u, shards);
      for (const size_t index : unit.slots) {
        const ParameterSlot& slot = rank.layout.slots[index];
        const Parameter& parameter = rank.layout.parameters[slot.parameter];
        const ParameterSlot& whole = plan.layout.slot(parameter.name);
        for_each_shard_element(
            parameter.shape, rank.layout.shards[index], [&](size_t full, size_t local) {
              const int64_t at = slot.begin + static_cast<int64_t>(local);
              if (at >= range.begin && at < range.end) {
                places[{whole.unit, whole.begin + static_cast<int64_t>(full)}].emplace(
                    static_cast<size_t>(number), at - range.begin);
              }
            });
      }
    }
  }
  return places;
}

class StateMaps : public ::testing::TestWithParam<const char*> {
 protected:
  const RunPlan plan_ = plan_run(resolve_run(config_of({kThreeKvHeads, GetParam()}), 0));
  const StateMap map_ = make_state_map(plan_);

  Places places_of(StateBuffer kind) const {
    Places places;
    for (size_t unit = 0; unit < plan_.layout.units.size(); ++unit) {
      map_.for_each_copy(kind, unit, 0, plan_.layout.units[unit].num_elems,
                         [&](const StateRun& run) {
                           for (int64_t i = 0; i < run.num_elems; ++i) {
                             std::set<Place>& of_element = places[{unit, run.unit_begin + i}];
                             const Place place(run.rank, run.buffer_begin + i);
                             EXPECT_TRUE(of_element.insert(place).second);
                           }
                         });
    }
    return places;
  }
};

TEST_P(StateMaps, KnowWhereEveryElementIs) {
  EXPECT_EQ(places_of(StateBuffer::kParam),
            expected_places(plan_, plan_.run.parallel.shard != ShardKind::kParameters));
  EXPECT_EQ(places_of(StateBuffer::kExpAvg), expected_places(plan_, false));
}

// Of part of a unit: what is in it, in the order of each buffer; of all copies of an element the
// one that comes first.
TEST_P(StateMaps, ClipToARange) {
  std::mt19937 random(3);
  for (size_t unit = 0; unit < plan_.layout.units.size(); ++unit) {
    const auto size = static_cast<uint64_t>(plan_.layout.units[unit].num_elems);
    const Places all = places_of(StateBuffer::kParam);
    for (int i = 0; i < 10; ++i) {
      const auto begin = static_cast<int64_t>(random() % size);
      const auto count = static_cast<int64_t>(random() % (size - static_cast<uint64_t>(begin)));
      const auto first = all.lower_bound({unit, begin});
      const auto last = all.lower_bound({unit, begin + count});
      Places found;
      std::map<size_t, int64_t> ends;  // by buffer
      map_.for_each_copy(StateBuffer::kParam, unit, begin, count, [&](const StateRun& run) {
        EXPECT_GE(run.buffer_begin, std::exchange(ends[run.buffer], run.buffer_begin));
        for (int64_t at = 0; at < run.num_elems; ++at) {
          found[{unit, run.unit_begin + at}].emplace(run.rank, run.buffer_begin + at);
        }
      });
      EXPECT_EQ(found, Places(first, last));
      auto next = first;
      map_.for_each_element(StateBuffer::kParam, unit, begin, count, [&](const StateRun& run) {
        for (int64_t at = 0; at < run.num_elems; ++at, ++next) {
          ASSERT_NE(next, last);
          EXPECT_EQ(next->first.second, run.unit_begin + at);
          EXPECT_TRUE(next->second.contains(Place(run.rank, run.buffer_begin + at)));
        }
      });
      EXPECT_EQ(next, last);
    }
  }
}

TEST_P(StateMaps, AreAskedOfSomeRanksOnly) {
  const size_t unit = plan_.layout.units.size() - 1;
  std::set<size_t> ranks;
  map_.for_each_copy(
      StateBuffer::kExpAvg, unit, 0, plan_.layout.units[unit].num_elems,
      [&](const StateRun& run) { ranks.insert(run.rank); },
      [](size_t rank) { return rank % 2 == 1; });
  for (const size_t rank : ranks) {
    EXPECT_EQ(rank % 2, 1u);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, StateMaps,
                         ::testing::ValuesIn(thinned<const char*>(
                             {"ranks=1", "ranks=3 tensor=3", "ranks=6 tensor=3 shard=optimizer",
                              "ranks=4 shard=parameters",
                              "ranks=6 tensor=3 pipeline=2 sequence_parallel=true",
                              "ranks=6 tensor=6"},
                             2)));

}  // namespace
}  // namespace braid
