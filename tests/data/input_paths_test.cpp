#include "data/input_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class InputPathsTest : public ::testing::Test {
 protected:
  InputPathsTest() {
    for (const char* name : {"d/b.jsonl.gz", "d/a.txt", "d/sub/c.json.zst", "d/README.md",
                             "d/.hidden.txt", "d/.git/x.txt", "p/part-2.txt", "p/part-10.txt"}) {
      const std::filesystem::path path = folder_ / name;
      std::filesystem::create_directories(path.parent_path());
      write_test_file(path.string(), "text");
    }
  }
  /// Relative to the folder.
  std::vector<std::string> expand(const std::vector<std::string>& inputs) const {
    std::vector<std::string> paths;
    for (const std::string& input : inputs) {
      paths.push_back(folder_ / input);
    }
    paths = expand_inputs(paths, "--input");
    for (std::string& path : paths) {
      path = std::filesystem::relative(path, folder_ / "").string();
    }
    return paths;
  }
  std::string refusal(const std::vector<std::string>& inputs) const {
    return message_of<ConfigError>([&] { expand(inputs); });
  }

  TempFolder folder_;
};

TEST_F(InputPathsTest, TakesFilesFoldersAndPatternsInOrder) {
  EXPECT_THAT(expand({"d/README.md"}), ElementsAre("d/README.md"));
  EXPECT_THAT(expand({"d"}), ElementsAre("d/a.txt", "d/b.jsonl.gz", "d/sub/c.json.zst"));
  EXPECT_THAT(expand({"p/part-*.txt", "d/a.txt"}),
              ElementsAre("p/part-10.txt", "p/part-2.txt", "d/a.txt"));
  EXPECT_THAT(expand({"missing.txt"}), ElementsAre("missing.txt"));  // for whoever opens it
  write_test_file(folder_ / "p/[1].txt", "text");
  EXPECT_THAT(expand({"p/[1].txt"}), ElementsAre("p/[1].txt"));
}

TEST_F(InputPathsTest, RefusesInputsWithoutAFile) {
  EXPECT_THAT(refusal({"p/*.jsonl"}), HasSubstr("p/*.jsonl: no file has a name like this"));
  std::filesystem::create_directories(folder_ / "e");
  EXPECT_THAT(refusal({"e"}), AllOf(HasSubstr("--input "), HasSubstr("has no file *.txt")));
}

TEST_F(InputPathsTest, TakesParquetFilesOfAFolder) {
  std::filesystem::create_directories(folder_ / "e");
  write_test_file(folder_ / "e/x.parquet", "PAR1");
  write_test_file(folder_ / "e/x.parquet.gz", "PAR1");
  EXPECT_THAT(expand({"e"}), ElementsAre("e/x.parquet"));
}

TEST_F(InputPathsTest, RefusesAFileThatIsNamedTwice) {
  EXPECT_THAT(refusal({"d", "d/../d/a.txt"}), HasSubstr("is named twice"));
}

TEST_F(InputPathsTest, AddsUpSizes) {
  EXPECT_EQ(total_bytes(std::vector<std::string>{folder_ / "d/a.txt", folder_ / "p/part-2.txt"}),
            8);
  EXPECT_EQ(describe_inputs(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(describe_inputs(std::vector<std::string>{"a", "b"}), "2 files");
}

}  // namespace
}  // namespace braid
