#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/text_corpus.h"

namespace braid {

struct DocumentOptions {
  TextCorpusOptions text;         ///< how a text file is broken into documents
  std::string json_key = "text";  ///< JSONL: the member that holds the text
};

/// A document of a file.
struct Document {
  std::string_view text;   ///< UTF-8; valid during the call only
  int64_t end_bytes = 0;   ///< how far into the file it ends
  int64_t file_bytes = 0;  ///< size of the file
};

/// Calls `visit` with each document of `path`, in order. A file named *.jsonl (or *.json) has one
/// JSON object per line with the text under `json_key`; blank lines are skipped. Every other file
/// is a TextCorpus. Throws DataError as TextCorpus does, and naming the line if it is no JSON
/// object or has no such text; returns the size of the file.
void for_each_document(const std::string& path, const DocumentOptions& options,
                       const std::function<void(const Document&)>& visit);

}  // namespace braid
