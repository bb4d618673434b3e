#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/file.h"

namespace braid {

/// XXH3 of a stream of bytes: detects corruption, not forgery. Move-only.
class Checksum {
 public:
  Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  ~Checksum();

  void add(std::span<const std::byte> bytes);
  /// The checksum of all bytes added so far, as 16 lower-case hexadecimal digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_of(std::span<const std::byte> bytes);
/// Of all bytes of the file. Throws DataError if they cannot be read.
std::string checksum_of(const PieceFile& file);

}  // namespace braid
