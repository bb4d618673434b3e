#include <sstream>

#include "cli/cli_fixture.h"

namespace braid {
namespace {

class Doctor : public Cli {};

TEST_F(Doctor, EveryLineIsAligned) {
  const std::string text = output_of({"doctor"});
  std::istringstream lines(text);
  Words subjects;
  for (std::string line; std::getline(lines, line);) {
    ASSERT_GT(line.size(), 14u) << line;
    EXPECT_EQ(line[12], ' ') << line;
    EXPECT_NE(line[13], ' ') << line;
    subjects.push_back(line.substr(0, line.find(' ')));
  }
  EXPECT_THAT(subjects, ::testing::IsSupersetOf({"braid", "system", "cpu", "memory", "disk", "gpu",
                                                 "launcher", "tokenizers", "compression", "blas",
                                                 "chromium", "tensorboard"}));
}

TEST_F(Doctor, SaysHowToGetWhatIsMissing) {
  const ChildResult result = braid({"doctor"}, {.environment = {"PATH=/nowhere"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::ContainsRegex("\nchromium +missing [^\n]*apt-get install"));
}

}  // namespace
}  // namespace braid
