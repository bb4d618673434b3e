#include "config/blend.h"

#include <gmock/gmock.h>

#include "config/config_text.h"
#include "config/reference.h"
#include "config/validate.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ParseBlend, ReadsWeightsAndPaths) {
  const std::vector<BlendEntry> blend =
      parse_blend(std::vector<std::string>{"0.7 web_text_document", "  30\t my data/code.bin "});
  ASSERT_EQ(blend.size(), 2u);
  EXPECT_EQ(blend[0].weight, 0.7);
  EXPECT_EQ(blend[0].path, "web_text_document");
  EXPECT_EQ(blend[1].weight, 30.0);
  EXPECT_EQ(blend[1].path, "my data/code.bin");
}

TEST(ParseBlend, SaysWhatIsWrongWithAnEntry) {
  const auto refusal = [](std::vector<std::string> entries) {
    return config_error_of([&] { parse_blend(entries); });
  };
  EXPECT_EQ(refusal({"web"}),
            "data.blend: \"web\" is not a weight and a path; write both in one string, such as "
            "\"0.7 web\"");
  // Megatron's list of weights and paths by turns.
  EXPECT_THAT(refusal({"0.7", "web"}), StartsWith("data.blend: \"0.7\" is not a weight and a path; "
                                                  "write both in one string"));
  for (const char* entry : {"0 web", "-1 web", "nan web", "inf web"}) {
    EXPECT_THAT(refusal({entry}), HasSubstr("the weight must be a number above 0")) << entry;
  }
  EXPECT_THAT(refusal({""}), HasSubstr("is not a weight and a path"));
  EXPECT_THAT(refusal({"1 a", "2 b", "3 a"}), StartsWith("data.blend names \"a\" twice"));
}

TEST(ParseBlend, IsCheckedWithTheConfiguration) {
  RunConfig config =
      parse_config(to_toml(valid_config()), "base",
                   std::vector<std::string>{"data.train=", "data.blend=0.7 web,0.3 code"});
  EXPECT_EQ(config.data.blend, (std::vector<std::string>{"0.7 web", "0.3 code"}));
  EXPECT_EQ(config_error_of([&] { validate(config); }), "no error");
  config.data.train = "corpus.txt";
  EXPECT_THAT(config_error_of([&] { validate(config); }),
              StartsWith("data.train = \"corpus.txt\": data.blend has 2 entries, and only one of"));
  config.data.train = "";
  config.data.blend = {"-1 web"};
  EXPECT_THAT(config_error_of([&] { validate(config); }), StartsWith("data.blend: \"-1 web\": "));
}

TEST(ParseBlend, IsForValidationDataToo) {
  RunConfig config = parse_config(to_toml(valid_config()), "base",
                                  std::vector<std::string>{"data.valid=1 held_out,2 more"});
  EXPECT_EQ(config.data.valid, (std::vector<std::string>{"1 held_out", "2 more"}));
  EXPECT_EQ(config_error_of([&] { validate(config); }), "no error");
  config.data.split = "90,10,0";
  EXPECT_THAT(
      config_error_of([&] { validate(config); }),
      StartsWith("data.split = \"90,10,0\": data.valid has 2 entries, and all data are read "
                 "whole then; remove either key"));
  config.data.split = DataConfig().split;
  config.data.valid = {"held_out"};
  EXPECT_THAT(config_error_of([&] { validate(config); }),
              StartsWith("data.valid: \"held_out\" is not a weight and a path"));
  config.data.valid = {"1 held_out"};
  config.preference.loss = "dpo";
  config.train.microbatch = 2;
  EXPECT_THAT(config_error_of([&] { validate(config); }),
              HasSubstr("data.valid: pairs for evaluations are those of preference.held_out"));
}

}  // namespace
}  // namespace braid
