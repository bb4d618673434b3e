#include <nlohmann/json.hpp>

#include "base/json.h"
#include "cli/cli_fixture.h"
#include "data/utf8.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class GenerateCommand : public Cli {
 protected:
  GenerateCommand() {
    write_run();
    output_of(
        {"tokenize", "--input", "corpus.txt", "--output", "tok", "--train-vocabulary", "300"});
    output_of(train({"data.tokenizer=tok.model"}));
  }

  std::string sample(const Words& options) const {
    Words words{"generate", "runs/run", "--prompt", "the cat"};
    words.insert(words.end(), options.begin(), options.end());
    return output_of(words);
  }
};

// In another folder with another file of the tokenizer's name.
TEST_F(GenerateCommand, IsAnyFoldersWithItsFellows) {
  write("elsewhere/tok.model", "no tokenizer");
  write("elsewhere/held_out.txt", small_corpus().substr(0, 500));
  const auto there = [&](Words words) {
    const ChildResult result = braid(words, {.folder = "elsewhere"});
    EXPECT_EQ(result.exit_code, 0) << testing::PrintToString(words) << result.err;
    return result.out;
  };
  EXPECT_EQ(
      there({"generate", "../runs/run", "--prompt", "the cat", "--tokens", "9", "--seed", "7"}),
      sample({"--tokens", "9", "--seed", "7"}));
  const auto loss = [](const std::string& json) {
    return parse_json(json, "the output")["loss"].get<double>();
  };
  EXPECT_EQ(loss(there({"eval", "../runs/run", "--data", "held_out.txt", "--json"})),
            loss(output_of({"eval", "runs/run", "--data", "elsewhere/held_out.txt", "--json"})));
  EXPECT_THAT(there({"export", "../runs/run", "hf"}), HasSubstr("\ncarried tokenizer.model\n"));
  EXPECT_THAT(there({"inspect", "../runs/run"}), HasSubstr("step     6"));
  EXPECT_THAT(there({"report", "../runs/run", "--cost", "cpux2"}), HasSubstr("cost      cpux2"));
  EXPECT_THAT(there({"report", "../runs/run"}), HasSubstr("report.html"));
}

TEST_F(GenerateCommand, DependsOnItsOptionsOnly) {
  const std::string text = sample({"--tokens", "24", "--seed", "7"});
  EXPECT_THAT(text, StartsWith("the cat"));
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(find_invalid_utf8(text), std::nullopt);
  EXPECT_EQ(sample({"--tokens", "24", "--seed", "7"}), text);
  EXPECT_NE(sample({"--tokens", "24", "--seed", "8"}), text);
  EXPECT_EQ(sample({"--tokens", "24", "--temperature", "0", "--seed", "7"}),
            sample({"--tokens", "24", "--top-k", "1", "--seed", "8"}));
}

// A longer sample begins with the shorter one, but for a character that only later tokens complete.
TEST_F(GenerateCommand, TokensLimitTheLength) {
  const std::string one = sample({"--tokens", "1", "--temperature", "0"});
  const std::string many = sample({"--tokens", "40", "--temperature", "0"});
  EXPECT_GT(one.size(), std::string("the cat\n").size());
  EXPECT_LT(one.size(), many.size());
  EXPECT_THAT(many, StartsWith(one.substr(0, one.size() - 1)));
}

TEST_F(GenerateCommand, RunFolderCheckpointsFolderAndCheckpointAreOne) {
  const std::string text = output_of({"generate", "runs/run", "--tokens", "8"});
  EXPECT_EQ(output_of({"generate", "runs/run/checkpoints", "--tokens", "8"}), text);
  EXPECT_EQ(output_of({"generate", "runs/run/checkpoints/step_00000006", "--tokens", "8"}), text);
}

TEST_F(GenerateCommand, ReadsHuggingFaceFoldersAsCheckpoints) {
  output_of({"export", "runs/run", "hf"});
  EXPECT_EQ(output_of({"generate", "hf", "--tokens", "8", "--context", "32"}),
            output_of({"generate", "runs/run", "--tokens", "8"}));
}

TEST_F(GenerateCommand, RefusesInOneLine) {
  EXPECT_THAT(error_of({"generate", "absent"}, 1), StartsWith("'absent' is not a checkpoint"));
  EXPECT_THAT(error_of({"generate", "runs/run", "--prompt", "a\xff"}, 2), StartsWith("--prompt: "));
  EXPECT_THAT(error_of({"generate", "runs/run", "--tokenizer", "absent.model"}, 1),
              HasSubstr("absent.model"));
  output_of({"tokenize", "--input", "corpus.txt", "--output", "more", "--train-vocabulary", "320"});
  EXPECT_THAT(error_of({"generate", "runs/run", "--tokenizer", "more.model"}, 2),
              AllOf(StartsWith("--tokenizer: 'more.model' has 320 ids"), HasSubstr("has 300")));
}

TEST_F(GenerateCommand, RunsOnTheCpuIfAskedTo) {
  EXPECT_EQ(sample({"--tokens", "8", "--device", "cpu"}), sample({"--tokens", "8"}));
  EXPECT_THAT(braid({"generate", "runs/run", "--device", "gpu"}).err, HasSubstr("--device"));
}

TEST_F(GenerateCommand, ContextLimitsWhatTheModelSees) {
  const Words greedy = {"--tokens", "30", "--temperature", "0"};
  const auto with_context = [&](const std::string& size) {
    Words words = greedy;
    words.insert(words.end(), {"--context", size});
    return sample(words);
  };
  EXPECT_EQ(with_context("32"), sample(greedy));
  EXPECT_THAT(with_context("1"), StartsWith("the cat"));
  EXPECT_THAT(error_of({"generate", "runs/run", "--context", "0"}, 2), HasSubstr("--context"));
  EXPECT_THAT(error_of({"generate", "runs/run", "--context", "16777217"}, 2),
              HasSubstr("from 1 to 16777216"));
}

TEST_F(GenerateCommand, DamagedCheckpointIsRefused) {
  const std::string file = "runs/run/checkpoints/step_00000006/model-00001-of-00002.safetensors";
  const std::string bytes = read(file);
  write(file, bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(error_of({"generate", "runs/run"}, 1),
              HasSubstr("model-00001-of-00002.safetensors' is damaged"));
}

}  // namespace
}  // namespace braid
