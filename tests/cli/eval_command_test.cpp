#include <nlohmann/json.hpp>

#include "base/json.h"
#include "cli/cli_fixture.h"
#include "support/source_path.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class EvalCommand : public Cli {
 protected:
  EvalCommand() {
    write_run();
    output_of(train({"checkpoint.interval=0"}));
    write("held_out.txt", small_corpus().substr(0, 2000));
  }

  nlohmann::json json_of(Words words) const {
    words.insert(words.begin(), "eval");
    words.push_back("--json");
    return parse_json(output_of(words), "the output");
  }
};

// The loss of 2,000 bytes in windows of 32: the last one has 13 tokens.
TEST_F(EvalCommand, HasOneLossForAllFormsOfTextAndModel) {
  const nlohmann::json text = json_of({"runs/run", "--data", "held_out.txt"});
  EXPECT_EQ(text["windows"], (text["tokens"].get<int64_t>() + 31) / 32);
  EXPECT_NE(text["tokens"].get<int64_t>() % 32, 0);
  EXPECT_GT(text["loss"], 1.0);
  EXPECT_LT(text["loss"], std::log(257.0));
  EXPECT_NEAR(text["perplexity"], std::exp(text["loss"].get<double>()), 1e-9);
  EXPECT_GT(text["bits_per_byte"], text["loss"].get<double>() / std::log(2.0) * 0.9);
  output_of({"tokenize", "--input", "held_out.txt", "--output", "h", "--tokenizer", "bytes"});
  const nlohmann::json pair = json_of({"runs/run", "--data", "h"});
  EXPECT_EQ(pair["loss"], text["loss"]);
  EXPECT_FALSE(pair.contains("bits_per_byte"));
  output_of({"export", "runs/run", "hf"});
  const nlohmann::json theirs =
      json_of({"hf", "--tokenizer", "bytes", "--data", "held_out.txt", "--context", "32"});
  EXPECT_EQ(theirs["loss"], text["loss"]);
  EXPECT_THAT(output_of({"eval", "runs/run", "--data", "held_out.txt"}),
              MatchesRegex("[0-9]+ tokens in [0-9]+ windows of 32, [0-9.]+[KM]? tokens/s\n"
                           "loss [0-9.]+, perplexity [0-9.]+, [0-9.]+ bits per byte\n"));
}

TEST_F(EvalCommand, HasTheSameNumbersInAnyLayout) {
  const nlohmann::json one = json_of({"runs/run", "--data", "held_out.txt"});
  for (const Words& layout :
       {Words{"--as-trained"}, Words{"--set", "parallel.ranks=4", "--set", "parallel.tensor=2"},
        Words{"--set", "parallel.ranks=2", "--set", "parallel.pipeline=2", "--set",
              "runtime.processes=per_rank"}}) {
    Words words{"runs/run", "--data", "held_out.txt"};
    words.insert(words.end(), layout.begin(), layout.end());
    const nlohmann::json many = json_of(words);
    EXPECT_EQ(many["tokens"], one["tokens"]);
    EXPECT_EQ(many["windows"], one["windows"]);
    EXPECT_NEAR(many["loss"], one["loss"].get<double>(), 1e-5) << layout.back();
    EXPECT_NEAR(many["bits_per_byte"], one["bits_per_byte"].get<double>(), 1e-5);
  }
  output_of({"export", "runs/run", "hf"});
  EXPECT_NEAR(json_of({"hf", "--tokenizer", "bytes", "--data", "held_out.txt", "--context", "32",
                       "--set", "parallel.ranks=2", "--set", "parallel.shard=parameters"})["loss"],
              one["loss"].get<double>(), 1e-5);
  write("c.jsonl", read_text_file(source_path("examples/multiple_choice.jsonl"), 1 << 20));
  const nlohmann::json choices = json_of({"runs/run", "--choices", "c.jsonl", "--context", "64"});
  EXPECT_EQ(json_of({"runs/run", "--choices", "c.jsonl", "--context", "64", "--set",
                     "parallel.ranks=4", "--set", "parallel.pipeline=2"}),
            choices);
  EXPECT_THAT(
      error_of({"eval", "runs/run", "--data", "held_out.txt", "--set", "model.layers=1"}, 2),
      StartsWith("--set model.layers=1: an evaluation reads keys of [parallel]"));
  EXPECT_THAT(
      error_of({"eval", "runs/run", "--data", "held_out.txt", "--set", "parallel.ranks=4", "--set",
                "parallel.tensor=3"},
               2),
      StartsWith("parallel.ranks = 4: must be data * tensor * pipeline * context = 1 * 3 * 1 * 1"));
}

TEST_F(EvalCommand, LayoutsDoNotSayWhatIsGreedy) {
  write("r.jsonl", "{\"context\": \"the cat\", \"continuation\": \" sees\"}\n");
  const auto line = [&](Words words) {
    words.insert(words.begin(), {"eval", "runs/run", "--requests", "r.jsonl"});
    return parse_json(output_of(words), "the output");
  };
  const nlohmann::json one = line({});
  const nlohmann::json many = line({"--set", "parallel.ranks=2"});
  EXPECT_TRUE(one["is_greedy"].is_boolean());
  EXPECT_TRUE(many["is_greedy"].is_null());
  EXPECT_EQ(many["tokens"], one["tokens"]);
  EXPECT_NEAR(many["logprob"], one["logprob"].get<double>(), 1e-4);
}

TEST_F(EvalCommand, ScoresAveragesOfWeightsAsExportWritesThem) {
  output_of(train({"checkpoint.interval=0", "logging.run_folder=averaged", "optimizer.ema=0.5"}));
  const auto loss_of = [&](Words words) {
    const Words rest{"--data", "held_out.txt", "--tokenizer", "bytes", "--context", "32"};
    words.insert(words.end(), rest.begin(), rest.end());
    return json_of(words)["loss"].get<double>();
  };
  const double averaged = loss_of({"averaged", "--ema"});
  EXPECT_NE(averaged, loss_of({"averaged"}));
  EXPECT_EQ(loss_of({"averaged"}), loss_of({"runs/run"}));
  output_of({"export", "averaged", "hf", "--ema"});
  EXPECT_EQ(loss_of({"hf"}), averaged);
  EXPECT_THAT(error_of({"eval", "runs/run", "--data", "held_out.txt", "--ema"}, 2),
              MatchesRegex("--ema: .* has no averages of weights; .*"));
  EXPECT_THAT(error_of({"export", "runs/run", "none", "--ema"}, 2),
              MatchesRegex("--ema: .* has no averages of weights; .*"));
  EXPECT_FALSE(exists("none"));
  EXPECT_THAT(error_of({"eval", "hf", "--data", "held_out.txt", "--ema"}, 2),
              StartsWith("--ema: hf is a Hugging Face folder"));
}

TEST_F(EvalCommand, ScoresChoicesAndRequests) {
  const std::string choices = source_path("examples/multiple_choice.jsonl");
  const nlohmann::json json = json_of({"runs/run", "--choices", choices, "--context", "128"});
  EXPECT_EQ(json["items"], 8);
  EXPECT_LE(json["acc"], 1.0);
  EXPECT_TRUE(json.contains("acc_norm_stderr"));
  EXPECT_EQ(
      json_of({"runs/run", "--choices", choices, "--context", "128", "--limit", "3"})["items"], 3);
  write("r.jsonl",
        "{\"context\":\"the cat\",\"continuation\":\" sees\"}\n"
        "{\"context\":\"the cat sees\",\"continuation\":\" a dog\"}\n"
        "{\"context\":\"the cat\",\"continuation\":\" sees a dog\"}\n");
  std::istringstream lines(output_of({"eval", "runs/run", "--requests", "r.jsonl"}));
  std::vector<double> logprobs;
  for (std::string line; std::getline(lines, line);) {
    logprobs.push_back(parse_json(line, "a line")["logprob"]);
  }
  ASSERT_EQ(logprobs.size(), 3u);
  EXPECT_NEAR(logprobs[0] + logprobs[1], logprobs[2], 1e-4);  // f32, 11 tokens
}

TEST_F(EvalCommand, RefusesInOneLine) {
  EXPECT_THAT(error_of({"eval", "runs/run"}, 2), StartsWith("give one of --data, --choices"));
  EXPECT_THAT(error_of({"eval", "runs/run", "--data", "absent.txt"}, 1), HasSubstr("absent.txt"));
  EXPECT_THAT(error_of({"eval", "runs/run", "--data", "absent*"}, 2), StartsWith("--data "));
  write("one.txt", "x");
  EXPECT_THAT(error_of({"eval", "absent", "--data", "one.txt"}, 1), HasSubstr("not a checkpoint"));
  write("c.jsonl",
        "{\"ctx\":\"a\",\"endings\":[\"b\",\"" + std::string(40, 'c') + "\"],\"label\":0}");
  EXPECT_THAT(error_of({"eval", "runs/run", "--choices", "c.jsonl"}, 1),
              AllOf(StartsWith("'c.jsonl' line 1: a continuation of 41 tokens"),
                    HasSubstr("give --context 41")));
}

}  // namespace
}  // namespace braid
