#include "train/run_lock.h"

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

TEST(RunLock, KeepsASecondOneOutAndNamesTheFirst) {
  const TempFolder folder;
  std::optional<RunLock> first(std::in_place, "logging.run_folder", folder.path().string());
  EXPECT_EQ(message_of<ConfigError>([&] { RunLock("x", folder.path().string()); }),
            fmt::format("x = \"{}\": process {} trains in it (it holds the file '.lock' there); "
                        "wait for its end, or name another folder",
                        folder.path().string(), ::getpid()));
  first.reset();
  EXPECT_NO_THROW(RunLock("x", folder.path().string()));
}

TEST(RunLock, MovesWithItsOwner) {
  const TempFolder folder;
  std::optional<RunLock> first(std::in_place, "x", folder.path().string());
  const RunLock second(std::move(*first));
  first.reset();
  EXPECT_THROW(RunLock("x", folder.path().string()), ConfigError);
}

TEST(RunLock, AKilledProcessLetsGo) {
  const TempFolder folder;
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock("x", folder.path().string());
    static_cast<void>(::write(ready[1], "y", 1) < 0);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THAT(message_of<ConfigError>([&] { RunLock("x", folder.path().string()); }),
              HasSubstr(fmt::format("process {} trains in it", child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(RunLock("x", folder.path().string()));
  EXPECT_EQ(read_text_file(folder / ".lock", 100), fmt::format("{}\n", ::getpid()));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(RunLock, AFolderWithoutRoomForTheFileIsNamed) {
  const TempFolder folder;
  write_test_file(folder / ".lock", "not by braid");
  {
    const RunLock lock("x", folder.path().string());  // a file of that name is taken over
  }
  EXPECT_EQ(message_of<DataError>([&] { RunLock("x", folder / "absent"); }),
            fmt::format("x = \"{0}\": cannot write '{0}/.lock': open: No such file or directory",
                        folder / "absent"));
  std::filesystem::remove(folder / ".lock");
  ASSERT_EQ(::mkfifo((folder / ".lock").c_str(), 0600), 0);
  EXPECT_THAT(message_of<DataError>([&] { RunLock("x", folder.path().string()); }),
              HasSubstr("it is a device or a pipe"));
}

}  // namespace
}  // namespace braid
