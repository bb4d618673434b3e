#include "train/training_data.h"

#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/philox.h"
#include "base/text.h"
#include "data/tokenize.h"
#include "data/unigram_entropy.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

bool is_pair(const std::string& source) {
  const std::string prefix = dataset_prefix(source);
  return fs::exists(prefix + ".idx") || fs::exists(prefix + ".bin");
}

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
std::string content_key(const RunConfig& config, const Tokenizer& tokenizer) {
  const std::string identity = tokenizer_identity(tokenizer);
  return fmt::format("{:016x}_{:016x}_{}", hash_of(config.data.train),
                     stable_hash(identity.data(), identity.size()),
                     config.data.append_eod ? "eod" : "plain");
}

std::string tokenized(const RunConfig& config, const Tokenizer& tokenizer,
                      const std::string& cache_folder,
                      const std::function<void(const std::string&)>& message) {
  check_source(config);
  const std::string& source = config.data.train;
  if (is_pair(source)) {
    return dataset_prefix(source);
  }
  const std::string prefix =
      fmt::format("{}/tokens_{}", cache_folder, content_key(config, tokenizer));
  if (!fs::exists(prefix + ".idx")) {
    std::error_code error;
    fs::create_directories(cache_folder, error);
    if (error) {
      throw_data_error("cannot make the folder '{}': {}", cache_folder, error.message());
    }
    TokenizeOptions options;
    options.input = source;
    options.output_prefix = prefix;
    options.append_eod = config.data.append_eod;
    options.documents.text.document_break = DocumentBreak::kBlankLines;
    const TokenizeStatistics statistics = tokenize_file(tokenizer, options);
    message(fmt::format("data     {}: {} paragraphs, {} tokens of {}", source,
                        format_count(statistics.documents), format_count(statistics.tokens),
                        tokenizer.name()));
  }
  return prefix;
}

}  // namespace

void check_source(const RunConfig& config) {
  const std::string& source = config.data.train;
  if (source.empty()) {
    throw_config_error(
        "data.train: not given; set it to a text file or to the prefix of a .bin/.idx pair");
  }
  if (!is_pair(source) && !fs::is_regular_file(source)) {
    const std::string prefix = dataset_prefix(source);
    throw_data_error(
        "data.train = \"{}\": there is no such text file, and no pair {}.bin and {}.idx", source,
        prefix, prefix);
  }
}

TrainingData::TrainingData(const RunConfig& config, const Tokenizer& tokenizer,
                           const TrainingDataOptions& options)
    : tokens_(std::make_unique<IndexedDataset>(
          tokenized(config, tokenizer, options.cache_folder, options.message))) {
  const DatasetSplit split = split_sequences(config.data.split, tokens_->index().num_sequences());
  const auto seed = static_cast<uint64_t>(config.data.seed);
  training_ = std::make_unique<GptDataset>(
      *tokens_, split[0],
      GptDatasetOptions{.name = "training",
                        .sequence_tokens = config.train.sequence,
                        .num_samples = options.num_samples,
                        .seed = seed,
                        .vocabulary_size = tokenizer.vocabulary_size()});
  if (config.eval.interval > 0) {
    held_out_ = std::make_unique<GptDataset>(
        *tokens_, split[1],
        GptDatasetOptions{.name = "validation",
                          .sequence_tokens = config.train.sequence,
                          .num_samples = config.eval.batches * config.train.global_batch,
                          .seed = seed,
                          .vocabulary_size = tokenizer.vocabulary_size()});
    held_out_entropy_ = unigram_entropy(*tokens_, split[1]);
  }
}

}  // namespace braid
