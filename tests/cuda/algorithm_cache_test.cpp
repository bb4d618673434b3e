#include "backends/cuda/algorithm_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

class AlgorithmCacheTest : public testing::Test {
 protected:
  AlgorithmCacheTest() {
    const auto* const info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = testing::TempDir() + "/braid_algorithm_cache_" + info->name();
    fs::remove_all(folder_);
  }
  ~AlgorithmCacheTest() override { fs::remove_all(folder_); }

  std::string file() const { return folder_ + "/algorithms.txt"; }
  std::string text() const { return read_text_file(file(), 1 << 20); }
  void write(const std::string& text) const { std::ofstream(file(), std::ios::binary) << text; }

  std::string folder_;
};

TEST_F(AlgorithmCacheTest, RemembersBetweenObjects) {
  AlgorithmCache cache(folder_);
  EXPECT_EQ(cache.find("a b"), std::nullopt);
  cache.store("a b", "1 2");
  cache.store("c", "");
  cache.store("a b", "3");
  EXPECT_TRUE(cache.is_saved());
  const AlgorithmCache reopened(folder_);
  EXPECT_EQ(reopened.size(), 2u);
  EXPECT_EQ(reopened.find("a b"), "3");
  EXPECT_EQ(reopened.find("c"), "");
}

TEST_F(AlgorithmCacheTest, WithoutAFolderItRemembersInMemory) {
  AlgorithmCache cache("");
  cache.store("a", "1");
  EXPECT_EQ(cache.find("a"), "1");
  EXPECT_FALSE(cache.is_saved());
}

TEST_F(AlgorithmCacheTest, KeepsWhatOtherProcessesWrote) {
  AlgorithmCache first(folder_);
  AlgorithmCache second(folder_);
  first.store("first", "1");
  second.store("second", "2");
  EXPECT_EQ(AlgorithmCache(folder_).size(), 2u);
}

// As the ranks of a run do at its start: what one adds, another one must not write over.
TEST_F(AlgorithmCacheTest, LosesNothingWhenSeveralStoreAtOnce) {
  constexpr int kRanks = 4;
  constexpr int kStores = 6;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([this, rank] {
      AlgorithmCache cache(folder_);
      for (int i = 0; i < kStores; ++i) {
        cache.store(fmt::format("rank {} number {}", rank, i), fmt::format("{}", i));
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  const AlgorithmCache reopened(folder_);
  EXPECT_EQ(reopened.size(), static_cast<size_t>(kRanks * kStores));
  EXPECT_EQ(reopened.find("rank 3 number 5"), "5");
}

// A process that was stopped while it wrote.
TEST_F(AlgorithmCacheTest, GoesOnWhenAnotherOneHoldsTheLockForLong) {
  fs::create_directories(folder_);
  const int fd = ::open((folder_ + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  AlgorithmCache cache(folder_);
  cache.store("key", "value");
  EXPECT_TRUE(cache.is_saved());
  const auto begin = std::chrono::steady_clock::now();
  cache.store("another", "value");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));  // waits once
  ::close(fd);
  EXPECT_EQ(AlgorithmCache(folder_).size(), 2u);
}

// Every prefix, and every byte changed: never an error, never a part of the content.
TEST_F(AlgorithmCacheTest, ADamagedFileCountsAsEmptyAndIsWrittenAnew) {
  AlgorithmCache(folder_).store("key", "value");
  const std::string good = text();
  for (size_t i = 0; i < good.size(); ++i) {
    write(good.substr(0, i));
    EXPECT_EQ(AlgorithmCache(folder_).size(), 0u) << "cut to " << i << " bytes";
    std::string changed = good;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    write(changed);
    EXPECT_EQ(AlgorithmCache(folder_).size(), 0u) << "byte " << i << " changed";
  }
  AlgorithmCache(folder_).store("key", "value");
  EXPECT_EQ(text(), good);
}

TEST_F(AlgorithmCacheTest, AFolderThatCannotBeWrittenIsNoError) {
  write_file_atomically(testing::TempDir() + "/braid_not_a_folder", "");
  AlgorithmCache cache(testing::TempDir() + "/braid_not_a_folder/cache");
  cache.store("key", "value");
  EXPECT_EQ(cache.find("key"), "value");
  EXPECT_FALSE(cache.is_saved());
}

TEST_F(AlgorithmCacheTest, RefusesWhatWouldBreakItsLines) {
  AlgorithmCache cache(folder_);
  EXPECT_THROW(cache.store("a\tb", "1"), InternalError);
  EXPECT_THROW(cache.store("a", "1\n"), InternalError);
}

}  // namespace
}  // namespace braid
