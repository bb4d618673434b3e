#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

/// Messages over a connection: four bytes of length, a byte of type, a body. Numbers are those of
/// the machine (little-endian everywhere that braid runs).
struct Frame {
  uint8_t type = 0;
  std::string body;
};

inline constexpr size_t kFrameHeaderBytes = 5;

/// What stands before a body of that many bytes.
std::string frame_header(uint8_t type, size_t body_bytes);
std::string pack_frame(uint8_t type, std::string_view body);

/// The bytes that came in, frame by frame.
class FrameBuffer {
 public:
  std::string& bytes() { return bytes_; }
  /// The next frame, once all of it is there. Throws DeviceError if its body is longer than that.
  std::optional<Frame> next(size_t max_body_bytes);

 private:
  std::string bytes_;
  size_t taken_ = 0;  // from the front
};

}  // namespace braid
