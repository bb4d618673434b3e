#include "backends/cuda/steps_in_flight.h"

#include <algorithm>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/step_enqueuer.h"
#include "base/errors.h"
#include "comm/transport.h"

namespace braid {

StepsInFlight::StepsInFlight(std::span<const Program> programs,
                             const RankCommunication& communication, int64_t timeout_ns)
    : programs_(programs),
      communication_(communication),
      timeout_(timeout_ns),
      histories_(programs.size()) {
  for (Step& step : steps_) {
    step.ended = CudaEvent(EventTiming::kNone);
  }
}

void StepsInFlight::add(size_t program_index) {
  Step& step = steps_[static_cast<size_t>(num_launched_ % kMost)];
  step.program_index = program_index;
  step.number = num_launched_;
  step.launched = Clock::now();
  step.range.begin(
      [&] { return fmt::format("step {} of {}", step.number, programs_[program_index].name); });
  ++num_launched_;
}

void StepsInFlight::mark_end(cudaStream_t stream) {
  BRAID_CUDA_CHECK(cudaEventRecord(newest().ended, stream));
}

/// After what time a step must be stuck.
std::optional<std::chrono::nanoseconds> StepsInFlight::patience(const History& history) const {
  if (timeout_.count() <= 0) {
    return std::nullopt;
  }
  constexpr int kMargin = 10;
  return history.num_ended < 2 ? kMargin * timeout_ : timeout_ + kMargin * history.longest;
}

std::string StepsInFlight::describe(const Step& step) const {
  const Program& program = programs_[step.program_index];
  return fmt::format("rank {}, step {} of program {}", program.rank, step.number, program.name);
}

void StepsInFlight::wait_on_device(const Step& step) const {
  const auto begin = Clock::now();
  try {
    if (!communication_.wait(step.ended, patience(histories_[step.program_index]))) {
      const std::chrono::duration<double> waited = Clock::now() - begin;
      throw TaskError(fmt::format(
          "{} has not ended after {:.3g} s: this rank or one that it communicates with is stuck "
          "(runtime.timeout_s is the limit, beside ten times the longest step before)",
          describe(step), waited.count()));
    }
  } catch (const AbortedError& error) {
    throw AbortedError(fmt::format("{}: {}", describe(step), error.what()));
  }
}

/// A step begins when it was launched, or when the one in front of it has ended, as far as the host
/// knows.
void StepsInFlight::wait_for_oldest() {
  Step& step = oldest();
  wait_on_device(step);
  step.range.end();
  const auto begin = std::max(step.launched, last_end_);
  last_end_ = Clock::now();
  History& history = histories_[step.program_index];
  ++history.num_ended;
  history.longest = std::max<std::chrono::nanoseconds>(history.longest, last_end_ - begin);
}

}  // namespace braid
