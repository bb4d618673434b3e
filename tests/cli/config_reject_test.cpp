#include "cli/cli_fixture.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

struct BadSetting {
  std::string name;
  std::vector<std::string> settings;  // section.key=value
  std::vector<std::string> parts;     // of the one line on stderr
};

void PrintTo(const BadSetting& bad, std::ostream* out) {
  *out << bad.name;
}

/// Everything here can be put right in the configuration: one line, exit status 2, and no run.
class ConfigReject : public Cli, public testing::WithParamInterface<BadSetting> {
 protected:
  ConfigReject() { write_run(); }
};

TEST_P(ConfigReject, IsOneLine) {
  const std::string error = error_of(train(GetParam().settings), 2);
  for (const std::string& part : GetParam().parts) {
    EXPECT_THAT(error, HasSubstr(part));
  }
  EXPECT_FALSE(exists("runs/run/config.toml"));
  EXPECT_FALSE(exists("runs/run/checkpoints"));
}

const BadSetting kBadSettings[] = {
    {"MisspeltKey", {"train.step=3"}, {"train.step", "did you mean train.steps?"}},
    {"MisspeltSection", {"trian.steps=3"}, {"trian", "did you mean [train]?"}},
    {"NoSection", {"steps=3"}, {"\"steps=3\"", "section.key=value", "train.steps?"}},
    {"NoValue", {"train.steps"}, {"section.key=value"}},
    {"TextForInteger", {"train.steps=many"}, {"train.steps = \"many\"", "expected an integer"}},
    {"FractionForInteger", {"train.steps=1.5"}, {"train.steps = 1.5", "expected an integer"}},
    {"IntegerForBoolean",
     {"eval.interval=0", "logging.tensorboard=1"},
     {"logging.tensorboard = 1"}},
    {"Negative", {"train.microbatch=-1"}, {"train.microbatch = -1", "1"}},
    {"TooLarge", {"train.sequence=99999999999"}, {"train.sequence = 99999999999", "16777216"}},
    {"BeyondInt64", {"train.steps=99999999999999999999"}, {"train.steps"}},
    {"UnknownChoice", {"train.dtype=float16"}, {"train.dtype", "\"bfloat16\""}},
    {"UnknownPreset", {"model.preset=llama1b"}, {"model.preset", "did you mean \"llama-1b\"?"}},
    {"RanksAndBatch", {"parallel.ranks=3"}, {"train.global_batch = 8", "= 2 * 3 = 6", "6 and 12"}},
    {"HeadsAndWidth", {"model.heads=3"}, {"model.width = 32", "model.heads = 3"}},
    {"OddHeads", {"model.kv_heads=3"}, {"model.kv_heads = 3"}},
    {"ExpertsAndRanks", {"parallel.expert=5"}, {"parallel.expert = 5: must divide", "ranks"}},
    {"NoExperts",
     {"parallel.ranks=2", "parallel.expert=2"},
     {"parallel.expert = 2", "the model has no experts"}},
    {"UnknownPass",
     {"overlap.disable_passes=insert_event"},
     {"overlap.disable_passes: ", "\"insert_event\"", "did you mean \"insert_events\"?"}},
    {"RequiredPass",
     {"overlap.disable_passes=insert_events"},
     {"overlap.disable_passes: ", "\"insert_events\"", "required"}},
    {"SmallVocabulary", {"model.vocabulary=100"}, {"model.vocabulary = 100", "257"}},
    {"NoData", {"data.train=\"\""}, {"data.train: not given"}},
    {"BadSplit", {"data.split=1,x"}, {"data.split = \"1,x\""}},
    {"NoHeldOutData", {"data.split=1,0,0"}, {"data.split", "eval.interval = 0"}},
    {"TooManySamples", {"train.steps=1000000000000"}, {"train.steps x train.global_batch"}},
    {"TooManyMicrobatches",
     {"train.microbatch=1", "train.global_batch=262144"},
     {"train.global_batch = 262144", "raise train.microbatch"}},
    {"ModelBeyondAllLimits",
     {"model.layers=4096", "model.width=16777216", "model.heads=4096", "model.head_size=65536"},
     {"model.layers = 4096", "model.width = 16777216", "parameters"}},
};

INSTANTIATE_TEST_SUITE_P(Settings, ConfigReject, testing::ValuesIn(kBadSettings),
                         [](const auto& bad) { return bad.param.name; });

class ConfigFile : public Cli {};

TEST_F(ConfigFile, MissingFolderAndSyntax) {
  write_run();
  EXPECT_THAT(error_of({"train", "absent.toml"}, 2),
              AllOf(HasSubstr("'absent.toml'"), HasSubstr("No such file")));
  EXPECT_THAT(error_of({"train", "."}, 2), AllOf(HasSubstr("'.'"), HasSubstr("a folder")));
  write("bad.toml", "[train]\nsteps = \n");
  EXPECT_THAT(error_of({"train", "bad.toml"}, 2), HasSubstr("bad.toml:2: not valid TOML"));
  write("bad.toml", "[train]\nsteps = 3\nsequnce = 4\n");
  EXPECT_THAT(error_of({"train", "bad.toml"}, 2),
              AllOf(HasSubstr("bad.toml:3: "), HasSubstr("did you mean train.sequence?")));
  write("bad.toml", std::string("\0\xff\x01", 3));
  EXPECT_THAT(error_of({"plan", "bad.toml"}, 2), HasSubstr("bad.toml"));
}

TEST_F(ConfigFile, AllMistakesAreListedAndCounted) {
  write_run();
  write("bad.toml", "[train]\nsteps = 0\nsequnce = 4\n[optimizer]\nname = 3\n");
  const ChildResult of_keys = braid({"train", "bad.toml", "--set", "eval.interval=-1"});
  EXPECT_EQ(of_keys.exit_code, 2);
  EXPECT_THAT(of_keys.err, MatchesRegex("braid: bad.toml:2: train.steps = 0: [^\n]+\n"
                                        "braid: bad.toml:3: unknown key train.sequnce = 4; [^\n]+\n"
                                        "braid: bad.toml:5: optimizer.name = 3: [^\n]+\n"
                                        "braid: --set: eval.interval = -1: [^\n]+\n"
                                        "braid: 4 mistakes\n"));
  const ChildResult of_rules = braid({"plan", "run.toml", "--set", "train.global_batch=7", "--set",
                                      "train.microbatch=2", "--set", "optimizer.momentum=0.5"});
  EXPECT_EQ(of_rules.exit_code, 2);
  EXPECT_THAT(of_rules.err, MatchesRegex("braid: train.global_batch = 7: [^\n]+\n"
                                         "braid: optimizer.momentum = 0.5: [^\n]+\n"
                                         "braid: 2 mistakes\n"));
}

TEST_F(ConfigFile, VariableOfTheEnvironmentIsNamed) {
  write_run();
  EXPECT_THAT(error_of({"plan", "run.toml"}, 2, {.environment = {"BRAID_DISABLE_PASSES=nothing"}}),
              HasSubstr("BRAID_DISABLE_PASSES: "));
  EXPECT_THAT(error_of({"plan", "run.toml"}, 2, {.environment = {"BRAID_VERIFY=perhaps"}}),
              AllOf(HasSubstr("BRAID_VERIFY"), HasSubstr("perhaps")));
}

TEST_F(ConfigFile, TokensBeyondTheVocabularyAreRefused) {
  write_run();
  output_of({"tokenize", "--input", "corpus.txt", "--output", "tok", "--train-vocabulary", "320"});
  output_of({"tokenize", "--input", "corpus.txt", "--output", "c", "--tokenizer", "tok.model"});
  EXPECT_THAT(error_of(train({"data.train=c", "data.tokenizer=bytes"}), 1),
              AllOf(HasSubstr("'c.bin' holds token "), HasSubstr("valid ids are 0 to 256")));
  EXPECT_FALSE(exists("runs/run/checkpoints/latest"));
  EXPECT_THAT(error_of(train({"data.train=absent"}), 1), HasSubstr("data.train = \"absent\""));
}

}  // namespace
}  // namespace braid
