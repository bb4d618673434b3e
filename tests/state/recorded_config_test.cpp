#include "state/recorded_config.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/temp_folder.h"
#include "config/reference.h"

namespace braid {
namespace {

class RecordedConfig : public testing::Test {
 protected:
  RunConfig recorded(const std::string& tokenizer, const std::string& base,
                     const std::string& folder) const {
    RunConfig config;
    config.data.tokenizer = tokenizer;
    config.lora.base = base;
    return recorded_config({.config = to_toml(config), .extra = {{"folder", folder}}}, "test");
  }

  TempFolder folder_;
};

TEST_F(RecordedConfig, NamesWhatIsInTheFolderOfTheRun) {
  std::filesystem::create_directory(folder_ / "base");
  write_test_file(folder_ / "tok.model", "");
  const std::string folder = folder_.path().string();
  const RunConfig config = recorded("tok.model", "base", folder);
  EXPECT_EQ(config.data.tokenizer, folder_ / "tok.model");
  EXPECT_EQ(config.lora.base, folder_ / "base");
  const RunConfig whole = recorded(folder_ / "tok.model", folder_ / "base", "/");
  EXPECT_EQ(whole.data.tokenizer, folder_ / "tok.model");
  EXPECT_EQ(whole.lora.base, folder_ / "base");
}

TEST_F(RecordedConfig, LeavesOtherNames) {
  write_test_file(folder_ / "bytes", "");
  write_test_file(folder_ / "initial", "");
  const std::string folder = folder_.path().string();
  const RunConfig special = recorded("bytes", "initial", folder);
  EXPECT_EQ(special.data.tokenizer, "bytes");
  EXPECT_EQ(special.lora.base, "initial");
  const RunConfig gone = recorded("tok.model", "base", folder);
  EXPECT_EQ(gone.data.tokenizer, "tok.model");
  EXPECT_EQ(gone.lora.base, "base");
}

TEST_F(RecordedConfig, LeavesNamesInTheSameFolderAndThoseOfOlderCheckpoints) {
  RunConfig config;
  config.data.tokenizer = ".";
  CheckpointState state{.config = to_toml(config)};
  EXPECT_EQ(recorded_config(state, "test"), config);
  state.extra = with_current_folder({{"other", "kept"}});
  EXPECT_EQ(recorded_config(state, "test"), config);
  EXPECT_EQ(state.extra.at("other"), "kept");
  EXPECT_EQ(state.extra.at("folder"), std::filesystem::current_path().string());
}

}  // namespace
}  // namespace braid
