#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "config/run_config.h"
#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"
#include "data/tokenizer.h"

namespace braid {

struct TrainingDataOptions {
  std::string cache_folder;                         ///< for the tokens of text files
  int64_t num_samples = 0;                          ///< of the whole run
  std::function<void(const std::string&)> message;  ///< gets lines for people
};

/// Throws ConfigError or DataError unless data.train names an existing source; does not open it.
void check_source(const RunConfig& config);

/// The data of a run: token file, and the order of its training and held-out parts. Construction
/// takes time and memory in proportion to the samples of the run, so checks that may reject a run
/// come first.
class TrainingData {
 public:
  /// Opens data.train. A text file (anything that is not a .bin/.idx pair) is tokenized once into
  /// `cache_folder`, one document per paragraph, and reused as long as text, tokenizer and options
  /// stay the same; `message` gets a line when it is tokenized. `config` must be resolved, and
  /// `tokenizer` must be its tokenizer. Throws ConfigError or DataError.
  TrainingData(const RunConfig& config, const Tokenizer& tokenizer,
               const TrainingDataOptions& options);

  /// As IndexedDataset::identity, of the token file.
  std::string identity() const { return tokens_->identity(); }
  const GptDataset& training() const { return *training_; }
  /// Null if there is no evaluation (eval.interval = 0).
  const GptDataset* held_out() const { return held_out_.get(); }
  /// Nats per token of the held-out tokens without context; 0 without held-out data.
  double held_out_entropy() const { return held_out_entropy_; }

 private:
  std::unique_ptr<IndexedDataset> tokens_;
  std::unique_ptr<GptDataset> training_;
  std::unique_ptr<GptDataset> held_out_;
  double held_out_entropy_ = 0;
};

}  // namespace braid
