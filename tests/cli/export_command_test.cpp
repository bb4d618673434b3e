#include "cli/cli_fixture.h"
#include "support/source_path.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ExportCommand : public Cli {
 protected:
  ExportCommand() {
    write_run();
    output_of(train({"eval.interval=0", "train.steps=2"}));
  }
};

TEST_F(ExportCommand, WritesAFolderThatImportReads) {
  const std::string exported = output_of({"export", "runs/run", "hf"});
  EXPECT_THAT(exported, AllOf(StartsWith("llama: 2 layers, width 32"),
                              HasSubstr("wrote hf: config.json, 21 tensors of f32 in 1 file, ")));
  EXPECT_TRUE(exists("hf/model.safetensors"));
  EXPECT_THAT(read("hf/config.json"), HasSubstr("\"max_position_embeddings\": 32,"));
  const std::string imported = output_of({"import", "hf", "c"});
  EXPECT_THAT(
      imported,
      AllOf(HasSubstr("wrote c/step_00000000\n"),
            HasSubstr(
                "checkpoint.resume = \"c\" in a run file that has no model, or with this section:"
                "\n[model]\nfamily = \"llama\"\nlayers = 2\n"),
            Not(HasSubstr("ignored"))));
  const auto sample = [&](const std::string& path) {
    return output_of({"generate", path, "--tokenizer", "bytes", "--prompt", "the cat", "--tokens",
                      "12", "--temperature", "0"});
  };
  EXPECT_EQ(sample("c"), sample("runs/run"));
  // All bits of the weights come through both ways.
  output_of({"export", "c", "again"});
  EXPECT_EQ(read("again/model.safetensors"), read("hf/model.safetensors"));
}

TEST_F(ExportCommand, SaysThatItLeavesOutMultiTokenPrediction) {
  output_of(train({"logging.run_folder=mtp", "train.steps=1", "eval.interval=0", "model.layers=1",
                   "model.mtp_depth=1"}));
  EXPECT_THAT(output_of({"export", "mtp", "hf"}),
              AllOf(HasSubstr("wrote hf: config.json, 12 tensors"),
                    HasSubstr("left out the layers of multi-token prediction: LlamaForCausalLM has "
                              "none\n")));
  output_of({"import", "hf", "c"});
  const auto sample = [&](const std::string& path) {
    return output_of({"generate", path, "--tokenizer", "bytes", "--prompt", "the cat", "--tokens",
                      "12", "--temperature", "0"});
  };
  EXPECT_EQ(sample("c"), sample("mtp"));
}

TEST_F(ExportCommand, WritesExpertsInEitherForm) {
  output_of(
      train({"logging.run_folder=experts", "train.steps=1", "eval.interval=0", "model.layers=1",
             "model.experts=3", "model.experts_per_token=2", "model.expert_ffn=8"}));
  output_of({"export", "experts", "separate"});
  EXPECT_THAT(output_of({"export", "experts", "fused", "--fused-experts"}),
              HasSubstr("wrote fused: config.json, 12 tensors"));
  output_of({"import", "fused", "c"});
  output_of({"export", "c", "again"});
  EXPECT_EQ(read("again/model.safetensors"), read("separate/model.safetensors"));
}

// From a run's tokenizer to a folder, through import and a run from there, to the next folder.
TEST_F(ExportCommand, CarriesTheTokenizerAndWhatConfigSaysOfIt) {
  write("tok/tokenizer.json",
        read_text_file(source_path("tests/data/tokenizers/qwen/tokenizer.json"), 1 << 20));
  write("tok/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  write("tok/generation_config.json", R"({"eos_token_id": [640, 642]})");
  output_of(train(
      {"logging.run_folder=first", "data.tokenizer=tok", "train.steps=1", "eval.interval=0"}));
  EXPECT_THAT(output_of({"export", "first", "hf"}),
              HasSubstr("\ncarried generation_config.json, tokenizer.json, "
                        "tokenizer_config.json\n"));
  std::string config = read("hf/config.json");
  EXPECT_THAT(config, HasSubstr("\"eos_token_id\": 640\n"));
  config.replace(config.find(": 640\n"), 6, ": [640, 642]\n");
  const std::string positions = "\"max_position_embeddings\": ";
  config.insert(config.find(positions) + positions.size(), "9");
  write("hf/config.json", config);

  EXPECT_THAT(output_of({"import", "hf", "c"}),
              AllOf(HasSubstr("\ncarried config.json, generation_config.json, tokenizer.json, "
                              "tokenizer_config.json\n"),
                    HasSubstr("[data]\ntokenizer = \"" + path("c/hugging_face/tokenizer.json"))));
  std::filesystem::remove_all(path("tok"));
  EXPECT_THAT(output_of({"generate", "c", "--prompt", "the cat", "--tokens", "3"}),
              StartsWith("the cat"));
  output_of(train({"logging.run_folder=next", "data.tokenizer=c/hugging_face", "train.steps=1",
                   "checkpoint.resume=c", "eval.interval=0"}));
  output_of({"export", "next", "again"});
  const std::string last = read("again/config.json");
  EXPECT_THAT(last, AllOf(HasSubstr(positions + "932,"),
                          HasSubstr("\"eos_token_id\": [\n    640,\n    642\n  ]")));
  EXPECT_EQ(read("again/generation_config.json"), R"({"eos_token_id": [640, 642]})");
  EXPECT_EQ(read("again/tokenizer.json"), read("hf/tokenizer.json"));
  EXPECT_THAT(output_of({"inspect", "again/tokenizer.json"}),
              AllOf(StartsWith("again/tokenizer.json: byte-level BPE of 647 ids, "),
                    HasSubstr("normalization: NFC"), HasSubstr("640 \"<|endoftext|>\"\n")));
}

// The imported weights are where a run begins, in any layout.
TEST_F(ExportCommand, TrainingStartsFromWhatWasImported) {
  output_of({"export", "runs/run", "hf"});
  output_of({"import", "hf", "c"});
  const std::string out =
      output_of(train({"logging.run_folder=next", "train.steps=2", "checkpoint.resume=c",
                       "parallel.tensor=2", "eval.interval=0"}));
  EXPECT_THAT(out, AllOf(HasSubstr("resume   c/step_00000000 after step 0"),
                         HasSubstr("finished after step 2; ")));
}

TEST_F(ExportCommand, ARunFileWithoutAModelHasThatOfItsCheckpoint) {
  output_of({"export", "runs/run", "hf"});
  output_of({"import", "hf", "c"});
  output_of({"tokenize", "--input", "corpus.txt", "--output", "ids", "--tokenizer", "bytes"});
  write("next.toml",
        "[train]\nsteps = 1\nsequence = 32\n[data]\ntrain = \"ids\"\n[eval]\n"
        "interval = 0\n[checkpoint]\nresume = \"c\"\n");
  EXPECT_THAT(output_of({"train", "next.toml"}),
              HasSubstr("resume   c/step_00000000 after step 0"));
  EXPECT_THAT(output_of({"plan", "next.toml"}), HasSubstr("model    llama: "));
}

TEST_F(ExportCommand, TrainTakesTheSectionsThatImportPrintsForGpt2) {
  output_of(train({"logging.run_folder=gpt2", "model.family=gpt2", "train.steps=1"}));
  output_of({"export", "gpt2", "hf"});
  const std::string printed = output_of({"import", "hf", "c"});
  const std::string sections = printed.substr(printed.find("[model]"));
  EXPECT_THAT(sections, AllOf(HasSubstr("max_positions = 32\n"),
                              HasSubstr("[train]\nsequence = 32\n"), Not(HasSubstr("rope_theta"))));
  write("next.toml", sections + "[data]\ntrain = \"corpus.txt\"\n[checkpoint]\nresume = \"c\"\n");
  EXPECT_THAT(
      output_of({"train", "next.toml", "--set", "train.steps=2", "--set", "eval.interval=0"}),
      AllOf(HasSubstr("resume   c/step_00000000 after step 0"),
            HasSubstr("finished after step 2; "), Not(HasSubstr("changed  ")),
            Not(HasSubstr("held-out loss"))));
}

TEST_F(ExportCommand, CutsFilesByTheirSize) {
  EXPECT_THAT(
      output_of({"export", "runs/run", "hf", "--dtype", "bf16", "--max-shard-size", "30KB"}),
      HasSubstr("21 tensors of bf16 in 4 files, "));
  EXPECT_TRUE(exists("hf/model.safetensors.index.json"));
  EXPECT_TRUE(exists("hf/model-00004-of-00004.safetensors"));
}

TEST_F(ExportCommand, RefusesInOneLine) {
  EXPECT_THAT(error_of({"export", "absent", "hf"}, 1), StartsWith("'absent' is not a checkpoint"));
  EXPECT_THAT(error_of({"export", "runs/run", "runs"}, 2), HasSubstr("exists already"));
  EXPECT_THAT(error_of({"export", "runs/run", "hf", "--dtype", "f16"}, 2), HasSubstr("--dtype"));
  for (const char* const size : {"5", "0GB", "-1GB", "GB", "99999999TB"}) {
    EXPECT_THAT(error_of({"export", "runs/run", "hf", "--max-shard-size", size}, 2),
                HasSubstr("is not a size with its unit"))
        << size;
  }
  EXPECT_FALSE(exists("hf"));
}

TEST_F(ExportCommand, ImportRefusesInOneLine) {
  EXPECT_THAT(error_of({"import", "absent", "c"}, 1), HasSubstr("absent/config.json"));
  output_of({"export", "runs/run", "hf"});
  EXPECT_THAT(error_of({"inspect", "hf"}, 1), HasSubstr("`braid import hf FOLDER`"));
  const std::string config = read("hf/config.json");
  const std::string part = "\"rope_scaling\": null";
  write("hf/config.json",
        std::string(config).replace(config.find(part), part.size(),
                                    "\"rope_scaling\": {\"rope_type\": \"dynamic\"}"));
  EXPECT_THAT(error_of({"import", "hf", "c"}, 1),
              HasSubstr("rope_scaling = {\"rope_type\":\"dynamic\"}: braid computes rotary"));
  write("hf/config.json", config);
  const std::string weights = read("hf/model.safetensors");
  write("hf/model.safetensors", weights.substr(0, weights.size() / 2));
  EXPECT_THAT(error_of({"import", "hf", "c"}, 1), HasSubstr("hf/model.safetensors"));
  EXPECT_FALSE(exists("c"));
  write("hf/model.safetensors", weights);
  output_of({"import", "hf", "c"});
  EXPECT_THAT(error_of({"import", "hf", "c"}, 2), HasSubstr("has the checkpoint"));
}

}  // namespace
}  // namespace braid
