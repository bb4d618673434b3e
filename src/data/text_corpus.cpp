#include "data/text_corpus.h"

#include <algorithm>
#include <optional>

#include "base/errors.h"
#include "data/utf8.h"

namespace braid {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kWhitespace = " \t\r\n";

/// Removes the first line from `rest` and returns it without its line end.
std::string_view take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  if (line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  return line;
}

bool is_break(std::string_view line, const TextCorpusOptions& options) {
  if (options.document_break == DocumentBreak::kMarkerLine) {
    return line == options.marker;
  }
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

bool has_text(std::string_view text) {
  return text.find_first_not_of(kWhitespace) != std::string_view::npos;
}

/// Removes line ends on both sides; indentation of the first line stays.
std::string_view trim_line_ends(std::string_view text) {
  const size_t begin = text.find_first_not_of("\r\n");
  const size_t last = text.find_last_not_of("\r\n");
  return begin == std::string_view::npos ? std::string_view()
                                         : text.substr(begin, last - begin + 1);
}

std::vector<std::string_view> break_documents(std::string_view text,
                                              const TextCorpusOptions& options) {
  std::vector<std::string_view> documents;
  const char* begin = text.data();
  const auto end_document = [&](const char* end) {
    const std::string_view document(begin, static_cast<size_t>(end - begin));
    if (has_text(document)) {
      documents.push_back(trim_line_ends(document));
    }
  };
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view line = take_line(rest);
    if (is_break(line, options)) {
      end_document(line.data());
      begin = rest.data();
    }
  }
  end_document(text.data() + text.size());
  return documents;
}

}  // namespace

std::string_view checked_text(const MappedFile& file) {
  std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  if (const std::optional<size_t> position = find_invalid_utf8(text)) {
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(*position), '\n');
    throw_data_error("'{}' is not UTF-8 text: byte 0x{:02X} at position {}, line {}", file.path(),
                     static_cast<unsigned char>(text[*position]), *position, line);
  }
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  return text;
}

TextCorpus::TextCorpus(const std::string& path, const TextCorpusOptions& options) : file_(path) {
  const std::string_view text = checked_text(file_);
  if (!has_text(text)) {
    throw_data_error("'{}' has no text: {}", path,
                     text.empty() ? "it is empty" : "it is all blanks");
  }
  if (options.document_break == DocumentBreak::kNone) {
    documents_ = {text};
    return;
  }
  check(options.document_break != DocumentBreak::kMarkerLine || !options.marker.empty(),
        "a marker line needs a marker");
  documents_ = break_documents(text, options);
  if (documents_.empty()) {
    throw_data_error("'{}' has no documents, only lines \"{}\"", path, options.marker);
  }
}

}  // namespace braid
