#include "passes/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "ir/text.h"
#include "passes/streams/assign_streams.h"
#include "passes/streams/insert_events.h"
#include "support/program_files.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Pass rename_pass(std::string_view name, std::string to) {
  return {.name = name,
          .summary = "Renames the program.",
          .run = [to](Program program, const PassContext&) {
            const bool changed = program.name != to;
            program.name = to;
            return PassResult{std::move(program), {changed, changed ? 1 : 0, "to " + to}};
          }};
}

Pass assign_pass() {
  return {.name = "assign_streams",
          .summary = "Assigns streams.",
          .run = [](Program program, const PassContext&) {
            return assign_streams(std::move(program), {});
          }};
}

Pass events_pass() {
  return {
      .name = "insert_events",
      .summary = "Inserts events.",
      .run = [](Program program, const PassContext&) { return insert_events(std::move(program)); },
      .why_required = "streams run unordered",
      .places_events = true};
}

/// Makes the first task read what nothing has written.
Pass broken_pass() {
  return {.name = "break", .summary = "Breaks.", .run = [](Program program, const PassContext&) {
            program.tasks.erase(program.tasks.begin());
            return PassResult{std::move(program), {true, 1, "removed a task"}};
          }};
}

class RunnerTest : public ::testing::Test {
 protected:
  Program program = parse_program(
      "program step rank=0 ranks=1 events=0\n"
      "stream compute kind=compute priority=0\n"
      "buffer x f32 [8] main_grad step device\n"
      "fill(-> x) compute wgrad\n"
      "reduce(-> rw x) compute comm\n"
      "norm(x) compute optimizer\n");
};

TEST_F(RunnerTest, RunsInOrderAndReports) {
  const std::vector passes = {rename_pass("first", "a"), rename_pass("second", "b"),
                              rename_pass("third", "b")};
  const PipelineResult result = run_passes(program, passes);
  EXPECT_EQ(result.program.name, "b");
  ASSERT_EQ(result.records.size(), 3u);
  EXPECT_EQ(result.records[1].name, "second");
  EXPECT_EQ(result.records[1].report.summary, "to b");
  EXPECT_EQ(result.records[1].report.num_changes, 1);
  EXPECT_TRUE(result.records[1].report.changed);
  EXPECT_FALSE(result.records[2].report.changed);
  for (const PassRecord& record : result.records) {
    EXPECT_FALSE(record.skipped);
    EXPECT_GE(record.duration_ns, 0);
  }
}

TEST_F(RunnerTest, TimesThePass) {
  Pass slow = rename_pass("slow", "a");
  slow.run = [](Program it, const PassContext&) {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::microseconds(100)) {
    }
    return PassResult{std::move(it), {}};
  };
  EXPECT_GE(run_passes(program, std::vector{slow}).records[0].duration_ns, 100'000);
}

TEST_F(RunnerTest, SkipsWhatIsDisabled) {
  const std::vector passes = {rename_pass("first", "a"), rename_pass("second", "b")};
  const PipelineResult result = run_passes(program, passes, {}, {.disabled_passes = {"second"}});
  EXPECT_EQ(result.program.name, "a");
  EXPECT_TRUE(result.records[1].skipped);
  EXPECT_EQ(result.records[1].report.summary, "disabled");
  EXPECT_EQ(result.records[1].duration_ns, 0);
}

TEST_F(RunnerTest, SkipsChangesOfRoundingUnlessPermitted) {
  std::vector passes = {rename_pass("split_sums", "a")};
  passes[0].changes_rounding = true;
  const PipelineResult kept = run_passes(program, passes);
  EXPECT_EQ(kept.program.name, "step");
  EXPECT_EQ(kept.records[0].report.summary, "not permitted to change rounding");
  EXPECT_EQ(run_passes(program, passes, {.may_change_rounding = true}).program.name, "a");
}

TEST_F(RunnerTest, RefusesNamesThatCannotBeDisabled) {
  const std::vector passes = {assign_pass(), events_pass()};
  const auto error = [&](const std::string& name) {
    return message_of<ConfigError>(
        [&] { run_passes(program, passes, {}, {.disabled_passes = {name}}); });
  };
  EXPECT_EQ(error("asign_streams"),
            "cannot disable pass \"asign_streams\": there is no such pass (there are "
            "assign_streams, insert_events); did you mean \"assign_streams\"?");
  EXPECT_EQ(error("insert_events"),
            "cannot disable pass \"insert_events\": it is required, because without it streams run "
            "unordered");
  EXPECT_THAT(error(""), HasSubstr("there is no such pass"));
}

TEST_F(RunnerTest, NamesThePassAfterWhichAProgramIsWrong) {
  const std::vector passes = {rename_pass("first", "a"), broken_pass(), rename_pass("third", "b")};
  EXPECT_THAT(message_of<InternalError>([&] { run_passes(program, passes); }),
              AllOf(HasSubstr("program a is wrong after pass break: buffer x [0:8]: nothing writes "
                              "it before task 0 (reduce)"),
                    Not(HasSubstr("its text"))));
  const PipelineResult unverified = run_passes(program, passes, {}, {.verify = false});
  EXPECT_EQ(unverified.program.tasks.size(), 2u);
}

TEST_F(RunnerTest, VerifiesTheInput) {
  program.tasks.erase(program.tasks.begin());
  EXPECT_THAT(message_of<InternalError>([&] { run_passes(program, {}); }),
              HasSubstr("after the builder"));
}

TEST_F(RunnerTest, NeedsEventsOnlyAtTheEnd) {
  const std::vector both = {assign_pass(), events_pass()};
  const PipelineResult result = run_passes(program, both);
  EXPECT_EQ(result.program.streams.size(), 2u);
  EXPECT_EQ(result.program.waits.size(), 2u);
  EXPECT_THAT(message_of<InternalError>([&] { run_passes(program, std::vector{assign_pass()}); }),
              AllOf(HasSubstr("after the last pass"), HasSubstr("race")));
  // Placing events first and streams afterwards gives a program without the events it needs.
  EXPECT_THAT(message_of<InternalError>([&] {
                run_passes(program, std::vector{events_pass(), assign_pass()});
              }),
              HasSubstr("race"));
}

TEST_F(RunnerTest, DumpsEachStepAndNotesWhatIsUnchanged) {
  const TempFolder folder;
  const std::string dumps = folder / "new/dumps";
  const std::vector passes = {rename_pass("first", "a"), rename_pass("off", "x"),
                              rename_pass("second", "a")};
  run_passes(program, passes, {}, {.disabled_passes = {"off"}, .dump_folder = dumps});
  const auto text = [&](const std::string& name) {
    return read_text_file(dumps + "/" + name, 1 << 20);
  };
  EXPECT_EQ(text("000_input.txt"), print_program(program));
  program.name = "a";
  EXPECT_EQ(text("001_first.txt"), print_program(program));
  EXPECT_EQ(text("003_second.txt"), "# unchanged\n");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dumps)) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  EXPECT_THAT(names, ElementsAre("000_input.txt", "001_first.txt", "003_second.txt"));
}

TEST_F(RunnerTest, AttachesTheDumpToAFailure) {
  const TempFolder folder;
  const std::string message = message_of<InternalError>([&] {
    run_passes(program, std::vector{broken_pass()}, {}, {.dump_folder = folder.path().string()});
  });
  EXPECT_THAT(message, HasSubstr("; its text is in " + (folder / "001_break.txt")));
  EXPECT_THAT(read_text_file(folder / "001_break.txt", 1 << 20), Not(HasSubstr("fill")));
}

TEST_F(RunnerTest, NamesThePassThatLeavesAProgramWithoutText) {
  const TempFolder folder;
  Pass pass = broken_pass();
  pass.run = [](Program it, const PassContext&) {
    it.tasks[1].spec = SpecId();
    return PassResult{std::move(it), {}};  // and says that nothing has changed
  };
  EXPECT_THAT(message_of<InternalError>([&] {
                run_passes(program, std::vector{pass}, {}, {.dump_folder = folder.path().string()});
              }),
              HasSubstr("after pass break: task 1 ((unknown op)): spec #4294967295"));
  EXPECT_THAT(read_text_file(folder / "001_break.txt", 1 << 20), HasSubstr("cannot be printed"));
}

TEST_F(RunnerTest, SaysWhyItCannotDump) {
  const TempFolder folder;
  std::ofstream(folder / "file") << "in the way";
  EXPECT_THAT(message_of<DataError>(
                  [&] { run_passes(program, {}, {}, {.dump_folder = folder / "file/x"}); }),
              HasSubstr("cannot create the folder " + (folder / "file/x")));
}

}  // namespace
}  // namespace braid
