#include "parallel/parameter_domain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ir/verify.h"
#include "parallel/verify_ranks.h"
#include "support/two_domains.h"

namespace braid {
namespace {

using testing::ElementsAre;

/// Eight ranks: experts lie across tensor ranks and half of the data ranks.
constexpr MeshSizes kExpert4{.tensor = 2, .data = 4, .expert = 4};
constexpr MeshSizes kExpertTensor2{.tensor = 1, .data = 8, .expert = 2, .expert_tensor = 2};
constexpr MeshSizes kTwoStages{
    .tensor = 2, .data = 2, .pipeline = 2, .expert = 2, .expert_tensor = 1};

struct Case {
  MeshSizes sizes;
  ShardKind dense;
  ShardKind expert;
  bool shard_over_replicas = false;
};

void PrintTo(const Case& it, std::ostream* out) {
  *out << "dense " << static_cast<int>(it.dense) << ", expert " << static_cast<int>(it.expert);
}

std::vector<Program> programs_of(const Case& it) {
  const TwoDomains run(it.sizes, {.parallel = {.shard = it.dense,
                                               .expert_shard = it.expert,
                                               .shard_over_replicas = it.shard_over_replicas},
                                  .dtype = DType::kBF16});
  std::vector<Program> programs;
  for (int rank = 0; rank < it.sizes.num_ranks(); ++rank) {
    programs.push_back(run.build(rank));
  }
  return programs;
}

/// Groups of the tasks of that op on buffers of the unit whose names begin so.
std::set<std::string> groups_on(const Program& program, std::string_view op,
                                const std::string& buffer) {
  std::set<std::string> groups;
  for (const Task& task : program.tasks) {
    const OpSpec& spec = program.spec(task);
    if (spec.op != op) {
      continue;
    }
    for (const BufferRange& range : program.operands_of(task)) {
      if (program.buffers[range.buffer.index()].name.starts_with(buffer)) {
        groups.insert(program.groups[group_of(program, spec)->index()].name);
      }
    }
  }
  return groups;
}

int64_t elems_of(const Program& program, const std::string& name) {
  for (const Buffer& buffer : program.buffers) {
    if (buffer.name == name) {
      return buffer.num_elems();
    }
  }
  return 0;
}

TEST(ParameterDomain, DenseIsTheGradientGroupAndExpertsAreExpertData) {
  const Mesh mesh({.tensor = 2, .data = 8, .replicas = 2, .expert = 4, .expert_replicas = 2});
  const auto domains = parameter_domains(
      mesh, {.shard = ShardKind::kParameters, .expert_shard = ShardKind::kOptimizer}, true);
  ASSERT_EQ(domains.size(), 2u);
  EXPECT_EQ(domains[0].gradient_group, "gradient");
  EXPECT_EQ(domains[0].norm_group, "model.shard");
  EXPECT_EQ(domains[0].num_shards, 4);
  EXPECT_EQ(domains[1].gradient_group, "expert.data");
  EXPECT_EQ(domains[1].norm_group, "expert.model.shard");
  EXPECT_EQ(domains[1].shard, ShardKind::kOptimizer);
  EXPECT_EQ(domains[1].num_shards, 2);
  EXPECT_THAT(shard_indices(mesh, 13, domains), ElementsAre(2, 1));
}

TEST(ParameterDomain, ReplicasMayShareTheUpdateOfTheirShard) {
  const Mesh mesh({.tensor = 2, .data = 8, .replicas = 2, .expert = 4, .expert_replicas = 2});
  const auto domains = parameter_domains(mesh,
                                         {.shard = ShardKind::kParameters,
                                          .expert_shard = ShardKind::kOptimizer,
                                          .shard_over_replicas = true},
                                         true);
  EXPECT_EQ(domains[0].norm_group, "world");
  EXPECT_EQ(domains[0].num_shards, 4);
  EXPECT_EQ(domains[0].num_parts, 8);
  EXPECT_EQ(domains[1].num_shards, 2);
  EXPECT_EQ(domains[1].num_parts, 4);
  EXPECT_THAT(shard_indices(mesh, 13, domains), ElementsAre(2 * 2 + 1, 1 * 2 + 1));
  EXPECT_FALSE(parameter_domains(Mesh({.data = 4}),
                                 {.shard = ShardKind::kParameters, .shard_over_replicas = true},
                                 false)[0]
                   .splits_shards());
}

// Each element is updated by one data rank, and a shard consists of the parts of its replicas.
TEST(ParameterDomain, PartsOfReplicasAreTheirShard) {
  const Mesh mesh({.data = 8, .replicas = 2});
  const ParallelOptions parallel{.shard = ShardKind::kParameters, .shard_over_replicas = true};
  const ParameterLayout layout = TwoDomains(mesh.sizes(), {.parallel = parallel}).layout(0);
  int64_t updated = 0;
  for (int rank = 0; rank < 8; ++rank) {
    const auto of_rank = shard_indices(mesh, rank, layout.domains);
    const UnitRange own = owned_range(layout, 0, of_rank);
    const UnitRange held = held_range(layout, 0, of_rank);
    updated += own.num_elems();
    EXPECT_EQ(held.num_elems(), 2 * own.num_elems());
    EXPECT_EQ(own.begin, rank < 4 ? held.begin : held.begin + own.num_elems());
    EXPECT_EQ(held, held_range(layout, 0, shard_indices(mesh, (rank + 4) % 8, layout.domains)));
  }
  EXPECT_EQ(updated, layout.units[0].num_elems);
}

TEST(ParameterDomain, ExpertsThatOneRankHasAloneAreNotSharded) {
  const Mesh mesh({.data = 4, .expert = 4});
  const auto domains = parameter_domains(
      mesh, {.shard = ShardKind::kOptimizer, .expert_shard = ShardKind::kOptimizer}, true);
  EXPECT_EQ(domains[1].shard, ShardKind::kNone);
  EXPECT_EQ(domains[1].norm_group, "expert.model");
  EXPECT_EQ(parameter_domains(mesh, {}, false).size(), 1u);
}

TEST(ParameterDomain, AUnitIsALayerOfADomain) {
  const TwoDomains run(kExpert4, {.parallel = {.shard = ShardKind::kOptimizer,
                                               .expert_shard = ShardKind::kOptimizer}});
  const ParameterLayout layout = run.layout(0);
  std::vector<std::string> names;
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    names.push_back(layout.units[unit].name);
    EXPECT_EQ(layout.units[unit].num_elems %
                  (kParameterAlignmentElems * layout.domain_of(unit).num_shards),
              0);
  }
  EXPECT_THAT(names, ElementsAre("layers.0", "layers.0.experts", "layers.1", "layers.1.experts",
                                 "layers.2", "layers.3"));
  EXPECT_EQ(layout.units[layout.slot("layers.0.out").unit].name, "layers.0");
  EXPECT_EQ(layout.units[layout.slot("layers.0.experts.bias").unit].name, "layers.0.experts");
}

TEST(ParameterDomain, BucketsAreOfOneDomain) {
  const TwoDomains run(kExpert4, {.parallel = {.buckets = {.kind = BucketKind::kVirtualStage}}});
  const ParameterLayout layout = run.layout(0);
  ASSERT_EQ(layout.units.size(), 2u);
  EXPECT_EQ(layout.units[0].slots.size(), 12u);
  EXPECT_EQ(layout.units[1].name, "layers.0.experts");
  EXPECT_EQ(layout.units[1].slots.size(), 4u);
}

TEST(ParameterDomain, CollectivesRunInTheGroupsOfTheDomain) {
  const Program program =
      programs_of({kExpert4, ShardKind::kParameters, ShardKind::kOptimizer}).front();
  EXPECT_THAT(groups_on(program, "all_gather", "gathered.layers.0.F"),
              ElementsAre("gradient.shard"));
  EXPECT_THAT(groups_on(program, "reduce_scatter", "grads.layers.0.m0"),
              ElementsAre("gradient.shard"));
  EXPECT_THAT(groups_on(program, "all_gather", "params.layers.0.experts"),
              ElementsAre("expert.data.shard"));
  EXPECT_THAT(groups_on(program, "reduce_scatter", "whole_grads.layers.0.experts"),
              ElementsAre("expert.data.shard"));
  EXPECT_THAT(groups_on(program, "all_reduce", "squared_grad_norm"),
              ElementsAre("expert.model.shard", "model.shard"));
  EXPECT_EQ(elems_of(program, "grads.layers.0.experts.m0.v0"), 0);
  EXPECT_EQ(elems_of(program, "exp_avg.layers.0") * 4, elems_of(program, "gathered.layers.0.F0.0"));
  EXPECT_EQ(elems_of(program, "exp_avg.layers.0.experts") * 2,
            elems_of(program, "params.layers.0.experts"));
}

TEST(ParameterDomain, WholeGradientsAreSummedOverTheRanksWithTheSameExperts) {
  const Program program = programs_of({kExpertTensor2, ShardKind::kNone, ShardKind::kNone}).front();
  EXPECT_THAT(groups_on(program, "all_reduce", "main_grads.layers.0.experts"),
              ElementsAre("expert.data", "expert.tensor"));
  EXPECT_THAT(groups_on(program, "all_reduce", "main_grads.layers.2"), ElementsAre("gradient"));
  EXPECT_THAT(groups_on(program, "all_reduce", "squared_grad_norm"), ElementsAre("expert.model"));
}

// The last stage has no experts, but its first one waits for it in the sum over the model.
TEST(ParameterDomain, RanksWithoutExpertsTakePartInTheNorm) {
  const Program program = programs_of({kTwoStages, ShardKind::kNone, ShardKind::kNone}).back();
  EXPECT_THAT(groups_on(program, "all_reduce", "squared_grad_norm"),
              ElementsAre("expert.model", "model"));
}

class ParameterDomains : public testing::TestWithParam<Case> {};

TEST_P(ParameterDomains, ProgramsOfAllRanksFitTogether) {
  const std::vector<Program> programs = programs_of(GetParam());
  for (const Program& program : programs) {
    const auto faults = verify(program, 1, Ordering::kProgramOrder);
    ASSERT_TRUE(faults.empty()) << "rank " << program.rank << ": " << faults.front().message;
  }
  const auto faults =
      verify_ranks(one_program_per_rank(programs),
                   {.one_order_of_collectives = true, .one_order_of_messages = true});
  ASSERT_TRUE(faults.empty()) << faults.front().message;
}

TEST_P(ParameterDomains, EachRankUpdatesWhatItOwns) {
  const std::vector<Program> programs = programs_of(GetParam());
  int64_t updated = 0;
  int64_t all = 0;
  for (const Program& program : programs) {
    for (const Task& task : program.tasks) {
      if (program.spec(task).op == "adamw") {
        updated += program.spec(task).operands[0].shape.num_elems();
      }
    }
    for (const Buffer& buffer : program.buffers) {
      if (buffer.name.starts_with("exp_avg.")) {
        all += buffer.num_elems();
      }
    }
  }
  EXPECT_EQ(updated, all);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const MeshSizes& sizes : {kExpert4, kExpertTensor2, kTwoStages}) {
    for (const ShardKind dense :
         {ShardKind::kNone, ShardKind::kOptimizer, ShardKind::kParameters}) {
      for (const ShardKind expert : {ShardKind::kNone, ShardKind::kOptimizer, ShardKind::kGradients,
                                     ShardKind::kParameters}) {
        all.push_back({sizes, dense, expert});
      }
    }
  }
  const MeshSizes replicas{.data = 8, .replicas = 2, .expert = 2, .expert_replicas = 2};
  for (const ShardKind shard :
       {ShardKind::kOptimizer, ShardKind::kGradients, ShardKind::kParameters}) {
    all.push_back({replicas, shard, shard, /*shard_over_replicas=*/true});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Layouts, ParameterDomains, testing::ValuesIn(cases()));

}  // namespace
}  // namespace braid
