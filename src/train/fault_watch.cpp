#include "train/fault_watch.h"

#include <algorithm>
#include <utility>

#include "base/byte_fields.h"
#include "base/errors.h"

namespace braid {

FaultWatch::FaultWatch(const RuntimeConfig& config, Engine& engine, ProcessGroup& processes,
                       std::function<void(const std::string&)> print)
    : config_(config),
      engine_(engine),
      processes_(processes),
      print_(std::move(print)),
      rerun_({.most_steps = config.rerun_steps, .has_same_bits = config.repeatable}) {}

void FaultWatch::set_start(int64_t step, std::string checkpoint) {
  spikes_at_start_ = spikes_;
  rerun_.set_start(step, std::move(checkpoint));
}

void FaultWatch::add(int64_t step, const StepResult& result) {
  rerun_.add(step, result);
  own_spike_ = std::max(own_spike_, spike_of(result));
  last_result_ = result;
}

FaultWatch::Spike FaultWatch::spike_of(const StepResult& result) {
  const SpikeScore score = spikes_.add(result.loss, result.grad_norm);
  const bool jumps = config_.rerun_spike > 0 && score.loss > config_.rerun_spike;
  if ((jumps || !score.is_finite()) && config_.rerun_steps > 0 && config_.repeatable) {
    return Spike::kRunsAgain;
  }
  return score.is_spike() ? Spike::kCompares : Spike::kNone;
}

char FaultWatch::take_own() {
  return static_cast<char>('0' + static_cast<int>(std::exchange(own_spike_, Spike::kNone)));
}

void FaultWatch::agree(int64_t step, char greatest) {
  const auto spike = static_cast<Spike>(greatest - '0');
  if (spike == Spike::kRunsAgain && spike_ != spike) {
    finding_ = fmt::format("step {}: loss {} with gradient norm {} is a spike", step,
                           last_result_.loss, last_result_.grad_norm);
  }
  spike_ = std::max(spike_, spike);
}

bool FaultWatch::needs_boundary() const {
  return spike_ == Spike::kRunsAgain || (spike_ == Spike::kCompares && compares_copies());
}

std::optional<RerunCause> FaultWatch::reason_to_go_back(int64_t step, bool compares) {
  const Spike spike = std::exchange(spike_, Spike::kNone);
  if (compares_copies() && (compares || spike != Spike::kNone || rerun_.ends_at(step))) {
    RerunCause copies = differing_copies(step);
    if (copies.of_copies()) {
      return copies;
    }
  }
  if (spike != Spike::kRunsAgain || rerun_.is_running()) {
    return std::nullopt;
  }
  RerunCause cause{.finding = finding_};
  const std::string refusal = rerun_.refusal(cause, step);
  if (refusal.empty()) {
    return cause;
  }
  if (std::exchange(refused_at_, rerun_.start()) != rerun_.start()) {  // one line per checkpoint
    print_(fmt::format("rerun    {}; no step runs again: {}", cause.finding, refusal));
  }
  return std::nullopt;
}

/// Throws if copies differ and the run may not go back.
RerunCause FaultWatch::differing_copies(int64_t step) {
  const ReplicaDifference difference = engine_.replica_difference();
  if (!difference.found()) {
    last_equal_ = step;
    return {};
  }
  const std::string before =
      last_equal_ == 0 ? "" : fmt::format(" (all copies were equal after step {})", last_equal_);
  RerunCause cause{.finding = fmt::format("{} after step {}{}", difference.text, step, before),
                   .ranks = difference.ranks};
  if (!rerun_.refusal(cause, step).empty()) {
    throw_device_error("{}", rerun_.failure(cause, step));
  }
  return cause;
}

std::string FaultWatch::begin(const RerunCause& cause, int64_t step) {
  spikes_ = spikes_at_start_;
  last_equal_ = std::min(last_equal_, rerun_.start());
  return rerun_.begin(cause, step);
}

std::string FaultWatch::end() {
  int64_t first = 0;
  const std::string own = ByteWriter().number(rerun_.first_difference()).take();
  for (const std::string& bytes : processes_.all_gather("steps that ran again", own)) {
    const auto one = ByteReader(bytes).number<int64_t>();
    first = first == 0 || (one > 0 && one < first) ? one : first;
  }
  return rerun_.end(first);
}

bool FaultWatch::may_go_back(int64_t step) const {
  const int64_t last_in_flight = step + engine_.max_steps_in_flight() - 1;
  return rerun_.refusal({}, last_in_flight).empty();
}

void FaultWatch::check_copies(int64_t step) {
  if (!compares_copies()) {
    return;
  }
  const RerunCause copies = differing_copies(step);
  if (copies.of_copies()) {
    throw_device_error("{}", rerun_.failure(copies, step));
  }
}

}  // namespace braid
