#include "base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kPlenty = int64_t{1} << 30;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(PieceFile, ReadsFromAnyPlace) {
  const TempFolder folder;
  write_test_file(folder / "a", "0123456789");
  const PieceFile file(folder / "a");
  EXPECT_EQ(file.size_bytes(), 10);
  std::array<std::byte, 4> piece{};
  file.read_at(6, piece);
  EXPECT_EQ(text_of(piece), "6789");
  file.read_at(0, piece);
  EXPECT_EQ(text_of(piece), "0123");
  file.read_at(99, std::span(piece).first(0));
  EXPECT_EQ(
      message_of<DataError>([&] { file.read_at(7, piece); }),
      fmt::format("'{}' has become shorter while it was in use: it ends at or before byte 10, "
                  "but had 10 bytes when it was opened",
                  folder / "a"));
  std::filesystem::resize_file(folder / "a", 3);
  EXPECT_THAT(message_of<DataError>([&] { file.read_at(6, piece); }), HasSubstr("byte 6"));
  EXPECT_THAT(message_of<DataError>([&] { PieceFile none(folder / "none"); }),
              HasSubstr("No such file"));
  EXPECT_THAT(message_of<DataError>([&] { PieceFile none(folder.path().string()); }),
              HasSubstr("it is a folder"));
}

TEST(PlacedFile, SeveralWritersFillOneFile) {
  const TempFolder folder;
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  const PlacedFile first(folder / "a", PlacedFile::Mode::kCreate);
  const PlacedFile second(folder / "a", PlacedFile::Mode::kOpen);
  second.write_at(5, bytes("def"));
  first.write_at(0, bytes("abc"));
  EXPECT_EQ(read_text_file(folder / "a", 100), std::string("abc\0\0def", 8));
  EXPECT_EQ(
      message_of<DataError>([&] { PlacedFile(folder / "a", PlacedFile::Mode::kCreate); }),
      fmt::format("cannot write '{}': it exists; remove it, or choose another name", folder / "a"));
  EXPECT_THAT(message_of<DataError>([&] { PlacedFile(folder / "b", PlacedFile::Mode::kOpen); }),
              HasSubstr("open: No such file"));
}

TEST(PieceFile, NamesPathCallAndReasonOfAFailure) {
  const TempFolder folder;
  EXPECT_EQ(message_of<DataError>([&] { PieceFile file(folder / "none"); }),
            fmt::format("cannot read '{}': open: No such file or directory", folder / "none"));
  EXPECT_THAT(message_of<DataError>([&] { PieceFile file(folder.path().string()); }),
              HasSubstr("it is a folder, not a regular file"));
  EXPECT_THAT(message_of<DataError>([] { PieceFile file("/dev/null"); }),
              HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of<DataError>([&] { PieceFile file(folder / "pipe"); }),
              HasSubstr("not a regular file"));
}

/// Sets the soft limit of open files until the end of a scope.
class SoftLimitOfFiles {
 public:
  explicit SoftLimitOfFiles(rlim_t files) {
    ::getrlimit(RLIMIT_NOFILE, &old_);
    rlimit limit = old_;
    limit.rlim_cur = files;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~SoftLimitOfFiles() { ::setrlimit(RLIMIT_NOFILE, &old_); }
  SoftLimitOfFiles(const SoftLimitOfFiles&) = delete;
  SoftLimitOfFiles& operator=(const SoftLimitOfFiles&) = delete;

 private:
  rlimit old_ = {};
};

TEST(PieceFile, MoreFilesThanTheSoftLimitMayBeOpen) {
  const TempFolder folder;
  write_test_file(folder / "a", "0123456789");
  constexpr rlim_t kSoftLimit = 64;
  const SoftLimitOfFiles limit(kSoftLimit);
  std::vector<std::unique_ptr<PieceFile>> files;
  for (rlim_t i = 0; i < 2 * kSoftLimit; ++i) {
    files.push_back(std::make_unique<PieceFile>(folder / "a"));
  }
  std::array<std::byte, 1> piece{};
  files.back()->read_at(9, piece);
  EXPECT_EQ(text_of(piece), "9");
}

TEST(SequentialReader, ReadsAPartInStepsOfAnySize) {
  const TempFolder folder;
  std::string text(3 * SequentialReader::kPartBytes + 5, ' ');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>('a' + i % 23 + i / 100'003 % 3);
  }
  write_test_file(folder / "a", text);
  const PieceFile file(folder / "a");
  const int64_t begin = 3;
  const auto end = static_cast<int64_t>(text.size()) - 1;
  for (const int64_t step : {int64_t{777}, SequentialReader::kPartBytes - 1,
                             SequentialReader::kPartBytes + 1, end - begin}) {
    SequentialReader reader(file, begin, end);
    std::string read;
    while (static_cast<int64_t>(read.size()) < end - begin) {
      const auto count = std::min(step, end - begin - static_cast<int64_t>(read.size()));
      std::vector<std::byte> bytes(static_cast<size_t>(count));
      reader.read(bytes);
      read += text_of(bytes);
    }
    EXPECT_TRUE(read == text.substr(3, static_cast<size_t>(end - begin))) << step;
    EXPECT_TRUE(reader.next().empty());
    std::array<std::byte, 2> more{};
    EXPECT_THAT(message_of<InternalError>([&] { reader.read(more); }),
                HasSubstr("2 bytes of '" + (folder / "a") + "' are asked for, but 0 are left"));
  }
}

TEST(SequentialReader, GivesPartsOfALimitedSize) {
  const TempFolder folder;
  const std::string text(2 * SequentialReader::kPartBytes + 7, 'x');
  write_test_file(folder / "a", text);
  const PieceFile file(folder / "a");
  SequentialReader reader(file);
  std::vector<std::byte> front(10);
  reader.read(front);
  std::string read = text_of(front);
  for (auto part = reader.next(); !part.empty(); part = reader.next()) {
    EXPECT_LE(static_cast<int64_t>(part.size()), SequentialReader::kPartBytes);
    read += text_of(part);
  }
  EXPECT_TRUE(read == text);
}

TEST(SequentialReader, AFileThatBecomesShorterIsAnError) {
  const TempFolder folder;
  const std::string text(2 * SequentialReader::kPartBytes, 'x');
  write_test_file(folder / "a", text);
  const PieceFile file(folder / "a");
  SequentialReader reader(file);
  EXPECT_EQ(static_cast<int64_t>(reader.next().size()), SequentialReader::kPartBytes);
  std::filesystem::resize_file(folder / "a", text.size() - 1);
  EXPECT_THAT(message_of<DataError>([&] { reader.next(); }),
              HasSubstr("has become shorter while it was in use"));
}

TEST(ReadTextFile, ReadsFilesUpToTheLimit) {
  const TempFolder folder;
  const std::string text(100'000, 'x');
  write_file_atomically(folder / "a", text);
  EXPECT_EQ(read_text_file(folder / "a", kPlenty), text);
  EXPECT_EQ(read_text_file(folder / "a", 100'000), text);
  EXPECT_THAT(message_of<DataError>([&] { read_text_file(folder / "a", 99'999); }),
              AllOf(HasSubstr(folder / "a"), HasSubstr("100000"), HasSubstr("99999")));
}

TEST(ReadTextFile, RefusesWhatIsNoFileWithoutWaiting) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(message_of<DataError>([&] { read_text_file(folder / "pipe", kPlenty); }),
            fmt::format("cannot read '{}': it is a device or a pipe, not a regular file",
                        folder / "pipe"));
  EXPECT_THAT(message_of<DataError>([] { read_text_file("/dev/zero", 1000); }),
              HasSubstr("cannot read '/dev/zero': it is a device"));
}

TEST(OpenRegularFile, RefusesWhatIsNoFileWithoutWaiting) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const int flags : {O_RDONLY, O_WRONLY | O_APPEND | O_CREAT, O_RDWR | O_CREAT}) {
    for (const std::string& path :
         {folder / "pipe", folder.path().string(), std::string("/dev/null")}) {
      EXPECT_THAT(message_of<DataError>([&] { open_regular_file(path, flags); }),
                  AllOf(HasSubstr(path), HasSubstr("not a regular file")));
    }
  }
}

TEST(OpenRegularFile, MakesFilesAndKeepsThoseThatExist) {
  const TempFolder folder;
  const int fd = open_regular_file(folder / "a", O_WRONLY | O_CREAT | O_EXCL);
  EXPECT_GE(fd, 0);
  ::close(fd);
  EXPECT_EQ(open_regular_file(folder / "a", O_WRONLY | O_CREAT | O_EXCL), -1);
  EXPECT_THAT(
      message_of<DataError>([&] { open_regular_file(folder / "none/a", O_WRONLY | O_CREAT); }),
      HasSubstr("open: No such file or directory"));
}

TEST(ReadTextFile, NamesPathCallAndReasonOfAFailure) {
  const TempFolder folder;
  EXPECT_THAT(message_of<DataError>([&] { read_text_file(folder / "missing", kPlenty); }),
              AllOf(HasSubstr(folder / "missing"), HasSubstr("No such file or directory")));
  EXPECT_THAT(message_of<DataError>([&] { read_text_file(folder.path().string(), kPlenty); }),
              HasSubstr("a folder, not a regular file"));
}

TEST(AtomicFile, PublishesOnlyOnCommitAndReplaces) {
  const TempFolder folder;
  write_file_atomically(folder / "a", std::string_view("old"));
  AtomicFile file(folder / "a");
  file.write(std::string_view("new "));
  file.write(std::string_view("content"));
  EXPECT_EQ(file.size_bytes(), 11);
  file.sync();
  EXPECT_EQ(read_text_file(folder / "a", kPlenty), "old");
  file.commit();
  EXPECT_EQ(read_text_file(folder / "a", kPlenty), "new content");
  EXPECT_EQ(folder.num_entries(), 1);
  EXPECT_THROW(file.commit(), InternalError);
  EXPECT_THROW(file.write(std::string_view("x")), InternalError);
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const TempFolder folder;
  {
    AtomicFile file(folder / "a");
    file.write(std::string_view("half"));
    EXPECT_EQ(folder.num_entries(), 1);
    AtomicFile moved = std::move(file);
    moved.write(std::string_view("more"));
  }
  EXPECT_EQ(folder.num_entries(), 0);
}

TEST(AtomicFile, KeepsOrderAcrossBufferedAndLargeWrites) {
  const TempFolder folder;
  std::string expected;
  AtomicFile file(folder / "a");
  for (const size_t size : {3u, 500'000u, 1u, 262'144u, 0u, 262'143u, 262'143u, 7u}) {
    const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
    expected += piece;
    file.write(piece);
  }
  file.commit();
  EXPECT_EQ(read_text_file(folder / "a", kPlenty), expected);
}

TEST(AtomicFile, TwoWritersOfOnePathDoNotMixTheirBytes) {
  const TempFolder folder;
  const std::string a(300'000, 'a');
  const std::string b(300'000, 'b');
  std::thread other([&] { write_file_atomically(folder / "x", a); });
  write_file_atomically(folder / "x", b);
  other.join();
  const std::string result = read_text_file(folder / "x", kPlenty);
  EXPECT_TRUE(result == a || result == b);
  EXPECT_EQ(folder.num_entries(), 1);
}

TEST(AtomicFile, RespectsTheUmask) {
  const TempFolder folder;
  const mode_t old_mask = ::umask(027);
  write_file_atomically(folder / "a", std::string_view("x"));
  ::umask(old_mask);
  struct stat status = {};
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(AtomicFile, AFullDiskIsAnErrorAndKeepsTheOldFile) {
  const TempFolder folder;
  write_file_atomically(folder / "a", std::string_view("old"));
  std::string message;
  {
    const FileSizeLimit limit(10'000);
    message = message_of<DataError>(
        [&] { write_file_atomically(folder / "a", std::string(400'000, 'x')); });
  }
  EXPECT_THAT(message,
              AllOf(HasSubstr(folder / "a"), HasSubstr("write: "), HasSubstr("File too large")));
  EXPECT_EQ(read_text_file(folder / "a", kPlenty), "old");
  EXPECT_EQ(folder.num_entries(), 1);
}

TEST(AtomicFile, NamesPathCallAndReasonOfAFailure) {
  const TempFolder folder;
  EXPECT_THAT(message_of<DataError>([&] { AtomicFile file(folder / "no/such/file"); }),
              AllOf(HasSubstr(folder / "no/such/file"), HasSubstr("No such file or directory")));
  EXPECT_THAT(message_of<DataError>([] { AtomicFile file("/proc/braid"); }),
              HasSubstr("/proc/braid"));
  EXPECT_THAT(message_of<DataError>([] { AtomicFile file(""); }),
              HasSubstr("is not the name of a file"));
  std::filesystem::create_directory(folder / "taken");
  EXPECT_THAT(
      message_of<DataError>([&] { write_file_atomically(folder / "taken", std::string_view()); }),
      AllOf(HasSubstr(folder / "taken"), HasSubstr("rename"), HasSubstr("Is a directory")));
  EXPECT_EQ(folder.num_entries(), 1);
}

TEST(SyncDirectory, SyncsAFolderAndRefusesTheRest) {
  const TempFolder folder;
  EXPECT_NO_THROW(sync_directory(folder.path().string()));
  EXPECT_THAT(message_of<DataError>([&] { sync_directory(folder / "missing"); }),
              AllOf(HasSubstr(folder / "missing"), HasSubstr("No such file or directory")));
}

}  // namespace
}  // namespace braid
