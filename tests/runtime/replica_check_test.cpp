#include "runtime/replica_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "parity/layout_config.h"
#include "plan/run_spec.h"
#include "support/bit_flips.h"
#include "support/engine_runs.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// An engine whose memory a test may damage, between steps of training.
class DamagedRun {
 public:
  explicit DamagedRun(const RunConfig& config)
      : config_(config),
        ranks_(static_cast<size_t>(config.parallel.ranks)),
        engine_(plan_run(resolve_run(config, 50)), options()),
        source_(config.train.sequence),
        loader_(source_, {.shape = {.num_ranks = config.parallel.data,
                                    .num_microbatches = num_microbatches(config),
                                    .microbatch = microbatch_sequences(config)}}),
        map_(make_state_map(engine_.plan(), StateCopies::kUpToDate)),
        copied_(copied_elements(engine_.plan(), map_)) {
    engine_.write_state(initial_state(engine_.plan().layout, engine_.plan().run.model, 5));
  }

  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      engine_.train_step(*loader_.next(), config_.optimizer, 1e-3, ++steps_done_);
    }
  }
  std::string difference() { return engine_.replica_difference().text; }
  void flip(const BitFlip& where) { braid::flip(ranks_[where.rank], where); }

  const StateMap& map() const { return map_; }
  const std::vector<CopiedElement>& copied() const { return copied_; }
  int64_t num_copied_of(StateBuffer kind) const {
    return std::ranges::count(copied_, kind, &CopiedElement::kind);
  }
  const CopiedElement& any(std::mt19937& random) const {
    return copied_[random() % copied_.size()];
  }
  const CopiedElement& any_of(StateBuffer kind, std::mt19937& random) const {
    const CopiedElement* element = &any(random);
    while (element->kind != kind) {
      element = &any(random);
    }
    return *element;
  }
  /// Writes what the first rank has to the others.
  void repair(const CopiedElement& element) {
    const StateBufferFacts& buffer = map_.buffers()[element.copies[0].buffer];
    const size_t elem_bytes = dtype_bytes(buffer.dtype);
    std::vector<std::byte> value(elem_bytes);
    for (const StateRun& copy : element.copies) {
      const std::string& name = map_.buffers()[copy.buffer].name;
      const int64_t at = copy.buffer_begin * static_cast<int64_t>(elem_bytes);
      if (&copy == element.copies.data()) {
        ranks_[copy.rank].read(name, at, value);
      } else {
        ranks_[copy.rank].write(name, at, value);
      }
    }
  }

 private:
  EngineOptions options() {
    EngineOptions options{.poison_step_arena = true};
    ranks_.add_to(options);
    return options;
  }

  RunConfig config_;
  KnownExecutors ranks_;
  Engine engine_;
  NoisySequences source_;
  BatchLoader loader_;
  StateMap map_;
  std::vector<CopiedElement> copied_;
  int64_t steps_done_ = 0;
};

constexpr const char* kBf16 = " train.dtype=bfloat16";
constexpr const char* kGatherBeforeUse =
    " overlap.mode=manual overlap.overlap_grad_reduce=true overlap.overlap_param_gather=true";

const std::vector<Layout> kLayouts = {
    {kLlamaModel, "ranks=3 train.global_batch=6"},
    {kLlamaModel, "ranks=2 shard=optimizer"},
    {kLlamaModel, "ranks=4 shard=gradients overlap.mode=off"},
    {kLlamaModel, std::string("ranks=4 shard=parameters shard_replicas=2") + kBf16},
    {kLlamaModel, "ranks=4 shard=parameters tensor=2"},
    {kLlamaModel,
     "ranks=4 shard=gradients shard_replicas=2 shard_over_replicas=true overlap.mode=off"},
    {kQwenModel, std::string("ranks=4 tensor=4 sequence_parallel=true") + kBf16},
    {kLlamaModel, "ranks=2 context=2"},
    {kGpt2Model, "ranks=4 pipeline=2"},
    {kQwenModel, std::string("ranks=4 pipeline=2 tensor=2 shard=optimizer") + kBf16},
    {kLlamaModel, std::string("ranks=4 shard=optimizer shard_replicas=2") + kGatherBeforeUse},
};

class ReplicaChecks : public testing::TestWithParam<Layout> {};

TEST_P(ReplicaChecks, FindEveryFlipAndNothingElse) {
  constexpr int kFlips = thinned_count(110, 8);  // in each of ten layouts
  DamagedRun run(config_of(GetParam()));
  EXPECT_EQ(run.difference(), "");
  for (int step = 0; step < 3; ++step) {
    run.train(1);
    EXPECT_EQ(run.difference(), "") << "after step " << step + 1;
  }
  ASSERT_GT(run.copied().size(), 0u);
  std::mt19937 random(1);
  for (int i = 0; i < kFlips; ++i) {
    const CopiedElement& element = run.any(random);
    const BitFlip where =
        random_flip(run.map(), element.copies[random() % element.copies.size()], random);
    run.flip(where);
    const std::string found = run.difference();
    EXPECT_THAT(found, AllOf(HasSubstr(element.parameter + " ("),
                             HasSubstr(fmt::format("rank {}", where.rank))));
    if (element.copies.size() > 2) {
      EXPECT_THAT(found, StartsWith(fmt::format("rank {} holds other bits of ", where.rank)));
    }
    run.flip(where);
  }
  EXPECT_EQ(run.difference(), "");
}

INSTANTIATE_TEST_SUITE_P(Layouts, ReplicaChecks, testing::ValuesIn(thinned(kLayouts, 4)));

TEST(ReplicaCheck, HasNothingToCompareWhereEachElementIsOnOneRank) {
  for (const std::string& layout : {std::string("ranks=1"), std::string("ranks=2 shard=parameters"),
                                    std::string("ranks=2 shard=gradients") + kGatherBeforeUse}) {
    DamagedRun run(config_of({kLlamaModel, layout}));
    EXPECT_TRUE(run.copied().empty());
    run.train(1);
    EXPECT_EQ(run.difference(), "");
  }
}

// What is compared is what ranks have in common, and all of it.
TEST(ReplicaCheck, ComparesWhatLayoutsReplicate) {
  const auto run_of = [](const std::string& layout) {
    return DamagedRun(config_of({kLlamaModel, layout}));
  };
  DamagedRun copies = run_of("ranks=2");
  EXPECT_EQ(copies.num_copied_of(StateBuffer::kParam), copies.num_copied_of(StateBuffer::kExpAvg));
  EXPECT_EQ(copies.num_copied_of(StateBuffer::kMainWeight), 0);
  DamagedRun sharded = run_of("ranks=2 shard=optimizer overlap.mode=off");
  EXPECT_EQ(sharded.num_copied_of(StateBuffer::kParam), copies.num_copied_of(StateBuffer::kParam));
  EXPECT_EQ(sharded.num_copied_of(StateBuffer::kExpAvg), 0);
}

TEST(ReplicaCheck, NamesTheRankThatIsAlone) {
  DamagedRun run(config_of(kLayouts[0]));
  const CopiedElement& element = run.copied().front();
  std::mt19937 random(2);
  run.flip(random_flip(run.map(), element.copies[1], random));
  EXPECT_EQ(run.difference(),
            "rank 1 holds other bits of embedding.tokens (weights) than rank 0, rank 2");
  run.flip(random_flip(run.map(), run.copied().back().copies[2], random));
  EXPECT_EQ(run.difference(),
            "rank 1 holds other bits of embedding.tokens (weights) than rank 0, rank 2 (and of 1 "
            "more)");
  const StateBufferFacts& buffer = run.map().buffers()[element.copies[0].buffer];
  run.flip({.rank = 0, .buffer = buffer.name, .byte = element.copies[0].buffer_begin * 4 + 8});
  EXPECT_THAT(run.difference(), ContainsRegex("^rank 2 holds other bits of .* \\(and of 1 more"));
}

// Copies that steps update from their own value keep the difference until they are compared. An
// update rounds the lowest bits of a weight that is smaller than it away, which happens to about
// one flip in 300. Flips of the upper three bytes are therefore found but for one in 10,000.
TEST(ReplicaCheck, FindsFlipsOfEarlierSteps) {
  constexpr int kFlips = 60;
  constexpr int kSteps = 3;
  DamagedRun run(config_of({kLlamaModel, "ranks=2 train.global_batch=4"}));
  run.train(2);
  std::mt19937 random(3);
  int found = 0;
  for (int i = 0; i < kFlips; ++i) {
    const CopiedElement& element = run.any_of(StateBuffer::kParam, random);
    BitFlip where = random_flip(run.map(), element.copies[i % 2], random);
    while (where.byte % 4 == 0) {
      where = random_flip(run.map(), element.copies[i % 2], random);
    }
    run.flip(where);
    run.train(kSteps);
    found += run.difference().empty() ? 0 : 1;
    run.repair(element);
    ASSERT_EQ(run.difference(), "");
  }
  EXPECT_GE(found, kFlips - 1);
}

}  // namespace
}  // namespace braid
