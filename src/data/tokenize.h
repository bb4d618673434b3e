#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/chat_template.h"
#include "data/documents.h"
#include "data/tokenizer.h"

namespace braid {

struct TokenizeStatistics {
  int64_t documents = 0;        ///< written, one sequence each
  int64_t empty_documents = 0;  ///< skipped because they have no tokens
  int64_t tokens = 0;           ///< written, including ends of documents
  int64_t answer_tokens = 0;    ///< of conversations: those that a model learns to write
  int64_t text_bytes = 0;       ///< of all documents
  int64_t file_bytes = 0;       ///< of the inputs, on the disk
};

struct TokenizeProgress {
  TokenizeStatistics so_far;
  int64_t done_bytes = 0;  ///< of so_far.file_bytes
};

struct TokenizeOptions {
  std::vector<std::string> inputs;  ///< as `for_each_document` reads them
  std::string output_prefix;        ///< writes PREFIX.bin and PREFIX.idx
  bool append_eod = true;           ///< ends each document with the tokenizer's end-of-document id
  int64_t threads = 1;  ///< threads that encode documents; the result is the same for any
                        ///< number
  DocumentOptions documents;
  /// Given: the inputs are JSONL or Parquet of conversations (data/chat_template.h), and a second
  /// pair, PREFIX.mask.bin and .idx, says of each token whether the model learns to write it (1):
  /// those of the assistant, with the mark that ends its message, or without marks the end of the
  /// document.
  std::optional<ChatTemplate> chat = {};
  /// With `chat`: each line is a pair of answers (`chat_pair_of_json`) and gives two documents,
  /// that with the preferred answer and that with the rejected one.
  bool pairs = false;
  std::function<void(const TokenizeProgress&)>
      progress;  ///< per document, on the calling thread; may be empty
};

/// "PREFIX.mask": the prefix of the pair that says which tokens of PREFIX a model learns to write.
std::string mask_prefix(const std::string& prefix);

/// A document's ids as they stand in a token file: the tokenizer's frame around `tokens`, and one
/// end of document after it if `append_eod`, which needs `eod_id`.
std::vector<int32_t> document_tokens(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                                     bool append_eod);

/// Tokenizes files, one after the other, into an indexed dataset, one sequence per document: the
/// tokenizer's frame, the ids of the text, and one end of document if `append_eod`. Writes
/// atomically: on any error PREFIX.* is unchanged. Throws ConfigError if `append_eod` is set and
/// the tokenizer has no such id or an input with `chat` is neither JSONL nor Parquet, DataError as
/// `for_each_document`, `Tokenizer::encode` and `IndexedDatasetWriter`, or if no document has a
/// token.
TokenizeStatistics tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options);

}  // namespace braid
