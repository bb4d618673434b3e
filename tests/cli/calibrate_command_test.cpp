#include <algorithm>

#include "cli/cli_fixture.h"
#include "sim/profile.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CalibrateCommand : public Cli {
 protected:
  CalibrateCommand() { write_run(); }
};

TEST_F(CalibrateCommand, MeasuresWritesAndPredicts) {
  const std::string text =
      output_of({"calibrate", "--device", "cpu", "--quick", "--config", "run.toml", "--set",
                 "runtime.threads=1", "--out", "new/cpu.json"});
  EXPECT_THAT(text, AllOf(HasSubstr("device   cpu\n"), HasSubstr("of matrix products"),
                          HasSubstr("spread   median"), HasSubstr("profile  new/cpu.json")));
  EXPECT_EQ(text.find('\r'), std::string::npos) << "a bar where nobody watches";
  EXPECT_THAT(text, HasSubstr("2 ranks at once")) << "as many as run.toml has";
  const Profile profile = parse_profile(read("new/cpu.json"), "cpu.json");
  EXPECT_GT(profile.tasks.size(), 20u);
  EXPECT_GE(profile.communication.size(), kNumCommKinds);

  const std::string plan = output_of({"plan", "run.toml", "--cost", "new/cpu.json"});
  EXPECT_THAT(plan, AllOf(HasSubstr("cost     cpux2, measured"), HasSubstr("tokens/s, MFU")));
}

TEST_F(CalibrateCommand, AddsShapesToAProfile) {
  const auto calibrate = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"calibrate", "--device",      "cpu",
                                      "--quick",   "--only-config", "--config",
                                      "run.toml",  "--set",         "runtime.threads=1"};
    words.insert(words.end(), more.begin(), more.end());
    output_of(words);
    return parse_profile(read("cpu.json"), "cpu.json");
  };
  const Profile first = calibrate({"--out", "cpu.json"});
  const Profile both = calibrate({"--set", "train.sequence=24", "--add-to", "cpu.json"});
  EXPECT_GT(both.tasks.size(), first.tasks.size());
  for (const TaskPoint& point : first.tasks) {
    EXPECT_TRUE(std::ranges::any_of(both.tasks, [&](const TaskPoint& kept) {
      return kept.spec == point.spec;
    })) << describe_spec(point.spec);
  }
  EXPECT_THAT(error_of({"calibrate", "--device", "cpu", "--quick", "--add-to", "none.json"}, 1),
              HasSubstr("none.json"));
  EXPECT_THAT(error_of({"calibrate", "--only-config"}, 2), HasSubstr("--config"));
}

TEST_F(CalibrateCommand, RunsThatAreMeasuredTogetherHaveOneDtype) {
  std::string text = read("run.toml");
  write("bfloat16.toml", text.replace(text.find("steps = 6"), 0, "dtype = \"bfloat16\"\n"));
  EXPECT_THAT(
      error_of(
          {"calibrate", "--device", "cpu", "--config", "run.toml", "--config", "bfloat16.toml"}, 2),
      AllOf(HasSubstr("bfloat16.toml"), HasSubstr("train.dtype is bfloat16"),
            HasSubstr("in \"run.toml\" they are float32")));
}

TEST_F(CalibrateCommand, WrongOptionsAreOneLine) {
  EXPECT_THAT(error_of({"calibrate", "--device", "tpu"}, 2), HasSubstr("{auto,cpu,cuda}"));
  EXPECT_THAT(error_of({"calibrate", "--set", "train.steps=3"}, 2), HasSubstr("--config"));
  EXPECT_THAT(error_of({"calibrate", "--device", "cpu", "--like", "h300"}, 2),
              AllOf(HasSubstr("--like: h300"), HasSubstr("cpu,gb200,h100")));
  EXPECT_THAT(error_of({"plan", "run.toml", "--program", "--cost", "h200"}, 2),
              AllOf(HasSubstr("--cost"), HasSubstr("--program")));
  EXPECT_THAT(error_of({"calibrate", "--threads", "-1"}, 2), HasSubstr("--threads"));
  EXPECT_THAT(error_of({"calibrate", "--ranks-at-once", "65"}, 2), HasSubstr("--ranks-at-once"));
  EXPECT_THAT(error_of({"calibrate", "--config", "none.toml"}, 2), HasSubstr("none.toml"));
}

TEST_F(CalibrateCommand, PlanRefusesWhatIsNeitherProfileNorCluster) {
  EXPECT_THAT(error_of({"plan", "run.toml", "--cost", "h300x8"}, 2),
              AllOf(HasSubstr("unknown device \"h300\""), HasSubstr("cpu, gb200, h100")));
  EXPECT_THAT(error_of({"plan", "run.toml", "--cost", "h200"}, 2),
              HasSubstr("h200 has 1 devices and parallel.ranks is 2"));
  EXPECT_THAT(error_of({"plan", "run.toml", "--cost", "none.json"}, 1), HasSubstr("none.json"));
  write("bad.json", "{}");
  EXPECT_THAT(error_of({"plan", "run.toml", "--cost", "bad.json"}, 1),
              HasSubstr("profile 'bad.json'"));
}

TEST_F(CalibrateCommand, PlanPredictsOnAKnownCluster) {
  EXPECT_THAT(output_of({"plan", "run.toml", "--cost", "h100x8"}),
              AllOf(HasSubstr("cost     h100x8, analytic"), HasSubstr("communication"),
                    HasSubstr("100.0% analytic")));
}

}  // namespace
}  // namespace braid
