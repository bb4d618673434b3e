#include "launch/environment/run_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kSecret = "only-for-this-test";

EnvLookup environment(const std::string& file, const std::string& value) {
  return [=](std::string_view name) -> std::optional<std::string> {
    return name == kSecretFileVariable ? std::optional(file)
           : name == kSecretVariable   ? std::optional(value)
                                       : std::nullopt;
  };
}

std::string error_of(const std::string& file, const std::string& value = "") {
  return message_of<ConfigError>([&] { read_run_secret(environment(file, value)); });
}

class RunSecret : public ::testing::Test {
 protected:
  /// A file with that text and those permissions.
  std::string file(const std::string& text, mode_t mode) const {
    std::string path = folder_ / "secret";
    std::filesystem::remove(path);
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }

  TempFolder folder_;
};

TEST_F(RunSecret, IsNoneUnlessGiven) {
  EXPECT_EQ(read_run_secret(environment("", "")), "");
}

TEST_F(RunSecret, ComesFromTheVariableOrTheFile) {
  EXPECT_EQ(read_run_secret(environment("", kSecret)), kSecret);
  EXPECT_EQ(read_run_secret(environment(file(kSecret + "\n", 0600), "")), kSecret);
  EXPECT_EQ(read_run_secret(environment(file(kSecret, 0400), "")), kSecret);
}

TEST_F(RunSecret, OfAFileThatOthersCanUseIsRefused) {
  for (const mode_t mode : {0604, 0640, 0620, 0602, 0666}) {
    EXPECT_THAT(error_of(file(kSecret, mode)),
                AllOf(HasSubstr("BRAID_SECRET_FILE"), HasSubstr(fmt::format("(mode {:04o})", mode)),
                      HasSubstr("run chmod 600 "), Not(HasSubstr(kSecret))));
  }
}

TEST_F(RunSecret, ThatCannotBeReadIsNamed) {
  EXPECT_THAT(error_of(folder_ / "none"), HasSubstr("No such file"));
  EXPECT_THAT(error_of(folder_.path().string()), HasSubstr("must be a regular file"));
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(error_of(fifo), HasSubstr("must be a regular file"));
}

TEST_F(RunSecret, IsNeededUnlessAllRanksAreOnThisHost) {
  Launch launch{.launcher = "torchrun", .host = "127.0.0.1"};
  EXPECT_NO_THROW(check_secret(launch));
  launch.host = "box1";
  EXPECT_THAT(message_of<ConfigError>([&] { check_secret(launch); }),
              AllOf(HasSubstr("torchrun: other hosts can connect"), HasSubstr("\"box1\""),
                    HasSubstr("BRAID_SECRET_FILE")));
  launch.secret = kSecret;
  EXPECT_NO_THROW(check_secret(launch));
}

TEST_F(RunSecret, IsNeitherShortNorLongNorAmbiguous) {
  EXPECT_EQ(error_of("", "none"),
            "the secret of BRAID_SECRET has 4 bytes; it must have 16 to 1024");
  EXPECT_EQ(error_of(file("\n", 0600)),
            "the secret of BRAID_SECRET_FILE has 0 bytes; it must have 16 to 1024");
  EXPECT_EQ(error_of(file(std::string(2000, 'x'), 0600)),
            "the secret of BRAID_SECRET_FILE has 1025 bytes; it must have 16 to 1024");
  EXPECT_THAT(error_of(file(kSecret, 0600), kSecret), HasSubstr("are both set"));
}

}  // namespace
}  // namespace braid
