#include "hugging_face/tensor_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "support/tensor_bytes.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

std::vector<TensorInfo> three_tensors() {
  return {{"a", DType::kF32, {4}}, {"b", DType::kF32, {2, 3}}, {"c", DType::kBF16, {5}}};
}

class HfFolder : public testing::Test {
 protected:
  /// Bytes that count up through all tensors.
  void save(int64_t max_shard_bytes) const {
    HfFolderWriter writer(folder_ / "m", three_tensors(), max_shard_bytes);
    uint8_t next = 0;
    for (const int64_t size : {16, 24, 10}) {
      std::vector<uint8_t> bytes(static_cast<size_t>(size));
      std::generate(bytes.begin(), bytes.end(), [&] { return next++; });
      writer.write(std::as_bytes(std::span(bytes)).first(3));
      writer.write(std::as_bytes(std::span(bytes)).subspan(3));
      writer.end_tensor();
    }
    writer.finish("{}\n");
  }

  std::vector<std::string> names(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string fault() const {
    return message_of<DataError>([&] { HfTensorFolder{folder_ / "m"}; });
  }
  std::string index() const { return folder_ / "m/model.safetensors.index.json"; }

  TempFolder folder_;
};

TEST(PlanShards, FillsFilesInOrder) {
  const std::vector<TensorInfo> tensors = three_tensors();  // of 16, 24, 10 bytes
  using Shards = std::vector<std::vector<size_t>>;
  EXPECT_EQ(plan_shards(tensors, 50), (Shards{{0, 1, 2}}));
  EXPECT_EQ(plan_shards(tensors, 49), (Shards{{0, 1}, {2}}));
  EXPECT_EQ(plan_shards(tensors, 39), (Shards{{0}, {1, 2}}));
  EXPECT_EQ(plan_shards(tensors, 1), (Shards{{0}, {1}, {2}}));
}

TEST_F(HfFolder, ReadsWhatItWrote) {
  for (const auto& [max_shard_bytes, num_files] : {std::pair{1000, 1u}, {40, 2u}, {1, 3u}}) {
    save(max_shard_bytes);
    const HfTensorFolder files(folder_ / "m");
    EXPECT_EQ(files.num_files(), num_files);
    EXPECT_THAT(files.names(), ElementsAre("a", "b", "c"));
    const auto b = files.find("b");
    ASSERT_TRUE(b);
    EXPECT_EQ(b->entry->shape, (Shape{2, 3}));
    EXPECT_EQ(tensor_bytes(*b->file, *b->entry).front(), std::byte{16});
    const auto c = files.find("c");
    ASSERT_TRUE(c);
    EXPECT_EQ(tensor_bytes(*c->file, *c->entry).back(), std::byte{49});
    EXPECT_FALSE(files.find("d"));
    EXPECT_THAT(names(folder_.path()), ElementsAre("m"));
    fs::remove_all(folder_ / "m");
  }
}

TEST_F(HfFolder, NamesFilesAsTransformersDoes) {
  save(40);
  EXPECT_THAT(names(folder_ / "m"),
              ElementsAre("config.json", "model-00001-of-00002.safetensors",
                          "model-00002-of-00002.safetensors", "model.safetensors.index.json"));
  EXPECT_EQ(read_text_file(index(), 1 << 20),
            "{\n  \"metadata\": {\n    \"total_size\": 50\n  },\n  \"weight_map\": {\n"
            "    \"a\": \"model-00001-of-00002.safetensors\",\n"
            "    \"b\": \"model-00001-of-00002.safetensors\",\n"
            "    \"c\": \"model-00002-of-00002.safetensors\"\n  }\n}\n");
  fs::remove_all(folder_ / "m");
  save(1000);
  EXPECT_THAT(names(folder_ / "m"), ElementsAre("config.json", "model.safetensors"));
}

TEST_F(HfFolder, WithoutFinishThereIsNothing) {
  {
    HfFolderWriter writer(folder_ / "m", three_tensors(), 1);
    const std::vector<std::byte> bytes(16);
    writer.write(bytes);
    writer.end_tensor();
  }
  EXPECT_THAT(names(folder_.path()), IsEmpty());
}

TEST_F(HfFolder, TakesPathsAsPeopleTypeThem) {
  fs::create_directories(folder_ / "m");
  HfFolderWriter writer(folder_ / "m/", {}, 1);
  writer.end_tensor();
  writer.finish("{}");
  EXPECT_THAT(names(folder_ / "m"), ElementsAre("config.json", "model.safetensors"));
}

TEST_F(HfFolder, RefusesWhatIsTaken) {
  write_test_file(folder_ / "m", "a file");
  EXPECT_THAT(message_of<ConfigError>([&] { save(1); }), HasSubstr("exists already"));
  fs::remove(folder_ / "m");
  fs::create_directories(folder_ / "m");
  write_test_file(folder_ / "m/notes.txt", "of a person");
  EXPECT_THAT(message_of<ConfigError>([&] { save(1); }), HasSubstr("exists already"));
}

TEST_F(HfFolder, AFolderWithoutTensorsIsNamed) {
  fs::create_directories(folder_ / "m");
  write_test_file(folder_ / "m/pytorch_model.bin", "");
  EXPECT_EQ(fault(), fmt::format("'{}' holds neither model.safetensors nor "
                                 "model.safetensors.index.json",
                                 folder_ / "m"));
}

TEST_F(HfFolder, MissingAndTruncatedFilesAreNamed) {
  save(40);
  const std::string second = folder_ / "m/model-00002-of-00002.safetensors";
  const std::string bytes = read_text_file(second, 1 << 20);
  for (size_t size = 0; size < bytes.size(); ++size) {
    write_test_file(second, bytes.substr(0, size));
    ASSERT_THAT(fault(), HasSubstr("'" + second + "' is not a valid safetensors file"));
  }
  fs::remove(second);
  EXPECT_EQ(fault(), fmt::format("cannot read '{}': open: No such file or directory", second));
}

TEST_F(HfFolder, AnIndexThatDisagreesWithItsFilesIsRefused) {
  save(40);
  const std::string good = read_text_file(index(), 1 << 20);
  const auto fault_with = [&](const std::string& part, const std::string& other) {
    std::string text = good;
    text.replace(text.find(part), part.size(), other);
    write_test_file(index(), text);
    return fault();
  };
  EXPECT_THAT(
      fault_with("\"b\"", "\"d\""),
      HasSubstr("says that the tensor \"d\" is in '" +
                (folder_ / "m/model-00001-of-00002.safetensors") + "', which does not have it"));
  EXPECT_THAT(fault_with("\"c\": \"model-00002", "\"c\": \"model-00001"),
              HasSubstr("says that the tensor \"c\""));
  // Both files are there, and the index takes one for the other.
  EXPECT_THAT(fault_with("\"b\": \"model-00001", "\"b\": \"model-00002"),
              HasSubstr("says that the tensor \"b\" is in '" +
                        (folder_ / "m/model-00002-of-00002.safetensors")));
  for (const char* const file :
       {"\"../m/model.safetensors\"", "\"a/model.safetensors\"", "\"\"", "3", "\".\""}) {
    EXPECT_THAT(fault_with("\"model-00002-of-00002.safetensors\"", file),
                HasSubstr("does not name a file beside it for the tensor \"c\""));
  }
  EXPECT_THAT(fault_with("weight_map", "weights"), HasSubstr("has no \"weight_map\""));
  write_test_file(index(), "{\"weight_map\": [\"a\"]}");
  EXPECT_THAT(fault(), HasSubstr("has no \"weight_map\""));
  EXPECT_THAT(fault_with("{", ""), HasSubstr("is not JSON at byte"));
  EXPECT_THAT(fault_with("{", std::string(100'000, '[')), HasSubstr("deeper than 64"));
}

TEST_F(HfFolder, ATensorInTwoFilesIsRefused) {
  save(40);
  fs::copy_file(folder_ / "m/model-00001-of-00002.safetensors", folder_ / "m/again.safetensors");
  std::string text = read_text_file(index(), 1 << 20);
  write_test_file(index(),
                  text.replace(text.find("\"b\": \"model-00001-of-00002"), 26, "\"b\": \"again"));
  EXPECT_THAT(fault(), HasSubstr("the tensor \"a\" is both in '"));
}

}  // namespace
}  // namespace braid
