#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/text_corpus.h"

namespace braid {

struct DocumentOptions {
  TextCorpusOptions
      text;  ///< how to split a text file into documents; replaces_invalid is for JSONL, too
  std::string json_key = "text";  ///< JSONL: the member with the text
};

/// Calls `visit` with each document of `path`, in order. A file named *.jsonl (or *.json) has one
/// JSON object per line with the text under `json_key`; blank lines are skipped. Every other file
/// is read by `for_each_text`. Throws DataError as that does, and naming the line if it is not a
/// JSON object or lacks the text.
void for_each_document(const std::string& path, const DocumentOptions& options,
                       const std::function<void(const Document&)>& visit);

}  // namespace braid
