#include "train/checkpoint_writer.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "config/validate.h"
#include "state/checkpointing.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

SaveOptions options_of(const CheckpointWriter::Save& save, ProcessGroup& processes) {
  SaveOptions options = save.options;
  options.together = {.leads = processes.leads(),
                      .all_gather = [&processes](std::string_view name, std::string bytes) {
                        return processes.all_gather(name, std::move(bytes));
                      }};
  if (save.adjust) {
    save.adjust(options);
  }
  return options;
}

std::string write(const CheckpointWriter::Save& save, const RunPlan& plan,
                  const DeviceShards& shards, ProcessGroup& processes) {
  if (save.before) {
    save.before();
  }
  return save_model_state(plan.run.config.checkpoint.folder, save.progress, plan.layout,
                          plan.run.model, shards.shards(), options_of(save, processes));
}

}  // namespace

CheckpointWriter::CheckpointWriter(Engine& engine, ProcessGroup& processes)
    : engine_(engine), processes_(processes) {
  if (copies_state(engine.plan().run.config)) {
    copies_.emplace(engine.state_shards());
    copies_->prepare_copy();
  }
}

void CheckpointWriter::save(Save save) {
  check(!running_.valid(), "two saves at a time");
  const Clock::time_point begin = Clock::now();
  const RunPlan& plan = engine_.plan();
  if (save.waits || !copies_) {
    std::promise<Saved> ended;
    std::string path = write(save, plan, engine_.state_shards(), processes_);
    ended.set_value(
        {.path = std::move(path), .seconds = seconds_since(begin), .copy_seconds = std::nullopt});
    running_ = ended.get_future();
    return;
  }
  copies_->take_copy();
  const double copy_seconds = seconds_since(begin);
  running_ =
      std::async(std::launch::async, [this, &plan, begin, copy_seconds, save = std::move(save)] {
        std::string path = write(save, plan, *copies_, processes_);
        return Saved{
            .path = std::move(path), .seconds = seconds_since(begin), .copy_seconds = copy_seconds};
      });
}

std::optional<CheckpointWriter::Saved> CheckpointWriter::finished() {
  constexpr std::chrono::seconds kNow{0};
  return running_.valid() && running_.wait_for(kNow) == std::future_status::ready ? finish()
                                                                                  : std::nullopt;
}

std::optional<CheckpointWriter::Saved> CheckpointWriter::finish() {
  return running_.valid() ? std::optional(running_.get()) : std::nullopt;
}

}  // namespace braid
