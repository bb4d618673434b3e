#include "support/two_domains.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/temp_folder.h"
#include "checkpoint/checkpoint.h"
#include "state/checkpointing.h"
#include "state/state_map.h"
#include "state/state_shards.h"
#include "state/state_transfer.h"
#include "support/cpu_ranks.h"
#include "support/model_state.h"
#include "support/thinned.h"

namespace braid {
namespace {

/// A run of both domains on CPU ranks, with its state map.
class TwoDomainsRun {
 public:
  TwoDomainsRun(const MeshSizes& sizes, const TwoDomainsOptions& options)
      : run_(sizes, options),
        programs_(build_all()),
        layouts_(layouts()),
        ranks_(sizes.num_ranks(),
               [this](int rank) { return programs_[static_cast<size_t>(rank)]; }),
        whole_(make_parameter_layout(TwoDomains::parameters())),
        map_(whole_, state_ranks()) {}

  const ParameterLayout& whole() const { return whole_; }
  const StateMap& map() const { return map_; }
  std::vector<Executor*> executors() {
    std::vector<Executor*> all;
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      all.push_back(&ranks_[rank]);
    }
    return all;
  }

  void set_state(const StateSource& source) {
    WorkerPool workers(1);
    write_state(source, whole_, map_, executors(), workers);
  }
  ModelState state() { return whole_state(whole_, DeviceState(map_, executors())); }

  void step(float number) {
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      const ParameterLayout& layout = layouts_[rank];
      for (size_t index = 0; index < layout.parameters.size(); ++index) {
        write(rank, "gradient." + layout.parameters[index].name,
              run_.addends(layout, index, static_cast<int>(rank)));
      }
      write(rank, "optimizer_scalars",
            {0.01f, 1 - std::pow(0.9f, number), 1 - std::pow(0.95f, number)});
    }
    ranks_.run();
  }

  float grad_norm(size_t rank) {
    float norm = 0;
    ranks_[rank].read("grad_norm", 0, std::as_writable_bytes(std::span(&norm, 1)));
    return norm;
  }
  size_t num_ranks() const { return programs_.size(); }

 private:
  std::vector<Program> build_all() const {
    std::vector<Program> programs;
    for (int rank = 0; rank < run_.mesh().num_ranks(); ++rank) {
      programs.push_back(run_.build(rank));
    }
    return programs;
  }
  std::vector<ParameterLayout> layouts() const {
    std::vector<ParameterLayout> all;
    for (int rank = 0; rank < run_.mesh().num_ranks(); ++rank) {
      all.push_back(run_.layout(rank));
    }
    return all;
  }
  std::vector<StateRank> state_ranks() const {
    std::vector<StateRank> all;
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      all.push_back({.layout = &layouts_[rank],
                     .program = &programs_[rank],
                     .shard_indices = shard_indices(run_.mesh(), static_cast<int>(rank),
                                                    layouts_[rank].domains)});
    }
    return all;
  }
  void write(size_t rank, const std::string& name, const std::vector<float>& values) {
    ranks_[rank].write(name, 0, std::as_bytes(std::span(values)));
  }

  TwoDomains run_;
  std::vector<Program> programs_;
  std::vector<ParameterLayout> layouts_;
  CpuRanks ranks_;
  ParameterLayout whole_;
  StateMap map_;
};

ModelState first_state() {
  return initial_state(make_parameter_layout(TwoDomains::parameters()), {.vocabulary = 8}, 3);
}

/// After two steps on one rank.
struct Expected {
  ModelState state;
  float grad_norm = 0;

  explicit Expected(DType dtype) {
    TwoDomainsRun run({}, {.dtype = dtype});
    run.set_state(first_state());
    run.step(1);
    run.step(2);
    state = run.state();
    grad_norm = run.grad_norm(0);
  }
};

void expect_equal(const ModelState& got, const ModelState& expected) {
  EXPECT_EQ(got.weights, expected.weights);
  EXPECT_EQ(got.exp_avg, expected.exp_avg);
  EXPECT_EQ(got.exp_avg_sq, expected.exp_avg_sq);
}

struct Case {
  MeshSizes sizes;
  TwoDomainsOptions options;
};

void PrintTo(const Case& it, std::ostream* out) {
  *out << "tensor " << it.sizes.tensor << " data " << it.sizes.data << " expert " << it.sizes.expert
       << " dense shard " << static_cast<int>(it.options.parallel.shard) << " expert shard "
       << static_cast<int>(it.options.parallel.expert_shard);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const MeshSizes expert4{.tensor = 2, .data = 4, .expert = 4};
  const MeshSizes expert_tensor2{.tensor = 1, .data = 8, .expert = 2, .expert_tensor = 2};
  const MeshSizes two_stages{.tensor = 2, .data = 2, .pipeline = 2, .expert = 2};
  const MeshSizes copies{.context = 2, .data = 4, .replicas = 2, .expert = 2, .expert_replicas = 2};
  for (const MeshSizes& sizes : {expert4, expert_tensor2, two_stages, copies}) {
    for (const auto& [dense, expert] :
         {std::pair(ShardKind::kNone, ShardKind::kNone),
          std::pair(ShardKind::kNone, ShardKind::kOptimizer),
          std::pair(ShardKind::kOptimizer, ShardKind::kNone),
          std::pair(ShardKind::kGradients, ShardKind::kOptimizer),
          std::pair(ShardKind::kParameters, ShardKind::kGradients),
          std::pair(ShardKind::kParameters, ShardKind::kParameters)}) {
      const ParallelOptions parallel{.shard = dense, .expert_shard = expert};
      all.push_back({sizes, {.parallel = parallel}});
      all.push_back({sizes, {.parallel = parallel, .dtype = DType::kBF16}});
    }
  }
  all.push_back({expert4,
                 {.parallel = {.shard = ShardKind::kOptimizer,
                               .expert_shard = ShardKind::kOptimizer,
                               .weight_gather = WeightGather::kBeforeUse}}});
  all.push_back({expert4,
                 {.parallel = {.shard = ShardKind::kParameters,
                               .expert_shard = ShardKind::kParameters,
                               .whole_units = 2}}});
  all.push_back({expert4, {.dtype = DType::kBF16, .expert_weight_dtype = DType::kF32}});
  return all;
}

class TwoDomainsOf : public testing::TestWithParam<Case> {};

// Gradients are integers, so every order of sums is exact.
TEST_P(TwoDomainsOf, StepAsOnOneRank) {
  const auto& [sizes, options] = GetParam();
  static const Expected wide(DType::kF32);
  static const Expected narrow(DType::kBF16);
  const Expected& expected = options.dtype == DType::kF32 ? wide : narrow;
  TwoDomainsRun run(sizes, options);
  run.set_state(first_state());
  run.step(1);
  run.step(2);
  expect_equal(run.state(), expected.state);
  for (size_t rank = 0; rank < run.num_ranks(); ++rank) {
    EXPECT_EQ(run.grad_norm(rank), expected.grad_norm) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, TwoDomainsOf, testing::ValuesIn(thinned(cases(), 4)));

/// A checkpoint of all ranks after one step.
std::string save(TwoDomainsRun& run, const std::string& folder) {
  const DeviceState state(run.map(), run.executors());
  std::vector<StateShard> shards;
  for (std::vector<StatePiece>& pieces : assign_pieces(run.map(), run.whole(), {}, 100)) {
    shards.push_back({.source = &state, .pieces = std::move(pieces)});
  }
  return save_model_state(folder, {.step = 1}, run.whole(), {}, shards, {.keep = 0});
}

TEST(TwoDomainsCheckpoint, GoesOnWithOtherExpertSizes) {
  const TempFolder folder;
  const ParallelOptions parallel{.shard = ShardKind::kOptimizer,
                                 .expert_shard = ShardKind::kOptimizer};
  const MeshSizes meshes[] = {{},
                              {.tensor = 2, .data = 4, .expert = 4},
                              {.data = 4, .expert = 2, .expert_tensor = 2},
                              {.tensor = 2, .data = 2, .pipeline = 2, .expert = 2}};
  const Expected expected(DType::kF32);
  int number = 0;
  for (const MeshSizes& from : meshes) {
    TwoDomainsRun first(from, {.parallel = parallel});
    first.set_state(first_state());
    first.step(1);
    const LoadedCheckpoint checkpoint(save(first, folder / fmt::format("c{}", number++)));
    for (const MeshSizes& to : meshes) {
      TwoDomainsRun second(to, {.parallel = parallel});
      second.set_state(CheckpointedState(checkpoint, second.whole(), {}));
      second.step(2);
      expect_equal(second.state(), expected.state);
    }
  }
}

}  // namespace
}  // namespace braid
