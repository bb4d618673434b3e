#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/worker_pool.h"
#include "generate/causal_model.h"

namespace braid {

/// Tokens of which those from `first` on are scored, each after all tokens before it.
struct ScoredSequence {
  std::span<const int32_t> tokens;  ///< at most max_tokens() + 1
  size_t first = 1;                 ///< 1 <= first < tokens.size()
};

struct SequenceScore {
  double logprob = 0;  ///< sum of ln of the probabilities
  /// Whether each is the likeliest token; nothing where the model does not say it.
  std::optional<bool> is_greedy;
};

/// What scores sequences.
class SequenceScorer {
 public:
  SequenceScorer() = default;
  SequenceScorer(const SequenceScorer&) = delete;
  SequenceScorer& operator=(const SequenceScorer&) = delete;
  virtual ~SequenceScorer() = default;

  /// Most tokens that a sequence may have, without its last one.
  virtual int64_t max_tokens() const = 0;
  /// How many it is best to score in one call.
  virtual int64_t sequences_at_once() const = 0;
  /// One score for each sequence, of which there may be any number. Throws DataError if a
  /// probability is not finite.
  virtual std::vector<SequenceScore> score(std::span<const ScoredSequence> sequences) = 0;
};

/// Scores on one device, one sequence after the other. A model that computes the loss
/// (CausalModelOptions) does so for sequences of full length that are scored from the second token
/// on, and then does not say what is greedy.
class DeviceScorer final : public SequenceScorer {
 public:
  /// Both must outlive this object.
  DeviceScorer(CausalModel& model, WorkerPool& workers) : model_(model), workers_(workers) {}

  int64_t max_tokens() const override { return model_.max_tokens(); }
  int64_t sequences_at_once() const override { return 1; }
  std::vector<SequenceScore> score(std::span<const ScoredSequence> sequences) override;

 private:
  SequenceScore score_one(const ScoredSequence& sequence);

  CausalModel& model_;
  WorkerPool& workers_;
};

}  // namespace braid
