#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "data/tokenizer.h"
#include "plan/run_plan.h"
#include "runtime/device.h"
#include "runtime/engine.h"
#include "train/training_data.h"

/// What a training run decides before its engine is made, in the order in which it does: what
/// refuses a run at once comes first. Each is called by all processes.
namespace braid {

/// The tokenizer of the run, once it is known that there are data. Throws ConfigError where a
/// process has another configuration than the first, and what `check_source` and `load_tokenizer`
/// throw.
std::unique_ptr<Tokenizer> tokenizer_of_run(const RunConfig& config, ProcessGroup& processes);

/// Throws ConfigError where runtime.device cannot be had, or not by all processes.
Device device_of_process(const RunConfig& config, int local_process, ProcessGroup& processes);

/// The processes that gave the same name as this one (`host_name` of theirs), ascending. Called by
/// all; afterwards each has come as far as this.
std::vector<int> processes_of_host(ProcessGroup& processes, const std::string& host);

/// Receives what a plan is, for the terminal, "\n" included.
struct PlanOutput {
  std::function<void(std::string_view)> print;
  bool progress_bar = false;  ///< through `print`, while overlap settings are tried
};

/// Plans with the overlap and recompute that are chosen, and prints what will happen before
/// anything is allocated. Throws ConfigError where the run cannot be planned, or does not fit into
/// memory, and what agree_on_programs does.
RunPlan plan_training(const RunConfig& config, int64_t tokenizer_vocabulary, const Device& device,
                      ProcessGroup& processes, const PlanOutput& output);

/// The first process makes what is missing in the run folder, then the others find it there.
/// Throws what TrainingData throws.
TrainingData open_training_data(const RunConfig& config, const Tokenizer& tokenizer,
                                ProcessGroup& processes,
                                const std::function<void(const std::string&)>& message);

/// Of this process. `processes` must outlive the engine.
EngineOptions training_engine_options(const RunSpec& run, const Device& device,
                                      ProcessGroup& processes);

}  // namespace braid
