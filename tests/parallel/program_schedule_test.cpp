// The formulae of the schedules, on the programs that come out of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "memory/memory_plan.h"
#include "parallel/pipeline_layout.h"
#include "parallel/program_timer.h"
#include "parallel/step_program.h"
#include "passes/pipeline.h"
#include "passes/runner.h"
#include "passes/streams/insert_events.h"

namespace braid {
namespace {

using Kind = ScheduleKind;

constexpr int64_t kSequence = 32;
constexpr int64_t kLayersPerStage = 2;

/// A pipeline of `ranks` ranks and nothing else.
struct Pipeline {
  Kind kind;
  int ranks = 1;
  int stages = 1;
  int64_t microbatches = 1;
  int64_t group_size = 0;
};

ModelSpec model_of(const Pipeline& pipeline) {
  return {.layers = kLayersPerStage * pipeline.ranks * pipeline.stages,
          .width = 32,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 8,
          .ffn = 48,
          .vocabulary = 32};
}

std::vector<Program> programs_of(const Pipeline& pipeline) {
  const ModelSpec model = model_of(pipeline);
  const Mesh mesh({.pipeline = pipeline.ranks});
  TrainProgramOptions options{.microbatch = 1,
                              .sequence = kSequence,
                              .num_microbatches = pipeline.microbatches,
                              .parallel = {.schedule = pipeline.kind,
                                           .virtual_stages = pipeline.stages,
                                           .group_size = pipeline.group_size}};
  options.parallel.stages = make_pipeline_layout({.layers = model.layers.size(),
                                                  .schedule = {.kind = pipeline.kind,
                                                               .num_ranks = pipeline.ranks,
                                                               .virtual_stages = pipeline.stages},
                                                  .layout = "even"});
  std::vector<Program> programs;
  for (int rank = 0; rank < pipeline.ranks; ++rank) {
    const ParameterLayout layout = make_rank_layout(model, mesh, rank, options.parallel);
    programs.push_back(
        insert_events(build_train_program(model, layout, mesh, rank, options)).program);
  }
  return programs;
}

/// Time in which nothing happens on a rank; each rank has the same work.
int64_t bubble_of(const Pipeline& pipeline, const JobCosts& costs) {
  const int64_t work =
      pipeline.microbatches * pipeline.stages * (costs.forward + costs.dgrad + costs.wgrad);
  return ProgramTimer(programs_of(pipeline), costs).run() - work;
}

constexpr JobCosts kUnit;
constexpr JobCosts kUneven{.forward = 10, .dgrad = 12, .wgrad = 8};

// (P - 1)(F + B), with F and B of one virtual stage.
TEST(ProgramBubble, OfWholeBackwards) {
  for (const JobCosts& costs : {kUnit, kUneven}) {
    const int64_t whole = costs.forward + costs.dgrad + costs.wgrad;
    for (const int ranks : {1, 2, 4}) {
      for (const int64_t microbatches : {ranks, 2 * ranks + 1}) {
        for (const Kind kind : {Kind::kGpipe, Kind::kOneForwardOneBackward}) {
          EXPECT_EQ(bubble_of({kind, ranks, 1, microbatches}, costs), (ranks - 1) * whole)
              << schedule_name(kind) << ", " << ranks << " ranks, " << microbatches;
        }
      }
      for (const int64_t group_size : {ranks, ranks + 1}) {
        EXPECT_EQ(bubble_of({Kind::kInterleaved, ranks, 2, 2 * group_size, group_size}, costs),
                  (ranks - 1) * whole)
            << ranks << " ranks, groups of " << group_size;
      }
    }
    EXPECT_EQ(bubble_of({Kind::kInterleaved, 3, 3, 6, 3}, costs), 2 * whole);
  }
}

TEST(ProgramBubble, OfSplitBackwards) {
  for (const int ranks : {1, 2, 4}) {
    for (const JobCosts& costs : {kUnit, kUneven}) {
      EXPECT_EQ(bubble_of({Kind::kZbH1, ranks, 1, 2 * ranks + 1}, costs),
                (ranks - 1) * (costs.forward + costs.dgrad - costs.wgrad));
    }
    // The last rank starts P - 1 units later; nobody waits in between.
    EXPECT_EQ(bubble_of({Kind::kZbV, ranks, 2, 2 * ranks + 1}, kUnit), ranks - 1);
    // Its pairs one after the other: (P - 1)(FB + B - 3W), FB = F + B.
    EXPECT_EQ(bubble_of({Kind::kDualpipeV, ranks, 2, 2 * ranks + 1}, kUnit), ranks - 1);
  }
}

// ---- activations

/// What one microbatch leaves in memory, in bytes of activations.
struct StageBytes {
  int64_t kept = 0;   ///< made by the forward, read by the backward
  int64_t grads = 0;  ///< made by dgrads, read by wgrads
  int64_t all = 0;    ///< of any kind
};

bool is_activation(const Buffer& buffer) {
  return buffer.role == BufferRole::kActivation && buffer.lifetime == Lifetime::kStep;
}

/// Of microbatch 0, by virtual stage.
std::map<int32_t, StageBytes> stage_bytes(const Program& program) {
  struct Uses {
    bool is_made_forward = false;
    bool is_read_forward = false;
    bool is_received = false;
    bool is_read_backward = false;
    bool is_made_by_dgrad = false;
    bool is_read_by_wgrad = false;
    int32_t stage = -1;
  };
  std::map<uint32_t, Uses> uses;
  std::map<int32_t, bool> is_backward;  // by virtual stage: has it begun
  for (const Task& task : program.tasks) {
    const Label& label = task.label;
    if (label.microbatch != 0) {
      continue;
    }
    bool& backward = is_backward[label.virtual_stage];
    backward = backward || label.phase == Phase::kDgrad || label.phase == Phase::kWgrad;
    const auto ranges = program.operands_of(task);
    const OpSpec& spec = program.spec(task);
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (!is_activation(program.buffers[ranges[i].buffer.index()])) {
        continue;
      }
      Uses& use = uses[ranges[i].buffer.value];
      use.stage = use.stage < 0 ? label.virtual_stage : use.stage;
      const bool is_made = writes(spec.operands[i].access);
      use.is_made_forward |= is_made && !backward;
      use.is_read_forward |= !is_made && label.phase == Phase::kForward;
      use.is_read_backward |= !is_made && backward;
      use.is_received |= spec.op == "recv";
      use.is_made_by_dgrad |= is_made && backward;
      use.is_read_by_wgrad |= !is_made && label.phase == Phase::kWgrad;
    }
  }
  std::map<int32_t, StageBytes> bytes;
  for (const auto& [buffer, use] : uses) {
    StageBytes& stage = bytes[use.stage];
    const int64_t size = aligned_bytes(program.buffers[buffer]);
    const bool opens_backward = use.is_received && !use.is_read_forward;
    stage.kept += use.is_made_forward && use.is_read_backward && !opens_backward ? size : 0;
    stage.grads += use.is_made_by_dgrad && use.is_read_by_wgrad ? size : 0;
    stage.all += size;
  }
  return bytes;
}

/// What a rank holds while its program runs: a microbatch in a virtual stage from its first to its
/// last task.
struct Held {
  int64_t count = 0;        ///< virtual stages, at most
  int64_t kept_bytes = 0;   ///< of those, at most
  int64_t bytes_below = 0;  ///< the same with the gradients that wait for wgrads, and all that the
                            ///< job of the moment makes besides
};

Held held_by(const Program& program) {
  using Key = std::pair<int32_t, int32_t>;
  const std::map<int32_t, StageBytes> bytes = stage_bytes(program);
  std::map<Key, size_t> last;
  std::map<Key, size_t> last_dgrad;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Label& label = program.tasks[i].label;
    if (label.microbatch < 0 || label.phase == Phase::kComm) {
      continue;
    }
    const Key key{label.microbatch, label.virtual_stage};
    last[key] = i;
    if (label.phase == Phase::kDgrad) {
      last_dgrad[key] = i;
    }
  }
  Held held;
  std::map<Key, bool> open;  // whether only the wgrad is left
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Label& label = program.tasks[i].label;
    if (label.microbatch < 0 || label.phase == Phase::kComm) {
      continue;
    }
    const Key key{label.microbatch, label.virtual_stage};
    open[key] = last_dgrad[key] < i;
    int64_t kept = 0;
    int64_t grads = 0;
    for (const auto& [at, has_dgrad] : open) {
      kept += bytes.at(at.second).kept;
      grads += has_dgrad ? bytes.at(at.second).grads : 0;
    }
    held.count = std::max(held.count, static_cast<int64_t>(open.size()));
    held.kept_bytes = std::max(held.kept_bytes, kept);
    const StageBytes& own = bytes.at(key.second);
    held.bytes_below = std::max(held.bytes_below, kept + grads + own.all - own.kept);
    if (last[key] == i) {
      open.erase(key);
    }
  }
  return held;
}

/// A tensor between two stages.
constexpr int64_t kMessageBytes = kSequence * 32 * int64_t{sizeof(float)};

/// Activations that the memory plan of a rank has, after all passes.
int64_t planned_bytes(const Program& program) {
  const Program result = run_passes(program, default_pipeline(), {}, {}).program;
  const Program* const pointer = &result;
  const MemoryPlan plan = plan_memory({&pointer, 1});
  return plan.programs[0].peak_by_role.at(BufferRole::kActivation);
}

/// Planned bytes compared with the bytes of live activations. The plan may be larger by the results
/// of the current job, and, in each direction and virtual stage, by one message that arrives early
/// and one that is in transit.
void expect_planned(const Pipeline& pipeline, const std::function<int64_t(int)>& count_of) {
  const std::vector<Program> programs = programs_of(pipeline);
  for (int rank = 0; rank < pipeline.ranks; ++rank) {
    SCOPED_TRACE(testing::Message() << schedule_name(pipeline.kind) << ", rank " << rank);
    const Program& program = programs[static_cast<size_t>(rank)];
    const Held held = held_by(program);
    EXPECT_EQ(held.count, count_of(rank));
    if (rank == 0) {  // planning takes longer than all else
      const int64_t planned = planned_bytes(program);
      EXPECT_GE(planned, held.kept_bytes);
      EXPECT_LE(planned, held.bytes_below + 4 * pipeline.stages * kMessageBytes);
    }
  }
}

// As ScheduleStats, but counted, and planned in bytes, on the programs.
TEST(ProgramActivations, AreThoseOfTheFormulae) {
  constexpr int kRanks = 4;
  constexpr int64_t kMany = 9;
  expect_planned({Kind::kGpipe, kRanks, 1, kMany}, [](int) { return kMany; });
  for (const int64_t microbatches : {2, 9}) {
    expect_planned({Kind::kOneForwardOneBackward, kRanks, 1, microbatches},
                   [&](int rank) { return std::min<int64_t>(kRanks - rank, microbatches); });
  }
  for (const int64_t group_size : {4, 5}) {
    expect_planned({Kind::kInterleaved, kRanks, 2, 2 * group_size, group_size},
                   [&](int rank) { return 2 * (kRanks - rank - 1) + group_size + 1; });
  }
  expect_planned({Kind::kZbH1, kRanks, 1, kMany}, [](int) { return kRanks; });
  expect_planned({Kind::kZbV, kRanks, 2, kMany}, [](int) { return 2 * kRanks; });
  expect_planned({Kind::kDualpipeV, kRanks, 2, kMany}, [](int) { return 2 * kRanks + 1; });
}

// What has been sent is free again, and what is received takes memory when its time comes. Where
// the last group of microbatches is the first that others follow, one more message may be under
// way.
TEST(ProgramActivations, DoNotGrowWithTheNumberOfMicrobatches) {
  for (Pipeline pipeline :
       {Pipeline{Kind::kOneForwardOneBackward, 3, 1, 6}, Pipeline{Kind::kInterleaved, 3, 2, 8, 4},
        Pipeline{Kind::kZbV, 3, 2, 6}}) {
    const int64_t few = planned_bytes(programs_of(pipeline)[1]);
    pipeline.microbatches *= 3;
    EXPECT_LE(planned_bytes(programs_of(pipeline)[1]), few + 2 * kMessageBytes)
        << schedule_name(pipeline.kind);
  }
}

}  // namespace
}  // namespace braid
