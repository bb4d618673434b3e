#include "cli/cli_fixture.h"
#include "model/families.h"
#include "model/model_spec.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

class InspectCommand : public Cli {
 protected:
  static constexpr const char* kCheckpoint = "runs/run/checkpoints/step_00000006";

  InspectCommand() {
    write_run();
    output_of({"tokenize", "--input", "corpus.txt", "--output", "c", "--tokenizer", "bytes"});
    output_of(train({"data.train=c"}));
  }

  /// Puts `bytes` in place of a file, checks that reading it through `words` fails with a line that
  /// has `name` in it, the file's own unless given, and puts the file back.
  void expect_refused(const std::string& file, const std::string& bytes, const Words& words,
                      std::string name = "") const {
    const std::string whole = read(file);
    write(file, bytes);
    if (name.empty()) {
      name = file.substr(file.rfind('/') + 1);
    }
    EXPECT_THAT(error_of(words, 1), HasSubstr(name)) << bytes.size() << " bytes";
    write(file, whole);
  }

  static std::string flipped(std::string bytes, size_t at) {
    bytes[at] = static_cast<char>(bytes[at] ^ 0x40);
    return bytes;
  }
};

TEST_F(InspectCommand, DescribesEveryKindOfFile) {
  const std::string checkpoint = output_of({"inspect", kCheckpoint});
  EXPECT_THAT(checkpoint, HasSubstr("all files have the recorded size and checksum\n"));
  EXPECT_THAT(checkpoint, HasSubstr("step     6\nsamples  48\ntokens   1536\nseed     1234\n"));
  EXPECT_THAT(checkpoint, HasSubstr("\nidentity.data: 300 documents, "));
  EXPECT_THAT(checkpoint, HasSubstr("\nidentity.tokenizer: bytes\n"));
  EXPECT_THAT(checkpoint, HasSubstr("layers.1.mlp.fc2.weight.exp_avg_sq"));
  EXPECT_EQ(output_of({"inspect", "runs/run"}), checkpoint);
  EXPECT_THAT(checkpoint, HasSubstr("file     optimizer-00002-of-00002.safetensors, "));
  EXPECT_THAT(checkpoint, HasSubstr("tensors  45\n"));
  EXPECT_THAT(checkpoint, HasSubstr("f32 [257,32]  model-0000"));
  const std::string file = std::string(kCheckpoint) + "/model-00001-of-00002.safetensors";
  EXPECT_THAT(output_of({"inspect", file}), HasSubstr("model-00001-of-00002.safetensors: "));
  EXPECT_EQ(output_of({"inspect", "c.bin"}), output_of({"inspect", "c"}));
  const std::string presets = output_of({"inspect", "presets"});
  for (const ModelPreset& preset : model_presets()) {
    EXPECT_THAT(presets, HasSubstr(std::string(preset.name) + " "));
  }
}

TEST_F(InspectCommand, WhatIsNothingIsNamed) {
  EXPECT_THAT(error_of({"inspect", "absent"}, 1), HasSubstr("'absent' does not exist"));
  EXPECT_THAT(error_of({"inspect", "corpus.txt"}, 1),
              HasSubstr("'corpus.txt' is not a run folder"));
  EXPECT_THAT(error_of({"inspect", "."}, 1), HasSubstr("'.' is not a run folder"));
}

TEST_F(InspectCommand, DamagedTokensAreRefused) {
  const std::string idx = read("c.idx");
  const std::string bin = read("c.bin");
  for (const Words& words :
       {Words{"inspect", "c"}, train({"data.train=c", "logging.run_folder=x"})}) {
    // The index says how long the .bin must be, so the message names the index.
    expect_refused("c.bin", bin.substr(0, bin.size() - 2), words, "the .bin of 'c.idx'");
    expect_refused("c.idx", idx.substr(0, idx.size() / 2), words);
    expect_refused("c.idx", idx.substr(0, 20), words);
    expect_refused("c.idx", "", words);
    expect_refused("c.idx", flipped(idx, 0), words);
    expect_refused("c.idx", flipped(idx, 17), words);
    expect_refused("c.idx", flipped(idx, 40), words);
  }
  expect_refused("c.bin", flipped(bin, bin.size() / 2), {"inspect", "c"});
  std::filesystem::remove(path("c.idx"));
  EXPECT_THAT(error_of({"inspect", "c"}, 1), HasSubstr("c.idx"));
  EXPECT_THAT(error_of(train({"data.train=c", "logging.run_folder=x"}), 1), HasSubstr("c.idx"));
  write("c.idx", idx);
  std::filesystem::remove(path("c.bin"));
  EXPECT_THAT(error_of(train({"data.train=c", "logging.run_folder=x"}), 1), HasSubstr("c.bin"));
}

TEST_F(InspectCommand, DamagedCheckpointIsRefused) {
  const std::string folder = kCheckpoint;
  const Words resume = train({"data.train=c", "train.steps=8"});
  for (const Words& words : {Words{"inspect", "runs/run"}, Words{"generate", "runs/run"}, resume}) {
    for (const char* name :
         {"/model-00002-of-00002.safetensors", "/optimizer-00001-of-00002.safetensors",
          "/index.json", "/state.json"}) {
      if (words.front() == "generate" && std::string_view(name).starts_with("/optimizer")) {
        continue;  // it reads the weights only
      }
      const std::string file = folder + name;
      const std::string bytes = read(file);
      expect_refused(file, bytes.substr(0, bytes.size() / 2), words);
      expect_refused(file, "", words);
    }
    const std::string weights = folder + "/model-00001-of-00002.safetensors";
    expect_refused(weights, flipped(read(weights), read(weights).size() / 2), words);
    expect_refused(folder + "/state.json", "{}", words);
    std::filesystem::rename(path(weights), path("kept"));
    EXPECT_THAT(error_of(words, 1), HasSubstr("model-00001-of-00002.safetensors"));
    std::filesystem::rename(path("kept"), path(weights));
  }
  EXPECT_THAT(output_of(resume), HasSubstr("finished after step 8; "));
}

}  // namespace
}  // namespace braid
