#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.h"
#include "base/file.h"

/// Megatron-LM's indexed dataset: PREFIX.bin holds the tokens of all sequences one after the other,
/// PREFIX.idx the beginnings of sequences and documents. Little-endian. Layout of the .idx, in
/// bytes:
///   0-8 "MMIDIDX\0\0"; 9-16 u64 version 1; 17 u8 token type; 18-25 u64 S sequences; 26-33 u64 D
///   boundaries; 34: i32[S] lengths in tokens; i64[S] offsets into the .bin in bytes; i64[D]
///   boundaries: the first sequence of each document, and S at the end; optional i8[S] modes of
///   multimodal data, ignored here. braid adds 40 bytes, which Megatron does not read: "BRAIDSUM",
///   XXH3 of the .bin and XXH3 of the .idx before these bytes, as hexadecimal digits.
namespace braid {

/// The storage type of a token; the values are the type codes of the file.
enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

int64_t token_type_bytes(TokenType type);
/// "u8", "i8", "i16", "i32", "i64", "u16".
std::string_view token_type_name(TokenType type);
/// The choice of Megatron's writers: u16 below 65500 tokens, otherwise i32.
TokenType token_type_for_vocabulary(int64_t vocabulary_size);

/// XXH3 of the two files, as `checksum_of` prints it; of the .idx without the checksums.
struct TokenChecksums {
  std::string bin;
  std::string idx;

  friend bool operator==(const TokenChecksums&, const TokenChecksums&) = default;
};

/// A checked view of the bytes of an .idx file, which must outlive it. Every entry was checked by
/// `parse_index`.
class SequenceIndex {
 public:
  TokenType token_type() const { return token_type_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_boundaries_ - 1; }
  /// Sum of all lengths.
  int64_t num_tokens() const { return num_tokens_; }

  /// Nullopt if the writer of the file recorded none.
  const std::optional<TokenChecksums>& checksums() const { return checksums_; }

  /// Tokens of a sequence; 0 <= sequence < num_sequences().
  int32_t length(int64_t sequence) const { return load<int32_t>(lengths_, sequence); }
  /// Offset of a sequence in the .bin, in bytes.
  int64_t offset_bytes(int64_t sequence) const { return load<int64_t>(offsets_, sequence); }
  /// First sequence of a document; 0 <= document <= num_documents(). For num_documents() it is
  /// num_sequences().
  int64_t document_begin(int64_t document) const { return load<int64_t>(boundaries_, document); }

 private:
  friend SequenceIndex parse_index(std::span<const std::byte> bytes, int64_t bin_size_bytes,
                                   const std::string& path);

  /// The arrays start at byte 34, so none of them is aligned.
  template <class T>
  static T load(const std::byte* array, int64_t i) {
    T value;
    std::memcpy(&value, array + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }

  const std::byte* lengths_ = nullptr;
  const std::byte* offsets_ = nullptr;
  const std::byte* boundaries_ = nullptr;
  int64_t num_sequences_ = 0;
  int64_t num_boundaries_ = 1;
  int64_t num_tokens_ = 0;
  TokenType token_type_ = TokenType::kU16;
  std::optional<TokenChecksums> checksums_;
};

/// Checks an .idx file completely, in one pass over it, and returns a view of `bytes`.
/// `bin_size_bytes` is the size of its .bin; `path` is used only in messages. Throws DataError, and
/// never reads outside `bytes`, for: bad magic, version or type (floating point types hold no
/// tokens), counts that do not fit the file, negative lengths, offsets that are not the running sum
/// of the lengths, boundaries that do not rise from 0 to S, a .bin of another size, another
/// checksum of the .idx than it records.
SequenceIndex parse_index(std::span<const std::byte> bytes, int64_t bin_size_bytes,
                          const std::string& path);

/// PREFIX of "PREFIX", "PREFIX.bin" or "PREFIX.idx".
std::string dataset_prefix(const std::string& path);

/// Whether `path` names a dataset, PREFIX, PREFIX.bin or PREFIX.idx: one of its files exists.
bool is_dataset(const std::string& path);

/// A range of sequences [begin, end).
struct SequenceRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const SequenceRange&, const SequenceRange&) = default;
};

/// Read access to a dataset on disk. The .idx is in memory (20 bytes per sequence that is a
/// document of its own), tokens are read from the .bin when they are asked for. Reading is
/// thread-safe.
class IndexedDataset {
 public:
  /// `path` is PREFIX, PREFIX.bin or PREFIX.idx. Throws DataError if a file is missing, and as
  /// `parse_index` does.
  explicit IndexedDataset(const std::string& path);

  const std::string& prefix() const { return prefix_; }
  const SequenceIndex& index() const { return index_; }
  SequenceRange all_sequences() const { return {0, index_.num_sequences()}; }

  /// Text that differs for datasets with other sizes, sequences or documents, and with other
  /// tokens: by the recorded checksum, by all tokens up to 256 MiB, and beyond that as far as 1025
  /// samples of 64 bytes show it. "12 documents, 3456 tokens, hash 0123...".
  std::string identity() const;

  /// Reads the whole .bin. Throws DataError unless it has the recorded checksum. Does nothing if
  /// there is none.
  void verify_tokens() const;

  /// Copies tokens [first, first + out.size()) of a sequence, which must be in range. Throws
  /// DataError for a token below 0 or at least `vocabulary_size` (0 means the int32 limit), and if
  /// the .bin has become shorter.
  void read(int64_t sequence, int64_t first, std::span<int32_t> out,
            int64_t vocabulary_size = 0) const;

 private:
  std::string sampled_tokens() const;
  std::string checksum_of_bin() const;

  std::string prefix_;
  std::string idx_;
  PieceFile bin_;
  uint64_t index_hash_ = 0;
  SequenceIndex index_;
};

/// Writes PREFIX.bin and PREFIX.idx. Nothing appears under these names before `commit`; without it,
/// no files are left.
class IndexedDatasetWriter {
 public:
  /// `path` as for IndexedDataset. Throws DataError if the folder cannot be written.
  IndexedDatasetWriter(const std::string& path, TokenType type);

  /// Appends one sequence to the current document. Throws DataError if a token does not fit the
  /// token type, or on a full disk.
  void add_sequence(std::span<const int32_t> tokens);
  /// Closes the current document.
  void end_document();
  /// Makes both files durable, then publishes the .bin and last the .idx, without which the .bin is
  /// unusable. An old dataset of the same name stays complete until then; a kill in between leaves
  /// no .idx. Sequences after the last `end_document` are an error of the caller (InternalError).
  void commit();

  int64_t num_sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_documents() const { return static_cast<int64_t>(boundaries_.size()) - 1; }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  AtomicFile write_index() const;

  std::string prefix_;
  TokenType type_;
  AtomicFile bin_;
  Checksum bin_checksum_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> boundaries_{0};
  int64_t num_tokens_ = 0;
  std::vector<std::byte> packed_;  // one sequence in the stored type; a member only to reuse its
                                   // capacity
};

}  // namespace braid
