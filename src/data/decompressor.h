#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace braid {

enum class Compression { kNone, kGzip, kZstd };

/// "gzip", "zstd".
std::string_view compression_name(Compression compression);

/// The format that a file with these first bytes has.
Compression find_compression(std::span<const std::byte> first_bytes);

/// Thrown by a decompressor: the bytes are no stream of its format. A few words: "incorrect data
/// check".
struct BrokenStream {
  std::string cause;
};

/// Reads the streams of a file, one after the other (a file may be several gzip members or zstd
/// frames).
class Decompressor {
 public:
  virtual ~Decompressor() = default;
  /// Takes bytes off the front of `in`, fills `out` from its front, and returns the bytes written
  /// to it. Makes progress unless `in` is empty. Throws BrokenStream.
  virtual size_t step(std::span<const std::byte>& in, std::span<std::byte> out) = 0;
  /// Whether a file may end here: not inside a stream.
  virtual bool may_end() const = 0;
};

/// Throws DataError, beginning with `path`, if this build has no library for the format.
std::unique_ptr<Decompressor> make_decompressor(Compression compression, const std::string& path);

/// What this build reads, for people: "gzip (zlib 1.2.13), zstd 1.5.4", and how to get the rest.
std::string describe_decompressors();

}  // namespace braid
