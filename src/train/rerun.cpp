#include "train/rerun.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

}  // namespace

void Rerun::set_start(int64_t step, std::string checkpoint) {
  start_ = step;
  checkpoint_ = std::move(checkpoint);
  results_.clear();
  ran_for_spike_ = false;
  ran_for_copies_ = false;
}

void Rerun::add(int64_t step, const StepResult& result) {
  const Result now{.loss = result.loss, .grad_norm = result.grad_norm};
  const int64_t index = step - start_ - 1;
  if (index < std::ssize(results_)) {
    Result& before = results_[static_cast<size_t>(index)];
    const bool same =
        same_bits(before.loss, now.loss) && same_bits(before.grad_norm, now.grad_norm);
    first_difference_ = same || first_difference_ > 0 ? first_difference_ : step;
    before = now;
  } else if (index < options_.most_steps) {
    results_.push_back(now);
  }
}

std::string Rerun::steps_until(int64_t step) const {
  return step == start_ + 1 ? fmt::format("step {}", step)
                            : fmt::format("steps {} to {}", start_ + 1, step);
}

std::string Rerun::refusal(const RerunCause& cause, int64_t step) const {
  if (options_.most_steps == 0) {
    return "runtime.rerun_steps = 0";
  }
  if (is_running()) {
    return fmt::format("{} run again already", steps_until(running_->last_step));
  }
  if (!cause.of_copies() && !options_.has_same_bits) {
    return "runtime.repeatable = false";
  }
  if (step - start_ > options_.most_steps) {
    return fmt::format("{} steps since {}, more than runtime.rerun_steps = {}", step - start_,
                       start_name(), options_.most_steps);
  }
  if (cause.of_copies() ? ran_for_copies_ : ran_for_spike_ || ran_for_copies_) {
    return fmt::format("steps after {} have run again before", start_name());
  }
  for (const size_t rank : cause.ranks) {
    if (const auto before = healed_.find(rank); before != healed_.end()) {
      return fmt::format("a copy of rank {} differed before, after step {}: its fault persists",
                         rank, before->second);
    }
  }
  return "";
}

std::string Rerun::begin(RerunCause cause, int64_t step) {
  check(refusal(cause, step).empty(), "steps run again although {}", refusal(cause, step));
  (cause.of_copies() ? ran_for_copies_ : ran_for_spike_) = true;
  for (const size_t rank : cause.ranks) {
    healed_[rank] = step;
  }
  first_difference_ = 0;
  running_ = {.cause = std::move(cause), .last_step = step};
  return fmt::format("{}; back to {} to run {} again", running_->cause.finding, start_name(),
                     steps_until(step));
}

std::string Rerun::end(int64_t first_difference) {
  check(is_running(), "no steps run again");
  const Running ended = *std::exchange(running_, std::nullopt);
  const std::string again = fmt::format("{}; {} ran again from {}", ended.cause.finding,
                                        steps_until(ended.last_step), start_name());
  if (ended.cause.of_copies()) {
    return fmt::format("{}, and all copies are equal: the fault was transient and is undone",
                       again);
  }
  if (first_difference == 0) {
    return fmt::format(
        "{} with the same bits: this comes from the data or the learning rate, not from a device",
        again);
  }
  return fmt::format(
      "{}, and step {} was the first with other bits: a device failed; the run goes on with the "
      "new "
      "results",
      again, first_difference);
}

std::string Rerun::progress(int64_t step) const {
  if (!is_running()) {
    return "";
  }
  const std::string bits = first_difference_ == 0
                               ? "with the same bits"
                               : fmt::format("with other bits since step {}", first_difference_);
  return fmt::format("; {} ran again from {} {}", steps_until(step), start_name(), bits);
}

/// With "; " in front; empty if nobody asked for it.
std::string Rerun::why_not_again(const RerunCause& cause, int64_t step) const {
  if (options_.most_steps == 0) {
    return "";
  }
  if (!is_running()) {
    const std::string reason = refusal(cause, step);
    return reason.empty() ? "" : "; no step runs again: " + reason;
  }
  const std::vector<size_t>& before = running_->cause.ranks;
  const bool is_same = std::ranges::any_of(
      cause.ranks, [&](size_t rank) { return std::ranges::find(before, rank) != before.end(); });
  return fmt::format("; {}the steps since {} ran again because {}",
                     is_same ? "the fault is persistent: " : "", start_name(),
                     running_->cause.finding);
}

std::string Rerun::failure(const RerunCause& cause, int64_t step) const {
  const std::string restart =
      checkpoint_.empty() ? "start the run again"
                          : fmt::format("start the run again: it resumes from {}", checkpoint_);
  return fmt::format(
      "{}: memory or arithmetic of a device failed; this state is not saved{}; {}; if it happens "
      "to "
      "this rank again, replace its device",
      cause.finding, why_not_again(cause, step), restart);
}

std::string Rerun::start_name() const {
  return checkpoint_.empty() ? "the initial weights" : checkpoint_;
}

}  // namespace braid
