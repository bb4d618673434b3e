#include "state/state_shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/validate.h"
#include "parity/layout_config.h"
#include "plan/run_plan.h"

namespace braid {
namespace {

RunConfig laid_out(int64_t tensor, int64_t pipeline, int64_t data, const std::string& shard) {
  RunConfig config;
  config.model.layers = 2;
  config.model.width = 32;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.train.sequence = 16;
  config.train.microbatch = 1;
  config.train.global_batch = 8 * data;
  config.parallel.ranks = tensor * pipeline * data;
  config.parallel.tensor = tensor;
  config.parallel.pipeline = pipeline;
  config.parallel.shard = shard;
  config.logging.run_folder = "unused";
  validate(config);
  return resolved(config);
}

struct Assigned {
  explicit Assigned(const RunConfig& config, int64_t max_piece_elems = int64_t{64} << 20)
      : plan(plan_run(resolve_run(config, 50))),
        map(make_state_map(plan)),
        pieces(assign_pieces(map, plan.layout, plan.run.model, max_piece_elems)) {}

  int64_t elems_of(size_t rank) const {
    int64_t elems = 0;
    for (const StatePiece& piece : pieces[rank]) {
      elems += piece.range.num_elems();
    }
    return elems;
  }
  /// Those of one part of a parameter.
  std::vector<std::pair<size_t, PieceRange>> of(const std::string& parameter,
                                                StatePart part) const {
    std::vector<std::pair<size_t, PieceRange>> found;
    for (size_t rank = 0; rank < pieces.size(); ++rank) {
      for (const StatePiece& piece : pieces[rank]) {
        if (piece.part == part && plan.layout.parameters[piece.parameter].name == parameter) {
          found.emplace_back(rank, piece.range);
        }
      }
    }
    return found;
  }

  RunPlan plan;
  StateMap map;
  std::vector<std::vector<StatePiece>> pieces;
};

using Pieces = std::vector<std::pair<size_t, PieceRange>>;

TEST(AssignPieces, OfOneRankIsEverythingWhole) {
  const Assigned assigned(laid_out(1, 1, 1, "none"));
  ASSERT_EQ(assigned.pieces.size(), 1u);
  EXPECT_EQ(assigned.pieces[0].size(), 3 * assigned.plan.layout.parameters.size());
  EXPECT_EQ(assigned.elems_of(0), 3 * num_parameters(assigned.plan.run.model));
}

// Copies share the work: each whole tensor by one of them.
TEST(AssignPieces, OfCopiesAreTensorsInTurns) {
  const Assigned assigned(laid_out(1, 1, 4, "none"));
  const int64_t all = 3 * num_parameters(assigned.plan.run.model);
  int64_t sum = 0;
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_NEAR(static_cast<double>(assigned.elems_of(rank)), static_cast<double>(all) / 4,
                0.1 * static_cast<double>(all));
    sum += assigned.elems_of(rank);
  }
  EXPECT_EQ(sum, all);
  const Pieces embedding = assigned.of("embedding.tokens", StatePart::kWeights);
  ASSERT_EQ(embedding.size(), 1u);
  EXPECT_EQ(embedding[0].second, (PieceRange{0, 1, 50 * 32}));
}

TEST(AssignPieces, LargeTensorsAreCutInRows) {
  const Assigned assigned(laid_out(1, 1, 4, "none"), 400);
  for (const auto& [rank, range] : assigned.of("embedding.tokens", StatePart::kExpAvg)) {
    EXPECT_EQ(range.begin % 32, 0);
    EXPECT_LE(range.run_elems, 384);
  }
  EXPECT_EQ(assigned.of("embedding.tokens", StatePart::kExpAvg).size(), 5u);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_NEAR(static_cast<double>(assigned.elems_of(rank)),
                3.0 * static_cast<double>(num_parameters(assigned.plan.run.model)) / 4, 400);
  }
}

// Columns of a matrix over two tensor ranks: a block each, not a run per row.
TEST(AssignPieces, OfTensorRanksAreBlocks) {
  const Assigned assigned(laid_out(2, 1, 1, "none"));
  const Pieces expected = {{0, {0, 32, 16}}, {1, {16, 32, 16}}};
  EXPECT_EQ(assigned.of("layers.1.attention.proj.weight", StatePart::kWeights), expected);
  const Pieces rows = assigned.of("embedding.tokens", StatePart::kWeights);
  EXPECT_EQ(rows, (Pieces{{0, {0, 1, 50 * 32}}}));  // 128 rows with padding, 64 on each rank
}

// Of a sharded unit each rank has a run, wherever it begins and ends.
TEST(AssignPieces, OfShardsAreRuns) {
  const Assigned assigned(laid_out(1, 1, 4, "parameters"));
  for (const std::string name : {"layers.0.attention.qkv.weight", "layers.0.mlp.fc1.weight"}) {
    int64_t reached = 0;
    for (const auto& [rank, range] : assigned.of(name, StatePart::kExpAvgSq)) {
      EXPECT_EQ(range.begin, reached);
      EXPECT_EQ(range.num_runs, 1);
      reached += range.run_elems;
    }
    EXPECT_EQ(
        reached,
        assigned.plan.layout.parameters[assigned.plan.layout.by_name.at(name)].shape.num_elems());
  }
  const int64_t all = 3 * num_parameters(assigned.plan.run.model);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_GT(assigned.elems_of(rank), all / 10);
  }
}

/// Elements of a unit that a rank holds, as their buffers say.
std::set<int64_t> held_elements(const StateMap& map, StateBuffer kind, size_t unit,
                                const ParameterLayout& whole, size_t rank) {
  std::set<int64_t> held;
  map.for_each_copy(
      kind, unit, 0, whole.units[unit].num_elems,
      [&](const StateRun& run) {
        for (int64_t i = 0; i < run.num_elems; ++i) {
          held.insert(run.unit_begin + i);
        }
      },
      [&](size_t of) { return of == rank; });
  return held;
}

class AssignPiecesOf : public ::testing::TestWithParam<const char*> {};

// Element by element, against what the map says of each rank.
TEST_P(AssignPiecesOf, EachElementIsWrittenOnceByARankThatHoldsIt) {
  const std::string layout = std::string(GetParam()) + " optimizer.ema=0.9";  // with all parts
  const RunPlan plan = plan_run(resolve_run(config_of({kThreeKvHeads, layout}), 0));
  const StateMap map = make_state_map(plan);
  const auto pieces = assign_pieces(map, plan.layout, plan.run.model, 200);
  for (const StatePart part : kStateParts) {
    std::map<size_t, std::set<int64_t>> written;  // by parameter
    for (size_t rank = 0; rank < pieces.size(); ++rank) {
      std::map<size_t, std::set<int64_t>> held;  // by unit
      for (const StatePiece& piece : pieces[rank]) {
        if (piece.part != part) {
          continue;
        }
        const ParameterSlot& slot = plan.layout.slots[piece.parameter];
        const auto [of_unit, is_new] = held.try_emplace(slot.unit);
        if (is_new) {
          of_unit->second =
              held_elements(map, buffer_of(part, map, slot.unit), slot.unit, plan.layout, rank);
        }
        const int64_t pitch = row_elems(plan.layout.parameters[piece.parameter].shape);
        for (int64_t run = 0; run < piece.range.num_runs; ++run) {
          for (int64_t i = 0; i < piece.range.run_elems; ++i) {
            const int64_t element = piece.range.begin + run * pitch + i;
            ASSERT_TRUE(written[piece.parameter].insert(element).second) << element;
            ASSERT_TRUE(of_unit->second.contains(slot.begin + element)) << element;
          }
        }
      }
    }
    for (size_t i = 0; i < plan.layout.parameters.size(); ++i) {
      EXPECT_EQ(static_cast<int64_t>(written[i].size()),
                stored_shape(plan.layout.parameters[i], plan.run.model).num_elems());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, AssignPiecesOf,
    ::testing::Values("ranks=1", "ranks=4", "ranks=6 tensor=3", "ranks=12 tensor=3 shard=optimizer",
                      "ranks=12 tensor=6 sequence_parallel=true shard=parameters",
                      "ranks=12 tensor=3 pipeline=2 shard=gradients",
                      "ranks=12 tensor=3 shard=parameters shard_replicas=2"));

// 64 copies of matrices whose columns are in eight parts: a visit of each row of each rank takes
// more than a minute.
TEST(AssignPieces, TimeDoesNotGrowWithRows) {
  RunConfig config = laid_out(8, 1, 64, "none");
  config.model.width = 16384;
  config.model.heads = 128;
  config.model.kv_heads = 8;
  const RunPlan plan = plan_run(resolve_run(resolved(config), 50), {.one_rank_per_stage = true});
  const StateMap map = make_state_map(plan);
  const std::clock_t begin = std::clock();
  const auto pieces = assign_pieces(map, plan.layout, plan.run.model);
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 5.0);
  int64_t sum = 0;
  for (const auto& of_rank : pieces) {
    for (const StatePiece& piece : of_rank) {
      sum += piece.range.num_elems();
    }
  }
  EXPECT_EQ(sum, 3 * num_parameters(plan.run.model));
}

TEST(AssignPieces, RanksWriteWhatTheyHold) {
  const Assigned assigned(laid_out(2, 2, 2, "optimizer"));
  for (const auto& [rank, range] :
       assigned.of("layers.1.attention.proj.weight", StatePart::kExpAvg)) {
    bool holds = false;
    const ParameterSlot& slot = assigned.plan.layout.slot("layers.1.attention.proj.weight");
    assigned.map.for_each_copy(
        StateBuffer::kExpAvg, slot.unit, slot.begin + range.begin, 1,
        [&, owner = rank](const StateRun& run) { holds = holds || run.rank == owner; });
    EXPECT_TRUE(holds) << "rank " << rank;
  }
  int64_t sum = 0;
  for (size_t rank = 0; rank < assigned.pieces.size(); ++rank) {
    sum += assigned.elems_of(rank);
  }
  EXPECT_EQ(sum, 3 * num_parameters(assigned.plan.run.model));
}

}  // namespace
}  // namespace braid
