#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "cli/cli_fixture.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A model that was trained for two steps in "runs/run", and adapters for it.
class LoraRuns : public Cli {
 protected:
  LoraRuns() {
    write_run();
    output_of(train({"eval.interval=0", "train.steps=2"}));
  }

  static Words tune(Words settings, const Words& options = {}) {
    settings.insert(settings.begin(),
                    {"lora.rank=4", "lora.base=runs/run", "logging.run_folder=tuned",
                     "eval.interval=0", "train.steps=4", "checkpoint.interval=2"});
    return train(settings, options);
  }

  double loss_of(const std::string& model) {
    write("held_out.txt", small_corpus().substr(0, 1000));
    const std::string json =
        output_of({"eval", model, "--data", "held_out.txt", "--tokenizer", "bytes", "--json"});
    return nlohmann::json::parse(json)["loss"];
  }
};

TEST_F(LoraRuns, SaveAdaptersAloneAndResumeBitByBit) {
  output_of(tune({}));
  const std::string whole = tensors_of("tuned/checkpoints/step_00000004");
  EXPECT_EQ(whole.find("embedding"), std::string::npos);
  EXPECT_NE(whole.find("layers.1.mlp.fc1.lora_b.gate.weight"), std::string::npos);
  std::filesystem::remove_all(path("tuned/checkpoints/step_00000004"));
  write("tuned/checkpoints/latest", "step_00000002\n");
  EXPECT_THAT(output_of(tune({})), HasSubstr("step_00000002"));
  EXPECT_TRUE(whole == tensors_of("tuned/checkpoints/step_00000004"));
}

TEST_F(LoraRuns, AreReadEvaluatedAndExported) {
  output_of(tune({"optimizer.learning_rate=3e-2"}));
  EXPECT_THAT(output_of({"export", "tuned", "merged"}), HasSubstr("wrote merged: config.json, 21"));
  EXPECT_THAT(output_of({"export", "tuned", "peft", "--adapters"}),
              HasSubstr("wrote peft: adapter_config.json, 28 tensors of f32"));
  const double tuned = loss_of("tuned");
  EXPECT_NEAR(loss_of("merged"), tuned, 1e-4);
  EXPECT_GT(loss_of("runs/run"), tuned + 1e-3);
  // lora.base is "runs/run".
  EXPECT_EQ(
      braid({"generate", "../tuned", "--prompt", "the cat", "--tokens", "3"}, {.folder = "peft"})
          .out,
      output_of({"generate", "tuned", "--prompt", "the cat", "--tokens", "3"}));

  const auto config = nlohmann::json::parse(read("peft/adapter_config.json"));
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 16.0);
  EXPECT_THAT(
      config["target_modules"].get<std::vector<std::string>>(),
      ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"));
  const SafetensorsFile file(path("peft/adapter_model.safetensors"));
  const std::string prefix = "base_model.model.model.layers.1.";
  EXPECT_EQ(file.entry(prefix + "mlp.up_proj.lora_B.weight").shape[1], 4);
  EXPECT_EQ(file.entry(prefix + "self_attn.k_proj.lora_A.weight").shape, Shape({4, 32}));
}

TEST_F(LoraRuns, TrainLengthsOfRowsAndExportThem) {
  output_of(tune({"lora.dora=true", "lora.targets=[\"q\", \"v\", \"up\"]",
                  "optimizer.learning_rate=3e-2", "train.dtype=float32"}));
  const std::string whole = tensors_of("tuned/checkpoints/step_00000004");
  EXPECT_NE(whole.find("layers.1.mlp.fc1.lora_magnitude.weight"), std::string::npos);
  std::filesystem::remove_all(path("tuned/checkpoints/step_00000004"));
  write("tuned/checkpoints/latest", "step_00000002\n");
  output_of(tune({"lora.dora=true", "lora.targets=[\"q\", \"v\", \"up\"]",
                  "optimizer.learning_rate=3e-2", "train.dtype=float32"}));
  EXPECT_TRUE(whole == tensors_of("tuned/checkpoints/step_00000004"));
  output_of({"export", "tuned", "merged"});
  const double tuned = loss_of("tuned");
  EXPECT_NEAR(loss_of("merged"), tuned, 1e-4);
  EXPECT_GT(loss_of("runs/run"), tuned + 1e-3);
  output_of({"generate", "tuned", "--prompt", "the cat", "--tokens", "3"});

  EXPECT_THAT(output_of({"export", "tuned", "peft", "--adapters"}),
              HasSubstr("wrote peft: adapter_config.json, 18 tensors of f32"));
  EXPECT_EQ(nlohmann::json::parse(read("peft/adapter_config.json"))["use_dora"], true);
  const SafetensorsFile file(path("peft/adapter_model.safetensors"));
  const std::string prefix = "base_model.model.model.layers.1.";
  const auto rows = file.entry(prefix + "mlp.up_proj.lora_B.weight").shape[0];
  EXPECT_EQ(file.entry(prefix + "mlp.up_proj.lora_magnitude_vector").shape, Shape({rows}));
}

TEST_F(LoraRuns, NameWhatIsWrongWithTheBase) {
  EXPECT_THAT(error_of(tune({"lora.base="}), 2), HasSubstr("lora.base is not given"));
  EXPECT_THAT(error_of(tune({"lora.base=nowhere"}), 2),
              HasSubstr("lora.base = \"nowhere\": it is neither a Hugging Face folder"));
  EXPECT_THAT(
      error_of(tune({"model.layers=1"}), 2),
      AllOf(HasSubstr("lora.base = \"runs/run\": it has another model: "), HasSubstr("layers")));
  EXPECT_THAT(error_of(tune({"train.dtype=bfloat16", "train.fp8=tensor"}), 2),
              HasSubstr("lora.rank = 4 with train.fp8 = \"tensor\""));
  EXPECT_THAT(error_of(train({"lora.alpha=8"}), 2), HasSubstr("set lora.rank"));
}

TEST_F(LoraRuns, RefuseWhatIsNoAdapterOfPeft) {
  EXPECT_THAT(error_of({"export", "runs/run", "peft", "--adapters"}, 2),
              HasSubstr("--adapters: the run of runs/run has none"));
  output_of(tune({"model.family=gpt2", "lora.base=initial", "train.steps=1"}));
  EXPECT_THAT(error_of({"export", "tuned", "peft", "--adapters"}, 2),
              HasSubstr("--adapters: the matrices of a GPT2LMHeadModel are not those of its"));
  EXPECT_THAT(output_of({"export", "tuned", "merged"}), HasSubstr("wrote merged: config.json"));
  output_of(tune({"model.family=phi3", "lora.base=initial", "lora.targets=[\"v\"]",
                  "logging.run_folder=phi", "train.steps=1"}));
  EXPECT_THAT(error_of({"export", "phi", "peft", "--adapters"}, 2),
              HasSubstr("--adapters: the matrices of a Phi3ForCausalLM are not those of its"));
  EXPECT_THAT(error_of(tune({"logging.run_folder=again", "lora.base=tuned"}), 2),
              HasSubstr("lora.base = \"tuned\": its checkpoint has adapters only"));
}

// The model sees the questions, but is not trained to write them.
TEST_F(LoraRuns, LearnTheAnswersOfAChat) {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    lines += R"({"prompt": "What does the cat see? ", "completion": "A fish."})"
             "\n";
  }
  write("chat.jsonl", lines);
  EXPECT_THAT(output_of({"tokenize", "--input", "chat.jsonl", "--output", "chat", "--tokenizer",
                         "bytes", "--chat", "plain"}),
              HasSubstr("wrote chat.mask.bin and .idx: 480 tokens of answers, which have a loss"));
  const auto log = [&](const Words& data) {
    Words settings{"logging.run_folder=other", "train.steps=1"};
    settings.insert(settings.end(), data.begin(), data.end());
    return output_of(tune(settings));
  };
  EXPECT_THAT(log({"data.train=chat"}), HasSubstr("chat: the loss is that of answers only"));
  EXPECT_THAT(error_of({"tokenize", "--input", "chat.jsonl", "--output", "chat", "--tokenizer",
                        "bytes", "--json-key", "prompt", "--overwrite"},
                       2),
              HasSubstr("'chat.mask.idx' exists and would be its mask"));
}

}  // namespace
}  // namespace braid
