#include "train/start_state.h"

#include <string_view>
#include <utility>

#include "base/byte_fields.h"
#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "plan/run_plan.h"
#include "state/adapted_state.h"
#include "state/checkpointing.h"
#include "state/initial_weights.h"
#include "train/run_folder.h"

namespace braid {
namespace {

ResumePoint found_start(const CheckpointConfig& config) {
  const std::optional<std::string> path = checkpoint_to_resume(config);
  if (!path) {
    return {};
  }
  const LoadedCheckpoint checkpoint(*path, [](std::string_view) { return false; });
  const CheckpointState& state = checkpoint.state();
  return {.checkpoint = *path,
          .count = {.step = state.step,
                    .samples = state.consumed_samples,
                    .tokens = state.consumed_tokens},
          .recorded = recorded_identity(checkpoint),
          .has_averages = has_averages(checkpoint)};
}

std::string bytes_of(const ResumePoint& start) {
  return ByteWriter()
      .text(start.checkpoint)
      .number(start.count.step)
      .number(start.count.samples)
      .number(start.count.tokens)
      .take();
}

ResumePoint start_in(const std::string& bytes) {
  ByteReader reader(bytes);
  ResumePoint start{.checkpoint = reader.text(), .count = {}};
  start.count.step = reader.number<int64_t>();
  start.count.samples = reader.number<int64_t>();
  start.count.tokens = reader.number<int64_t>();
  return start;
}

/// Empty if nothing is refused.
std::string refusal(const std::string& checkpoint, const RunChanges& changes) {
  constexpr size_t kMostShown = 5;
  if (changes.refused.empty()) {
    return "";
  }
  std::vector<std::string> shown = changes.refused;
  if (shown.size() > kMostShown) {
    shown.resize(kMostShown);
    shown.push_back(fmt::format("{} more", changes.refused.size() - kMostShown));
  }
  return fmt::format(
      "the checkpoint {} is of another run: {}; set the former values, give --allow-change {} to "
      "continue it all the same, or set checkpoint.resume = \"none\" or another "
      "logging.run_folder",
      checkpoint, join(shown, "; "), join(changes.keys, ","));
}

/// Of the step before the first: no data has been read, so only the model can differ.
RunIdentity with_recorded_model(RunIdentity now, const RunIdentity& recorded) {
  now.config.model = recorded.config.model;
  return now;
}

/// Frozen weights come from lora.base.
void write_trained(Engine& engine, const StateSource& trained) {
  const RunPlan& plan = engine.plan();
  if (!plan.run.model.lora.is_on()) {
    engine.write_state(trained);
    return;
  }
  const BaseWeights base(plan.run.config.lora.base, plan.run.model,
                         static_cast<uint64_t>(plan.run.config.train.seed));
  engine.write_state(AdaptedState(base, trained, plan.layout));
}

RunChanges changes_since(const ResumePoint& start, const RunIdentity& now,
                         std::span<const std::string> allowed) {
  if (!start.recorded) {
    return {};
  }
  return start.count.step > 0
             ? compare_runs(*start.recorded, now, allowed)
             : compare_runs(with_recorded_model(now, *start.recorded), now, allowed);
}

/// Whether the run's optimizer wrote the moments: those of another mean something else.
bool has_moments_of(const RunConfig& config, const std::string& path) {
  const LoadedCheckpoint recorded(path, [](std::string_view) { return false; });
  return recorded_identity(recorded).config.optimizer.name == config.optimizer.name;
}

}  // namespace

ResumePoint find_start(const RunConfig& config, ProcessGroup& processes) {
  ResumePoint start = processes.leads() ? found_start(config.checkpoint) : ResumePoint{};
  const std::string bytes = processes.broadcast("the checkpoint to resume", bytes_of(start));
  return processes.leads() ? start : start_in(bytes);
}

std::vector<std::string> agree_on_changes(const ResumePoint& start, const RunIdentity& now,
                                          std::span<const std::string> allowed,
                                          ProcessGroup& processes) {
  const RunChanges changes = changes_since(start, now, allowed);
  const std::string refused =
      processes.broadcast("changes of the run", refusal(start.checkpoint, changes));
  if (!refused.empty()) {
    throw ConfigError(refused);
  }
  return changes.lines;
}

std::string averages_note(const ResumePoint& start, double ema) {
  if (ema == 0 || start.count.step == 0 || start.has_averages) {
    return "";
  }
  return fmt::format(
      "optimizer.ema = {}: the checkpoint has no averages of weights; they begin with its weights",
      ema);
}

void write_start_state(Engine& engine, const ResumePoint& start) {
  const RunPlan& plan = engine.plan();
  const auto seed = static_cast<uint64_t>(plan.run.config.train.seed);
  if (start.checkpoint.empty()) {
    write_trained(engine, InitialWeights(plan.layout, plan.run.model, seed));
    return;
  }
  const bool reads_moments = has_moments_of(plan.run.config, start.checkpoint);
  const LoadedCheckpoint checkpoint =
      reads_moments ? LoadedCheckpoint(start.checkpoint)
                    : LoadedCheckpoint(start.checkpoint, is_weight_or_average);
  const CheckpointState& state = checkpoint.state();
  if (state.step != start.count.step || state.consumed_samples != start.count.samples) {
    throw_data_error(
        "the checkpoint {} is of step {} with {} samples here, but of step {} with {} for the "
        "first process; all hosts must have the same folder",
        start.checkpoint, state.step, state.consumed_samples, start.count.step,
        start.count.samples);
  }
  write_trained(engine, CheckpointedState(checkpoint, plan.layout, plan.run.model, reads_moments));
}

}  // namespace braid
