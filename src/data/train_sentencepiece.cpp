#include "data/train_sentencepiece.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "data/input_file.h"
#include "data/input_paths.h"
#include "data/parquet_file.h"
#include "data/random_state.h"

namespace braid {
namespace {

/// The trainer silently skips longer sentences, so text is passed to it in pieces of at most this
/// size.
constexpr size_t kMaxChunkBytes = 4096;
/// A document that is larger is read in parts: it need not fit into memory.
constexpr int64_t kMaxPartBytes = int64_t{16} << 20;

class ChunkIterator final : public sentencepiece::SentenceIterator {
 public:
  explicit ChunkIterator(const std::vector<std::string>& chunks) : chunks_(chunks) {}
  bool done() const override { return next_ >= chunks_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return chunks_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& chunks_;
  size_t next_ = 0;
};

/// The position at which to split a text that is too long for one chunk: after a line, otherwise
/// before a word, otherwise between characters.
size_t chunk_bytes(std::string_view text) {
  if (text.size() <= kMaxChunkBytes) {
    return text.size();
  }
  const size_t line_end = text.rfind('\n', kMaxChunkBytes - 1);
  if (line_end != std::string_view::npos) {
    return line_end + 1;
  }
  const size_t space = text.rfind(' ', kMaxChunkBytes);
  if (space != std::string_view::npos && space > 0) {
    return space;
  }
  size_t cut = kMaxChunkBytes;
  while ((static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) {
    --cut;
  }
  return cut;
}

/// Bytes of text in the inputs; for compressed ones, what they usually hold.
double expected_text_bytes(std::span<const std::string> inputs, const std::string& json_key) {
  constexpr double kUsualRatio = 4;
  double bytes = 0;
  for (const std::string& path : inputs) {
    if (is_parquet(path)) {
      bytes +=
          static_cast<double>(ParquetFile(path, {.text = json_key, .json = {}}).encoded_bytes());
      continue;
    }
    const InputFile file(path);
    bytes += static_cast<double>(file.size_bytes()) * (file.is_compressed() ? kUsualRatio : 1);
  }
  return bytes;
}

/// All chunks, or a random choice of them of about `max_training_bytes`.
std::vector<std::string> collect_chunks(const SentencePieceTrainOptions& options) {
  RandomState random(options.seed);
  std::vector<std::string> chunks;
  DocumentOptions documents = options.documents;
  documents.text.max_document_bytes = kMaxPartBytes;
  const double keep = static_cast<double>(options.max_training_bytes) /
                      expected_text_bytes(options.inputs, options.documents.json_key);
  const double threshold = keep * 4294967296.0;  // of the 2^32 draws
  const auto add = [&](const Document& document) {
    std::string_view rest = document.text;
    while (!rest.empty()) {
      const size_t size = chunk_bytes(rest);
      if (keep >= 1 || random.next_u32() < threshold) {
        chunks.emplace_back(rest.substr(0, size));
      }
      rest.remove_prefix(size);
    }
  };
  for (const std::string& path : options.inputs) {
    for_each_document(path, documents, add);
  }
  if (chunks.empty()) {
    throw_data_error("a random choice of {} bytes of '{}' left no text to train a tokenizer on",
                     options.max_training_bytes, describe_inputs(options.inputs));
  }
  return chunks;
}

std::optional<int64_t> number_after(std::string_view text, std::string_view words) {
  const size_t at = text.find(words);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  int64_t value = 0;
  const char* begin = text.data() + at + words.size();
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

/// Translates the two failures that a user can cause; the library's messages name its own flags.
[[noreturn]] void throw_training_error(const SentencePieceTrainOptions& options,
                                       std::string reason) {
  const int64_t size = options.vocabulary_size;
  if (const auto most = number_after(reason, "Please set it to a value <= ")) {
    throw_config_error("a vocabulary of {} is too large for the text of '{}': it gives at most {}",
                       size, describe_inputs(options.inputs), *most);
  }
  if (const auto least = number_after(reason, fmt::format("required_chars. {} vs ", size))) {
    throw_config_error(
        "a vocabulary of {} is too small for the characters of '{}': it needs at least {}", size,
        describe_inputs(options.inputs), *least);
  }
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  throw_data_error("cannot train a tokenizer on '{}': {}", describe_inputs(options.inputs), reason);
}

void check_options(const SentencePieceTrainOptions& options) {
  constexpr int64_t kLeast = 256 + 3 + 1;
  constexpr int64_t kMost = 1 << 20;
  if (options.vocabulary_size < kLeast || options.vocabulary_size > kMost) {
    throw_config_error("a SentencePiece vocabulary of {} is impossible: it must be {} to {}",
                       options.vocabulary_size, kLeast, kMost);
  }
  if (options.threads < 1 || options.threads > 1024) {
    throw_config_error("a tokenizer cannot be trained with {} threads: give 1 to 1024",
                       options.threads);
  }
  if (options.max_training_bytes < 1) {
    throw_config_error("a tokenizer cannot be trained on {} bytes: give 1 or more",
                       options.max_training_bytes);
  }
}

std::unordered_map<std::string, std::string> trainer_arguments(
    const SentencePieceTrainOptions& options) {
  return {{"model_type", options.kind == SentencePieceKind::kBpe ? "bpe" : "unigram"},
          {"vocab_size", std::to_string(options.vocabulary_size)},
          {"num_threads", std::to_string(options.threads)},
          {"max_sentence_length", std::to_string(kMaxChunkBytes)},
          {"byte_fallback", "true"},
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"add_dummy_prefix", "false"},
          {"minloglevel", "3"}};  // fatal only, because a library does not print
}

}  // namespace

SentencePieceKind parse_sentencepiece_kind(const std::string& text, const std::string& option) {
  if (text == "bpe") {
    return SentencePieceKind::kBpe;
  }
  if (text == "unigram") {
    return SentencePieceKind::kUnigram;
  }
  throw_config_error(
      "{} = \"{}\" is not a kind of SentencePiece model; known are \"bpe\" and \"unigram\"", option,
      text);
}

std::string train_sentencepiece(const SentencePieceTrainOptions& options) {
  check_options(options);
  AtomicFile output(options.output_prefix +
                    ".model");  // first, so that a bad path does not waste a training
  const std::vector<std::string> chunks = collect_chunks(options);
  ChunkIterator iterator(chunks);
  std::string model;
  const auto status =
      sentencepiece::SentencePieceTrainer::Train(trainer_arguments(options), &iterator, &model);
  if (!status.ok()) {
    throw_training_error(options, status.ToString());
  }
  output.write(model);
  output.commit();
  return output.path();
}

}  // namespace braid
