#include "cli/cli_fixture.h"

#include <nlohmann/json.hpp>

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class EmulateCommand : public Cli {
 protected:
  EmulateCommand() { write_run(); }

  static Words pipeline(const Words& more) {
    Words words{"emulate",   "run.toml",
                "--cluster", "h200x4",
                "--set",     "runtime.device=cpu",
                "--set",     "parallel.ranks=4",
                "--set",     "parallel.pipeline=2",
                "--set",     "train.global_batch=16"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(EmulateCommand, SaysWhatARankTakesBesideItsSimulation) {
  const std::string text = output_of(pipeline({"--rank", "2", "--steps", "2"}));
  EXPECT_THAT(text,
              AllOf(HasSubstr("layout    4 ranks"),
                    HasSubstr("emulated  rank 2 of 4 on the CPU; the simulator stands for the "
                              "others (h200x4, analytic"),
                    HasSubstr("median of 2 ("), HasSubstr("\nexposed   data "),
                    HasSubstr(", pipeline "), HasSubstr(" = allocated\n"),
                    HasSubstr("\nnote      measured times are those of this CPU, simulated ones "
                              "those of NVIDIA H200"),
                    HasSubstr("it cannot tell the time of a step"), HasSubstr("\nop  ")));
  EXPECT_FALSE(exists("runs"));  // nothing is trained
}

TEST_F(EmulateCommand, GivesJsonAndATrace) {
  const auto json = nlohmann::json::parse(
      output_of(pipeline({"--json", "--steps", "1", "--no-waits", "--trace", "rank0.json"})));
  EXPECT_EQ(json["rank"], 0);
  EXPECT_EQ(json["steps_ns"].size(), 1u);
  EXPECT_EQ(json["planned_bytes"].get<int64_t>() + json["lasting_bytes"].get<int64_t>(),
            json["allocated_bytes"]);
  const auto trace = nlohmann::json::parse(read("rank0.json"));
  EXPECT_FALSE(trace["traceEvents"].empty());
}

TEST_F(EmulateCommand, TakesThePlannedMemoryWithCopies) {
  const auto json =
      nlohmann::json::parse(output_of(pipeline({"--json", "--steps", "1", "--copies"})));
  EXPECT_EQ(json["lasting_bytes"], 0);
  EXPECT_EQ(json["planned_bytes"], json["allocated_bytes"]);
}

TEST_F(EmulateCommand, WritesAReportThatCanBeCompared) {
  EXPECT_THAT(output_of(pipeline({"--steps", "1", "--report", "on"})),
              HasSubstr("\nreport    on/report.html\n"));
  EXPECT_THAT(read("on/report.html"),
              AllOf(HasSubstr("rank 0 of on, emulated"), HasSubstr("as simulated")));
  EXPECT_THAT(read("on/config.toml"), HasSubstr("pipeline = 2"));
  output_of(pipeline({"--steps", "1", "--json", "--report", "off", "--set", "overlap.mode=off"}));
  output_of({"report", "on", "--compare", "off"});
  EXPECT_TRUE(exists("on/compare.html"));
}

TEST_F(EmulateCommand, WritesNoReportIntoTheFolderOfARunThatTrained) {
  write("trained/metrics.jsonl", "");
  EXPECT_THAT(error_of(pipeline({"--steps", "1", "--report", "trained"}), 2),
              HasSubstr("--report trained: this folder belongs to a run that trained"));
}

TEST_F(EmulateCommand, RefusesInOneLine) {
  EXPECT_THAT(error_of(pipeline({"--rank", "4"}), 2),
              HasSubstr("--rank 4: the run has 4 ranks; take one of 0, "));
  EXPECT_THAT(error_of({"emulate", "run.toml"}, 2), HasSubstr("--cluster (h200x8, h100x1024)"));
  EXPECT_THAT(error_of(pipeline({"--steps", "0"}), 2), HasSubstr("--steps"));
}

}  // namespace
}  // namespace braid
