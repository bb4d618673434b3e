#include "checkpoint/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

TEST(FolderLock, KeepsASecondOneOutAndNamesTheFirst) {
  const TempFolder folder;
  std::optional<FolderLock> first(std::in_place, "logging.run_folder", folder.path().string());
  EXPECT_EQ(message_of<ConfigError>([&] { FolderLock("x", folder.path().string()); }),
            fmt::format("x = \"{}\": process {} writes to it (it holds the file '.lock' there); "
                        "wait for its end, or name another folder",
                        folder.path().string(), ::getpid()));
  first.reset();
  EXPECT_NO_THROW(FolderLock("x", folder.path().string()));
}

TEST(FolderLock, MovesWithItsOwner) {
  const TempFolder folder;
  std::optional<FolderLock> first(std::in_place, "x", folder.path().string());
  const FolderLock second(std::move(*first));
  first.reset();
  EXPECT_THROW(FolderLock("x", folder.path().string()), ConfigError);
}

TEST(FolderLock, AKilledProcessLetsGo) {
  const TempFolder folder;
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock("x", folder.path().string());
    static_cast<void>(::write(ready[1], "y", 1) < 0);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THAT(message_of<ConfigError>([&] { FolderLock("x", folder.path().string()); }),
              HasSubstr(fmt::format("process {} writes to it", child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(FolderLock("x", folder.path().string()));
  EXPECT_EQ(read_text_file(folder / ".lock", 100), fmt::format("{}\n", ::getpid()));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(FolderLock, AFolderWithoutRoomForTheFileIsNamed) {
  const TempFolder folder;
  write_test_file(folder / ".lock", "not by braid");
  {
    const FolderLock lock("x", folder.path().string());  // a file of that name is taken over
  }
  EXPECT_EQ(message_of<DataError>([&] { FolderLock("x", folder / "absent"); }),
            fmt::format("x = \"{0}\": cannot write '{0}/.lock': open: No such file or directory",
                        folder / "absent"));
  std::filesystem::remove(folder / ".lock");
  ASSERT_EQ(::mkfifo((folder / ".lock").c_str(), 0600), 0);
  EXPECT_THAT(message_of<DataError>([&] { FolderLock("x", folder.path().string()); }),
              HasSubstr("it is a device or a pipe"));
}

// Whoever may write to the folder could otherwise have us truncate any file of ours.
TEST(FolderLock, DoesNotFollowALink) {
  const TempFolder folder;
  write_test_file(folder / "precious", "content");
  std::filesystem::create_symlink(folder / "precious", folder / ".lock");
  EXPECT_THAT(message_of<DataError>([&] { FolderLock("x", folder.path().string()); }),
              HasSubstr("/.lock': open: Too many levels of symbolic links; it is a symbolic link"));
  EXPECT_EQ(read_text_file(folder / "precious", 100), "content");
}

}  // namespace
}  // namespace braid
