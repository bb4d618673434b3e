#include "plan/run_plan.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/validate.h"
#include "ir/text.h"
#include "plan/describe_layout.h"
#include "plan/model_setup.h"
#include "plan/pass_records.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

RunConfig pipeline_config() {
  RunConfig config;
  config.model.layers = 6;
  config.model.width = 16;
  config.model.heads = 2;
  config.model.vocabulary = 64;
  config.train.sequence = 8;
  config.train.global_batch = 4;
  config.parallel.ranks = 8;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  config.logging.run_folder = "unused";
  validate(config);
  return resolved(std::move(config));
}

// 8 tokens of a microbatch over 2 tensor ranks, each with 2 experts; 2 x 2 ranks exchange rows.
TEST(RunPlan, LayoutSaysWhoHasWhichExperts) {
  RunConfig config = pipeline_config();
  config.parallel.sequence_parallel = true;
  config.model.experts = 4;
  config.model.experts_per_token = 2;
  config.model.expert_ffn = 8;
  EXPECT_THAT(describe_layout(resolve_run(config, 0)), Not(HasSubstr("experts ")));
  config.parallel.expert = 2;
  config.parallel.expert_tensor = 2;
  EXPECT_THAT(describe_layout(resolve_run(config, 0)),
              HasSubstr("\nexperts   2 on each of 2 ranks x 2 parts; room for 32 rows of 16 with "
                        "equal loads\n"));
  config.moe.capacity = 1.25;
  config.moe.on_overflow = "drop";
  EXPECT_THAT(describe_layout(resolve_run(config, 0)),
              HasSubstr("room for 20 rows of 16 with equal loads, more are dropped\n"));
  config.moe.exchange = "blocks";  // of 4 ranks
  EXPECT_THAT(
      describe_layout(resolve_run(config, 0)),
      HasSubstr("more are dropped\nexchange  blocks of 5 rows for each pair of 4 ranks: 1.25 "
                "times the rows of equal loads\n"));
  config.moe.exchange = "hosts";
  config.moe.exchange_hosts = 2;
  config.moe.capacity = 1.1;
  EXPECT_THAT(describe_layout(resolve_run(config, 0)),
              HasSubstr("more are dropped\nexchange  one copy of a token for each of 2 hosts, in "
                        "blocks of 4 slots; of the 4 tokens of a rank 3 go to a host with equal "
                        "loads\n"));
}

TEST(RunPlan, LayoutSaysOfWhichTokensExpertsTakeHowManyRows) {
  RunConfig config = pipeline_config();
  config.parallel.sequence_parallel = true;
  config.model.experts = 4;
  config.model.experts_per_token = 2;
  config.model.expert_ffn = 8;
  EXPECT_THAT(describe_layout(resolve_run(config, 0)), Not(HasSubstr("capacity ")));
  config.moe.expert_capacity = 1.25;
  EXPECT_THAT(
      describe_layout(resolve_run(config, 0)),
      HasSubstr("\ncapacity  each expert takes up to 3 rows of the 4 tokens that a rank has "
                "of a microbatch, those with the largest weights; 2 ranks that share a "
                "microbatch drop apart\n"));
  config.parallel.tensor = 1;
  config.parallel.data = 4;
  config.parallel.sequence_parallel = false;
  config.moe.drop = "position";
  EXPECT_THAT(describe_layout(resolve_run(config, 0)),
              HasSubstr("up to 5 rows of the 8 tokens that a rank has of a microbatch, the first "
                        "ones\n"));
}

TEST(RunPlan, RefusesRatesOfBiasesThatAreNotThere) {
  RunConfig config = pipeline_config();
  config.parallel.sequence_parallel = true;
  config.moe.bias_update_rate = 0.01;
  EXPECT_EQ(
      message_of<ConfigError>([&] { resolve_run(config, 0); }),
      "moe.balance_loss = 0.01, moe.sequence_balance_loss = 0, moe.z_loss = 0, "
      "moe.bias_update_rate = 0.01, moe.expert_capacity = 0, moe.drop = \"probability\", "
      "moe.capacity = 0, moe.on_overflow = \"rerun\", moe.exchange = \"auto\", moe.exchange_hosts "
      "= 0, "
      "moe.watch = 10, "
      "moe.watch_counts = 500, moe.force_balance = false, moe.force_skew = 0, moe.replay = \"\", "
      "moe.record = \"\", "
      "moe.record_steps = 1: the model has no experts; remove these keys, or set model.experts");
  config.model.experts = 4;
  config.model.experts_per_token = 2;
  config.model.expert_ffn = 8;
  EXPECT_EQ(message_of<ConfigError>([&] { resolve_run(config, 0); }),
            "moe.bias_update_rate = 0.01: routers of the model have no biases; remove the key, or "
            "set model.router_bias = true");
}

TEST(RunPlan, RefusesDocumentMasksForModelsThatCarryAState) {
  RunConfig config = pipeline_config();
  config.data.document_mask = true;
  config.data.document_length = 700;
  const RunSpec run = resolve_run(config, 0);
  EXPECT_EQ(run.documents, (AttentionDocuments{.documents = true, .document_length = 700}));
  EXPECT_THAT(describe_layout(run),
              HasSubstr("documents separate in each sequence; on GPUs by kernels of braid's own; "
                        "predicted times are those of documents of 700 tokens\n"));
  config.model.layers = {};
  config.model.pattern = "mamba attention+mlp*5";
  config.model.mamba_num_heads = 2;
  config.model.mamba_head_dim = 8;
  config.model.ssm_state_size = 4;
  config.model.mamba_n_groups = 2;
  EXPECT_EQ(message_of<ConfigError>([&] { resolve_run(config, 0); }),
            "data.document_mask = true: layers with \"mamba\" carry a state from one document of a "
            "sequence to the next; set data.document_mask = false, or use no \"mamba\" in "
            "model.pattern");
}

TEST(RunPlan, LossesOfPairsAreOfOneTokenAhead) {
  RunConfig config = pipeline_config();
  config.preference.loss = "ipo";
  config.preference.beta = 0.25;
  config.train.microbatch = 2;
  const RunSpec run = resolve_run(config, 0);
  EXPECT_EQ(run.preference,
            (PreferenceLossAttributes{.kind = static_cast<int64_t>(PreferenceKind::kIpo),
                                      .beta = 0.25,
                                      .pairs = config.train.global_batch / 2}));
  EXPECT_TRUE(run.averages_answers());
  config.model.mtp_depth = 1;
  EXPECT_EQ(message_of<ConfigError>([&] { resolve_run(config, 0); }),
            "preference.loss = \"ipo\" with model.mtp_depth = 1: there is no loss of pairs for "
            "multi-token prediction; set model.mtp_depth = 0");
}

TEST(RunPlan, OnlyOneOfRouterFileAndChanceChoosesExperts) {
  RunConfig config = pipeline_config();
  config.parallel.sequence_parallel = true;
  config.model.experts = 4;
  config.model.experts_per_token = 2;
  config.model.expert_ffn = 8;
  config.moe.force_skew = 0.5;
  EXPECT_EQ(resolve_run(config, 0).routing, RoutingUse::kGiven);
  EXPECT_THAT(describe_run_plan(plan_run(resolve_run(config, 0))),
              HasSubstr("\nnote     moe.force_skew = 0.5: routers choose experts at random\n"));
  config.moe.record = "b";
  EXPECT_EQ(message_of<ConfigError>([&] { resolve_run(config, 0); }),
            "moe.record = \"b\": moe.force_skew = 0.5, moe.replay = \"\" chooses the experts, so "
            "there is nothing to record; remove one of these keys");
  config.moe.replay = "a";
  EXPECT_EQ(message_of<ConfigError>([&] { resolve_run(config, 0); }),
            "moe.force_balance = false, moe.force_skew = 0.5, moe.replay = \"a\": each chooses the "
            "experts; set one of them");
}

TEST(RunPlan, FirstRankOfStagesIsFirstInAllOtherDimensions) {
  EXPECT_THAT(first_rank_of_stages(Mesh({.tensor = 2, .context = 3, .data = 5, .pipeline = 4})),
              ElementsAre(0, 30, 60, 90));
  EXPECT_THAT(first_rank_of_stages(Mesh({.tensor = 2, .data = 2})), ElementsAre(0));
}

TEST(RunPlan, OneRankPerStageIsTheSameAsWhenAllArePlanned) {
  const RunPlan all = plan_run(resolve_run(pipeline_config(), 0));
  const RunPlan stages = plan_run(resolve_run(pipeline_config(), 0), {.one_rank_per_stage = true});
  ASSERT_EQ(all.ranks.size(), 8u);
  ASSERT_EQ(stages.ranks.size(), 2u);
  for (const size_t stage : {size_t{0}, size_t{1}}) {
    EXPECT_EQ(print_program(stages.ranks[stage].programs[kTrainProgram]),
              print_program(all.ranks[4 * stage].programs[kTrainProgram]));
    EXPECT_EQ(stages.ranks[stage].memory.peak_bytes(), all.ranks[4 * stage].memory.peak_bytes());
  }
}

TEST(RunPlan, CostModelIsThatOfTheOverlap) {
  RunConfig config = pipeline_config();
  EXPECT_EQ(resolve_run(config, 0).cost_model, nullptr);
  config.overlap.cost = "h200x16";
  EXPECT_EQ(resolve_run(config, 0).cost_model->cluster().num_devices, 16);
  EXPECT_NO_THROW(plan_run(resolve_run(config, 0), {.one_rank_per_stage = true}));
  config.overlap.cost = "h200x4";
  EXPECT_THAT(message_of<ConfigError>([&] { plan_run(resolve_run(config, 0)); }),
              HasSubstr("overlap.cost = \"h200x4\": cluster h200x4 has 4 devices and "
                        "parallel.ranks is 8; use h200x8 or more"));
  config.overlap.cost = "h2000";
  EXPECT_THAT(message_of<ConfigError>([&] { plan_run(resolve_run(config, 0)); }),
              HasSubstr("overlap.cost = \"h2000\": "));
  config.overlap.cost = "no/such.json";
  EXPECT_THAT(message_of<DataError>([&] { plan_run(resolve_run(config, 0)); }),
              HasSubstr("overlap.cost = \"no/such.json\": cannot read 'no/such.json'"));
}

TEST(RunPlan, TableSaysWhichRanksStandForAll) {
  const std::string stages =
      describe_ranks(plan_run(resolve_run(pipeline_config(), 0), {.one_rank_per_stage = true}));
  EXPECT_THAT(stages, HasSubstr("planned   2 of 8 ranks, the first of each stage\n"));
  EXPECT_THAT(stages, HasSubstr("\n     4      1 "));
  EXPECT_THAT(describe_ranks(plan_run(resolve_run(pipeline_config(), 0))),
              Not(HasSubstr("planned")));
}

TEST(RunPlan, ReportHasARankOfEachStage) {
  const RunConfig config = pipeline_config();
  const ReportTable table = stage_table(plan_run(resolve_run(config, 0)));
  EXPECT_EQ(table.columns.size(), 10u);
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[1][0], "4");
  EXPECT_EQ(table.rows[1][1], "1");
  EXPECT_EQ(pipeline_jobs(resolve_run(config, 0)).size(), 2u);
  EXPECT_THROW(stage_table(plan_run(resolve_run(config, 0), {.ranks = {0}})), InternalError);
}

TEST(RunPlan, PassesAreReportedForAllKindsOfRanks) {
  const RunPlan plan = plan_run(resolve_run(pipeline_config(), 0), {.one_rank_per_stage = true});
  const std::vector<PassRecord> records = pass_records(plan.ranks);
  ASSERT_EQ(records.size(), plan.ranks.front().passes.size());
  int num_different = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    const PassReport& first = plan.ranks[0].passes[i].report;
    const PassReport& second = plan.ranks[1].passes[i].report;
    const bool is_same = first.summary == second.summary;
    num_different += is_same ? 0 : 1;
    EXPECT_EQ(records[i].report.summary,
              is_same ? first.summary
                      : fmt::format("rank 0: {}; rank 4: {}", first.summary, second.summary));
    EXPECT_EQ(records[i].report.num_changes, std::max(first.num_changes, second.num_changes));
    EXPECT_EQ(records[i].report.changed, first.changed || second.changed);
  }
  EXPECT_GT(num_different, 0);
}

TEST(RunPlan, NamesThreeKindsOfRanksAtMost) {
  std::vector<RankPlan> ranks(6);
  for (int rank = 0; rank < 6; ++rank) {
    RankPlan& plan = ranks[static_cast<size_t>(rank)];
    plan.programs.emplace_back().rank = rank;
    const int moved = rank / 2 * 2 + (rank == 5 ? 1 : 0);  // 0 0 2 2 4 5
    plan.passes.push_back(
        {.name = "p", .report = {moved > 0, moved, fmt::format("moved {}", moved)}});
  }
  const PassRecord record = pass_records(ranks).front();
  EXPECT_EQ(record.report.summary,
            "rank 0: moved 0; rank 2: moved 2; rank 4: moved 4; not shown: 1 of 4 kinds of ranks");
  EXPECT_TRUE(record.report.changed);
  EXPECT_EQ(record.report.num_changes, 5);
}

TEST(RunPlan, RanksThatDoNotFitTogetherAreFound) {
  RunPlan plan = plan_run(resolve_run(pipeline_config(), 0));
  EXPECT_NO_THROW(verify_plan(plan));
  // Rank 5 does not say all that the others of its groups wait for.
  std::vector<Task>& tasks = plan.ranks[5].programs[kEvalProgram].tasks;
  tasks.resize(tasks.size() / 2);
  EXPECT_THAT(message_of<InternalError>([&] { verify_plan(plan); }),
              AllOf(HasSubstr("the programs of 8 ranks do not fit together after the passes over "
                              "program eval"),
                    HasSubstr("rank 5")));
}

/// Of the 6 layers, embedding and head, each rank has 4.
TEST(RunPlan, CountsTheLayersThatARankHas) {
  RunConfig config = pipeline_config();
  config.train.global_batch = 16386;  // 16384 make 8192 microbatches x 4 layers x 8 ranks = 2^18
  const std::string message = message_of<ConfigError>([&] { plan_run(resolve_run(config, 0)); });
  EXPECT_THAT(message, HasSubstr("train.global_batch = 16386"));
  EXPECT_THAT(message,
              HasSubstr("8193 microbatches per step on each of 8 ranks; with up to 4 layers on a "
                        "rank that is 262176 passes over a layer, more than the limit of 262144"));
  config.train.global_batch = 65538;
  EXPECT_THAT(
      message_of<ConfigError>([&] { plan_run(resolve_run(config, 0), {.for_simulation = true}); }),
      HasSubstr("1048608 passes over a layer, more than the limit of 1048576"));
}

}  // namespace
}  // namespace braid
