#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace braid {

/// A document of a file.
struct Document {
  std::string_view text;   ///< UTF-8; valid during the call only
  int64_t end_bytes = 0;   ///< position in the file at which it ends; of a compressed file, how
                           ///< many of its bytes have been read by then
  int64_t file_bytes = 0;  ///< size of the file on the disk
  int64_t line = 0;        ///< of the file, from 1 on: the last one read for it
};

enum class DocumentBreak {
  kNone,        ///< the file is one document
  kBlankLines,  ///< one or more blank lines (empty or only spaces and tabs) end a document
  kMarkerLine,  ///< a line that equals the marker ends a document, as "%" does in fortune files
};

struct TextCorpusOptions {
  DocumentBreak document_break = DocumentBreak::kNone;
  std::string marker;  ///< kMarkerLine only: compared with the whole line, without its line end
  /// A document of this size is ended after a line, which bounds the memory of users to whom it
  /// does not matter where documents end. 0: no limit.
  int64_t max_document_bytes = 0;
  bool replaces_invalid = false;  ///< bytes that are not UTF-8 become U+FFFD (replace_invalid_utf8)
};

/// Calls `visit` with each document of a UTF-8 text file, in order, at least one, none empty. Lines
/// end with "\n" or "\r\n". The text inside documents is unchanged. A byte order mark at the start
/// of the file and, if the file is split into documents, line ends around a document belong to
/// none. Documents without text are left out. Memory: that of the largest document. Throws
/// DataError if the file is missing, cannot be read, becomes shorter, is not UTF-8 (unless
/// replaced; names line and byte) or has no text at all; documents before the fault have been
/// visited then.
void for_each_text(const std::string& path, const TextCorpusOptions& options,
                   const std::function<void(const Document&)>& visit);

}  // namespace braid
