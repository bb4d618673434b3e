#include "passes/pipeline/delay_wgrad.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/op.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline/late_moves.h"
#include "passes/pipeline/stage_messages.h"
#include "passes/pipeline_options.h"

namespace braid {
namespace {

/// Stands for the head, whose tasks have no layer: it is behind all layers.
constexpr int32_t kHead = INT32_MAX;

/// Of a task of a backward that sends: such a stage has no embedding.
int32_t layer_of(const Task& task) {
  return task.label.layer < 0 ? kHead : task.label.layer;
}

/// The part of a microbatch's backward through a virtual stage that has been read so far.
struct Backward {
  std::vector<int32_t> layers;  ///< in order of first appearance
  std::vector<TaskId> wgrads;
  bool has_begun = false;
};

void note(const Program& program, TaskId id, Backward& backward) {
  const Task& task = program.tasks[id.index()];
  const Phase phase = task.label.phase;
  if (phase != Phase::kDgrad && phase != Phase::kWgrad) {
    return;
  }
  backward.has_begun = true;
  if (backward.layers.empty() || backward.layers.back() != layer_of(task)) {
    backward.layers.push_back(layer_of(task));
  }
  if (phase == Phase::kWgrad) {
    backward.wgrads.push_back(id);
  }
}

/// Adds moves for the weight gradients that wait until the message has been sent.
void delay(const Program& program, const DelayWgradOptions& options, Backward& backward,
           TaskId message, std::vector<LateMove>& moves) {
  std::vector<int32_t>& layers = backward.layers;
  std::ranges::sort(layers);
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  const auto num_delayed = std::min<size_t>(
      layers.size(), static_cast<size_t>(std::max<int64_t>(options.num_layers, 0)));
  if (num_delayed == 0) {
    return;
  }
  const int32_t last_delayed = layers[num_delayed - 1];
  for (const TaskId id : backward.wgrads) {
    const Task& task = program.tasks[id.index()];
    const bool is_delayed =
        options.whole_layers || (layer_of(task) != kHead && !is_feed_forward(program, task));
    if (layer_of(task) <= last_delayed && is_delayed) {
      moves.push_back({id, message});
    }
  }
}

OverlapChange delay(int64_t layers, bool whole) {
  return [=](OverlapConfig& overlap) {
    overlap.overlap_p2p_wgrad_delayed_layer_number = layers;
    overlap.overlap_p2p_with_transformer_layer_wgrad = whole;
  };
}

std::vector<OverlapAxis> delay_axes(const RunConfig& config, const AxisLimits& limits) {
  if (config.parallel.pipeline == 1) {
    return {};
  }
  OverlapAxis axis{"delayed weight gradients", {delay(0, false)}, AxisPlace::kStageWgrads};
  for (const int64_t layers : {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{8}}) {
    const int64_t capped = std::min(layers, limits.layers_of_job);
    axis.choices.push_back(delay(capped, false));
    axis.choices.push_back(delay(capped, true));
    if (layers >= limits.layers_of_job) {
      break;
    }
  }
  return {axis};
}

}  // namespace

PassResult delay_wgrad(Program program, const DelayWgradOptions& options) {
  std::unordered_map<uint64_t, Backward> backwards;
  std::vector<LateMove> moves;
  int64_t num_messages = 0;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    if (task.label.microbatch < 0) {
      continue;
    }
    Backward& backward = backwards[microbatch_key(task.label)];
    note(program, TaskId(i), backward);
    if (backward.has_begun && communicates_as(program.spec(task), CommOp::kSend) &&
        is_stage_message(program, task)) {
      ++num_messages;
      delay(program, options, backward, TaskId(i), moves);
    }
  }
  return move_late(std::move(program), moves,
                   fmt::format("weight gradients behind {} backward messages", num_messages));
}

Pass delay_wgrad_pass(const PipelineOptions& options) {
  return {.name = "delay_wgrad",
          .summary =
              "Runs weight gradients after the message to the previous stage has left, so that "
              "they hide it.",
          .run = run_of(delay_wgrad, options),
          .only_overlaps = true,
          .keys = {"overlap.overlap_p2p_wgrad_delayed_layer_number",
                   "overlap.overlap_p2p_with_transformer_layer_wgrad"},
          .read_keys =
              [](const OverlapConfig& overlap, PipelineOptions& its) {
                its.of<DelayWgradOptions>() = {
                    .num_layers = overlap.overlap_p2p_wgrad_delayed_layer_number,
                    .whole_layers = overlap.overlap_p2p_with_transformer_layer_wgrad};
              },
          .axes = delay_axes};
}

}  // namespace braid
