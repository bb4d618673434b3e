#include "config/value.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/errors.h"

namespace braid {
namespace {

const Field& field(std::string_view section, std::string_view name) {
  const Field* found = find_field(section, name);
  check(found != nullptr, "{}.{}", section, name);
  return *found;
}

TEST(ConfigValue, ReadsWhatWasSet) {
  RunConfig config;
  set_value(field("train", "steps"), config, int64_t{5});
  set_value(field("model", "layers"), config, int64_t{7});
  EXPECT_EQ(config.train.steps, 5);
  EXPECT_EQ(config.model.layers, 7);
  EXPECT_EQ(value_of(field("train", "steps"), config), ConfigValue(int64_t{5}));
  EXPECT_EQ(value_of(field("model", "layers"), config), ConfigValue(int64_t{7}));
  EXPECT_EQ(value_of(field("model", "heads"), config), std::nullopt);
}

TEST(ConfigValue, OfAnotherTypeIsOurBug) {
  RunConfig config;
  EXPECT_THROW(set_value(field("train", "steps"), config, std::string("5")), InternalError);
}

TEST(ConfigValue, PrintsAsToml) {
  EXPECT_EQ(to_text(true), "true");
  EXPECT_EQ(to_text(int64_t{-3}), "-3");
  EXPECT_EQ(to_text(3.0), "3.0") << "a TOML float needs a point or an exponent";
  EXPECT_EQ(to_text(1e-5), "1e-05");
  EXPECT_EQ(to_text(0.1), "0.1");
  EXPECT_EQ(to_text(std::string("a\"b")), "\"a\\\"b\"");
  EXPECT_EQ(to_text(std::string("abcdef"), 3), "\"abc...\"");
  EXPECT_EQ(to_text(std::vector<int64_t>{1, 2}), "[1, 2]");
  EXPECT_EQ(to_text(std::vector<std::string>{"a", "b"}), "[\"a\", \"b\"]");
  EXPECT_EQ(to_text(std::vector<std::string>{}), "[]");
}

TEST(ConfigValue, NamesItsType) {
  for (const Field& each : config_fields()) {
    EXPECT_FALSE(type_name(empty_value(each)).empty());
  }
  EXPECT_EQ(type_name(empty_value(field("model", "layers"))), "an integer");
  EXPECT_EQ(type_name(empty_value(field("optimizer", "beta1"))), "a number");
  EXPECT_EQ(type_name(empty_value(field("data", "train"))), "a string");
  EXPECT_EQ(type_name(empty_value(field("model", "qkv_bias"))), "true or false");
  EXPECT_EQ(type_name(empty_value(field("logging", "trace_steps"))), "a list of integers");
  EXPECT_EQ(type_name(empty_value(field("overlap", "disable_passes"))), "a list of strings");
}

TEST(ConfigValue, KeepsItsLimits) {
  EXPECT_EQ(broken_limit(field("train", "steps"), int64_t{1}), std::nullopt);
  EXPECT_EQ(broken_limit(field("train", "steps"), int64_t{0}), "must be at least 1");
  EXPECT_EQ(broken_limit(field("optimizer", "beta1"), 0.0), std::nullopt);
  EXPECT_EQ(broken_limit(field("optimizer", "beta1"), 1.0), "must be below 1");
  EXPECT_EQ(broken_limit(field("train", "seed"), std::numeric_limits<int64_t>::max()),
            std::nullopt);
  EXPECT_EQ(broken_limit(field("train", "dtype"), std::string("float32")), std::nullopt);
  EXPECT_EQ(broken_limit(field("train", "dtype"), std::string("int8")),
            "allowed values are \"float32\", \"bfloat16\"");
  EXPECT_EQ(broken_limit(field("overlap", "disable_passes"), std::vector<std::string>{"a\n"}),
            "each entry must be UTF-8 text without control characters");
}

TEST(ConfigValue, NamesLimitsAsTheyAreWritten) {
  EXPECT_EQ(broken_limit(field("optimizer", "epsilon"), 0.0), "must be at least 1e-30");
  Field other = field("optimizer", "epsilon");
  other.limits = {.minimum = 0.5, .maximum = 1e20};
  EXPECT_EQ(broken_limit(other, 0.25), "must be at least 0.5");
  EXPECT_EQ(broken_limit(other, 1e21), "must be at most 1e+20");
}

TEST(ConfigValue, DefaultsAreWithinTheirLimits) {
  for (const Field& each : config_fields()) {
    if (const std::optional<ConfigValue> value = value_of(each, RunConfig())) {
      EXPECT_EQ(broken_limit(each, *value), std::nullopt) << full_name(each);
    }
  }
}

TEST(Limits, ReadAsText) {
  EXPECT_EQ(limits_text({}), "");
  EXPECT_EQ(limits_text({.minimum = 0}), "at least 0");
  EXPECT_EQ(limits_text({.minimum = 1, .maximum = 16}), "1 to 16");
  EXPECT_EQ(limits_text({.minimum = 0, .maximum = 1, .excludes_maximum = true}), "0 to below 1");
  EXPECT_EQ(limits_text(field("train", "dtype").limits), "\"float32\", \"bfloat16\"");
}

}  // namespace
}  // namespace braid
