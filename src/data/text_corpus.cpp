#include "data/text_corpus.h"

#include <utility>

#include "base/errors.h"
#include "data/text_lines.h"

namespace braid {
namespace {

constexpr std::string_view kWhitespace = " \t\r\n";
constexpr std::string_view kLineEnds = "\r\n";

bool has_text(std::string_view text) {
  return text.find_first_not_of(kWhitespace) != std::string_view::npos;
}

/// Without the line ends at its end.
std::string_view trim_line_ends(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kLineEnds) + 1);
}

/// Without its line end.
std::string_view content_of(std::string_view line) {
  line.remove_suffix(line.ends_with('\n') ? 1 : 0);
  line.remove_suffix(line.ends_with('\r') ? 1 : 0);
  return line;
}

class TextSplitter {
 public:
  TextSplitter(const std::string& path, const TextCorpusOptions& options,
               const std::function<void(const Document&)>& visit)
      : lines_(path, options.replaces_invalid), options_(options), visit_(visit) {}

  void run() {
    while (const std::optional<std::string_view> line = lines_.next()) {
      has_text_ = has_text_ || has_text(*line);
      if (is_break(*line)) {
        end_document();
      } else {
        add(*line);
      }
    }
    end_document();
    if (num_documents_ == 0) {
      refuse();
    }
  }

 private:
  bool is_break(std::string_view line) const {
    switch (options_.document_break) {
      case DocumentBreak::kNone:
        return false;
      case DocumentBreak::kBlankLines:
        return !has_text(line);
      case DocumentBreak::kMarkerLine:
        return content_of(line) == options_.marker;
    }
    return false;
  }

  void add(std::string_view line) {
    document_ += line;
    end_bytes_ = lines_.end_bytes();
    if (options_.max_document_bytes > 0 &&
        static_cast<int64_t>(document_.size()) >= options_.max_document_bytes) {
      end_document();
    }
  }

  void end_document() {
    if (has_text(document_)) {
      std::string_view text = document_;
      if (options_.document_break != DocumentBreak::kNone) {
        text = trim_line_ends(text);
        if (!lines_.is_compressed()) {
          end_bytes_ -= static_cast<int64_t>(document_.size() - text.size());
        }
        text.remove_prefix(text.find_first_not_of(kLineEnds));  // an indentation stays
      }
      visit_({.text = text,
              .end_bytes = end_bytes_,
              .file_bytes = lines_.size_bytes(),
              .line = lines_.number()});
      ++num_documents_;
    }
    document_.clear();
  }

  [[noreturn]] void refuse() const {
    if (has_text_) {
      throw_data_error("'{}' has no documents, only lines \"{}\"", lines_.path(), options_.marker);
    }
    throw_data_error("'{}' has no text: {}", lines_.path(),
                     lines_.number() == 0 ? "it is empty" : "it is all blanks");
  }

  TextLines lines_;
  const TextCorpusOptions& options_;
  const std::function<void(const Document&)>& visit_;
  std::string document_;  // so far
  int64_t end_bytes_ = 0;
  int64_t num_documents_ = 0;
  bool has_text_ = false;
};

}  // namespace

void for_each_text(const std::string& path, const TextCorpusOptions& options,
                   const std::function<void(const Document&)>& visit) {
  check(options.document_break != DocumentBreak::kMarkerLine || !options.marker.empty(),
        "a marker line needs a marker");
  TextSplitter(path, options, visit).run();
}

}  // namespace braid
