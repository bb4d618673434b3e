#pragma once

#include <optional>
#include <string>

#include "plan/run_plan.h"

namespace braid {

/// The moe.capacity that is advised, and that benchmarks have.
inline constexpr double kUsualCapacity = 1.5;

/// Whether ranks that exchange rows have room for all that can come, though with less no row would
/// be lost: steps that lack it would run again.
bool could_have_less_room(const MoeConfig& moe);

/// Whether more rows of experts can come to a rank of the run than it has room for.
bool may_overflow(const RunSpec& run);

/// The run with twice the room for rows of experts, or with room for all of them if that is less;
/// nullopt if it has that already. RunSpec::config keeps the room that the user asked for.
std::optional<RunSpec> with_more_room(const RunSpec& run);

/// The run with room for all rows of experts that can come.
RunSpec with_full_room(const RunSpec& run);

/// The same ranks as in `plan`, of that run, which is `with_more_room` of its run. The programs
/// have the same persistent buffers in the same places. Results of a step are the same bits with
/// any room that suffices.
RunPlan plan_again(const RunPlan& plan, const RunSpec& run);

/// "moe.capacity = 3", or "room for all rows": for people.
std::string describe_room(const RunSpec& run);

}  // namespace braid
