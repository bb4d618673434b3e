#include <sstream>

#include "cli/cli_fixture.h"
#include "passes/pipeline.h"

namespace braid {
namespace {

class Passes : public Cli {};

TEST_F(Passes, ListsThePipelineInItsOrder) {
  std::istringstream lines(output_of({"passes"}));
  for (const Pass& pass : default_pipeline()) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line)) << pass.name;
    EXPECT_EQ(line.substr(0, line.find(' ')), pass.name);
    EXPECT_THAT(line, ::testing::HasSubstr(std::string(pass.summary)));
    EXPECT_EQ(line.find("(required: ") != std::string::npos, !pass.why_required.empty()) << line;
  }
  std::string more;
  EXPECT_FALSE(std::getline(lines, more)) << more;
}

}  // namespace
}  // namespace braid
