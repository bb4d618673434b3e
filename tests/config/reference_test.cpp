#include "config/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "config/load.h"
#include "config/value.h"
#include "support/source_path.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

/// Random values of each type within the limits of a key; the seed makes them repeat.
class RandomValue {
 public:
  RandomValue(const Limits& limits, std::mt19937_64& random) : limits_(limits), random_(random) {}

  ConfigValue operator()(bool) { return chance(); }
  ConfigValue operator()(int64_t) { return integer(); }
  ConfigValue operator()(double) {
    const double low = std::max(limits_.minimum, -1e300);
    const double high = std::min(limits_.maximum, 1e300);
    // Half of the time over many orders of magnitude, where printing could lose digits.
    const double part = std::generate_canonical<double, 53>(random_);
    const double shrunk = chance() ? part : part * std::pow(10.0, -300.0 * part);
    const double value = low + (high - low) * shrunk;
    return limits_.excludes_maximum && value >= high ? low : value;
  }
  ConfigValue operator()(const std::string&) { return text(); }
  ConfigValue operator()(const std::vector<int64_t>&) {
    std::vector<int64_t> values(random_() % 4);
    std::generate(values.begin(), values.end(), [&] { return integer(); });
    return values;
  }
  ConfigValue operator()(const std::vector<std::string>&) {
    std::vector<std::string> values(random_() % 4);
    std::generate(values.begin(), values.end(), [&] { return text(); });
    return values;
  }

 private:
  bool chance() { return random_() % 2 == 0; }

  int64_t integer() {
    const double low = std::max(limits_.minimum, -9e18);
    const double high = std::min(limits_.maximum, 9e18);
    const auto range = static_cast<uint64_t>(high - low);
    return static_cast<int64_t>(low) + static_cast<int64_t>(random_() % range);
  }

  std::string text() {
    if (!limits_.allowed.empty()) {
      return std::string(limits_.allowed[random_() % limits_.allowed.size()]);
    }
    const std::vector<std::string> pieces = {
        "a",      "Z9", " ", "\"", "\\", "'", "\"\"\"", "#", "=", "\xC3\xBC", "\xF0\x9F\x8E\x89",
        "\\u0041"};
    std::string result;
    for (uint64_t i = random_() % 8; i > 0; --i) {
      result += pieces[random_() % pieces.size()];
    }
    return result;
  }

  const Limits& limits_;
  std::mt19937_64& random_;
};

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
  EXPECT_THAT(to_toml(config),
              HasSubstr("layers = 3\n# pattern is not given\n# width is not given\n"));
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
