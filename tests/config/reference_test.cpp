#include "config/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "config/load.h"
#include "config/random_value.h"
#include "config/value.h"
#include "support/source_path.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

RunConfig random_config(uint64_t seed) {
  std::mt19937_64 random(seed);
  RunConfig config;
  for (const Field& field : config_fields()) {
    if (random() % 3 != 0) {
      set_value(field, config, std::visit(RandomValue(field.limits, random), empty_value(field)));
    }
  }
  return config;
}

TEST(ToToml, RoundTripsTheDefaults) {
  EXPECT_EQ(parse_config(to_toml(RunConfig()), "dump"), RunConfig());
}

TEST(ToToml, RoundTripsRandomConfigs) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RunConfig config = random_config(seed);
    const std::string text = to_toml(config);
    ASSERT_EQ(parse_config(text, "dump"), config) << "seed " << seed << "\n" << text;
    ASSERT_EQ(to_toml(parse_config(text, "dump")), text) << "seed " << seed;
  }
}

TEST(ToToml, SaysWhatIsNotGiven) {
  RunConfig config;
  config.model.layers = 3;
  const std::string text = to_toml(config);
  EXPECT_THAT(text, HasSubstr("\nlayers = 3\n# not given: "));
  const size_t begin = text.find("# not given");
  std::istringstream lines(text.substr(begin, text.find("\n\n", begin) - begin));
  std::string all;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.starts_with("#")) << line;
    EXPECT_LE(line.size(), 100u);
    all += line + " ";
  }
  EXPECT_THAT(all, HasSubstr(" init_std "));  // the last one
}

// Keys of mode = "manual" that another mode does not read are no answer to what a run does.
TEST(ToToml, SaysWhatModeAutoPutsInForce) {
  RunConfig config;
  config.parallel.pipeline = 2;
  config.parallel.tensor = 2;
  const std::string text = to_toml(config);
  EXPECT_THAT(text,
              HasSubstr("overlap_grad_reduce = false  # in force: true, by mode = \"auto\"\n"));
  EXPECT_THAT(text,
              HasSubstr("overlap_p2p_wgrad_delayed_layer_number = 0  # in force: 1, by mode"));
  EXPECT_THAT(text, HasSubstr("tp_comm_overlap_ag = true  # in force: false, by mode"));
  EXPECT_THAT(text, HasSubstr("overlap_context_comm = false\n"));
  config.overlap.mode = "off";
  EXPECT_THAT(to_toml(config), ::testing::Not(HasSubstr("in force")));
}

TEST(ConfigHelp, NamesEveryKeyWithDefaultAndMeaning) {
  const std::string help = config_help();
  for (const Field& field : config_fields()) {
    EXPECT_THAT(help, HasSubstr(std::string(field.name) + " = "));
    EXPECT_THAT(help, HasSubstr(std::string(field.doc)));
  }
  EXPECT_THAT(help, HasSubstr("  steps = 1000  (integer, 1 to 1000000000000)\n"));
  EXPECT_THAT(help, HasSubstr("  layers = not given  (integer, 1 to 4096)\n"));
}

TEST(ConfigReference, IsTheDocument) {
  const std::string path = source_path("docs/configuration.md");
  std::ifstream stream(path);
  std::ostringstream document;
  document << stream.rdbuf();
  if (document.str() != config_reference()) {
    const std::string made = ::testing::TempDir() + "configuration.md";
    std::ofstream(made) << config_reference();
    FAIL() << path << " is not what src/config/fields.cpp says; copy " << made << " over it";
  }
}

}  // namespace
}  // namespace braid
