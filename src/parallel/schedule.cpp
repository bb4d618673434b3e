#include "parallel/schedule.h"

#include "base/errors.h"

namespace braid {

Schedule single_stage_schedule(int64_t num_microbatches) {
  check(num_microbatches >= 1, "a schedule needs a microbatch, got {}", num_microbatches);
  Schedule schedule;
  for (int32_t microbatch = 0; microbatch < num_microbatches; ++microbatch) {
    schedule.push_back({JobKind::kForward, microbatch, 0});
    schedule.push_back({JobKind::kBackward, microbatch, 0});
  }
  return schedule;
}

std::string to_string(const Schedule& schedule) {
  std::string text;
  for (const Job& job : schedule) {
    text +=
        fmt::format("{}{}{}.{}", text.empty() ? "" : " ", job.kind == JobKind::kForward ? 'F' : 'B',
                    job.microbatch, job.virtual_stage);
  }
  return text;
}

}  // namespace braid
