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
  std::string json_key = "text";  ///< JSONL: the member with the text; Parquet: the column
  /// Parquet: rows are conversations or pairs of answers (data/chat_template.h), which may have
  /// several columns, and become JSON as a line of JSONL has it.
  bool conversations = false;
};

/// Whether a file of this name has one JSON object per line: *.jsonl or *.json, which may be
/// followed by .gz, .zst or .zstd.
bool is_json_lines(std::string_view path);

/// What messages call a document's `line`: "'a.jsonl' line 3", "'a.parquet' row 3".
std::string document_place(const std::string& path, int64_t line);

/// The text under `json_key` of a line of such a file. Throws DataError naming path and line if it
/// is not a JSON object or lacks the text.
std::string text_of_json(std::string_view json, int64_t line, const std::string& path,
                         const std::string& json_key);

/// Calls `visit` with each document of `path`, in order, whose text is that of a text file, by
/// `for_each_text`, that of a row of a Parquet file (empty if it is null; JSON of conversations),
/// or the JSON of a line: `text_of_json` makes text of it, on any thread. Blank lines of JSONL are
/// skipped. Throws DataError as `for_each_text` and ParquetFile.
void for_each_raw_document(const std::string& path, const DocumentOptions& options,
                           const std::function<void(const Document&)>& visit);

/// The same with the text of each document. Throws DataError as `text_of_json`, too.
void for_each_document(const std::string& path, const DocumentOptions& options,
                       const std::function<void(const Document&)>& visit);

}  // namespace braid
