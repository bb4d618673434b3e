#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

/// Messages over a connection: four bytes of length, one byte of type, a body. Numbers have the
/// byte order of the machine (little-endian on every machine that braid supports).
struct Frame {
  uint8_t type = 0;
  std::string body;
};

inline constexpr size_t kFrameHeaderBytes = 5;

/// The header of a frame with a body of that many bytes.
std::string frame_header(uint8_t type, size_t body_bytes);
std::string pack_frame(uint8_t type, std::string_view body);

/// Splits received bytes into frames.
class FrameBuffer {
 public:
  std::string& bytes() { return bytes_; }
  /// The next frame if it is complete. Throws DeviceError if its body is longer than
  /// max_body_bytes.
  std::optional<Frame> next(size_t max_body_bytes);

 private:
  std::string bytes_;
  size_t taken_ = 0;  // from the start of bytes_
};

}  // namespace braid
