#include "train/training_data.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/philox.h"
#include "base/text.h"
#include "config/blend.h"
#include "config/choices.h"
#include "data/blended_dataset.h"
#include "data/packed_dataset.h"
#include "data/tokenize.h"
#include "data/unigram_entropy.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

uint64_t hash_of(const std::string& path) {
  const PieceFile file(path);
  SequentialReader reader(file);
  uint64_t hash = stable_hash(nullptr, 0);
  for (auto bytes = reader.next(); !bytes.empty(); bytes = reader.next()) {
    hash = stable_hash(reinterpret_cast<const char*>(bytes.data()), bytes.size(), hash);
  }
  return hash;
}

/// A key that changes whenever the tokens could change: with the bytes of text and tokenizer, and
/// the options.
std::string content_key(const RunConfig& config, const std::string& source,
                        const Tokenizer& tokenizer) {
  const std::string identity = tokenizer_identity(tokenizer);
  return fmt::format("{:016x}_{:016x}_{}", hash_of(source),
                     stable_hash(identity.data(), identity.size()),
                     config.data.append_eod ? "eod" : "plain");
}

std::string tokenized(const RunConfig& config, const std::string& source,
                      const Tokenizer& tokenizer, const TrainingDataOptions& to) {
  if (is_dataset(source)) {
    return dataset_prefix(source);
  }
  const std::string prefix =
      fmt::format("{}/tokens_{}", to.cache_folder, content_key(config, source, tokenizer));
  if (!fs::exists(prefix + ".idx")) {
    std::error_code error;
    fs::create_directories(to.cache_folder, error);
    if (error) {
      throw_data_error("cannot make the folder '{}': {}", to.cache_folder, error.message());
    }
    TokenizeOptions options;
    options.inputs = {source};
    options.output_prefix = prefix;
    options.append_eod = config.data.append_eod;
    options.documents.text.document_break = DocumentBreak::kBlankLines;
    const TokenizeStatistics statistics = tokenize_files(tokenizer, options);
    to.message(fmt::format("data     {}: {} documents, {} tokens of {}", source,
                           format_count(statistics.documents), format_count(statistics.tokens),
                           tokenizer.name()));
  }
  return prefix;
}

/// The sources of a run with their weights.
std::vector<BlendEntry> sources_of(const DataConfig& data) {
  return data.blend.empty() ? std::vector<BlendEntry>{{.weight = 1, .path = data.train}}
                            : parse_blend(data.blend);
}

/// The samples of an evaluation.
int64_t held_out_samples(const RunConfig& config) {
  return config.eval.batches * config.train.global_batch;
}

/// Reads a little of each of many sequences, so that a corpus of another tokenizer is found before
/// the run and not where one of its ids happens to come. Throws DataError as IndexedDataset::read.
void check_vocabulary(const IndexedDataset& tokens, int32_t vocabulary_size) {
  constexpr int64_t kSequences = 64;
  constexpr int64_t kTokens = 1024;
  std::vector<int32_t> read;
  const int64_t count = tokens.index().num_sequences();
  for (int64_t i = 0; i < std::min(count, kSequences); ++i) {
    const int64_t sequence = i * count / std::min(count, kSequences);
    const int64_t length = tokens.index().length(sequence);
    read.resize(static_cast<size_t>(std::min(length, kTokens)));
    tokens.read(sequence, 0, read, vocabulary_size);
  }
}

/// Throws ConfigError if nothing ends the documents that are to be separate: of the first ones of
/// a corpus, some must end with the tokenizer's end of a document.
void check_document_ends(const TrainingCorpus& corpus, const Tokenizer& tokenizer) {
  constexpr int64_t kSequences = 64;
  const std::optional<int32_t> eod = tokenizer.eod_id();
  if (!eod) {
    throw_config_error(
        "data.document_mask = true: {} has no token that ends a document; set data.document_mask = "
        "false, or give a tokenizer that has one",
        tokenizer.name());
  }
  const SequenceIndex& index = corpus.tokens->index();
  const int64_t count = std::min(index.num_sequences(), kSequences);
  for (int64_t i = 0; i < count; ++i) {
    std::array<int32_t, 1> last{};
    if (index.length(i) > 0) {
      corpus.tokens->read(i, index.length(i) - 1, last, tokenizer.vocabulary_size());
    }
    if (last.front() == *eod && index.length(i) > 0) {
      return;
    }
  }
  throw_config_error(
      "data.document_mask = true: none of the first {} documents of '{}' ends with token {}, the "
      "tokenizer's end of a document; make the file with `braid tokenize` without --no-eod, or set "
      "data.append_eod = true for a text file",
      count, corpus.source, *eod);
}

/// Writers choose the type of a token by the size of the vocabulary, so one tokenizer gives one
/// type, that of `first`. Messages name `key`, which has the corpora.
void check_token_types(const TrainingCorpus& first, std::span<const TrainingCorpus> corpora,
                       std::string_view key) {
  for (const TrainingCorpus& corpus : corpora) {
    const TokenType type = corpus.tokens->index().token_type();
    if (type != first.tokens->index().token_type()) {
      throw_config_error(
          "{}: '{}' has {} tokens and '{}' has {}: they were made with different tokenizers; make "
          "both with data.tokenizer (braid tokenize)",
          key, first.source, token_type_name(first.tokens->index().token_type()), corpus.source,
          token_type_name(type));
    }
  }
}

/// "data     0.7000 from web: 3500 samples, 1.32 epochs of 21.2K tokens"; `samples`: the corpus's.
std::string corpus_line(std::string_view what, const TrainingCorpus& corpus,
                        const CorpusSamples& samples, int64_t num_samples) {
  const int64_t tokens = samples.tokens_per_epoch();
  const double epochs =
      static_cast<double>(num_samples * samples.sequence_tokens()) / static_cast<double>(tokens);
  return fmt::format("data     {}{:.4f} from {}: {} samples, {:.2f} epochs of {} tokens", what,
                     corpus.share, corpus.source, num_samples, epochs, format_count(tokens));
}

std::vector<double> shares_of(std::span<const TrainingCorpus> corpora) {
  std::vector<double> shares;
  for (const TrainingCorpus& corpus : corpora) {
    shares.push_back(corpus.share);
  }
  return shares;
}

void open_mask(TrainingCorpus& corpus, const TrainingDataOptions& options) {
  const std::string prefix = mask_prefix(corpus.tokens->prefix());
  if (is_dataset(prefix)) {
    corpus.mask = std::make_unique<IndexedDataset>(prefix);
    options.message(fmt::format("data     {}: the loss is that of answers only", corpus.source));
  }
}

/// The samples of a part of a corpus by data.packing.
std::unique_ptr<CorpusSamples> samples_of(const TrainingCorpus& corpus, SequenceRange range,
                                          const RunConfig& config, const Tokenizer& tokenizer,
                                          const GptDatasetOptions& options) {
  if (choice<DocumentPacking>(config.data.packing) == DocumentPacking::kConcatenate) {
    return std::make_unique<GptDataset>(*corpus.tokens, range, options);
  }
  return std::make_unique<PackedDataset>(*corpus.tokens, range, options,
                                         tokenizer.eod_id().value_or(0));
}

/// Throws DataError naming the key unless `source` is a pair of files with a mask.
PairFile open_pair_file(std::string name, std::string_view key, const std::string& source,
                        const RunConfig& config, const Tokenizer& tokenizer) {
  const std::string prefix = dataset_prefix(source);
  if (!is_dataset(source) || !is_dataset(mask_prefix(prefix))) {
    throw_data_error(
        "{} = {}: preference.loss = {} needs {}.bin, {}.idx and their mask; make them with `braid "
        "tokenize --chat TEMPLATE --preference`",
        key, quote(source), quote(config.preference.loss), prefix, prefix);
  }
  PairFile file{.name = std::move(name),
                .source = source,
                .tokens = std::make_unique<IndexedDataset>(prefix),
                .mask = std::make_unique<IndexedDataset>(mask_prefix(prefix))};
  file.pairs = std::make_unique<PreferencePairs>(*file.tokens, *file.mask, config.train.sequence,
                                                 tokenizer.vocabulary_size(),
                                                 tokenizer.eod_id().value_or(0));
  return file;
}

std::string identity_of(const TrainingCorpus& corpus) {
  const std::string tokens = corpus.tokens->identity();
  return corpus.mask ? fmt::format("{}, mask {}", tokens, corpus.mask->identity()) : tokens;
}

/// Token files of sources, their masks and shares, without samples.
std::vector<TrainingCorpus> open_corpora(std::span<const BlendEntry> sources,
                                         const RunConfig& config, const Tokenizer& tokenizer,
                                         const TrainingDataOptions& options) {
  std::vector<double> weights;
  for (const BlendEntry& source : sources) {
    weights.push_back(source.weight);
  }
  const std::vector<double> shares = normalized_weights(weights);
  std::vector<TrainingCorpus> corpora;
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string& path = sources[i].path;
    TrainingCorpus& corpus = corpora.emplace_back(TrainingCorpus{
        .source = path,
        .share = shares[i],
        .tokens = std::make_unique<IndexedDataset>(tokenized(config, path, tokenizer, options))});
    if (config.data.document_mask) {
      check_document_ends(corpus, tokenizer);
    }
    open_mask(corpus, options);
  }
  return corpora;
}

/// A part of the run's samples.
struct PartOptions {
  std::string name;  ///< for messages
  SequenceRange range;
  int64_t num_samples = 0;
};

std::unique_ptr<CorpusSamples> open_part(const TrainingCorpus& corpus, PartOptions part,
                                         const RunConfig& config, const Tokenizer& tokenizer) {
  return samples_of(corpus, part.range, config, tokenizer,
                    {.name = std::move(part.name),
                     .sequence_tokens = config.train.sequence,
                     .num_samples = part.num_samples,
                     .seed = static_cast<uint64_t>(config.data.seed),
                     .vocabulary_size = tokenizer.vocabulary_size(),
                     .mask = corpus.mask.get()});
}

SequenceRange all_of(const TrainingCorpus& corpus) {
  return {0, corpus.tokens->index().num_sequences()};
}

std::string identity_of(std::span<const TrainingCorpus> corpora) {
  std::vector<std::string> parts;
  for (const TrainingCorpus& corpus : corpora) {
    parts.push_back(fmt::format("{} of {}", corpus.share, identity_of(corpus)));
  }
  return join(parts, "; ");
}

void check_exists(const std::string& source, std::string_view key) {
  if (!is_dataset(source) && !fs::is_regular_file(source)) {
    const std::string prefix = dataset_prefix(source);
    throw_data_error("{} \"{}\": there is no such text file, and no pair {}.bin and {}.idx", key,
                     source, prefix, prefix);
  }
}

}  // namespace

void check_source(const RunConfig& config) {
  const DataConfig& data = config.data;
  if (data.train.empty() && data.blend.empty()) {
    throw_config_error(
        "data.train: not given; set it to a text file or to the prefix of a .bin/.idx pair, or "
        "data.blend to several of them");
  }
  for (const BlendEntry& entry : sources_of(data)) {
    check_exists(entry.path, data.blend.empty() ? "data.train =" : "data.blend:");
  }
  for (const BlendEntry& entry : parse_blend(data.valid, "data.valid")) {
    check_exists(entry.path, "data.valid:");
  }
}

TrainingData::TrainingData(const RunConfig& config, const Tokenizer& tokenizer,
                           const TrainingDataOptions& options) {
  check_source(config);
  if (choice<PreferenceChoice>(config.preference.loss) != PreferenceChoice::kNone) {
    open_pairs(config, tokenizer, options);
    return;
  }
  corpora_ = open_corpora(sources_of(config.data), config, tokenizer, options);
  open_parts(config, tokenizer, options);
  if (config.data.blend.empty()) {
    training_ = corpora_.front().training.get();
    held_out_ = corpora_.front().held_out.get();
  } else {
    check_token_types(corpora_.front(), corpora_, "data.blend");
    blend(config, options);
  }
  if (!config.data.valid.empty() && config.eval.interval > 0) {
    open_validation(config, tokenizer, options);
  }
  if (held_out_ != nullptr) {
    std::vector<MixturePart> parts;
    for (const TrainingCorpus& corpus : validation_.empty() ? corpora_ : validation_) {
      parts.push_back(
          {.dataset = *corpus.tokens, .range = corpus.held_out_range, .share = corpus.share});
    }
    held_out_entropy_ = unigram_entropy(parts);
  }
}

void TrainingData::open_pairs(const RunConfig& config, const Tokenizer& tokenizer,
                              const TrainingDataOptions& options) {
  const bool has_file = !config.preference.held_out.empty();
  pair_files_.push_back(
      open_pair_file("reference", "data.train", config.data.train, config, tokenizer));
  if (has_file) {
    pair_files_.push_back(open_pair_file("held_out_reference", "preference.held_out",
                                         config.preference.held_out, config, tokenizer));
  }
  for (const PairFile& file : pair_files_) {
    options.message(fmt::format("data     {}: {}", file.source, file.pairs->describe()));
  }
  const auto part = [&](PairFile& file, std::string name, SequenceRange range, int64_t samples) {
    return file.samples
        .emplace_back(std::make_unique<PreferenceDataset>(
            *file.pairs, range,
            GptDatasetOptions{.name = std::move(name),
                              .sequence_tokens = config.train.sequence,
                              .num_samples = samples,
                              .seed = static_cast<uint64_t>(config.data.seed)}))
        .get();
  };
  PairFile& first = pair_files_.front();
  const SequenceRange all{0, first.pairs->num_pairs()};
  const DatasetSplit split = split_sequences(config.data.split, all.size());
  training_ = part(first, "training", has_file ? all : split[0], options.num_samples);
  if (config.eval.interval > 0) {
    PairFile& last = pair_files_.back();
    held_out_ =
        part(last, "validation", has_file ? SequenceRange{0, last.pairs->num_pairs()} : split[1],
             held_out_samples(config));
  }
}

std::string PairFile::identity() const {
  return fmt::format("{}, mask {}", tokens->identity(), mask->identity());
}

void PairFile::set_reference(const PreferenceDataset::Reference& reference) {
  for (const std::unique_ptr<PreferenceDataset>& part : samples) {
    part->set_reference(reference);
  }
}

/// The training and held-out samples of each corpus; with data.valid, all of it is training data. A
/// lone data.train has the samples of the run themselves, those of a blend a surplus, as in
/// Megatron-LM.
void TrainingData::open_parts(const RunConfig& config, const Tokenizer& tokenizer,
                              const TrainingDataOptions& options) {
  const int64_t num_samples = options.num_samples;
  const bool blends = !config.data.blend.empty();
  const bool splits = config.data.valid.empty();
  const auto parts_of = [&](int64_t total) {
    return blends ? samples_per_corpus(shares_of(corpora_), total) : std::vector<int64_t>{total};
  };
  const std::vector<int64_t> training = parts_of(num_samples);
  const std::vector<int64_t> held_out = parts_of(held_out_samples(config));
  for (size_t i = 0; i < corpora_.size(); ++i) {
    TrainingCorpus& corpus = corpora_[i];
    if (blends) {
      check_vocabulary(*corpus.tokens, tokenizer.vocabulary_size());
    }
    const DatasetSplit split =
        splits ? split_sequences(config.data.split, corpus.tokens->index().num_sequences())
               : DatasetSplit{all_of(corpus)};
    corpus.training =
        open_part(corpus, {.name = "training", .range = split[0], .num_samples = training[i]},
                  config, tokenizer);
    if (const auto* packed = dynamic_cast<const PackedDataset*>(corpus.training.get())) {
      options.message(fmt::format("data     {}: {}", corpus.source, packed->describe()));
    }
    if (splits && config.eval.interval > 0) {
      corpus.held_out_range = split[1];
      corpus.held_out =
          open_part(corpus, {.name = "validation", .range = split[1], .num_samples = held_out[i]},
                    config, tokenizer);
    }
  }
}

/// Sources of data.valid, always as a blend: one of one source has its samples in their own order.
void TrainingData::open_validation(const RunConfig& config, const Tokenizer& tokenizer,
                                   const TrainingDataOptions& options) {
  validation_ =
      open_corpora(parse_blend(config.data.valid, "data.valid"), config, tokenizer, options);
  check_token_types(corpora_.front(), validation_, "data.valid");
  const std::vector<double> shares = shares_of(validation_);
  const std::vector<int64_t> counts = samples_per_corpus(shares, held_out_samples(config));
  std::vector<const SampleSource*> parts;
  for (size_t i = 0; i < validation_.size(); ++i) {
    TrainingCorpus& corpus = validation_[i];
    check_vocabulary(*corpus.tokens, tokenizer.vocabulary_size());
    corpus.held_out_range = all_of(corpus);
    corpus.held_out = open_part(
        corpus, {.name = "validation", .range = corpus.held_out_range, .num_samples = counts[i]},
        config, tokenizer);
    parts.push_back(corpus.held_out.get());
  }
  auto blended =
      std::make_unique<BlendedDataset>(std::move(parts), shares, held_out_samples(config));
  for (size_t i = 0; i < validation_.size(); ++i) {
    options.message(corpus_line("validation ", validation_[i], *validation_[i].held_out,
                                blended->samples_of(i)));
  }
  held_out_ = blended.get();
  blends_.push_back(std::move(blended));
}

void TrainingData::blend(const RunConfig& config, const TrainingDataOptions& options) {
  const auto blended = [&](auto member, int64_t num_samples) {
    std::vector<const SampleSource*> parts;
    for (const TrainingCorpus& corpus : corpora_) {
      parts.push_back((corpus.*member).get());
    }
    return std::make_unique<BlendedDataset>(std::move(parts), shares_of(corpora_), num_samples);
  };
  auto training = blended(&TrainingCorpus::training, options.num_samples);
  for (size_t i = 0; i < corpora_.size(); ++i) {
    options.message(corpus_line("", corpora_[i], *corpora_[i].training, training->samples_of(i)));
  }
  training_ = training.get();
  blends_.push_back(std::move(training));
  if (corpora_.front().held_out != nullptr) {
    blends_.push_back(blended(&TrainingCorpus::held_out, held_out_samples(config)));
    held_out_ = blends_.back().get();
  }
}

std::string TrainingData::identity() const {
  if (!pair_files_.empty()) {
    return pair_files_.front().identity();
  }
  if (training_ == corpora_.front().training.get()) {  // no blend
    return identity_of(corpora_.front());
  }
  return identity_of(corpora_);
}

std::string TrainingData::validation_identity() const {
  return identity_of(validation_);
}

std::string TrainingData::order() const {
  if (!pair_files_.empty()) {
    return pair_files_.front().samples.front()->order();
  }
  std::vector<std::string> parts;
  for (const TrainingCorpus& corpus : corpora_) {
    parts.push_back(corpus.training->order());
  }
  return join(parts, "; ");
}

}  // namespace braid
