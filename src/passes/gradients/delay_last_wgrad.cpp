#include "passes/gradients/delay_last_wgrad.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ir/dependencies.h"
#include "ops/op.h"
#include "passes/gradients/gradient_tasks.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline/late_moves.h"
#include "passes/pipeline_options.h"

namespace braid {
namespace {

bool is_embedding_wgrad(const Program& program, const Task& task) {
  return has_role(program.spec(task), OpRole::kTableWgrad);
}

std::optional<TaskId> last_embedding_wgrad(const Program& program) {
  for (size_t i = program.tasks.size(); i-- > 0;) {
    if (is_embedding_wgrad(program, program.tasks[i])) {
      return TaskId(i);
    }
  }
  return std::nullopt;
}

/// Whether the gradient is reduced, directly or after rounding.
bool is_reduced(const Program& program, TaskId gradient) {
  const DependencyGraph dependencies = build_dependencies(program);
  std::vector<bool> is_of_gradient(program.tasks.size());
  is_of_gradient[gradient.index()] = true;
  for (size_t i = gradient.index() + 1; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    const bool communicates = communicates_gradients(program, task);
    if (!communicates && !converts_gradients(program, task)) {
      continue;
    }
    const bool follows = std::ranges::any_of(dependencies.of(TaskId(i)), [&](TaskId earlier) {
      return is_of_gradient[earlier.index()];
    });
    if (follows && communicates) {
      return true;
    }
    is_of_gradient[i] = follows;
  }
  return false;
}

/// Moves for weight gradients of the first layers, before `embedding` in its microbatch and stage.
std::vector<LateMove> moves_behind(const Program& program, TaskId embedding, int64_t num_layers) {
  const Label& job = program.tasks[embedding.index()].label;
  std::vector<TaskId> wgrads;
  std::set<int32_t> layers;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Label& label = program.tasks[i].label;
    if (label.phase == Phase::kWgrad && label.microbatch == job.microbatch &&
        label.virtual_stage == job.virtual_stage && label.layer >= 0) {
      wgrads.emplace_back(i);
      layers.insert(label.layer);
    }
  }
  std::vector<LateMove> moves;
  for (const TaskId wgrad : wgrads) {
    const int32_t layer = program.tasks[wgrad.index()].label.layer;
    const bool is_first = std::distance(layers.begin(), layers.find(layer)) < num_layers;
    if (is_first && wgrad < embedding) {
      moves.push_back({wgrad, embedding});
    }
  }
  return moves;
}

/// Axes for the work that hides the last reduction of a step, that of the embedding.
std::vector<OverlapAxis> last_reduction_axes(const RunConfig& config, const AxisLimits& limits) {
  if (config.parallel.data * config.parallel.context == 1) {
    return {};
  }
  OverlapAxis axis{"last reduction", {}, AxisPlace::kLastReduction};
  for (const int64_t layers : {0, 1, 4}) {
    if (layers <= limits.layers_of_job) {
      axis.choices.push_back([layers](OverlapConfig& overlap) {
        overlap.overlap_grad_reduce_delayed_wgrad_layers = overlap.overlap_grad_reduce ? layers : 0;
      });
    }
  }
  return {axis};
}

}  // namespace

PassResult delay_last_wgrad(Program program, const DelayLastWgradOptions& options) {
  const std::optional<TaskId> embedding = last_embedding_wgrad(program);
  std::vector<LateMove> moves;
  if (options.num_layers > 0 && embedding && is_reduced(program, *embedding)) {
    moves = moves_behind(program, *embedding, options.num_layers);
  }
  return move_late(std::move(program), moves, "weight gradients behind that of the embedding");
}

Pass delay_last_wgrad_pass(const PipelineOptions& options) {
  return {.name = "delay_last_wgrad",
          .summary =
              "Runs the last backward's weight gradients of the first layers after the "
              "embedding's, so that they hide the reduction of the embedding's gradient.",
          .run = run_of(delay_last_wgrad, options),
          .only_overlaps = true,
          .keys = {"overlap.overlap_grad_reduce_delayed_wgrad_layers"},
          .read_keys =
              [](const OverlapConfig& overlap, PipelineOptions& its) {
                its.of<DelayLastWgradOptions>() = {
                    .num_layers = overlap.overlap_grad_reduce_delayed_wgrad_layers};
              },
          .axes = last_reduction_axes};
}

}  // namespace braid
