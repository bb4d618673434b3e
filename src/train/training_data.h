#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"
#include "data/preference_dataset.h"
#include "data/tokenizer.h"

namespace braid {

struct TrainingDataOptions {
  std::string cache_folder;                         ///< for the tokens of text files
  int64_t num_samples = 0;                          ///< of the whole run
  std::function<void(const std::string&)> message;  ///< gets lines for people
};

/// Throws ConfigError or DataError unless data.train or data.blend, and data.valid, name existing
/// sources; does not open them.
void check_source(const RunConfig& config);

/// A source of a run's samples: of training, and of its held-out part; or with data.valid of one of
/// both.
struct TrainingCorpus {
  std::string source;  ///< as named in the run file
  double share = 1;    ///< of the samples
  std::unique_ptr<IndexedDataset> tokens;
  std::unique_ptr<IndexedDataset> mask;     ///< of conversations; null: all tokens are labels
  std::unique_ptr<CorpusSamples> training;  ///< null for a source of data.valid
  std::unique_ptr<CorpusSamples> held_out;  ///< null without evaluation
  SequenceRange held_out_range;
};

/// A file of pairs of answers, of a run with preference.loss.
struct PairFile {
  std::string name;    ///< "reference" or "held_out_reference": of what is kept about it
  std::string source;  ///< as named in the run file
  std::unique_ptr<IndexedDataset> tokens;
  std::unique_ptr<IndexedDataset> mask;
  std::unique_ptr<PreferencePairs> pairs;
  std::vector<std::unique_ptr<PreferenceDataset>> samples = {};  ///< of its parts

  std::string identity() const;
  void set_reference(const PreferenceDataset::Reference& reference);
};

/// The data of a run: token files, and the order of training and held-out samples. Construction
/// takes time and memory in proportion to the samples of the run, so checks that may reject a run
/// come first.
class TrainingData {
 public:
  /// Opens data.train, or each source of data.blend, and of data.valid if there are evaluations. A
  /// text file (anything that is not a .bin/.idx pair) is tokenized once into `cache_folder`, one
  /// document per paragraph, and reused as long as text, tokenizer and options stay the same;
  /// `message` gets a line when it is tokenized, and for each source of a blend. A pair with a mask
  /// (`mask_prefix`) has labels only where it is 1. With preference.loss, data.train and
  /// preference.held_out name pairs of answers, and training needs `PairFile::set_reference` of
  /// each first. `config` must be resolved, and `tokenizer` must be its tokenizer. Throws
  /// ConfigError or DataError.
  TrainingData(const RunConfig& config, const Tokenizer& tokenizer,
               const TrainingDataOptions& options);

  /// As IndexedDataset::identity, of the token file, or of all with their shares.
  std::string identity() const;
  /// The same of data.valid; empty without.
  std::string validation_identity() const;
  /// Text that differs for other orders of the training samples of the same data.
  std::string order() const;
  /// In the order of data.blend, or the one source of data.train.
  std::span<const TrainingCorpus> corpora() const { return corpora_; }
  /// In the order of data.valid.
  std::span<const TrainingCorpus> validation() const { return validation_; }
  /// With preference.loss: that of data.train, and of preference.held_out if it is given.
  std::span<PairFile> pair_files() { return pair_files_; }
  const SampleSource& training() const { return *training_; }
  /// Null if there is no evaluation (eval.interval = 0).
  const SampleSource* held_out() const { return held_out_; }
  /// Nats per token of the held-out tokens without context; 0 without held-out data.
  double held_out_entropy() const { return held_out_entropy_; }

 private:
  void open_parts(const RunConfig& config, const Tokenizer& tokenizer,
                  const TrainingDataOptions& options);
  void open_validation(const RunConfig& config, const Tokenizer& tokenizer,
                       const TrainingDataOptions& options);
  void open_pairs(const RunConfig& config, const Tokenizer& tokenizer,
                  const TrainingDataOptions& options);
  void blend(const RunConfig& config, const TrainingDataOptions& options);

  std::vector<TrainingCorpus> corpora_;
  std::vector<TrainingCorpus> validation_;
  std::vector<PairFile> pair_files_;
  std::vector<std::unique_ptr<SampleSource>> blends_;  // of several corpora: training, held-out
  const SampleSource* training_ = nullptr;
  const SampleSource* held_out_ = nullptr;
  double held_out_entropy_ = 0;
};

}  // namespace braid
