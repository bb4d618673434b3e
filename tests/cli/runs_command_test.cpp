#include "checkpoint/folder_lock.h"
#include "cli/cli_fixture.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class RunsCommand : public Cli {
 protected:
  RunsCommand() { write_run(); }
};

TEST_F(RunsCommand, ListsRunsWithTheirLastStepAndState) {
  output_of(train({"logging.run_folder=runs/whole", "eval.interval=0"}));
  output_of(train({"logging.run_folder=runs/part", "eval.interval=0"}, {"--stop-after", "2"}));
  write("runs/no_run/notes.txt", "x");
  write("runs/broken/config.toml", "[banana]\n");
  EXPECT_THAT(
      output_of({"runs"}),
      AllOf(ContainsRegex("run +model +layout +step +loss +tokens/s +state +last written"),
            ContainsRegex("whole +llama [0-9]+x[0-9]+ +.* 6/6 +[0-9.]+ +[0-9.KM]+ +finished"),
            ContainsRegex("part .* 2/6 .* stopped"), ContainsRegex("broken .* unreadable"),
            Not(HasSubstr("no_run"))));
  const FolderLock lock("logging.run_folder", path("runs/part"));
  EXPECT_THAT(output_of({"runs", "runs"}), ContainsRegex("part .* 2/6 .* running"));
  EXPECT_THAT(output_of({"runs", "runs/part"}), ContainsRegex("runs/part .* running"));
}

TEST_F(RunsCommand, SaysThatThereIsNone) {
  write("empty/notes.txt", "x");
  EXPECT_EQ(output_of({"runs", "empty"}), "no runs in empty\n");
  EXPECT_THAT(error_of({"runs", "absent"}, 1), HasSubstr("'absent' is not a folder"));
}

}  // namespace
}  // namespace braid
