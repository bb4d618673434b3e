#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/text_corpus.h"

namespace braid {

struct DocumentOptions {
  TextCorpusOptions text;         ///< how to split a text file into documents
  std::string json_key = "text";  ///< JSONL: the member with the text
};

/// A document of a file.
struct Document {
  std::string_view text;   ///< UTF-8; valid during the call only
  int64_t end_bytes = 0;   ///< position in the file at which it ends
  int64_t file_bytes = 0;  ///< size of the file
};

/// Calls `visit` with each document of `path`, in order; returns the size of the file. A file named
/// *.jsonl (or *.json) has one JSON object per line with the text under `json_key`; blank lines are
/// skipped. Every other file is a TextCorpus. Throws DataError as TextCorpus does, and naming the
/// line if it is not a JSON object or lacks the text.
void for_each_document(const std::string& path, const DocumentOptions& options,
                       const std::function<void(const Document&)>& visit);

}  // namespace braid
