#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "support/tensor_bytes.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

std::string file_with(std::string_view header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string file(sizeof(size), '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  return file + std::string(header) + std::string(data_bytes, 'x');
}

SafetensorsHeader parse(std::string_view file) {
  const auto read = [&](int64_t offset_bytes, std::span<std::byte> out) {
    ASSERT_LE(static_cast<size_t>(offset_bytes) + out.size(), file.size());
    std::memcpy(out.data(), file.data() + offset_bytes, out.size());
  };
  return read_safetensors_header(static_cast<int64_t>(file.size()), read, "model.safetensors");
}

std::string fault_of(std::string_view file) {
  return message_of<DataError>([&] { parse(file); });
}

std::string fault_of_header(std::string_view header, size_t data_bytes = 0) {
  return fault_of(file_with(header, data_bytes));
}

std::string tensor_json(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"w":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

TEST(Safetensors, ReadsTheExampleOfTheFormat) {
  const SafetensorsHeader header = parse(file_with(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},)"
      R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}   )",
      28));
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0], (TensorEntry{"a", DType::kF32, {2, 3}, 0, 24}));
  EXPECT_EQ(header.tensors[1], (TensorEntry{"b", DType::kBF16, {2}, 24, 28}));
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(Safetensors, WritesWhatItReads) {
  const TempFolder folder;
  const std::string path = folder / "t.safetensors";
  const std::vector<float> matrix = {1, 2, 3, 4, 5, 6};
  const int64_t step = 7;
  SafetensorsWriter writer(path,
                           std::vector<TensorInfo>{{"matrix", DType::kF32, {3, 2}},
                                                   {"none", DType::kBF16, {0, 4}},
                                                   {"step \"q\"", DType::kI64, {}}},
                           {{"format", "pt"}});
  const auto bytes = std::as_bytes(std::span(matrix));
  writer.write(bytes.first(5));
  writer.write(bytes.subspan(5));
  writer.write(std::as_bytes(std::span(&step, 1)));
  writer.finish();

  const SafetensorsFile file(path);
  const auto bytes_of = [&](std::string_view name, DType dtype, const Shape& shape) {
    return tensor_bytes(file, file.entry(name, dtype, shape));
  };
  EXPECT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(std::memcmp(bytes_of("matrix", DType::kF32, {3, 2}).data(), matrix.data(), 24), 0);
  EXPECT_EQ(bytes_of("none", DType::kBF16, {0, 4}).size(), 0u);
  EXPECT_EQ(std::memcmp(bytes_of("step \"q\"", DType::kI64, {}).data(), &step, 8), 0);
  EXPECT_EQ(file.entry("matrix").begin_bytes, 0);
  EXPECT_EQ(parse(read_text_file(path, 1000)).data_begin_bytes % 8, 0);
  EXPECT_EQ(writer.size_bytes(), file.size_bytes());
  EXPECT_EQ(writer.checksum(), checksum_of(PieceFile(path)));
  EXPECT_FALSE(file.contains("missing"));
}

TEST(Safetensors, EveryDTypeHasAName) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3,
                            DType::kF8E5M2, DType::kI64, DType::kI32, DType::kU16, DType::kU8}) {
    const TempFolder folder;
    const std::string path = folder / "t.safetensors";
    SafetensorsWriter writer(path, std::vector<TensorInfo>{{"w", dtype, {3}}}, {});
    writer.write(std::vector<std::byte>(3 * dtype_bytes(dtype)));
    writer.finish();
    EXPECT_EQ(SafetensorsFile(path).entry("w").dtype, dtype) << dtype_name(dtype);
  }
}

TEST(Safetensors, AnUnfinishedFileDoesNotAppear) {
  const TempFolder folder;
  const std::string path = folder / "t.safetensors";
  {
    SafetensorsWriter writer(path, std::vector<TensorInfo>{{"w", DType::kU8, {4}}}, {});
    writer.write(std::vector<std::byte>(3));
    EXPECT_THAT(message_of<InternalError>([&] { writer.finish(); }), HasSubstr("1 bytes fewer"));
    EXPECT_THAT(message_of<InternalError>([&] { writer.write(std::vector<std::byte>(2)); }),
                HasSubstr("1 bytes more"));
  }
  EXPECT_EQ(folder.num_entries(), 0);
}

TEST(Safetensors, AFileThatBecomesShorterIsAnError) {
  const TempFolder folder;
  const std::string path = folder / "t.safetensors";
  std::vector<int32_t> values(300'000);  // more than one part of the reader
  std::iota(values.begin(), values.end(), 0);
  SafetensorsWriter writer(
      path, std::vector<TensorInfo>{{"a", DType::kI32, {2}}, {"b", DType::kI32, {300'000}}}, {});
  writer.write(std::as_bytes(std::span(values).first(2)));
  writer.write(std::as_bytes(std::span(values)));
  writer.finish();
  const SafetensorsFile file(path);
  std::vector<int32_t> read(300'000);
  file.reader(file.entry("b")).read(std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read, values);
  EXPECT_EQ(message_of<InternalError>([&] { file.reader(file.entry("a"), 4, 5); }),
            "5 bytes from byte 4 are outside tensor a of [2]");
  std::filesystem::resize_file(path, static_cast<uintmax_t>(file.size_bytes()) - 1);
  EXPECT_EQ(tensor_bytes(file, file.entry("a")).size(), 8u);
  EXPECT_EQ(
      message_of<DataError>([&] { tensor_bytes(file, file.entry("b")); }),
      fmt::format("'{}' has become shorter while it was in use: it ends at or before byte {}, but "
                  "had {} bytes when it was opened",
                  path, file.size_bytes() - 1, file.size_bytes()));
}

TEST(Safetensors, RefusesNamesThatAreTaken) {
  const TempFolder folder;
  const auto write = [&](const std::string& second) {
    SafetensorsWriter(folder / "t",
                      std::vector<TensorInfo>{{"w", DType::kU8, {}}, {second, DType::kU8, {}}}, {});
  };
  EXPECT_THAT(message_of<InternalError>([&] { write("w"); }), HasSubstr("w is taken"));
  EXPECT_THAT(message_of<InternalError>([&] { write("__metadata__"); }), HasSubstr("is taken"));
}

TEST(Safetensors, SaysWhatIsMissingOrOtherThanExpected) {
  const TempFolder folder;
  const std::string path = folder / "t.safetensors";
  SafetensorsWriter writer(path, std::vector<TensorInfo>{{"w", DType::kF32, {1, 2}}}, {});
  writer.write(std::vector<std::byte>(8));
  writer.finish();
  const SafetensorsFile file(path);
  EXPECT_EQ(message_of<DataError>([&] {
              file.entry("v", DType::kF32, {1, 2});
            }),
            fmt::format("'{}' has no tensor \"v\"", path));
  EXPECT_EQ(message_of<DataError>([&] {
              file.entry("w", DType::kF32, {2, 1});
            }),
            fmt::format("tensor \"w\" of '{}' is f32[1,2], expected f32[2,1]", path));
  EXPECT_EQ(message_of<DataError>([&] {
              file.entry("w", DType::kI32, {1, 2});
            }),
            fmt::format("tensor \"w\" of '{}' is f32[1,2], expected i32[1,2]", path));
}

TEST(Safetensors, RefusesImpossibleHeaderSizes) {
  EXPECT_THAT(fault_of(""), HasSubstr("it has 0 bytes"));
  EXPECT_THAT(fault_of("1234567"), HasSubstr("it has 7 bytes"));
  EXPECT_THAT(fault_of(std::string(8, '\xff')), HasSubstr("claims 18446744073709551615 bytes"));
  EXPECT_THAT(fault_of(file_with("{}", 0).substr(0, 9)),
              HasSubstr("claims 2 bytes, but at most 1"));
  EXPECT_THAT(fault_of_header(""), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(fault_of_header(" {}"), HasSubstr("does not begin with '{'"));
}

TEST(Safetensors, RefusesWhatIsNotJson) {
  EXPECT_THAT(fault_of_header("{\"w\":"), HasSubstr("not JSON at byte"));
  EXPECT_THAT(fault_of_header("{} {}"), HasSubstr("not JSON at byte"));
  EXPECT_THAT(fault_of_header("{\"\xff\":{}}"), HasSubstr("not JSON at byte"));
  EXPECT_THAT(fault_of_header(tensor_json("\"F32\"", "[1e999]", "[0,4]"), 4),
              HasSubstr("out of range"));
  EXPECT_THAT(fault_of_header(fmt::format("{{\"w\":{}{}}}", std::string(100000, '['),
                                          std::string(100000, ']'))),
              HasSubstr("deeper than 64, the limit, at byte 69"));
}

TEST(Safetensors, RefusesDuplicateKeys) {
  const std::string one = R"("a":{"dtype":"U8","shape":[],"data_offsets":[0,1]})";
  EXPECT_THAT(fault_of_header(fmt::format("{{{},{}}}", one, one), 1),
              HasSubstr("key \"a\" occurs twice"));
  EXPECT_THAT(
      fault_of_header(R"({"a":{"dtype":"U8","dtype":"F32","shape":[],"data_offsets":[0,1]}})", 1),
      HasSubstr("key \"dtype\" occurs twice"));
  EXPECT_THAT(fault_of_header(R"({"__metadata__":{"k":"1","k":"2"}})"),
              HasSubstr("key \"k\" occurs twice"));
}

/// Work per tensor that grows with their number would take minutes here.
TEST(Safetensors, ReadsAndWritesManyTensors) {
  constexpr int kTensors = 50'000;
  const TempFolder folder;
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < kTensors; ++i) {
    tensors.push_back({fmt::format("t{}", i * 7919 % 50'021), DType::kU8, {1, 1}});
  }
  SafetensorsWriter writer(folder / "a", tensors, {{"format", "pt"}});
  const std::vector<std::byte> content(kTensors);
  writer.write(content);
  writer.finish();
  const SafetensorsFile file(folder / "a");
  ASSERT_EQ(file.tensors().size(), static_cast<size_t>(kTensors));
  EXPECT_EQ(file.entry("t7919").begin_bytes, 1);
  EXPECT_EQ(file.tensors().back().name, tensors.back().name);
}

TEST(Safetensors, RefusesFieldsThatAreMissingOrOfAnotherType) {
  EXPECT_THAT(fault_of_header(R"({"w":1})"), HasSubstr("does not have exactly"));
  EXPECT_THAT(fault_of_header(R"({"w":{"dtype":"U8","shape":[1]}})", 1),
              HasSubstr("does not have exactly"));
  EXPECT_THAT(fault_of_header(R"({"w":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":0}})", 1),
              HasSubstr("does not have exactly"));
  EXPECT_THAT(fault_of_header(R"({"__metadata__":1})"), HasSubstr("not an object"));
  EXPECT_THAT(fault_of_header(R"({"__metadata__":{"k":1}})"), HasSubstr("\"k\" is not a string"));
  EXPECT_THAT(fault_of_header(tensor_json("\"F7\"", "[1]", "[0,1]"), 1),
              HasSubstr("not supported: \"F7\""));
  EXPECT_THAT(fault_of_header(tensor_json("1", "[1]", "[0,1]"), 1),
              HasSubstr("not supported: not a text"));
}

TEST(Safetensors, RefusesShapesThatCannotBe) {
  for (const char* shape : {"1", "[-1]", "[1.0]", "[\"1\"]", "[18446744073709551615]", "[[1]]"}) {
    EXPECT_THAT(fault_of_header(tensor_json("\"U8\"", shape, "[0,1]"), 1),
                HasSubstr("shape of tensor \"w\" is not a list of sizes"));
  }
  EXPECT_THAT(fault_of_header(tensor_json("\"U8\"", "[1,1,1,1,1,1]", "[0,1]"), 1),
              HasSubstr("6 dimensions, at most 5"));
  EXPECT_THAT(fault_of_header(tensor_json("\"F32\"", "[4294967296,4294967296]", "[0,0]")),
              HasSubstr("too large"));
  EXPECT_THAT(fault_of_header(tensor_json("\"F32\"", "[0,4294967296,4294967296]", "[0,0]")),
              HasSubstr("too large"));
  EXPECT_THAT(fault_of_header(tensor_json("\"F32\"", "[3]", "[0,11]"), 11),
              HasSubstr("takes 12 bytes, but its data_offsets say 11"));
}

TEST(Safetensors, RefusesOffsetsThatDoNotCoverTheFile) {
  const auto two = [](std::string_view first, std::string_view second, size_t data_bytes) {
    return fault_of_header(fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                                       R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                                       first, second),
                           data_bytes);
  };
  EXPECT_THAT(two("[0,4]", "[9223372036854775803,9223372036854775807]", 8),
              HasSubstr("\"b\" begins at byte 9223372036854775803"));
  EXPECT_THAT(two("[0,4]", "[18446744073709551612,18446744073709551616]", 8),
              HasSubstr("not a list of sizes"));
  EXPECT_THAT(two("[0,4]", "[3,7]", 7), HasSubstr("\"b\" begins at byte 3"));
  EXPECT_THAT(two("[0,4]", "[5,9]", 9), HasSubstr("\"b\" begins at byte 5"));
  EXPECT_THAT(two("[0,4]", "[0,4]", 4), HasSubstr("\"b\" begins at byte 0"));
  EXPECT_THAT(two("[1,5]", "[5,9]", 9), HasSubstr("\"a\" begins at byte 1"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 7), HasSubstr("take 8 bytes, but the file has 7"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 9), HasSubstr("take 8 bytes, but the file has 9"));
  EXPECT_THAT(two("[4,0]", "[4,8]", 8), HasSubstr("not a begin and a later end"));
  EXPECT_THAT(two("[0]", "[4,8]", 8), HasSubstr("not a begin and a later end"));
}

TEST(Safetensors, NamesTheFileAndQuotesWhatItHolds) {
  EXPECT_THAT(
      fault_of_header("{\"a\\nb\":1}"),
      HasSubstr("'model.safetensors' is not a valid safetensors file: tensor \"a\\u000Ab\""));
  EXPECT_LT(fault_of_header(fmt::format("{{\"{}\":1}}", std::string(100000, 'n'))).size(), 300u);
}

TEST(Safetensors, AnyFlippedByteOfAHeaderIsReadOrRefused) {
  const std::string good = file_with(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  std::mt19937 random(1);
  for (size_t position = 0; position < good.size(); ++position) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::string bad = good;
      bad[position] = static_cast<char>(random());
      try {
        const SafetensorsHeader header = parse(bad);
        ASSERT_EQ(header.tensors.size(), 1u);
        ASSERT_EQ(header.tensors[0].end_bytes, 8);
      } catch (const DataError&) {
      }
    }
  }
}

}  // namespace
}  // namespace braid
