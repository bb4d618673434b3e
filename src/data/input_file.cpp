#include "data/input_file.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

std::string first_bytes(const PieceFile& file, int64_t count) {
  std::string bytes(static_cast<size_t>(std::min(count, file.size_bytes())), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

struct OtherFormat {
  std::string_view magic;
  std::string_view name;
  std::string_view advice;
};

/// Formats that users bring and that are not read as text: they would be refused as text that is
/// not UTF-8.
constexpr std::array kOtherFormats = {
    OtherFormat{"PAR1\x15", "a Parquet file under another name",
                "name it *.parquet, and `braid tokenize` reads it"},
    OtherFormat{"BZh91AY&SY", "compressed with bzip2", "decompress it (bunzip2), or use zstd"},
    OtherFormat{"\xFD"
                "7zXZ",
                "compressed with xz", "decompress it (unxz), or use zstd"},
    OtherFormat{"PK\x03\x04", "a zip archive", "unpack it (unzip)"}};

void refuse_other_formats(std::string_view bytes, const std::string& path) {
  for (const OtherFormat& format : kOtherFormats) {
    if (bytes.starts_with(format.magic)) {
      throw_data_error("'{}' is {}, which is not read as text; {}", path, format.name,
                       format.advice);
    }
  }
}

}  // namespace

InputFile::InputFile(std::string path) : file_(std::move(path)), reader_(file_) {
  constexpr int64_t kMagicBytes = 16;
  const std::string bytes = first_bytes(file_, kMagicBytes);
  refuse_other_formats(bytes, file_.path());
  compression_ = find_compression(std::as_bytes(std::span(bytes)));
  if (compression_ != Compression::kNone) {
    decompressor_ = make_decompressor(compression_, file_.path());
    out_.resize(static_cast<size_t>(SequentialReader::kPartBytes));
  }
}

std::span<const std::byte> InputFile::next(int64_t line) {
  if (decompressor_ == nullptr) {
    refill();
    return std::exchange(in_, {});
  }
  try {
    while (true) {
      if (in_.empty()) {
        refill();
      }
      const size_t written = decompressor_->step(in_, out_);
      if (written > 0) {
        return std::span(out_).first(written);
      }
      if (in_.empty() && at_end_) {
        break;
      }
    }
  } catch (const BrokenStream& broken) {
    throw_broken(line, fmt::format("are damaged ({})", broken.cause));
  }
  if (!decompressor_->may_end()) {
    throw_broken(line, "end too early: the file is truncated");
  }
  return {};
}

void InputFile::refill() {
  in_ = reader_.next();
  read_bytes_ += static_cast<int64_t>(in_.size());
  at_end_ = in_.empty();
}

void InputFile::throw_broken(int64_t line, const std::string& cause) const {
  throw_data_error("'{}' after line {}: its {} data {}; {} -t shows it, too", file_.path(), line,
                   compression_name(compression_), cause, compression_name(compression_));
}

std::string_view uncompressed_name(std::string_view path) {
  for (const std::string_view extension : {".gz", ".zst", ".zstd"}) {
    if (path.ends_with(extension)) {
      return path.substr(0, path.size() - extension.size());
    }
  }
  return path;
}

}  // namespace braid
