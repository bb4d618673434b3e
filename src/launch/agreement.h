#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "plan/run_plan.h"
#include "runtime/device.h"

namespace braid {

/// Something that all processes of a run must have in common.
struct Fact {
  std::string name;    ///< "configuration"
  std::string value;   ///< of any length; of several lines, messages have the first that differs
  std::string advice;  ///< what the user can do if values differ
};

/// Checks facts before the run begins. All processes call it with the same names in the same order.
/// If any process has another value than the first, all throw ConfigError with a line per such
/// fact: the first rank that differs, how many more do, and both values.
void agree_on(ProcessGroup& processes, std::span<const Fact> facts);

/// The facts that are known at once: the build of braid, and the configuration.
std::vector<Fact> facts_of_start(const RunConfig& config);
/// The libraries whose results may differ from version to version, or from CPU to CPU.
Fact fact_of_numerics(const Device& device);

/// Checks that all are on the same kind of device.
void agree_on_device(ProcessGroup& processes, const Device& device);

/// Checks that the programs that the processes have planned, one rank each, fit together. Each
/// process sends its communication calls (`shown_calls`); process 0 checks one rank of each kind
/// against the others, and plans it if `plan` lacks it. Throws ConfigError with the first differing
/// call if a process has planned other calls than process 0 would for it, InternalError as
/// `verify_kinds`; both only in process 0. BRAID_VERIFY=0 in process 0 turns the checks off. `plan`
/// as of `plan_for_rank`.
void agree_on_programs(ProcessGroup& processes, const RunPlan& plan);

/// Does this process's part of a run, and then tells the others that it has finished. If the part
/// throws, it tells them why, with its rank, and the exception goes on.
void finish_or_abort(ProcessGroup& processes, const std::function<void()>& part);

}  // namespace braid
