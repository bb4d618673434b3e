#include "data/indexed_dataset.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/errors.h"
#include "base/file_operation.h"
#include "base/philox.h"
#include "base/text.h"

namespace braid {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::array<char, 9> kMagic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr uint64_t kVersion = 1;
constexpr size_t kHeaderBytes = 34;
constexpr int64_t kMaxIndexBytes = int64_t{1} << 40;
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kReadBytes = size_t{16} << 10;  // on the stack: one read for 4,096 i32 tokens

constexpr std::string_view kChecksumsMagic = "BRAIDSUM";
constexpr size_t kDigits = 16;
constexpr size_t kChecksumsBytes = kChecksumsMagic.size() + 2 * kDigits;

uint64_t hash_of(std::span<const std::byte> bytes) {
  return stable_hash(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// Calls `visit` with a value of the C++ type that `type` stores, and returns its result.
template <class Visit>
auto dispatch_token_type(TokenType type, Visit&& visit) {
  switch (type) {
    case TokenType::kU8:
      return visit(uint8_t{});
    case TokenType::kI8:
      return visit(int8_t{});
    case TokenType::kI16:
      return visit(int16_t{});
    case TokenType::kI32:
      return visit(int32_t{});
    case TokenType::kI64:
      return visit(int64_t{});
    case TokenType::kU16:
      return visit(uint16_t{});
  }
  throw_internal_error("token type {} does not exist", static_cast<int>(type));
}

template <class T>
T load_at(std::span<const std::byte> bytes, size_t position) {
  T value;
  std::memcpy(&value, bytes.data() + position, sizeof(T));
  return value;
}

TokenType parse_token_type(uint8_t code, const std::string& path) {
  switch (code) {
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 8:
      return static_cast<TokenType>(code);
    case 6:
    case 7:
      throw_data_error("'{}' stores f{} values (type code {}), which are not token ids", path,
                       code == 6 ? 64 : 32, code);
    default:
      throw_data_error("'{}' has token type code {}; known codes are 1 to 5 and 8", path, code);
  }
}

void check_header(std::span<const std::byte> bytes, const std::string& path) {
  if (bytes.size() < kHeaderBytes) {
    throw_data_error("'{}' is truncated: it has {} bytes, but the header alone has {}", path,
                     bytes.size(), kHeaderBytes);
  }
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    throw_data_error("'{}' is not a Megatron .idx file: it does not start with MMIDIDX", path);
  }
  const auto version = load_at<uint64_t>(bytes, 9);
  if (version != kVersion) {
    throw_data_error("'{}' has version {}, but only version {} is known", path, version, kVersion);
  }
}

/// The checksums at the end of an .idx file, if it has them.
std::optional<TokenChecksums> checksums_at_end(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() < kHeaderBytes + kChecksumsBytes) {
    return std::nullopt;
  }
  const std::string_view end = text.substr(text.size() - kChecksumsBytes);
  if (!end.starts_with(kChecksumsMagic)) {
    return std::nullopt;
  }
  return TokenChecksums{.bin = std::string(end.substr(kChecksumsMagic.size(), kDigits)),
                        .idx = std::string(end.substr(kChecksumsMagic.size() + kDigits))};
}

[[noreturn]] void throw_other_checksum(const std::string& path, const std::string& found,
                                       const std::string& expected) {
  throw_data_error("'{}' is damaged: its XXH3 checksum is {}, expected {}", path, found,
                   printable(expected, kDigits));
}

/// The counts must give the exact size of the file, with or without the optional modes. Uses
/// divisions instead of products, so that no count can overflow.
void check_counts(uint64_t num_sequences, uint64_t num_boundaries, size_t size_bytes,
                  const std::string& path) {
  const uint64_t payload_bytes = size_bytes - kHeaderBytes;
  const bool fits = num_sequences <= payload_bytes / 12 &&
                    num_boundaries <= (payload_bytes - 12 * num_sequences) / 8;
  if (!fits) {
    throw_data_error(
        "'{}' is truncated or corrupted: {} sequences and {} boundaries do not fit its {} bytes",
        path, num_sequences, num_boundaries, size_bytes);
  }
  const uint64_t rest_bytes = payload_bytes - 12 * num_sequences - 8 * num_boundaries;
  if (rest_bytes != 0 && rest_bytes != num_sequences) {
    throw_data_error("'{}' is corrupted: {} bytes follow its {} sequences and {} boundaries", path,
                     rest_bytes, num_sequences, num_boundaries);
  }
}

/// Returns the number of tokens.
int64_t check_sequences(const SequenceIndex& index, int64_t bin_size_bytes,
                        const std::string& path) {
  const int64_t token_bytes = token_type_bytes(index.token_type());
  int64_t end_bytes = 0;
  for (int64_t i = 0; i < index.num_sequences(); ++i) {
    if (index.length(i) < 0) {
      throw_data_error("'{}' is corrupted: sequence {} has length {}", path, i, index.length(i));
    }
    if (index.offset_bytes(i) != end_bytes) {
      throw_data_error(
          "'{}' is corrupted: sequence {} starts at byte {} of the .bin, but the lengths before it "
          "say {}",
          path, i, index.offset_bytes(i), end_bytes);
    }
    end_bytes += index.length(i) * token_bytes;
    if (end_bytes > bin_size_bytes) {
      throw_data_error(
          "the .bin of '{}' is too short: sequence {} ends at byte {}, but the file has {}", path,
          i, end_bytes, bin_size_bytes);
    }
  }
  if (end_bytes != bin_size_bytes) {
    throw_data_error("'{}' does not belong to its .bin: it describes {} bytes, but the .bin has {}",
                     path, end_bytes, bin_size_bytes);
  }
  return end_bytes / token_bytes;
}

void check_boundaries(const SequenceIndex& index, const std::string& path) {
  if (index.document_begin(0) != 0) {
    throw_data_error("'{}' is corrupted: the first document starts at sequence {}, not at 0", path,
                     index.document_begin(0));
  }
  for (int64_t i = 0; i < index.num_documents(); ++i) {
    if (index.document_begin(i + 1) < index.document_begin(i)) {
      throw_data_error(
          "'{}' is corrupted: document {} starts at sequence {}, but the one before it at {}", path,
          i + 1, index.document_begin(i + 1), index.document_begin(i));
    }
  }
  const int64_t end = index.document_begin(index.num_documents());
  if (end != index.num_sequences()) {
    throw_data_error(
        "'{}' is corrupted: the documents end at sequence {}, but there are {} sequences", path,
        end, index.num_sequences());
  }
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class T>
std::span<const std::byte> bytes_of_value(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

/// An old index must be removed durably before the .bin changes, because it would no longer fit.
void remove_durably(const std::string& path) {
  if (::unlink(path.c_str()) != 0) {
    if (errno == ENOENT) {
      return;
    }
    throw_data_error("cannot replace '{}': unlink: {}", path,
                     std::generic_category().message(errno));
  }
  const size_t slash = path.find_last_of('/');
  sync_directory(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

}  // namespace

int64_t token_type_bytes(TokenType type) {
  return dispatch_token_type(type, [](auto zero) { return static_cast<int64_t>(sizeof(zero)); });
}

std::string_view token_type_name(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "u8";
    case TokenType::kI8:
      return "i8";
    case TokenType::kI16:
      return "i16";
    case TokenType::kI32:
      return "i32";
    case TokenType::kI64:
      return "i64";
    case TokenType::kU16:
      return "u16";
  }
  throw_internal_error("token type {} does not exist", static_cast<int>(type));
}

TokenType token_type_for_vocabulary(int64_t vocabulary_size) {
  return vocabulary_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

SequenceIndex parse_index(std::span<const std::byte> bytes, int64_t bin_size_bytes,
                          const std::string& path) {
  check_header(bytes, path);
  std::optional<TokenChecksums> checksums = checksums_at_end(bytes);
  if (checksums) {
    bytes = bytes.first(bytes.size() - kChecksumsBytes);
    if (const std::string found = checksum_of(bytes); found != checksums->idx) {
      throw_other_checksum(path, found, checksums->idx);
    }
  }
  const auto num_sequences = load_at<uint64_t>(bytes, 18);
  const auto num_boundaries = load_at<uint64_t>(bytes, 26);
  SequenceIndex index;
  index.checksums_ = std::move(checksums);
  index.token_type_ = parse_token_type(load_at<uint8_t>(bytes, 17), path);
  check_counts(num_sequences, num_boundaries, bytes.size(), path);
  if (num_boundaries == 0) {
    throw_data_error("'{}' is corrupted: it has no document boundaries, not even the first", path);
  }
  index.num_sequences_ = static_cast<int64_t>(num_sequences);
  index.num_boundaries_ = static_cast<int64_t>(num_boundaries);
  index.lengths_ = bytes.data() + kHeaderBytes;
  index.offsets_ = index.lengths_ + 4 * num_sequences;
  index.boundaries_ = index.offsets_ + 8 * num_sequences;
  index.num_tokens_ = check_sequences(index, bin_size_bytes, path);
  check_boundaries(index, path);
  return index;
}

std::string dataset_prefix(const std::string& path) {
  for (const std::string_view suffix : {".bin", ".idx"}) {
    if (path.size() > suffix.size() && path.ends_with(suffix)) {
      return path.substr(0, path.size() - suffix.size());
    }
  }
  return path;
}

bool is_dataset(const std::string& path) {
  const std::string prefix = dataset_prefix(path);
  return std::filesystem::exists(prefix + ".idx") || std::filesystem::exists(prefix + ".bin");
}

IndexedDataset::IndexedDataset(const std::string& path)
    : prefix_(dataset_prefix(path)),
      idx_(read_text_file(prefix_ + ".idx", kMaxIndexBytes)),
      bin_(prefix_ + ".bin"),
      index_hash_(hash_of(std::as_bytes(std::span(idx_)))),
      index_(parse_index(std::as_bytes(std::span(idx_)), bin_.size_bytes(), prefix_ + ".idx")) {}

std::string IndexedDataset::identity() const {
  constexpr int64_t kMostWholeBytes = int64_t{256} << 20;  // a tenth of a second
  const std::string tokens =
      bin_.size_bytes() <= kMostWholeBytes ? checksum_of_bin() : sampled_tokens();
  return fmt::format("{} documents, {} tokens, hash {:016x}", index_.num_documents(),
                     index_.num_tokens(), index_hash_ ^ stable_hash(tokens.data(), tokens.size()));
}

/// A hash of 1025 samples of 64 bytes.
std::string IndexedDataset::sampled_tokens() const {
  constexpr size_t kSamples = 1024;
  constexpr size_t kSampleBytes = 64;
  const auto num_bytes = static_cast<size_t>(bin_.size_bytes());
  std::array<std::byte, kSampleBytes> sample{};
  const size_t last = num_bytes - kSampleBytes;
  Checksum checksum;
  for (size_t i = 0; i <= kSamples; ++i) {
    const size_t begin = last / kSamples * i + last % kSamples * i / kSamples;
    bin_.read_at(static_cast<int64_t>(begin), sample);
    checksum.add(sample);
  }
  return checksum.hex();
}

std::string IndexedDataset::checksum_of_bin() const {
  Checksum checksum;
  std::vector<std::byte> piece(kPieceBytes);
  for (int64_t begin = 0; begin < bin_.size_bytes();) {
    const auto part = std::span(piece).first(
        std::min(piece.size(), static_cast<size_t>(bin_.size_bytes() - begin)));
    bin_.read_at(begin, part);
    checksum.add(part);
    begin += std::ssize(part);
  }
  return checksum.hex();
}

void IndexedDataset::verify_tokens() const {
  if (!index_.checksums()) {
    return;
  }
  if (const std::string found = checksum_of_bin(); found != index_.checksums()->bin) {
    throw_other_checksum(bin_.path(), found, index_.checksums()->bin);
  }
}

void IndexedDataset::read(int64_t sequence, int64_t first, std::span<int32_t> out,
                          int64_t vocabulary_size) const {
  const auto num_tokens = static_cast<int64_t>(out.size());
  check(sequence >= 0 && sequence < index_.num_sequences() && first >= 0 &&
            num_tokens <= index_.length(sequence) - first,
        "read of tokens [{}, {}) of sequence {} of '{}'", first, first + num_tokens, sequence,
        prefix_);
  const FileOperation reading("read of", bin_.path());
  const int64_t limit = vocabulary_size > 0 ? vocabulary_size : std::numeric_limits<int32_t>::max();
  dispatch_token_type(index_.token_type(), [&](auto zero) {
    using Stored = decltype(zero);
    std::array<Stored, kReadBytes / sizeof(Stored)> piece;
    for (int64_t done = 0; done < num_tokens;) {
      const auto part =
          std::span(piece).first(std::min(piece.size(), static_cast<size_t>(num_tokens - done)));
      bin_.read_at(
          index_.offset_bytes(sequence) + (first + done) * static_cast<int64_t>(sizeof(Stored)),
          std::as_writable_bytes(part));
      for (const Stored stored : part) {
        const auto token = static_cast<int64_t>(stored);
        if (token < 0 || token >= limit) [[unlikely]] {
          throw_data_error(
              "'{}.bin' holds token {} at position {} of sequence {}, but valid ids are 0 to {}",
              prefix_, token, first + done, sequence, limit - 1);
        }
        out[static_cast<size_t>(done++)] = static_cast<int32_t>(token);
      }
    }
  });
}

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& path, TokenType type)
    : prefix_(dataset_prefix(path)), type_(type), bin_(prefix_ + ".bin") {}

void IndexedDatasetWriter::add_sequence(std::span<const int32_t> tokens) {
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw_data_error("'{}.bin': a sequence of {} tokens is too long, the limit is {}", prefix_,
                     tokens.size(), std::numeric_limits<int32_t>::max());
  }
  dispatch_token_type(type_, [&](auto zero) {
    using Stored = decltype(zero);
    packed_.resize(tokens.size() * sizeof(Stored));
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto stored = static_cast<Stored>(tokens[i]);
      if (tokens[i] < 0 || static_cast<int64_t>(stored) != tokens[i]) {
        throw_data_error("'{}.bin': token {} does not fit the token type {}", prefix_, tokens[i],
                         token_type_name(type_));
      }
      std::memcpy(packed_.data() + i * sizeof(Stored), &stored, sizeof(Stored));
    }
  });
  bin_.write(packed_);
  bin_checksum_.add(packed_);
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  num_tokens_ += static_cast<int64_t>(tokens.size());
}

void IndexedDatasetWriter::end_document() {
  boundaries_.push_back(num_sequences());
}

AtomicFile IndexedDatasetWriter::write_index() const {
  const int64_t token_bytes = token_type_bytes(type_);
  AtomicFile idx(prefix_ + ".idx");
  Checksum checksum;
  const auto write = [&](std::span<const std::byte> bytes) {
    idx.write(bytes);
    checksum.add(bytes);
  };
  write(std::as_bytes(std::span(kMagic)));
  write(bytes_of_value(kVersion));
  write(bytes_of_value(type_));
  write(bytes_of_value(static_cast<uint64_t>(lengths_.size())));
  write(bytes_of_value(static_cast<uint64_t>(boundaries_.size())));
  write(bytes_of(lengths_));
  int64_t offset_bytes = 0;
  for (const int32_t length : lengths_) {
    write(bytes_of_value(offset_bytes));
    offset_bytes += length * token_bytes;
  }
  write(bytes_of(boundaries_));
  idx.write(kChecksumsMagic);
  idx.write(bin_checksum_.hex());
  idx.write(checksum.hex());
  return idx;
}

void IndexedDatasetWriter::commit() {
  check(boundaries_.back() == num_sequences(), "'{}': commit inside a document", prefix_);
  bin_.sync();
  AtomicFile idx = write_index();
  idx.sync();
  remove_durably(idx.path());
  bin_.commit();
  idx.commit();
}

}  // namespace braid
