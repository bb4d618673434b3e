#include "train/run_folder.h"

#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folder.h"
#include "config/validate.h"

namespace braid {

namespace fs = std::filesystem;

RunConfig prepare_run(RunConfig config, const ProcessGroup& processes) {
  validate(config);
  if (config.logging.run_folder == "none") {  // a value that other keys have
    throw_config_error(
        "logging.run_folder = \"none\": a run needs a folder, also without checkpoints; set "
        "logging.run_folder = \"./none\" for one of that name");
  }
  config = resolved(std::move(config));
  if (!processes.leads()) {
    return config;
  }
  try {
    make_folders(config.logging.run_folder);
  } catch (const DataError& error) {
    throw_data_error("logging.run_folder = \"{}\": {}", config.logging.run_folder, error.what());
  }
  return config;
}

RunLocks::RunLocks(const RunConfig& config, const ProcessGroup& processes)
    : config_(config), leads_(processes.leads()) {
  if (leads_) {
    run_folder_.emplace("logging.run_folder", config.logging.run_folder);
    if (fs::exists(config.checkpoint.folder)) {
      lock_checkpoints();
    }
  }
}

void RunLocks::lock_checkpoints() {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  const bool writes = checkpoint.interval > 0 || checkpoint.at_end;
  if (!leads_ || !writes || checkpoints_) {
    return;
  }
  make_folders(checkpoint.folder);
  if (!fs::equivalent(config_.logging.run_folder, checkpoint.folder)) {
    checkpoints_.emplace("checkpoint.folder", checkpoint.folder);
  }
}

std::optional<std::string> checkpoint_to_resume(const CheckpointConfig& config) {
  if (config.resume == "none") {
    return std::nullopt;
  }
  if (config.resume == "auto") {
    return find_latest_checkpoint(config.folder);
  }
  if (fs::is_directory(config.resume) && !fs::exists(config.resume + "/state.json")) {
    const std::optional<std::string> latest = find_latest_checkpoint(config.resume);
    if (!latest) {
      throw_data_error("checkpoint.resume = \"{}\": the folder has no checkpoint", config.resume);
    }
    return latest;
  }
  if (!fs::exists(config.resume + "/state.json")) {
    throw_data_error(
        "checkpoint.resume = \"{}\": the folder does not exist; give \"auto\", \"none\", a "
        "checkpoint, or a folder of checkpoints",
        config.resume);
  }
  return config.resume;
}

}  // namespace braid
