#include "backends/cuda/steps_in_flight.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/device_rank.h"
#include "backends/cuda/step_enqueuer.h"
#include "base/errors.h"
#include "comm/transport.h"

namespace braid {

StepsInFlight::StepsInFlight(const DeviceRank& rank, int64_t timeout_ns, int64_t num_launched)
    : rank_(rank),
      timeout_(timeout_ns),
      histories_(rank.programs().size()),
      num_launched_(num_launched),
      num_waited_(num_launched) {
  for (Step& step : steps_) {
    step.ended = CudaEvent(EventTiming::kTimed);
  }
  last_ended_ = CudaEvent(EventTiming::kTimed);
}

void StepsInFlight::add(size_t program_index) {
  Step& step = steps_[static_cast<size_t>(num_launched_ % kMost)];
  step.program_index = program_index;
  step.number = num_launched_;
  step.launched = Clock::now();
  step.range.begin([&] {
    return fmt::format("step {} of {}", step.number, rank_.programs()[program_index].name);
  });
  ++num_launched_;
}

void StepsInFlight::mark_begin(cudaStream_t stream) {
  if (count() == 1) {
    BRAID_CUDA_CHECK(cudaEventRecord(last_ended_, stream));
    last_end_ = Clock::now();
  }
}

void StepsInFlight::mark_end(cudaStream_t stream) {
  BRAID_CUDA_CHECK(cudaEventRecord(newest().ended, stream));
}

/// The time after which a step must be stuck.
std::optional<std::chrono::nanoseconds> StepsInFlight::patience(const History& history) const {
  if (timeout_.count() <= 0) {
    return std::nullopt;
  }
  constexpr int kMargin = 10;
  return history.num_ended < 2 ? kMargin * timeout_ : timeout_ + kMargin * history.longest;
}

std::string StepsInFlight::describe(const Step& step) const {
  return fmt::format("rank {}, step {} of program {}", rank_.rank(), step.number,
                     rank_.programs()[step.program_index].name);
}

/// The failure of another rank is often known before the device reaches the task that needs it.
/// Returns when a task has waited for a while, the step has ended after all, or it takes too long.
void StepsInFlight::await_standstill(const Step& step) const {
  constexpr std::chrono::milliseconds kStill{200};
  constexpr std::chrono::seconds kLongest{2};
  const auto end = Clock::now() + kLongest;
  std::optional<StepMarks> marks = rank_.marks();
  auto since = Clock::now();
  while (marks && Clock::now() < end && cudaEventQuery(step.ended) == cudaErrorNotReady) {
    std::optional<StepMarks> now = rank_.marks();
    if (now != marks) {
      marks = std::move(now);
      since = Clock::now();
    } else if (std::ranges::any_of(marks->marks, is_begin_mark) && Clock::now() - since > kStill) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string StepsInFlight::describe_oldest(const std::string& reason) const {
  await_standstill(oldest());
  const std::optional<StepMarks> marks = rank_.marks();
  return describe(oldest()) + wait_clause(marks ? rank_.progress(*marks) : RankProgress(), reason);
}

std::string StepsInFlight::describe_stuck(const Step& step,
                                          std::chrono::duration<double> waited) const {
  const std::string where = rank_.marks() ? wait_clause(rank_.rank(), rank_.progress_of_ranks())
                                          : ": this rank or one that it communicates with is stuck";
  return fmt::format(
      "{}{}; the step has not ended after {:.3g} s (runtime.timeout_s is the limit, beside ten "
      "times the longest step before)",
      describe(step), where, waited.count());
}

/// The rank that first detects that the step is stuck tells the others, which then report where
/// they wait.
void StepsInFlight::wait_on_device(const Step& step) const {
  const auto begin = Clock::now();
  try {
    if (!rank_.communication().wait(step.ended, patience(histories_[step.program_index]))) {
      const std::string stuck = describe_stuck(step, Clock::now() - begin);
      if (const std::optional<std::string> fault = rank_.communication().fault()) {
        throw AbortedError(*fault);
      }
      throw TaskError(stuck);
    }
  } catch (const AbortedError& error) {
    throw AbortedError(describe_oldest(error.what()));
  }
}

/// The end of a step on the host's clock: now, unless it `had_ended` before the host checked. The
/// launch of a large graph keeps the host busy during part of the previous step. Then the device's
/// clock gives the time between the ends of the previous step and this one.
StepsInFlight::Clock::time_point StepsInFlight::end_of(const Step& step, bool had_ended) const {
  const Clock::time_point now = Clock::now();
  if (!had_ended) {
    return now;
  }
  float ms = 0;
  BRAID_CUDA_CHECK(cudaEventElapsedTime(&ms, last_ended_, step.ended));
  const std::chrono::duration<double, std::milli> since_last(ms);
  return std::min(now, last_end_ + std::chrono::duration_cast<Clock::duration>(since_last));
}

/// A step begins when it was launched, or when the previous one has ended.
void StepsInFlight::wait_for_oldest() {
  Step& step = oldest();
  const bool had_ended = cudaEventQuery(step.ended) == cudaSuccess;
  wait_on_device(step);
  step.range.end();
  const auto begin = std::max(step.launched, last_end_);
  last_end_ = end_of(step, had_ended);
  lateness_ = Clock::now() - last_end_;
  std::swap(last_ended_, step.ended);
  History& history = histories_[step.program_index];
  ++history.num_ended;
  history.longest = std::max<std::chrono::nanoseconds>(history.longest, last_end_ - begin);
}

}  // namespace braid
