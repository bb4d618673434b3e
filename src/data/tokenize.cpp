#include "data/tokenize.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "data/indexed_dataset.h"
#include "data/input_paths.h"
#include "data/parquet_file.h"

namespace braid {
namespace {

/// Size of a batch of documents that are encoded together: enough work for all threads beside the
/// time to start them, little memory.
constexpr int64_t kLeastBatchBytes = int64_t{4} << 20;
constexpr int64_t kBatchBytesPerThread = int64_t{1} << 20;

struct EncodedDocument {
  std::vector<int32_t> tokens;
  std::vector<int32_t> mask;  // of conversations: 1 for tokens of answers
};

struct PendingDocument {
  const std::string* path = nullptr;
  std::string raw;  // text, or a line of JSON
  int64_t line = 0;
  int64_t end_bytes = 0;                 // of all inputs
  std::vector<EncodedDocument> encoded;  // one, or those of a pair
  int64_t text_bytes = 0;
  std::exception_ptr error;
};

/// Documents whose texts are taken from JSON and encoded on threads of their own.
class EncodingBatch {
 public:
  EncodingBatch(const Tokenizer& tokenizer, const TokenizeOptions& options,
                std::vector<PendingDocument> documents)
      : tokenizer_(tokenizer), options_(options), documents_(std::move(documents)) {
    const auto count = std::min(static_cast<size_t>(options.threads), documents_.size());
    for (size_t i = 0; i < count; ++i) {
      workers_.push_back(std::async(std::launch::async, [this] { work(); }));
    }
  }

  /// Waits for all of them. An error is that of the first document which has one, whatever the
  /// threads did first; those before it are in order.
  std::vector<PendingDocument>& wait() {
    for (std::future<void>& worker : workers_) {
      worker.get();
    }
    return documents_;
  }

 private:
  void work() {
    for (size_t i = next_++; i < documents_.size(); i = next_++) {
      try {
        encode(documents_[i]);
      } catch (...) {
        documents_[i].error = std::current_exception();
      }
    }
  }

  void encode(PendingDocument& document) const {
    if (options_.chat) {
      encode_chats(document, *options_.chat);
      document.raw = {};
      return;
    }
    std::vector<int32_t>& tokens = document.encoded.emplace_back().tokens;
    if (is_json_lines(*document.path)) {
      document.raw =
          text_of_json(document.raw, document.line, *document.path, options_.documents.json_key);
    }
    document.text_bytes = static_cast<int64_t>(document.raw.size());
    try {
      tokens = tokenizer_.encode(document.raw);
    } catch (const DataError& error) {
      throw_data_error("'{}', the document up to {} {}: {}", *document.path,
                       is_parquet(*document.path) ? "row" : "line", document.line, error.what());
    }
    if (!tokens.empty()) {
      tokens = document_tokens(tokenizer_, tokens, options_.append_eod);
    }
    document.raw = {};
  }

  void encode_chats(PendingDocument& document, ChatTemplate chat) const {
    if (options_.pairs) {
      const ChatPair pair = chat_pair_of_json(document.raw, document.line, *document.path, chat);
      encode_chat(document, pair.chosen, chat);
      encode_chat(document, pair.rejected, chat);
    } else {
      encode_chat(document, chat_of_json(document.raw, document.line, *document.path, chat), chat);
    }
  }

  /// The pieces are encoded one by one, as in a prompt that the model shall go on from.
  void encode_chat(PendingDocument& document, const std::vector<ChatPiece>& pieces,
                   ChatTemplate chat) const {
    std::vector<int32_t> tokens;
    std::vector<int32_t> mask;
    for (const ChatPiece& piece : pieces) {
      const std::vector<int32_t> encoded = tokenizer_.encode(piece.text);
      tokens.insert(tokens.end(), encoded.begin(), encoded.end());
      mask.resize(tokens.size(), piece.is_answer ? 1 : 0);
      document.text_bytes += static_cast<int64_t>(piece.text.size());
    }
    EncodedDocument& encoded = document.encoded.emplace_back();
    encoded.tokens = document_tokens(tokenizer_, tokens, options_.append_eod);
    encoded.mask.assign(tokenizer_.frame().before.size(), 0);
    encoded.mask.insert(encoded.mask.end(), mask.begin(), mask.end());
    encoded.mask.resize(encoded.tokens.size(), chat == ChatTemplate::kPlain ? 1 : 0);
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  std::vector<PendingDocument> documents_;
  std::atomic<size_t> next_ = 0;
  std::vector<std::future<void>> workers_;  // last: destructors wait, so exceptions are safe
};

/// Collects documents and writes them in order. While one batch is encoded, the next one is read.
class BatchTokenizer {
 public:
  BatchTokenizer(const Tokenizer& tokenizer, const TokenizeOptions& options)
      : tokenizer_(tokenizer),
        options_(options),
        documents_(options.documents),
        writer_(options.output_prefix, token_type_for_vocabulary(tokenizer.vocabulary_size())),
        batch_limit_bytes_(std::max(kLeastBatchBytes, kBatchBytesPerThread * options.threads)) {
    statistics_.file_bytes = total_bytes(options.inputs);
    documents_.conversations = options.chat.has_value();
    if (options.chat) {
      mask_writer_.emplace(mask_prefix(options.output_prefix), token_type_for_vocabulary(2));
    }
  }

  void add_file(const std::string& path) {
    int64_t size_bytes = 0;
    for_each_raw_document(path, documents_, [&](const Document& document) {
      size_bytes = document.file_bytes;
      add(path, document);
    });
    earlier_bytes_ += size_bytes;
  }

  TokenizeStatistics finish() {
    flush();
    write_encoded();
    if (statistics_.tokens == 0) {
      throw_data_error("{} gives no tokens: all its documents are empty",
                       options_.inputs.size() == 1 ? "'" + options_.inputs.front() + "'"
                                                   : describe_inputs(options_.inputs));
    }
    if (mask_writer_) {
      mask_writer_->commit();
    }
    writer_.commit();
    return statistics_;
  }

 private:
  void add(const std::string& path, const Document& document) {
    batch_.push_back({.path = &path,
                      .raw = std::string(document.text),
                      .line = document.line,
                      .end_bytes = earlier_bytes_ + document.end_bytes});
    batch_bytes_ += static_cast<int64_t>(document.text.size());
    if (batch_bytes_ >= batch_limit_bytes_) {
      flush();
    }
  }

  void flush() {
    write_encoded();
    encoding_ = std::make_unique<EncodingBatch>(tokenizer_, options_, std::exchange(batch_, {}));
    batch_bytes_ = 0;
  }

  void write_encoded() {
    if (encoding_ == nullptr) {
      return;
    }
    for (PendingDocument& document : encoding_->wait()) {
      if (document.error) {
        std::rethrow_exception(document.error);
      }
      write(document);
    }
    encoding_.reset();
  }

  void write(PendingDocument& document) {
    statistics_.text_bytes += document.text_bytes;
    for (const EncodedDocument& encoded : document.encoded) {
      write(encoded);
    }
    if (options_.progress) {
      options_.progress({.so_far = statistics_, .done_bytes = document.end_bytes});
    }
  }

  void write(const EncodedDocument& document) {
    if (document.tokens.empty()) {
      ++statistics_.empty_documents;
      return;
    }
    writer_.add_sequence(document.tokens);
    writer_.end_document();
    if (mask_writer_) {
      mask_writer_->add_sequence(document.mask);
      mask_writer_->end_document();
      statistics_.answer_tokens += std::ranges::count(document.mask, 1);
    }
    ++statistics_.documents;
    statistics_.tokens = writer_.num_tokens();
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  DocumentOptions documents_;
  IndexedDatasetWriter writer_;
  std::optional<IndexedDatasetWriter> mask_writer_;
  int64_t batch_limit_bytes_;
  TokenizeStatistics statistics_;
  int64_t earlier_bytes_ = 0;  // of files before the one that is read
  std::vector<PendingDocument> batch_;
  int64_t batch_bytes_ = 0;
  std::unique_ptr<EncodingBatch> encoding_;  // not written yet
};

}  // namespace

std::string mask_prefix(const std::string& prefix) {
  return prefix + ".mask";
}

std::vector<int32_t> document_tokens(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                                     bool append_eod) {
  const TextFrame frame = tokenizer.frame();
  std::vector<int32_t> sequence = frame.before;
  sequence.insert(sequence.end(), tokens.begin(), tokens.end());
  sequence.insert(sequence.end(), frame.after.begin(), frame.after.end());
  if (append_eod && (sequence.empty() || sequence.back() != *tokenizer.eod_id())) {
    sequence.push_back(*tokenizer.eod_id());
  }
  return sequence;
}

TokenizeStatistics tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (options.append_eod && !tokenizer.eod_id()) {
    throw_config_error(
        "tokenizer '{}' has no end-of-document id: it needs --no-eod, or data.append_eod = false",
        tokenizer.name());
  }
  if (options.threads < 1 || options.threads > 1024) {
    throw_config_error("cannot tokenize with {} threads: give 1 to 1024", options.threads);
  }
  for (const std::string& path : options.inputs) {
    if (options.chat && !is_json_lines(path) && !is_parquet(path)) {
      throw_config_error(
          "'{}' has no conversations: --chat needs JSONL (*.jsonl or *.json) or Parquet "
          "(*.parquet)",
          path);
    }
  }
  BatchTokenizer batches(tokenizer, options);
  for (const std::string& path : options.inputs) {
    batches.add_file(path);
  }
  return batches.finish();
}

}  // namespace braid
