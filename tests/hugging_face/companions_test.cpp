#include "hugging_face/companions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "hugging_face/model_config.h"
#include "model/families.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;

class Companions : public testing::Test {
 protected:
  void write(const std::string& name, std::string_view text) const {
    write_test_file(folder_ / name, text);
  }
  HfCompanions find() const { return find_companions(folder_.path().string(), 100); }

  TempFolder folder_;
};

TEST_F(Companions, AreWhatAFolderHasBesidesTheModel) {
  write("config.json", R"({"vocab_size": 100, "bos_token_id": 1, "eos_token_id": [2, 3],
                           "max_position_embeddings": 4096})");
  write("tokenizer.json", "{}");
  write("generation_config.json", "{}");
  write("model.safetensors", "x");
  write("README.md", "x");
  const HfCompanions companions = find();
  EXPECT_THAT(companions.bos_ids, ElementsAre(1));
  EXPECT_THAT(companions.eos_ids, ElementsAre(2, 3));
  EXPECT_EQ(companions.max_positions, 4096);
  EXPECT_THAT(companions.files, ElementsAre(Key("generation_config.json"), Key("tokenizer.json")));
  EXPECT_EQ(tokenizer_file(companions), "tokenizer.json");
  std::filesystem::create_directories(folder_ / "to");
  copy_companions(companions, folder_ / "to");
  EXPECT_EQ(read_text_file(folder_ / "to/tokenizer.json", 10), "{}");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "to/README.md"));
  const std::string config = print_hf_config(find_preset("llama-1b").spec, DType::kF32, companions);
  EXPECT_THAT(config, HasSubstr("\"bos_token_id\": 1,"));
  EXPECT_THAT(config, HasSubstr("\"eos_token_id\": [\n    2,\n    3\n  ]"));
}

TEST_F(Companions, OfAnotherModelAreNotRead) {
  write("config.json", R"({"vocab_size": 99, "eos_token_id": 2, "n_positions": 4096})");
  EXPECT_THAT(find().eos_ids, ElementsAre());
  EXPECT_EQ(find().max_positions, 0);
}

TEST_F(Companions, RefusesWhatIsNoId) {
  write("config.json", R"({"vocab_size": 100, "eos_token_id": "</s>"})");
  EXPECT_THAT(message_of<DataError>([&] { find(); }),
              HasSubstr("eos_token_id has \"</s>\", which is no token id"));
}

}  // namespace
}  // namespace braid
