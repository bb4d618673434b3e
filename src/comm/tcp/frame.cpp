#include "comm/tcp/frame.h"

#include <limits>

#include "base/byte_fields.h"
#include "base/errors.h"

namespace braid {

std::string frame_header(uint8_t type, size_t body_bytes) {
  check(body_bytes <= std::numeric_limits<uint32_t>::max(), "a message of {} bytes", body_bytes);
  return ByteWriter().number(static_cast<uint32_t>(body_bytes)).number(type).take();
}

std::string pack_frame(uint8_t type, std::string_view body) {
  std::string bytes = frame_header(type, body.size());
  bytes += body;
  return bytes;
}

std::optional<Frame> FrameBuffer::next(size_t max_body_bytes) {
  const std::string_view rest = std::string_view(bytes_).substr(taken_);
  ByteReader header(rest);
  if (rest.size() >= kFrameHeaderBytes) {
    const auto body_bytes = header.number<uint32_t>();
    const auto type = header.number<uint8_t>();
    if (body_bytes > max_body_bytes) {
      throw_device_error("a message of {} bytes, of at most {}", body_bytes, max_body_bytes);
    }
    if (header.rest().size() >= body_bytes) {
      taken_ += kFrameHeaderBytes + body_bytes;
      return Frame{type, std::string(header.rest().substr(0, body_bytes))};
    }
  }
  bytes_.erase(0, taken_);  // erases all consumed bytes at once
  taken_ = 0;
  return std::nullopt;
}

}  // namespace braid
