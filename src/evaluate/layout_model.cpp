#include "evaluate/layout_model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "base/errors.h"
#include "config/choices.h"
#include "config/validate.h"
#include "launch/agreement.h"
#include "train/training_setup.h"

namespace braid {
namespace {

/// Sequences as samples of a batch. Tokens that are not scored, and what fills a sequence, have no
/// label; so have all of the samples that fill the batch.
class Sequences final : public SampleSource {
 public:
  Sequences(std::span<const ScoredSequence> sequences, int64_t sequence_tokens, int64_t num_samples)
      : sequences_(sequences), sequence_tokens_(sequence_tokens), num_samples_(num_samples) {}

  int64_t sequence_tokens() const override { return sequence_tokens_; }
  int64_t num_samples() const override { return num_samples_; }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const override {
    constexpr int32_t kNoLabel = -1;
    std::ranges::fill(tokens, 0);
    std::ranges::fill(labels, kNoLabel);
    if (sample >= std::ssize(sequences_)) {
      return;
    }
    const ScoredSequence& sequence = sequences_[static_cast<size_t>(sample)];
    for (size_t i = 0; i + 1 < sequence.tokens.size(); ++i) {
      tokens[i] = sequence.tokens[i];
      labels[i] = i + 1 >= sequence.first ? sequence.tokens[i + 1] : kNoLabel;
    }
  }

 private:
  std::span<const ScoredSequence> sequences_;
  int64_t sequence_tokens_;
  int64_t num_samples_;
};

/// A pipeline's schedule wants several microbatches of each rank: two for each stage are enough for
/// all of them.
int64_t least_microbatches(const ParallelConfig& parallel) {
  return parallel.pipeline == 1 ? 1 : 2 * parallel.pipeline;
}

/// What only training reads is as in an empty run file: it needs no memory, and cannot be wrong.
RunConfig without_training(RunConfig config) {
  config.optimizer = {};
  config.optimizer.name = std::string(choice_name(OptimizerKind::kSgd));
  config.optimizer.momentum = 0;  // no moments
  config.data = {.tokenizer = config.data.tokenizer};
  config.eval = {};
  config.checkpoint = {.interval = 0, .at_end = false};
  config.logging = {.run_folder = "none"};  // nothing is written
  const MoeConfig moe = config.moe;
  // A rank that has all experts of its rows has room for all of them.
  const bool exchanges = config.parallel.expert * config.parallel.expert_tensor > 1;
  config.moe = {.capacity = exchanges ? moe.capacity : 0, .exchange = moe.exchange};
  config.runtime.detect_nan = std::string(choice_name(NanCheck::kOff));
  config.runtime.check_replicas = 0;
  config.runtime.rerun_steps = 0;
  const OverlapConfig overlap = config.overlap;
  config.overlap = {.mode = std::string(choice_name(OverlapMode::kOff)),
                    .comm_engine = overlap.comm_engine};
  config.memory = {.recompute = std::string(choice_name(RecomputeChoice::kFull))};
  return config;
}

}  // namespace

RunConfig evaluation_config(RunConfig config, const ModelSpec& model, int64_t context,
                            const Device& device) {
  const int64_t microbatch = config.train.microbatch;
  const int64_t seed = config.train.seed;
  config = without_training(std::move(config));
  config.model.vocabulary = model.vocabulary;
  config.model.mtp_depth = 0;  // of no use here, and it has no loss of pairs
  config.model.mtp_loss_weight = {};
  const bool has_table = model.style.positions == PositionKind::kLearned;
  config.model.max_positions = has_table ? std::optional(model.max_positions) : std::nullopt;
  config.train = {.sequence = context, .microbatch = microbatch + microbatch % 2, .seed = seed};
  config.train.dtype = choice_name(device.backend->dtypes.front());
  config.runtime.device = device.backend->name;
  config.preference = {.loss = std::string(choice_name(PreferenceChoice::kDpo))};
  const ParallelConfig& parallel = config.parallel;
  const int64_t divisor = parallel.tensor * parallel.pipeline * parallel.context;
  const int64_t data = std::max<int64_t>(1, parallel.ranks / std::max<int64_t>(1, divisor));
  config.train.global_batch = data * config.train.microbatch * least_microbatches(parallel);
  return config;
}

LayoutModel::LayoutModel(const RunConfig& config, const ModelSpec& model,
                         const StateSource& weights, const Options& options) {
  validate(config);
  const RunConfig run = resolved(config);
  ProcessGroup& processes = *options.processes;
  agree_on(processes, facts_of_start(run));
  const Device device = device_of_process(run, options.local_process, processes);
  PlannedTraining planned =
      plan_training(run, model.vocabulary, device, processes, {.print = [](std::string_view) {}});
  const RunSpec spec = planned.plan.run;
  engine_ = std::make_unique<Engine>(std::move(planned.plan),
                                     training_engine_options(spec, device, processes));
  engine_->write_state(weights);
}

int64_t LayoutModel::max_tokens() const {
  return engine_->plan().run.config.train.sequence;
}

int64_t LayoutModel::sequences_at_once() const {
  return engine_->plan().run.config.train.global_batch;
}

std::vector<SequenceScore> LayoutModel::score(std::span<const ScoredSequence> sequences) {
  std::vector<SequenceScore> scores;
  const auto at_once = static_cast<size_t>(sequences_at_once());
  for (size_t begin = 0; begin < sequences.size(); begin += at_once) {
    const std::vector<SequenceScore> batch =
        score_batch(sequences.subspan(begin, std::min(at_once, sequences.size() - begin)));
    scores.insert(scores.end(), batch.begin(), batch.end());
  }
  return scores;
}

std::vector<SequenceScore> LayoutModel::score_batch(std::span<const ScoredSequence> sequences) {
  const RunSpec& run = engine_->plan().run;
  const BatchShape shape{.num_ranks = run.config.parallel.data,
                         .num_microbatches = run.num_microbatches,
                         .microbatch = run.microbatch_sequences};
  const Sequences samples(sequences, max_tokens(), shape.samples_per_step());
  StepBatch batch(shape, 0, shape.num_ranks, max_tokens(), 0);
  for (int64_t rank = 0; rank < shape.num_ranks; ++rank) {
    for (int64_t microbatch = 0; microbatch < shape.num_microbatches; ++microbatch) {
      for (int64_t row = 0; row < shape.microbatch; ++row) {
        batch.read_row(samples, rank, microbatch, row);
      }
    }
  }
  const std::vector<float> found = engine_->log_probabilities(batch);
  std::vector<SequenceScore> scores;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (!std::isfinite(found[i])) {
      throw_data_error(
          "the log probability of a sequence of {} tokens is {}: the model's weights are no result "
          "of training, or too large for {}",
          sequences[i].tokens.size(), found[i], dtype_name(run.dtype));
    }
    scores.push_back({.logprob = found[i], .is_greedy = {}});
  }
  return scores;
}

}  // namespace braid
