#include "runtime/rank_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "config/validate.h"
#include "plan/run_spec.h"
#include "runtime/engine.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::tuple<size_t, int64_t, int64_t>> joined(const std::vector<CopiedRange>& ranges) {
  std::vector<std::tuple<size_t, int64_t, int64_t>> result;
  for (const CopiedRange& range : joined_ranges(ranges)) {
    result.emplace_back(range.buffer, range.begin, range.num_elems);
  }
  return result;
}

TEST(RankCopy, JoinsRangesThatTouchOrOverlap) {
  EXPECT_THAT(joined({}), IsEmpty());
  EXPECT_THAT(joined({{1, 8, 4}, {0, 0, 4}, {1, 0, 8}, {0, 5, 1}}),
              ElementsAre(std::tuple(0, 0, 4), std::tuple(0, 5, 1), std::tuple(1, 0, 12)));
  EXPECT_THAT(joined({{2, 0, 10}, {2, 3, 2}, {2, 9, 3}}), ElementsAre(std::tuple(2, 0, 12)));
}

RunConfig config_of(const ParallelConfig& parallel, const std::string& moments) {
  RunConfig config = small_config();
  config.parallel = parallel;
  config.train.dtype = "bfloat16";
  config.optimizer.moments_dtype = moments;
  return resolved(config);
}

/// All that the shards write, as the numbers of files.
std::vector<float> numbers_of(const Engine& engine, const DeviceShards& shards) {
  const ParameterLayout& layout = engine.plan().layout;
  WorkerPool workers(1);
  std::vector<float> numbers;
  for (const StateShard& shard : shards.shards()) {
    for (const StatePiece& piece : shard.pieces) {
      const ParameterSlot& slot = layout.slots[piece.parameter];
      const int64_t pitch = row_elems(layout.parameters[piece.parameter].shape);
      std::vector<float> run(static_cast<size_t>(piece.range.run_elems));
      for (int64_t i = 0; i < piece.range.num_runs; ++i) {
        shard.source->read(piece.part, slot.unit, slot.begin + piece.range.begin + i * pitch, run,
                           workers);
        numbers.insert(numbers.end(), run.begin(), run.end());
      }
    }
  }
  return numbers;
}

// Columns of tensor ranks, shards that end within rows, and both types of moments.
TEST(RankCopy, HasTheStateOfItsMomentWhileStepsGoOn) {
  for (const std::string moments : {"float32", "bfloat16"}) {
    for (const ParallelConfig& parallel :
         {ParallelConfig{.ranks = 2, .tensor = 2}, ParallelConfig{.ranks = 4, .tensor = 2},
          ParallelConfig{.ranks = 2, .shard = "parameters"}}) {
      const RunConfig config = config_of(parallel, moments);
      Engine engine(plan_run(resolve_run(config, 50)), {});
      engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
      const NoisySequences source(config.train.sequence);
      BatchLoader loader(source, {.shape = {.num_ranks = config.parallel.data,
                                            .num_microbatches = num_microbatches(config),
                                            .microbatch = config.train.microbatch}});
      const DeviceShards direct = engine.state_shards();
      DeviceShards copied = engine.state_shards();
      EXPECT_THROW(copied.take_copy(), InternalError);
      copied.prepare_copy();
      for (int64_t step = 1; step <= 2; ++step) {
        engine.train_step(*loader.next(), config.optimizer, 1e-2, step);
        copied.take_copy();
        const std::vector<float> now = numbers_of(engine, direct);
        EXPECT_EQ(numbers_of(engine, copied), now);
        engine.train_step(*loader.next(), config.optimizer, 1e-2, step);
        EXPECT_EQ(numbers_of(engine, copied), now);
        EXPECT_NE(numbers_of(engine, direct), now);
      }
    }
  }
}

}  // namespace
}  // namespace braid
