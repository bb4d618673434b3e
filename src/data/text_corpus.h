#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace braid {

enum class DocumentBreak {
  kNone,        ///< the file is one document
  kBlankLines,  ///< one or more blank lines (empty or only spaces and tabs) end a document
  kMarkerLine,  ///< a line that equals the marker ends a document, as "%" does in fortune files
};

struct TextCorpusOptions {
  DocumentBreak document_break = DocumentBreak::kNone;
  std::string marker;  ///< kMarkerLine only: compared with the whole line, without its line end
};

/// A mapped UTF-8 text file, split into documents. Lines end with "\n" or "\r\n". The text inside
/// documents is unchanged. A byte order mark at the start of the file and, if the file is split
/// into documents, line ends around a document belong to none. Documents without text are left out.
class TextCorpus {
 public:
  /// Throws DataError if the file is missing, is not UTF-8 (names line and byte) or has no text at
  /// all.
  explicit TextCorpus(const std::string& path, const TextCorpusOptions& options = {});

  const std::string& path() const { return file_.path(); }
  int64_t size_bytes() const { return static_cast<int64_t>(file_.bytes().size()); }
  /// The position in the file at which one of `documents` ends.
  int64_t end_bytes(std::string_view document) const {
    return document.data() + document.size() - reinterpret_cast<const char*>(file_.bytes().data());
  }
  /// Views into the map, in file order, at least one, none empty; valid as long as this object
  /// lives.
  const std::vector<std::string_view>& documents() const { return documents_; }

 private:
  MappedFile file_;
  std::vector<std::string_view> documents_;
};

/// The whole text of a file as one view without a byte order mark. Throws DataError naming path,
/// line and byte if it is not UTF-8. `file` must outlive the view.
std::string_view checked_text(const MappedFile& file);

}  // namespace braid
