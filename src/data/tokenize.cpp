#include "data/tokenize.h"

#include <atomic>
#include <future>
#include <vector>

#include "base/errors.h"
#include "data/indexed_dataset.h"

namespace braid {
namespace {

/// Size of a batch of documents that are encoded together: enough work for all threads, little
/// memory.
constexpr int64_t kBatchBytes = int64_t{4} << 20;

struct PendingDocument {
  std::string text;
  int64_t end_bytes = 0;
  std::vector<int32_t> tokens;
};

void encode_all(const Tokenizer& tokenizer, std::vector<PendingDocument>& batch, int64_t threads) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < batch.size(); i = next++) {
      batch[i].tokens = tokenizer.encode(batch[i].text);
    }
  };
  std::vector<std::future<void>> helpers;  // their destructors wait, so exceptions are safe
  for (int64_t i = 1; i < threads; ++i) {
    helpers.push_back(std::async(std::launch::async, work));
  }
  work();
  for (std::future<void>& helper : helpers) {
    helper.get();
  }
}

/// Collects documents, encodes them in batches and writes them in order.
class BatchTokenizer {
 public:
  BatchTokenizer(const Tokenizer& tokenizer, const TokenizeOptions& options)
      : tokenizer_(tokenizer),
        options_(options),
        frame_(tokenizer.frame()),
        writer_(options.output_prefix, token_type_for_vocabulary(tokenizer.vocabulary_size())) {}

  void add(const Document& document) {
    statistics_.file_bytes = document.file_bytes;
    batch_.push_back({std::string(document.text), document.end_bytes, {}});
    batch_bytes_ += static_cast<int64_t>(document.text.size());
    if (batch_bytes_ >= kBatchBytes) {
      flush();
    }
  }

  TokenizeStatistics finish() {
    flush();
    if (statistics_.tokens == 0) {
      throw_data_error("'{}' gives no tokens: all its documents are empty", options_.input);
    }
    writer_.commit();
    return statistics_;
  }

 private:
  void flush() {
    encode_all(tokenizer_, batch_, options_.threads);
    for (PendingDocument& document : batch_) {
      write(document);
    }
    batch_.clear();
    batch_bytes_ = 0;
  }

  void write(PendingDocument& document) {
    statistics_.text_bytes += static_cast<int64_t>(document.text.size());
    if (document.tokens.empty()) {
      ++statistics_.empty_documents;
    } else {
      writer_.add_sequence(framed(document.tokens));
      writer_.end_document();
      ++statistics_.documents;
      statistics_.tokens = writer_.num_tokens();
    }
    if (options_.progress) {
      options_.progress({.so_far = statistics_, .done_bytes = document.end_bytes});
    }
  }

  /// With the tokenizer's frame around it, and one end of document.
  std::vector<int32_t> framed(const std::vector<int32_t>& tokens) const {
    std::vector<int32_t> sequence = frame_.before;
    sequence.insert(sequence.end(), tokens.begin(), tokens.end());
    sequence.insert(sequence.end(), frame_.after.begin(), frame_.after.end());
    if (options_.append_eod && sequence.back() != *tokenizer_.eod_id()) {
      sequence.push_back(*tokenizer_.eod_id());
    }
    return sequence;
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  TextFrame frame_;
  IndexedDatasetWriter writer_;
  TokenizeStatistics statistics_;
  std::vector<PendingDocument> batch_;
  int64_t batch_bytes_ = 0;
};

}  // namespace

TokenizeStatistics tokenize_file(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (options.append_eod && !tokenizer.eod_id()) {
    throw_config_error(
        "tokenizer '{}' has no end-of-document id: it needs --no-eod, or data.append_eod = false",
        tokenizer.name());
  }
  if (options.threads < 1 || options.threads > 1024) {
    throw_config_error("cannot tokenize with {} threads: give 1 to 1024", options.threads);
  }
  BatchTokenizer batches(tokenizer, options);
  for_each_document(options.input, options.documents,
                    [&](const Document& document) { batches.add(document); });
  return batches.finish();
}

}  // namespace braid
