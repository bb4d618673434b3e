#include "train/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/errors.h"

namespace braid {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  constexpr uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReversedPolynomial : 0);
    }
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8;
}

template <class T>
void append_little_endian(std::string& bytes, T value) {
  for (size_t byte = 0; byte < sizeof(T); ++byte) {
    bytes += static_cast<char>(value >> (8 * byte) & 0xff);
  }
}

// Protocol buffers: a field is a key (number and wire type) and a value.
enum class WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& bytes, uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    bytes += static_cast<char>(value | 0x80);
  }
  bytes += static_cast<char>(value);
}

void append_key(std::string& bytes, uint64_t number, WireType type) {
  append_varint(bytes, number << 3 | static_cast<uint64_t>(type));
}

void append_integer_field(std::string& bytes, uint64_t number, int64_t value) {
  append_key(bytes, number, WireType::kVarint);
  append_varint(bytes, static_cast<uint64_t>(value));
}

void append_bytes_field(std::string& bytes, uint64_t number, std::string_view value) {
  append_key(bytes, number, WireType::kBytes);
  append_varint(bytes, value.size());
  bytes += value;
}

void append_double_field(std::string& bytes, uint64_t number, double value) {
  append_key(bytes, number, WireType::kFixed64);
  append_little_endian(bytes, std::bit_cast<uint64_t>(value));
}

void append_float_field(std::string& bytes, uint64_t number, float value) {
  append_key(bytes, number, WireType::kFixed32);
  append_little_endian(bytes, std::bit_cast<uint32_t>(value));
}

// Field numbers of event.proto and summary.proto.
constexpr uint64_t kEventWallTime = 1;
constexpr uint64_t kEventStep = 2;
constexpr uint64_t kEventFileVersion = 3;
constexpr uint64_t kEventSummary = 5;
constexpr uint64_t kEventSessionLog = 7;
constexpr uint64_t kSummaryValue = 1;
constexpr uint64_t kValueTag = 1;
constexpr uint64_t kValueSimpleValue = 2;
constexpr uint64_t kSessionLogStatus = 1;
constexpr int64_t kSessionStart = 1;

std::string event_at(double wall_time_s, int64_t step) {
  std::string event;
  append_double_field(event, kEventWallTime, wall_time_s);
  append_integer_field(event, kEventStep, step);
  return event;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') {
    return "localhost";
  }
  return name.data();
}

AppendFile create_event_file(const std::string& folder, double wall_time_s) {
  for (auto time_s = static_cast<int64_t>(wall_time_s);; ++time_s) {
    AppendFile file(fmt::format("{}/events.out.tfevents.{:010d}.{}", folder, time_s, host_name()),
                    AppendFile::Existing::kRefuse);
    if (file.is_open()) {
      return file;
    }
  }
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  }
  return ~crc;
}

std::string tfrecord(std::string_view data) {
  std::string record;
  append_little_endian(record, uint64_t{data.size()});
  append_little_endian(record, masked_crc(record));
  record += data;
  append_little_endian(record, masked_crc(data));
  return record;
}

std::string version_event(double wall_time_s) {
  std::string event;
  append_double_field(event, kEventWallTime, wall_time_s);
  append_bytes_field(event, kEventFileVersion, "brain.Event:2");
  return event;
}

std::string scalar_event(double wall_time_s, int64_t step, std::string_view tag, float value) {
  std::string summary_value;
  append_bytes_field(summary_value, kValueTag, tag);
  append_float_field(summary_value, kValueSimpleValue, value);
  std::string summary;
  append_bytes_field(summary, kSummaryValue, summary_value);
  std::string event = event_at(wall_time_s, step);
  append_bytes_field(event, kEventSummary, summary);
  return event;
}

std::string session_start_event(double wall_time_s, int64_t step) {
  std::string session_log;
  append_integer_field(session_log, kSessionLogStatus, kSessionStart);
  std::string event = event_at(wall_time_s, step);
  append_bytes_field(event, kEventSessionLog, session_log);
  return event;
}

TensorBoardFile::TensorBoardFile(const std::string& folder, double wall_time_s, int64_t first_step)
    : file_(create_event_file(folder, wall_time_s)) {
  file_.append(tfrecord(version_event(wall_time_s)));
  file_.append(tfrecord(session_start_event(wall_time_s, first_step)));
}

void TensorBoardFile::scalar(double wall_time_s, int64_t step, std::string_view tag, double value) {
  file_.append(tfrecord(scalar_event(wall_time_s, step, tag, static_cast<float>(value))));
}

}  // namespace braid
