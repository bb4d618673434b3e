#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace braid {

enum class JobKind : uint8_t { kForward, kBackward };

/// One unit of a pipeline schedule: forward or backward of one microbatch through one virtual
/// stage.
struct Job {
  JobKind kind = JobKind::kForward;
  int32_t microbatch = 0;
  int32_t virtual_stage = 0;

  friend bool operator==(const Job&, const Job&) = default;
};

/// Jobs of one rank in order.
using Schedule = std::vector<Job>;

/// One stage: forward and backward of each microbatch in turn, so that the activations of one
/// microbatch live at a time. num_microbatches >= 1.
Schedule single_stage_schedule(int64_t num_microbatches);

/// "F0.0 B0.0 F1.0 B1.0": microbatch, then virtual stage.
std::string to_string(const Schedule& schedule);

}  // namespace braid
