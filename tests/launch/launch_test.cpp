#include "launch/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Launch eight_processes() {
  Launch launch;
  launch.launcher = "torchrun";
  launch.num_processes = 8;
  launch.process = 5;
  launch.host = "box1";
  launch.port = 29500;
  return launch;
}

TEST(Launch, RefusesToMeetOtherHostsWithoutASecret) {
  RunConfig config;
  config.parallel.ranks = 8;
  for (const int process : {0, 5}) {
    Launch launch = eight_processes();
    launch.process = process;
    EXPECT_THAT(message_of<ConfigError>([&] { connect_processes(launch, config); }),
                AllOf(HasSubstr("torchrun: other hosts can connect"), HasSubstr("\"box1\""),
                      HasSubstr("BRAID_SECRET_FILE"), HasSubstr("BRAID_SECRET to")));
  }
}

TEST(Launch, MustFitTheRun) {
  const Launch launch = eight_processes();
  RunConfig config;
  config.parallel.ranks = 4;
  EXPECT_EQ(message_of<ConfigError>([&] { check_launch(launch, config); }),
            "torchrun started 8 processes, but parallel.ranks = 4, and a process has one rank; "
            "start 4 processes or set parallel.ranks = 8");
  config.parallel.ranks = 8;
  EXPECT_NO_THROW(check_launch(launch, config));
  config.runtime.processes = "one";
  EXPECT_THAT(message_of<ConfigError>([&] { check_launch(launch, config); }),
              AllOf(HasSubstr("runtime.processes = \"one\""), HasSubstr("torchrun")));
  config.runtime.processes = "auto";
  config.links.data_gb_per_s = 1;
  EXPECT_THAT(message_of<ConfigError>([&] { check_launch(launch, config); }),
              HasSubstr("section [links]"));
}

}  // namespace
}  // namespace braid
