#include "base/file_operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/temp_folder.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

TEST(FileOperation, TheLongestIsKnownWhileItLasts) {
  EXPECT_EQ(longest_file_operation(), std::nullopt);
  {
    const FileOperation first("read of", "a");
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(longest_file_operation()->name, "read of 'a'");
    {
      const FileOperation second("write of", "b");
      EXPECT_EQ(longest_file_operation()->name, "read of 'a'");
    }
    std::optional<FileOperation> third;
    third.emplace("write of", "c");
    EXPECT_EQ(longest_file_operation()->name, "read of 'a'");
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(2)) {
    }
    EXPECT_GE(longest_file_operation()->duration, std::chrono::milliseconds(2));
  }
  EXPECT_EQ(longest_file_operation(), std::nullopt);
}

TEST(FileOperation, TheNextOldestFollowsTheFirst) {
  std::optional<FileOperation> first;
  std::optional<FileOperation> second;
  std::optional<FileOperation> third;
  first.emplace("read of", "a");
  second.emplace("read of", "b");
  third.emplace("read of", "c");
  second.reset();
  first.reset();
  EXPECT_EQ(longest_file_operation()->name, "read of 'c'");
  second.emplace("read of", "d");
  third.reset();
  EXPECT_EQ(longest_file_operation()->name, "read of 'd'");
}

TEST(FileOperation, IsKnownWhileItHangs) {
  const TempFolder folder;
  const std::string path = folder / "file";
  write_file_atomically(path, "at last");
  std::promise<void> thaw;
  set_file_operation_hook([&](std::string_view what, std::string_view) {
    if (what == "open of") {
      thaw.get_future().wait();
    }
  });
  std::thread reader([&] { EXPECT_EQ(read_text_file(path, 100), "at last"); });
  std::string name;
  while (name.empty()) {
    const auto longest = longest_file_operation();
    name = longest ? longest->name : "";
  }
  EXPECT_EQ(name, "open of '" + path + "'");
  thaw.set_value();
  reader.join();
  set_file_operation_hook({});
}

TEST(FileOperation, EveryStepOfAnAtomicFileIsOne) {
  const TempFolder folder;
  std::vector<std::string> seen;
  set_file_operation_hook([&](std::string_view what, std::string_view path) {
    seen.push_back(std::string(what) + " " + std::string(path));
  });
  write_file_atomically(folder / "a", "text");
  const PieceFile file(folder / "a");
  set_file_operation_hook({});
  const std::string path = folder / "a";
  EXPECT_THAT(seen, IsSupersetOf({"creation of " + path, "write of " + path, "fsync of " + path,
                                  "rename of " + path, "fsync of " + folder.path().string(),
                                  "open of " + path}));
  write_file_atomically(folder / "a", "other");
  EXPECT_EQ(seen.size(), 6u + 1u);  // "close of" as well, and nothing since
}

}  // namespace
}  // namespace braid
