#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace braid {

/// Means over the pairs of a step or an evaluation, of a run with preference.loss.
struct PreferenceRecord {
  double chosen_reward = 0;  ///< beta * (log-probability of the answer - that in the reference)
  double rejected_reward = 0;
  double accuracy = 0;  ///< share of the pairs whose preferred answer has the larger reward
  double chosen_logp = 0;
  double rejected_logp = 0;

  double margin() const { return chosen_reward - rejected_reward; }

  friend PreferenceRecord operator+(const PreferenceRecord& a, const PreferenceRecord& b) {
    return {.chosen_reward = a.chosen_reward + b.chosen_reward,
            .rejected_reward = a.rejected_reward + b.rejected_reward,
            .accuracy = a.accuracy + b.accuracy,
            .chosen_logp = a.chosen_logp + b.chosen_logp,
            .rejected_logp = a.rejected_logp + b.rejected_logp};
  }
  friend PreferenceRecord operator/(const PreferenceRecord& a, double b) {
    return {.chosen_reward = a.chosen_reward / b,
            .rejected_reward = a.rejected_reward / b,
            .accuracy = a.accuracy / b,
            .chosen_logp = a.chosen_logp / b,
            .rejected_logp = a.rejected_logp / b};
  }
  friend bool operator==(const PreferenceRecord&, const PreferenceRecord&) = default;
};

/// The record of a finished step.
struct StepRecord {
  int64_t step = 0;  ///< from 1
  double loss = 0;   ///< mean over the global batch, nats per token
  double learning_rate = 0;
  double grad_norm = 0;
  double step_ms = 0;
  double tokens_per_s = 0;           ///< over all ranks
  double tflops_per_s_per_rank = 0;  ///< model FLOPs
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  int64_t skipped_steps = 0;  ///< since the start of the run
  int64_t nan_steps = 0;      ///< since the start of the run
  int64_t reruns = 0;         ///< times that this step ran again for more room for rows of experts
  std::vector<double> mtp_losses = {};  ///< of each depth of multi-token prediction, like `loss`
  std::optional<double> z_loss = {};    ///< mean squared log-sum-exp of logits; none: not computed
  std::optional<PreferenceRecord> preference = {};
};

/// Steps ran again because a device may have failed.
struct RerunRecord {
  int64_t step = 0;       ///< the last of them
  int64_t from_step = 0;  ///< the step to which the run went back
  std::string message;    ///< of the trainer: the reason, or what came of it
};

/// A held-out loss, measured with the weights after `step` (0: before the first step).
struct EvalRecord {
  int64_t step = 0;
  double loss = 0;  ///< nats per token
  std::optional<PreferenceRecord> preference = {};
};

/// What FP8 copies of one factor of the products at one place lost in a step, over all ranks.
struct Fp8Record {
  int64_t step = 0;
  std::string site;      ///< "layers.0.attention.qkv"
  std::string factor;    ///< "x", "w" or "dy"
  double amax = 0;       ///< the largest magnitude before rounding
  double flushed = 0;    ///< share of elements that were not zero and became zero, 0 to 1
  double saturated = 0;  ///< share of finite elements beyond the largest FP8 number x scale, 0 to 1
};

/// The rows that came to ranks with different experts, beside their room, in a layer; or to
/// experts, beside the rows that each takes.
struct RoomRecord {
  int64_t dropped_rows = 0;  ///< without room, over all microbatches and ranks
  double dropped_share = 0;  ///< of all rows
  double room_used = 0;      ///< most rows that came to a rank or expert at once / its room
  /// The least moe.capacity, or moe.expert_capacity, with room for all rows of the step.
  double sufficient_capacity = 0;
  bool of_experts = false;  ///< with moe.expert_capacity
};

/// How a step's rows were divided among the experts of a layer, over all microbatches and ranks. A
/// token has a row for each of its experts. All but the losses and the counts are NaN if there were
/// no rows.
struct ExpertRecord {
  int64_t step = 0;
  std::string layer;         ///< "layers.0"
  double max_violation = 0;  ///< most rows of an expert / mean - 1
  double min_ratio = 0;      ///< fewest rows of an expert / mean
  double std_ratio = 0;      ///< standard deviation over the experts / mean
  double entropy = 0;        ///< of the shares of rows / log of the number of experts: 1 is equal
  int64_t dead = 0;          ///< experts without a row
  double balance_loss = 0;   ///< without its coefficient: 1 is equal; NaN: there is none
  double sequence_balance_loss = 0;     ///< the same inside each sequence
  double z_loss = 0;                    ///< the same: mean squared log-sum-exp of the logits
  std::vector<int64_t> counts = {};     ///< rows by expert; empty: not recorded
  std::optional<RoomRecord> room = {};  ///< none: nothing bounds the rows
};

}  // namespace braid
