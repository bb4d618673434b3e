#include "data/tokenize.h"

#include <vector>

#include "base/errors.h"
#include "data/indexed_dataset.h"

namespace braid {

TokenizeStatistics tokenize_file(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (options.append_eod && !tokenizer.eod_id()) {
    throw_config_error(
        "tokenizer '{}' has no end-of-document id: data.append_eod must be false with it",
        tokenizer.name());
  }
  TokenizeStatistics statistics;
  IndexedDatasetWriter writer(options.output_prefix,
                              token_type_for_vocabulary(tokenizer.vocabulary_size()));
  for_each_document(options.input, options.documents, [&](const Document& document) {
    std::vector<int32_t> tokens = tokenizer.encode(document.text);
    statistics.file_bytes = document.file_bytes;
    statistics.text_bytes += static_cast<int64_t>(document.text.size());
    if (tokens.empty()) {
      ++statistics.empty_documents;
    } else {
      if (options.append_eod) {
        tokens.push_back(*tokenizer.eod_id());
      }
      writer.add_sequence(tokens);
      writer.end_document();
      ++statistics.documents;
      statistics.tokens = writer.num_tokens();
    }
    if (options.progress) {
      options.progress({.so_far = statistics, .done_bytes = document.end_bytes});
    }
  });
  if (statistics.tokens == 0) {
    throw_data_error("'{}' gives no tokens: all its documents are empty", options.input);
  }
  writer.commit();
  return statistics;
}

}  // namespace braid
