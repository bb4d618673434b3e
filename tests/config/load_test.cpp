#include "config/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "config/config_text.h"
#include "config/mistakes.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

RunConfig parse(std::string_view text) {
  return parse_config(text, "run.toml");
}

RunConfig with_set(const std::string& text) {
  const std::vector<std::string> overrides = {text};
  return parse_config("", "run.toml", overrides);
}

TEST(ParseConfig, EmptyTextGivesTheDefaults) {
  EXPECT_EQ(parse(""), RunConfig());
}

TEST(ParseConfig, ReadsEveryTypeOfKey) {
  const RunConfig config = parse(R"(
[model]
family = "gpt2"
layers = 12
tied_embeddings = false
norm_epsilon = 1e-6
[optimizer]
learning_rate = 1          # an integer is a number
[parallel]
sequence_parallel = true
[overlap]
disable_passes = ["a", "b"]
[logging]
trace_steps = [5, 7]
)");
  EXPECT_EQ(config.model.family, "gpt2");
  EXPECT_EQ(config.model.layers, 12);
  EXPECT_EQ(config.model.tied_embeddings, false);
  EXPECT_EQ(config.model.norm_epsilon, 1e-6);
  EXPECT_EQ(config.model.heads, std::nullopt);
  EXPECT_EQ(config.optimizer.learning_rate, 1.0);
  EXPECT_TRUE(config.parallel.sequence_parallel);
  EXPECT_THAT(config.overlap.disable_passes, ElementsAre("a", "b"));
  EXPECT_THAT(config.logging.trace_steps, ElementsAre(5, 7));
}

TEST(ParseConfig, ReadsASwitchThatHasBecomeAName) {
  EXPECT_EQ(parse("[runtime]\ndetect_nan = true\n").runtime.detect_nan, "loss");
  EXPECT_EQ(parse("[runtime]\ndetect_nan = false\n").runtime.detect_nan, "off");
  EXPECT_EQ(parse("[runtime]\ndetect_nan = \"tensors\"\n").runtime.detect_nan, "tensors");
  EXPECT_EQ(with_set("runtime.detect_nan=false").runtime.detect_nan, "off");
  EXPECT_EQ(with_set("runtime.detect_nan=tensors").runtime.detect_nan, "tensors");
  EXPECT_THAT(config_error_of([] { parse("[runtime]\ndetect_nan = \"true\"\n"); }),
              HasSubstr("allowed values are \"off\", \"loss\", \"tensors\""));
  EXPECT_THAT(config_error_of([] { parse("[runtime]\ndevice = true\n"); }),
              HasSubstr("expected a string"));
}

TEST(ParseConfig, ReadsDottedKeysAndInlineTables) {
  EXPECT_EQ(parse("train.steps = 7").train.steps, 7);
  EXPECT_EQ(parse("train = { steps = 7, seed = 3 }").train.seed, 3);
}

TEST(ParseConfig, ReportsAllMistakesByLine) {
  try {
    parse("[train]\nsteps = 0\n[data]\nsplitt = 1\n[banana]\n");
    FAIL();
  } catch (const ConfigMistakes& error) {
    EXPECT_THAT(error.mistakes(), ElementsAre(StartsWith("run.toml:2: train.steps"),
                                              StartsWith("run.toml:4: unknown key data.splitt"),
                                              StartsWith("run.toml:5: unknown section [banana]")));
  }
}

TEST(ParseConfig, ReportsMistakesOfOverridesBehindThoseOfTheFile) {
  const std::vector<std::string> overrides = {"train.steps=0", "train.seed=5", "optimizer.rate=1"};
  try {
    parse_config("[train]\nsequence = 0\n", "run.toml", overrides);
    FAIL();
  } catch (const ConfigMistakes& error) {
    EXPECT_THAT(error.mistakes(), ElementsAre(StartsWith("run.toml:2: train.sequence = 0"),
                                              StartsWith("--set: train.steps = 0"),
                                              HasSubstr("unknown key optimizer.rate")));
  }
}

struct Refused {
  const char* text;
  const char* message;

  friend std::ostream& operator<<(std::ostream& stream, const Refused& refused) {
    return stream << refused.text;
  }
};

class ParseConfigRefuses : public ::testing::TestWithParam<Refused> {};

TEST_P(ParseConfigRefuses, WithOneLine) {
  const std::string message = config_error_of([&] { parse(GetParam().text); });
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, StartsWith("run.toml:"));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

INSTANTIATE_TEST_SUITE_P(
    Names, ParseConfigRefuses,
    ::testing::Values(
        Refused{"[train]\nstpes = 3",
                "run.toml:2: unknown key train.stpes = 3; did you mean train.steps?"},
        Refused{"[train]\nlearning_rate = 0.1",
                "unknown key train.learning_rate = 0.1; did you mean optimizer.learning_rate?"},
        Refused{"[eval]\nbanana = 1", "keys of [eval] are interval, batches"},
        Refused{"[eval]\n\"a\\nb\" = 1", "unknown key eval.\"a\\u000Ab\" = 1"},
        Refused{
            "[eval]\n"
            "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk = 1",
            "unknown key eval.\"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk...\""},
        Refused{"[\"\"]\na = 1", "run.toml:1: unknown section []; sections are model"},
        Refused{"\n[trian]\nsteps = 3",
                "run.toml:2: unknown section [trian]; did you mean [train]?"},
        Refused{"[banana]", "unknown section [banana]; sections are model, train, optimizer"},
        Refused{"[[banana]]\na = 1", "banana = an array is in no section; sections are model"},
        Refused{"steps = 3", "run.toml:1: steps = 3 is in no section; did you mean train.steps?"},
        Refused{"banana = 3", "banana = 3 is in no section; sections are"},
        Refused{"train = 3", "train = 3: expected a section; write [train] and its keys below"},
        Refused{"[[train]]\nsteps = 3", "train = an array: expected a section"}));

INSTANTIATE_TEST_SUITE_P(
    Types, ParseConfigRefuses,
    ::testing::Values(
        Refused{"[train]\nsteps = \"ten\"",
                "run.toml:2: train.steps = \"ten\": expected an integer"},
        Refused{"[train]\nsteps = 1e3", "expected an integer; write 1000"},
        Refused{"[train]\nsteps = 1.5", "train.steps = 1.5: expected an integer"},
        Refused{"[train]\nsteps = 1e20", "train.steps = 1e+20: expected an integer"},
        Refused{"[train]\nsteps = true", "train.steps = true: expected an integer"},
        Refused{"[train]\nsteps = nan", "train.steps = nan: expected an integer"},
        Refused{"[train]\nsteps = 2020-01-01", "train.steps = 2020-01-01: expected an integer"},
        Refused{"[train.steps]\nx = 1", "train.steps = a table: expected an integer"},
        Refused{"[train]\nsteps = [1]", "train.steps = an array: expected an integer"},
        Refused{"[optimizer]\nbeta1 = \"0.9\"", "optimizer.beta1 = \"0.9\": expected a number"},
        Refused{"[model]\npreset = 5",
                "model.preset = 5: expected a string; write it in quotes: \"5\""},
        Refused{"[model]\npreset = [5]", "model.preset = an array: expected a string"},
        Refused{"[model]\ntied_embeddings = 1", "expected true or false"},
        Refused{"[overlap]\ndisable_passes = \"a\"", "expected a list of strings"},
        Refused{"[overlap]\ndisable_passes = [\"a\", 1]", "expected a list of strings"},
        Refused{"[logging]\ntrace_steps = [1, 2.0]", "expected a list of integers"}));

INSTANTIATE_TEST_SUITE_P(
    Limits, ParseConfigRefuses,
    ::testing::Values(
        Refused{"[train]\nsteps = 0", "train.steps = 0: must be at least 1"},
        Refused{"[train]\nmicrobatch = -4", "train.microbatch = -4: must be at least 1"},
        Refused{"[model]\nwidth = 20000000", "model.width = 20000000: must be at most 16777216"},
        Refused{"[optimizer]\nbeta2 = 1", "optimizer.beta2 = 1.0: must be below 1"},
        Refused{"[optimizer]\nlearning_rate = -0.1", "learning_rate = -0.1: must be at least 0"},
        Refused{"[optimizer]\nlearning_rate = nan", "learning_rate = nan: must be a finite number"},
        Refused{"[optimizer]\nlearning_rate = inf", "learning_rate = inf: must be a finite number"},
        Refused{
            "[optimizer]\nschedule = \"cosin\"",
            "optimizer.schedule = \"cosin\": allowed values are \"cosine\", \"linear\", "
            "\"polynomial\", \"inverse_sqrt\", \"wsd\", \"constant\"; did you mean \"cosine\"?"},
        Refused{"[runtime]\ndevice = \"tpu\"",
                "runtime.device = \"tpu\": allowed values are \"auto\", \"cpu\", \"cuda\""},
        Refused{"[logging]\ntrace_steps = [1, 0]",
                "logging.trace_steps = [1, 0]: each entry must be at least 1"},
        Refused{"[data]\ntrain = \"a\\u0000b\"", "must be UTF-8 text without control characters"}));

INSTANTIATE_TEST_SUITE_P(
    Syntax, ParseConfigRefuses,
    ::testing::Values(
        Refused{"[train]\nsteps = ", "run.toml:2: not valid TOML in \"steps =\""},
        Refused{"[train]\nü = 1", "run.toml:2: not valid TOML in"},
        Refused{"[train]\nsteps = 1ü", "run.toml:2: not valid TOML in"},
        Refused{"[train]\nstepsü = 1", "run.toml:2: not valid TOML in"},
        Refused{"[.train]", "run.toml:1: not valid TOML in \"[.train]\""},
        Refused{"[\n[train]\nsteps = 1", "run.toml:1: not valid TOML"},
        Refused{"[train\nsteps = 1", "run.toml:1: not valid TOML in \"[train\""},
        Refused{"[train]\nsteps = 1\nsteps = 2", "run.toml:3: not valid TOML in \"steps = 2\""},
        Refused{"[train]\nsteps = 1\nsteps = 2", "'steps'"},
        Refused{"[train]\n[train]", "run.toml:2: not valid TOML in \"[train]\""},
        Refused{"[train]\nsteps = 99999999999999999999", "run.toml:2: not valid TOML"},
        Refused{"[data]\ntrain = \"\xFF\"", "run.toml:2: not valid TOML"},
        Refused{"[data]\ntrain = \"abc", "run.toml:2: not valid TOML"}));

TEST(ParseConfig, RefusesDeeplyNestedInput) {
  std::string dots = "a";
  for (int i = 0; i < 200'000; ++i) {
    dots += ".a";
  }
  for (const std::string& text : {dots + " = 1", "[" + dots + "]", "x = {" + dots + " = 1}"}) {
    EXPECT_THAT(config_error_of([&] { parse(text); }), HasSubstr("at most 1000 dots"));
  }
  EXPECT_THAT(config_error_of([&] { with_set("train.steps={" + dots + "=1}"); }),
              HasSubstr("expected an integer"));
  const std::string brackets = "x = " + std::string(200'000, '[');
  EXPECT_THAT(config_error_of([&] { parse(brackets); }), HasSubstr("not valid TOML"));
}

TEST(Overrides, SetEveryTypeOfKey) {
  EXPECT_EQ(with_set("train.steps=12").train.steps, 12);
  EXPECT_EQ(with_set(" train.steps = 1_000 ").train.steps, 1000);
  EXPECT_EQ(with_set("optimizer.beta1=0").optimizer.beta1, 0.0);
  EXPECT_EQ(with_set("model.tied_embeddings=true").model.tied_embeddings, true);
  EXPECT_EQ(with_set("model.preset=\"llama-1b\"").model.preset, "llama-1b");
  EXPECT_THAT(with_set("overlap.disable_passes=[\"a\",\"b\"]").overlap.disable_passes,
              ElementsAre("a", "b"));
}

TEST(Overrides, TakeBareText) {
  EXPECT_EQ(with_set("model.preset=llama-1b").model.preset, "llama-1b");
  EXPECT_EQ(with_set("data.train=/a b/c=d").data.train, "/a b/c=d");
  EXPECT_EQ(with_set("data.train=1234").data.train, "1234");
  EXPECT_EQ(with_set("data.train=true").data.train, "true");
  EXPECT_EQ(with_set("data.split=8,1,1").data.split, "8,1,1");
  EXPECT_EQ(with_set("checkpoint.folder=").checkpoint.folder, "");
  EXPECT_THAT(with_set("overlap.disable_passes=a, b").overlap.disable_passes,
              ElementsAre("a", "b"));
  EXPECT_THAT(with_set("overlap.disable_passes=").overlap.disable_passes, ElementsAre());
  EXPECT_THAT(with_set("logging.trace_steps=3,4").logging.trace_steps, ElementsAre(3, 4));
  EXPECT_THAT(with_set("logging.trace_steps=5").logging.trace_steps, ElementsAre(5));
  EXPECT_THAT(with_set("logging.trace_steps=").logging.trace_steps, ElementsAre());
}

TEST(Overrides, ComeAfterTheFileAndTheLastWins) {
  const std::vector<std::string> overrides = {"train.steps=2", "train.steps=3"};
  EXPECT_EQ(parse_config("[train]\nsteps = 1\nseed = 9", "run.toml", overrides).train.steps, 3);
  EXPECT_EQ(parse_config("[train]\nsteps = 1\nseed = 9", "run.toml", overrides).train.seed, 9);
}

class OverridesRefuse : public ::testing::TestWithParam<Refused> {};

TEST_P(OverridesRefuse, WithOneLine) {
  const std::string message = config_error_of([&] { with_set(GetParam().text); });
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, StartsWith("--set"));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

INSTANTIATE_TEST_SUITE_P(
    All, OverridesRefuse,
    ::testing::Values(
        Refused{"train.steps",
                "--set \"train.steps\": expected section.key=value, such as --set train.steps=100"},
        Refused{"steps=3", "expected section.key=value"}, Refused{"", "expected section.key=value"},
        Refused{"trian.steps=3", "unknown section trian; did you mean [train]?"},
        Refused{"train.stpes=3", "unknown key train.stpes; did you mean train.steps?"},
        Refused{"train.=3", "unknown key train."},
        Refused{"train.steps=ten", "--set: train.steps = \"ten\": expected an integer"},
        Refused{"train.steps=", "train.steps = \"\": expected an integer"},
        Refused{"train.steps=1e3", "train.steps = 1000.0: expected an integer; write 1000"},
        Refused{"train.steps=99999999999999999999", "expected an integer"},
        Refused{"train.steps=1\n[eval]\ninterval=2", "train.steps = \"1\\u000A[eval]"},
        Refused{"train.steps=0", "--set: train.steps = 0: must be at least 1"},
        Refused{"train.dtype=fp32", "allowed values are \"float32\", \"bfloat16\""},
        Refused{"model.tied_embeddings=yes",
                "model.tied_embeddings = \"yes\": expected true or false"},
        Refused{"data.train=\"abc", "data.train = \"\\\"abc\": expected a string"},
        Refused{"data.train='abc", "data.train = \"'abc\": expected a string"},
        Refused{"overlap.disable_passes=\"a", "expected a list of strings"},
        Refused{"data.train=a\nb", "must be UTF-8 text without control characters"},
        Refused{"data.train=\xFF", "data.train = \"\\xFF\": must be UTF-8"},
        Refused{"overlap.disable_passes=[1]", "expected a list of strings"},
        Refused{"logging.trace_steps=a", "expected a list of integers"},
        Refused{"logging.trace_steps=[1", "expected a list of integers"},
        Refused{"logging.trace_steps=0,1", "each entry must be at least 1"}));

class LoadConfig : public ::testing::Test {
 protected:
  LoadConfig() { std::filesystem::create_directories(folder_); }
  ~LoadConfig() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) / "braid_load_config";
};

TEST_F(LoadConfig, NamesTheRunAfterTheFile) {
  const auto path = write("first.try.toml", "[train]\nsteps = 3\n");
  EXPECT_EQ(load_config(path).train.steps, 3);
  EXPECT_EQ(load_config(path).logging.run_folder, "runs/first.try");
  const std::vector<std::string> overrides = {"logging.run_folder=elsewhere"};
  EXPECT_EQ(load_config(path, overrides).logging.run_folder, "elsewhere");
}

TEST_F(LoadConfig, NamesTheFileInErrors) {
  const auto path = write("bad.toml", "\n[train]\nsteps = -1\n");
  EXPECT_EQ(config_error_of([&] { load_config(path); }),
            path.string() + ":3: train.steps = -1: must be at least 1");
}

TEST_F(LoadConfig, RefusesWhatIsNoFile) {
  const auto missing = folder_ / "missing.toml";
  EXPECT_THAT(config_error_of([&] { load_config(missing); }), HasSubstr(missing.string()));
  EXPECT_THAT(config_error_of([&] { load_config(folder_); }), HasSubstr(folder_.string()));
  const auto huge = write("huge.toml", std::string((1 << 20) + 1, '#'));
  EXPECT_THAT(config_error_of([&] { load_config(huge); }), HasSubstr("1048576"));
}

}  // namespace
}  // namespace braid
