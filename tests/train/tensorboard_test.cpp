#include "train/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"

namespace braid {
namespace {

using testing::HasSubstr;

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

// An independent reader: CRC bit by bit from the polynomial in its usual order, fields into maps.

uint32_t reverse_bits(uint32_t value, int bits) {
  uint32_t reversed = 0;
  for (int i = 0; i < bits; ++i) {
    reversed |= (value >> i & 1) << (bits - 1 - i);
  }
  return reversed;
}

uint32_t masked_crc_of(std::string_view bytes) {
  uint32_t remainder = 0xffffffff;
  for (const char byte : bytes) {
    remainder ^= reverse_bits(static_cast<uint8_t>(byte), 8) << 24;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = remainder >> 31 != 0 ? remainder << 1 ^ 0x1edc6f41 : remainder << 1;
    }
  }
  const uint32_t crc = ~reverse_bits(remainder, 32);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) {
    value = value << 8 | static_cast<uint8_t>(bytes[i - 1]);
  }
  return value;
}

std::vector<std::string> read_records(std::string_view file) {
  std::vector<std::string> records;
  while (!file.empty()) {
    const uint64_t size = little_endian(file.substr(0, 8));
    EXPECT_EQ(little_endian(file.substr(8, 4)), masked_crc_of(file.substr(0, 8)));
    records.emplace_back(file.substr(12, size));
    EXPECT_EQ(little_endian(file.substr(12 + size, 4)), masked_crc_of(records.back()));
    file.remove_prefix(16 + size);
  }
  return records;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.at(0));
    bytes.remove_prefix(1);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) {
      return value;
    }
  }
}

/// Fields of a message by number: the bytes of the value; a varint as 8 bytes.
std::map<uint64_t, std::string> fields_of(std::string_view message) {
  std::map<uint64_t, std::string> fields;
  while (!message.empty()) {
    const uint64_t key = take_varint(message);
    size_t size = (key & 7) == 1 ? 8 : 4;
    if ((key & 7) == 0) {
      const uint64_t value = take_varint(message);
      fields[key >> 3] = std::string(std::bit_cast<std::array<char, 8>>(value).data(), 8);
      continue;
    }
    if ((key & 7) == 2) {
      size = take_varint(message);
    }
    fields[key >> 3] = std::string(message.substr(0, size));
    message.remove_prefix(size);
  }
  return fields;
}

double wall_time_of(const std::string& event) {
  return std::bit_cast<double>(little_endian(fields_of(event).at(1)));
}

std::string only_file(const TempFolder& folder) {
  EXPECT_EQ(folder.num_entries(), 1);
  return std::filesystem::directory_iterator(folder.path())->path().string();
}

TEST(Tensorboard, Crc32cHasThePublishedValues) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  // RFC 3720, B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string ascending(32, '\0');
  std::iota(ascending.begin(), ascending.end(), '\0');
  EXPECT_EQ(crc32c(ascending), 0x46dd794eu);
}

TEST(Tensorboard, AVersionRecordIsThatOfOtherWriters) {
  const std::string record = tfrecord(version_event(1.0));
  EXPECT_EQ(record.substr(0, record.size() - 4),
            from_hex("1800000000000000a37f4b22"  // 24 bytes: every event file begins so
                     "09000000000000f03f"        // wall_time = 1.0
                     "1a0d") +
                "brain.Event:2");
}

TEST(Tensorboard, AScalarIsATagAndAFloat) {
  // wall_time 2, step 300, summary { value { tag "loss" simple_value 1.5 } }
  EXPECT_EQ(scalar_event(2.0, 300, "loss", 1.5f), from_hex("090000000000000040"
                                                           "10ac02"
                                                           "2a0d"
                                                           "0a0b"
                                                           "0a046c6f7373"
                                                           "150000c03f"));
}

TEST(Tensorboard, AFileReadsBack) {
  const TempFolder folder;
  TensorBoardFile file(folder.path(), 1700000000.25, 41);
  file.scalar(1700000001.5, 41, "loss", 2.25);
  file.scalar(1700000002.5, int64_t{1} << 40, "learning-rate", 1e-4);
  EXPECT_THAT(file.path(), HasSubstr("/events.out.tfevents.1700000000."));
  EXPECT_EQ(only_file(folder), file.path());

  const std::vector<std::string> events = read_records(read_text_file(file.path(), 1 << 20));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(fields_of(events[0]).at(3), "brain.Event:2");
  EXPECT_EQ(wall_time_of(events[0]), 1700000000.25);

  EXPECT_EQ(little_endian(fields_of(events[1]).at(2)), 41u);
  EXPECT_EQ(little_endian(fields_of(fields_of(events[1]).at(7)).at(1)), 1u);  // START

  EXPECT_EQ(little_endian(fields_of(events[3]).at(2)), uint64_t{1} << 40);
  EXPECT_EQ(wall_time_of(events[3]), 1700000002.5);
  const auto value = fields_of(fields_of(fields_of(events[3]).at(5)).at(1));
  EXPECT_EQ(value.at(1), "learning-rate");
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(little_endian(value.at(2)))), 1e-4f);
}

TEST(Tensorboard, EachRecordIsInTheFileAtOnce) {
  const TempFolder folder;
  TensorBoardFile file(folder.path(), 1.0, 0);
  for (size_t count = 1; count <= 3; ++count) {
    file.scalar(2.0, static_cast<int64_t>(count), "loss", 1);
    EXPECT_EQ(read_records(read_text_file(file.path(), 1 << 20)).size(), 2 + count);
  }
}

TEST(Tensorboard, TwoRunsInOneSecondHaveTwoFiles) {
  const TempFolder folder;
  const TensorBoardFile first(folder.path(), 100.0, 0);
  const TensorBoardFile second(folder.path(), 100.5, 1);
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(folder.num_entries(), 2);
}

TEST(Tensorboard, AFullDiskIsAnErrorThatNamesTheFile) {
  const TempFolder folder;
  TensorBoardFile file(folder.path(), 1.0, 0);
  const FileSizeLimit limit(static_cast<int64_t>(std::filesystem::file_size(file.path())) + 5);
  EXPECT_THAT(message_of<DataError>([&] { file.scalar(2.0, 1, "loss", 1); }),
              HasSubstr(file.path()));
}

}  // namespace
}  // namespace braid
