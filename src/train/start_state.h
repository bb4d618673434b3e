#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "runtime/engine.h"
#include "train/data_count.h"
#include "train/run_identity.h"

namespace braid {

/// The point where a run continues.
struct ResumePoint {
  std::string checkpoint;  ///< the checkpoint that it resumes; empty: the initial weights of
                           ///< train.seed
  DataCount count;         ///< after the last step of the checkpoint
  std::optional<RunIdentity> recorded = std::nullopt;  ///< of the checkpoint, in the first process
  bool has_averages = false;  ///< the checkpoint has those of weights; in the first process

  int64_t first_step() const { return count.step + 1; }
};

/// Finds the checkpoint that checkpoint.resume allows, and reads its state, not its tensors; all
/// processes call it. The first process looks, since all must continue from the same one. Throws
/// what `checkpoint_to_resume` and LoadedCheckpoint do.
ResumePoint find_start(const RunConfig& config, ProcessGroup& processes);

/// Compares the checkpoint's run with this one, in the first process, which tells the others.
/// Returns a line for each change, for people; only in the first process. Throws ConfigError in all
/// processes, of one line, if the run is another one and `allowed` does not name all that changed.
/// A checkpoint before the first step, as of `import_weights`, is of no run: only its model counts.
std::vector<std::string> agree_on_changes(const ResumePoint& start, const RunIdentity& now,
                                          std::span<const std::string> allowed,
                                          ProcessGroup& processes);

/// A line for people if the run keeps averages of weights that the checkpoint of a step does not
/// have, so that they begin with its weights; otherwise empty. In the first process.
std::string averages_note(const ResumePoint& start, double ema);

/// Fills weights and optimizer state; all processes call it. Throws DataError if the checkpoint
/// cannot be read, has other tensors than the model, or is not the one that the first process read.
void write_start_state(Engine& engine, const ResumePoint& start);

}  // namespace braid
