// The programs of real layouts, against each other.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "config/choices.h"
#include "parallel/paired_jobs.h"
#include "parallel/pipeline_layout.h"
#include "parallel/rank_faults.h"
#include "parallel/step_program.h"
#include "passes/pipeline.h"
#include "passes/pipeline/defer_head_wgrad.h"
#include "passes/pipeline/delay_wgrad.h"
#include "passes/pipeline/p2p_streams.h"
#include "passes/pipeline/pair_forward_backward.h"
#include "passes/runner.h"
#include "passes/streams/insert_events.h"

namespace braid {
namespace {

ModelSpec tiny(int64_t layers, bool tied) {
  return {.style = tied ? kGpt2Style : kLlamaStyle,
          .layers = layers,
          .width = 8,
          .heads = 2,
          .kv_heads = 2,
          .head_size = 4,
          .ffn = 12,
          .vocabulary = 50,
          .max_positions = 8,
          .tied_embeddings = tied};
}

struct Step {
  MeshSizes mesh;
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  int virtual_stages = 1;
  int64_t microbatches = 1;
  ShardKind shard = ShardKind::kNone;
  bool tied = false;
  int64_t layers = 8;
  int64_t group_size = 0;
  JobPairs pairs = JobPairs::kNone;
};

std::vector<Program> programs_of(const Step& step) {
  const Mesh mesh(step.mesh);
  const ModelSpec model = tiny(step.layers, step.tied);
  ParallelOptions parallel{.sequence_parallel = step.mesh.tensor > 1,
                           .schedule = step.schedule,
                           .virtual_stages = step.virtual_stages,
                           .group_size = step.group_size,
                           .pairs = step.pairs,
                           .shard = step.shard};
  if (step.mesh.pipeline > 1) {
    parallel.stages = make_pipeline_layout({.layers = step.layers,
                                            .schedule = {.kind = step.schedule,
                                                         .num_ranks = step.mesh.pipeline,
                                                         .virtual_stages = step.virtual_stages},
                                            .layout = "even"});
  }
  std::vector<Program> programs;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    programs.push_back(build_train_program(model, make_rank_layout(model, mesh, rank, parallel),
                                           mesh, rank,
                                           {.microbatch = 1,
                                            .sequence = 4,
                                            .num_microbatches = step.microbatches,
                                            .parallel = parallel}));
  }
  return programs;
}

constexpr VerifyRanksOptions kOneOrder = {.one_order_of_collectives = true,
                                          .one_order_of_messages = true};

void expect_no_faults(const Step& step) {
  std::vector<Program> programs = programs_of(step);
  for (Program& program : programs) {
    program = insert_events(std::move(program)).program;
  }
  EXPECT_THAT(faults_of(programs, kOneOrder), ::testing::IsEmpty());
  for (Program& program : programs) {
    program = run_passes(std::move(program), default_pipeline(), {}).program;
  }
  EXPECT_THAT(faults_of(programs, kOneOrder), ::testing::IsEmpty());
}

/// With every setting of the passes that move messages and what stands around them.
void expect_no_faults_with_messages_anywhere(const Step& step) {
  const std::vector<Program> programs = programs_of(step);
  for (const int setting : {0, 1, 2, 3, 4, 5, 6, 7}) {
    for (const int64_t jobs_ahead : {0, 1, 3}) {
      SCOPED_TRACE(testing::Message() << "setting " << setting << ", ahead " << jobs_ahead);
      PipelineOptions options;
      options.of<P2pStreamsOptions>() = {.warmup_flush = (setting & 1) != 0,
                                         .backward_on_comm_stream = (setting & 2) != 0,
                                         .jobs_ahead = jobs_ahead};
      options.of<DelayWgradOptions>().num_layers = setting;
      options.of<DeferHeadWgradOptions>() = {.enabled = (setting & 4) != 0, .limit = setting % 3};
      std::vector<Program> with_passes;
      for (const Program& program : programs) {
        with_passes.push_back(
            run_passes(program, default_pipeline(options), {}, {.verify = setting == 7}).program);
      }
      EXPECT_THAT(faults_of(with_passes, kOneOrder), ::testing::IsEmpty());
    }
  }
}

TEST(RankPrograms, OfDataAndTensorRanksFitTogether) {
  for (const ShardKind shard :
       {ShardKind::kNone, ShardKind::kOptimizer, ShardKind::kGradients, ShardKind::kParameters}) {
    SCOPED_TRACE(choice_name(shard));
    expect_no_faults({.mesh = {.data = 3}, .microbatches = 2, .shard = shard});
    expect_no_faults({.mesh = {.tensor = 2, .data = 2}, .microbatches = 2, .shard = shard});
    expect_no_faults({.mesh = {.tensor = 2, .data = 2, .pipeline = 2},
                      .schedule = ScheduleKind::kInterleaved,
                      .virtual_stages = 2,
                      .microbatches = 4,
                      .shard = shard,
                      .tied = true});
  }
}

TEST(RankPrograms, OfEveryScheduleFitTogether) {
  for (const ScheduleKind schedule :
       {ScheduleKind::kGpipe, ScheduleKind::kOneForwardOneBackward, ScheduleKind::kZbH1}) {
    SCOPED_TRACE(schedule_name(schedule));
    for (const int ranks : {2, 4}) {
      expect_no_faults({.mesh = {.pipeline = ranks}, .schedule = schedule, .microbatches = 5});
    }
  }
  for (const ScheduleKind schedule :
       {ScheduleKind::kInterleaved, ScheduleKind::kZbV, ScheduleKind::kDualpipeV}) {
    SCOPED_TRACE(schedule_name(schedule));
    for (const int ranks : {2, 4}) {
      expect_no_faults({.mesh = {.pipeline = ranks},
                        .schedule = schedule,
                        .virtual_stages = 2,
                        .microbatches = 8});
    }
  }
  expect_no_faults({.mesh = {.pipeline = 4},
                    .schedule = ScheduleKind::kZbV,
                    .virtual_stages = 2,
                    .microbatches = 6});
}

// A message of the backward that leaves on the compute stream holds up its rank until the receiver
// has come. Only those to earlier ranks do, so that no two ranks wait for each other that way.
TEST(RankPrograms, OfEveryScheduleFitTogetherWithMessagesAnywhere) {
  for (const ScheduleKind schedule :
       {ScheduleKind::kGpipe, ScheduleKind::kOneForwardOneBackward, ScheduleKind::kZbH1,
        ScheduleKind::kInterleaved, ScheduleKind::kZbV, ScheduleKind::kDualpipeV}) {
    SCOPED_TRACE(schedule_name(schedule));
    const bool is_split = schedule == ScheduleKind::kInterleaved ||
                          schedule == ScheduleKind::kZbV || schedule == ScheduleKind::kDualpipeV;
    for (const int ranks : {2, 4}) {
      expect_no_faults_with_messages_anywhere({.mesh = {.pipeline = ranks},
                                               .schedule = schedule,
                                               .virtual_stages = is_split ? 2 : 1,
                                               .microbatches = 8});
    }
  }
}

TEST(RankPrograms, OfManyPipelinesFitTogetherWithBackwardMessagesOnTheComputeStream) {
  for (const int ranks : {2, 3, 5}) {
    for (const int virtual_stages : {1, 2, 3}) {
      for (const int microbatches : {ranks, ranks + 1, 2 * ranks, 3 * ranks + 2}) {
        const bool is_interleaved = virtual_stages > 1;
        const int group_size = is_interleaved ? std::max(ranks, microbatches / 2) : 0;
        if (is_interleaved && microbatches % group_size != 0) {
          continue;
        }
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << virtual_stages << " stages, "
                                        << microbatches << " microbatches");
        const std::vector<Program> programs =
            programs_of({.mesh = {.pipeline = ranks},
                         .schedule = is_interleaved ? ScheduleKind::kInterleaved
                                                    : ScheduleKind::kOneForwardOneBackward,
                         .virtual_stages = virtual_stages,
                         .microbatches = microbatches,
                         .layers = int64_t{ranks} * virtual_stages,
                         .group_size = group_size});
        for (const int64_t jobs_ahead : {0, 1}) {
          std::vector<Program> with_passes;
          PipelineOptions options;
          options.of<P2pStreamsOptions>() = {.backward_on_comm_stream = false,
                                             .jobs_ahead = jobs_ahead};
          for (const Program& program : programs) {
            with_passes.push_back(
                run_passes(program, default_pipeline(options), {}, {.verify = false}).program);
          }
          EXPECT_THAT(faults_of(with_passes, kOneOrder), ::testing::IsEmpty());
        }
      }
    }
  }
}

/// After all passes with pairs of jobs, the programs of `step`, which has pairs.
std::vector<Program> with_pairs(const Step& step, const std::vector<Program>& programs,
                                PipelineOptions options) {
  std::vector<Program> results;
  for (const Program& program : programs) {
    options.of<PairForwardBackwardOptions>().pairs =
        paired_jobs({.kind = step.schedule,
                     .num_ranks = step.mesh.pipeline,
                     .virtual_stages = step.virtual_stages,
                     .num_microbatches = step.microbatches,
                     .group_size = step.group_size,
                     .pairs = step.pairs},
                    Mesh(step.mesh).position(program.rank).pipeline);
    results.push_back(
        run_passes(program, default_pipeline(options), {}, {.verify = false}).program);
  }
  return results;
}

/// With messages beside compute in every way. Pairs without tensor ranks stay as they are, but the
/// schedule is theirs.
void expect_no_faults_with_pairs(Step step) {
  SCOPED_TRACE(testing::Message() << schedule_name(step.schedule) << " over " << step.mesh.pipeline
                                  << " ranks, " << step.virtual_stages << " virtual stages, "
                                  << step.microbatches << " microbatches, tensor "
                                  << step.mesh.tensor);
  step.pairs = JobPairs::kForwardBackward;
  step.layers = int64_t{step.mesh.pipeline} * step.virtual_stages;
  const std::vector<Program> programs = programs_of(step);
  for (const bool warmup_flush : {false, true}) {
    for (const bool beside_compute : {false, true}) {
      PipelineOptions options;
      options.of<P2pStreamsOptions>() = {.warmup_flush = warmup_flush,
                                         .backward_on_comm_stream = beside_compute};
      EXPECT_THAT(faults_of(with_pairs(step, programs, options), kOneOrder), ::testing::IsEmpty())
          << "warm-up and flush " << warmup_flush << ", beside compute " << beside_compute;
    }
  }
}

// A rank that stands still with a message must not hold up those whose forwards the receiver waits
// for in the pair in which it takes the message.
TEST(RankPrograms, OfPairsFitTogetherWithMessagesAnywhere) {
  for (const int ranks : {2, 4}) {
    for (const int microbatches : {2 * ranks, 3 * ranks}) {
      for (const ScheduleKind schedule :
           {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kZbH1}) {
        expect_no_faults_with_pairs(
            {.mesh = {.pipeline = ranks}, .schedule = schedule, .microbatches = microbatches});
      }
      expect_no_faults_with_pairs({.mesh = {.pipeline = ranks},
                                   .schedule = ScheduleKind::kDualpipeV,
                                   .virtual_stages = 2,
                                   .microbatches = microbatches});
      for (const int virtual_stages : {2, 3}) {
        expect_no_faults_with_pairs({.mesh = {.pipeline = ranks},
                                     .schedule = ScheduleKind::kInterleaved,
                                     .virtual_stages = virtual_stages,
                                     .microbatches = microbatches});
      }
    }
  }
}

TEST(RankPrograms, OfWovenPairsFitTogetherWithMessagesAnywhere) {
  expect_no_faults_with_pairs({.mesh = {.tensor = 2, .pipeline = 4}, .microbatches = 10});
  expect_no_faults_with_pairs({.mesh = {.tensor = 2, .pipeline = 2},
                               .schedule = ScheduleKind::kDualpipeV,
                               .virtual_stages = 2,
                               .microbatches = 6});
  for (const int microbatches : {8, 12}) {
    expect_no_faults_with_pairs({.mesh = {.tensor = 2, .pipeline = 4},
                                 .schedule = ScheduleKind::kInterleaved,
                                 .virtual_stages = 2,
                                 .microbatches = microbatches});
  }
}

}  // namespace
}  // namespace braid
