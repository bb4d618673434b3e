#include "data/text_lines.h"

#include <utility>

#include "base/errors.h"
#include "data/utf8.h"

namespace braid {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

TextLines::TextLines(std::string path, bool replaces_invalid)
    : file_(std::move(path)), replaces_invalid_(replaces_invalid) {}

std::optional<std::string_view> TextLines::next() {
  std::string_view line = take_line();
  if (line.empty()) {
    return std::nullopt;
  }
  ++number_;
  const size_t size_bytes = line.size();
  line = valid_utf8(line);
  text_bytes_ += static_cast<int64_t>(size_bytes);
  if (number_ == 1 && line.starts_with(kByteOrderMark)) {
    line.remove_prefix(kByteOrderMark.size());
  }
  return line;
}

/// Empty at the end of the file.
std::string_view TextLines::take_line() {
  joined_.clear();
  while (true) {
    if (part_.empty()) {
      const auto bytes = file_.next(number_);
      part_ = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    const size_t end = part_.find('\n');
    const std::string_view taken = part_.substr(0, end == std::string_view::npos ? end : end + 1);
    part_.remove_prefix(taken.size());
    if (joined_.empty() && end != std::string_view::npos) {
      return taken;
    }
    joined_ += taken;
    if (end != std::string_view::npos || taken.empty()) {
      return joined_;
    }
  }
}

std::string_view TextLines::valid_utf8(std::string_view line) {
  const std::optional<size_t> position = find_invalid_utf8(line);
  if (!position) {
    return line;
  }
  if (!replaces_invalid_) {
    throw_data_error("'{}' is not UTF-8 text: byte 0x{:02X} at position {}, line {}", path(),
                     static_cast<unsigned char>(line[*position]),
                     text_bytes_ + static_cast<int64_t>(*position), number_);
  }
  replaced_ = replace_invalid_utf8(line);
  return replaced_;
}

}  // namespace braid
