#include "passes/pipeline/defer_head_wgrad.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "ops/op.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline/late_moves.h"
#include "passes/pipeline/stage_messages.h"
#include "passes/pipeline_options.h"

namespace braid {
namespace {

/// True for the weight gradient of a matrix outside of layers.
bool is_head_wgrad(const Program& program, const Task& task) {
  return task.label.phase == Phase::kWgrad && task.label.layer < 0 && task.label.microbatch >= 0 &&
         has_role(program.spec(task), OpRole::kProductWgrad);
}

struct Step {
  std::vector<TaskId> head_wgrads;
  std::optional<TaskId> last_backward;  ///< last task of a microbatch, without head_wgrads
  bool sends_gradients = false;
};

Step examine(const Program& program) {
  Step step;
  bool has_backward = false;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    if (is_head_wgrad(program, task)) {
      step.head_wgrads.emplace_back(i);
      continue;
    }
    const bool is_gradient = task.label.phase == Phase::kDgrad || task.label.phase == Phase::kWgrad;
    const bool is_message =
        communicates_as(program.spec(task), CommOp::kSend) && is_stage_message(program, task);
    if (task.label.microbatch >= 0 && (is_gradient || is_message)) {
      step.last_backward = TaskId(i);
      has_backward |= is_gradient;
      step.sends_gradients |= is_message && has_backward;
    }
  }
  return step;
}

/// The head's weight gradients of the last `limit` microbatches that have one; 0: all.
std::span<const TaskId> last_microbatches(const Program& program,
                                          const std::vector<TaskId>& head_wgrads, int64_t limit) {
  size_t first = head_wgrads.size();
  int64_t num_microbatches = 0;
  int32_t microbatch = -1;
  while (first > 0) {
    const int32_t of_this = program.tasks[head_wgrads[first - 1].index()].label.microbatch;
    num_microbatches += of_this != microbatch ? 1 : 0;
    if (limit > 0 && num_microbatches > limit) {
      break;
    }
    microbatch = of_this;
    --first;
  }
  return std::span(head_wgrads).subspan(first);
}

OverlapChange defer_head(bool enabled, int64_t limit) {
  return [=](OverlapConfig& overlap) {
    overlap.defer_embedding_wgrad_compute = enabled;
    overlap.wgrad_deferral_limit = limit;
  };
}

std::vector<OverlapAxis> head_axes(const RunConfig& config, const AxisLimits& limits) {
  const int64_t stages = config.parallel.pipeline;
  if (stages == 1) {
    return {};
  }
  OverlapAxis axis{"head's weight gradients",
                   {defer_head(false, 0), defer_head(true, 0)},
                   AxisPlace::kStageWgrads};
  for (const int64_t limit : {stages / 2, stages, 2 * stages}) {
    if (limit > 0 && limit < limits.num_microbatches) {
      axis.choices.push_back(defer_head(true, limit));
    }
  }
  return {axis};
}

}  // namespace

PassResult defer_head_wgrad(Program program, const DeferHeadWgradOptions& options) {
  if (!options.enabled) {
    return {std::move(program), {false, 0, "not asked for"}};
  }
  const Step step = examine(program);
  std::vector<LateMove> moves;
  if (step.sends_gradients) {
    for (const TaskId id : last_microbatches(program, step.head_wgrads, options.limit)) {
      if (id < *step.last_backward) {
        moves.push_back({id, *step.last_backward});
      }
    }
  }
  return move_late(std::move(program), moves,
                   fmt::format("of {} weight gradients of the head behind the last backward",
                               step.head_wgrads.size()));
}

Pass defer_head_wgrad_pass(const PipelineOptions& options) {
  return {.name = "defer_head_wgrad",
          .summary =
              "Moves the output projection's weight gradients into the bubble after the last "
              "backward.",
          .run = run_of(defer_head_wgrad, options),
          .only_overlaps = true,
          .keys = {"overlap.defer_embedding_wgrad_compute", "overlap.wgrad_deferral_limit"},
          .read_keys =
              [](const OverlapConfig& overlap, PipelineOptions& its) {
                its.of<DeferHeadWgradOptions>() = {.enabled = overlap.defer_embedding_wgrad_compute,
                                                   .limit = overlap.wgrad_deferral_limit};
              },
          .axes = head_axes};
}

}  // namespace braid
