#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string fault_of(std::string_view text, const JsonLimits& limits = {}) {
  const std::string message = message_of<DataError>([&] { parse_json(text, "'a.json'", limits); });
  EXPECT_EQ(message_of<DataError>([&] { parse_ordered_json(text, "'a.json'", limits); }), message);
  EXPECT_THAT(message, StartsWith("'a.json'"));
  return message;
}

std::string nested(size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(Json, ReadsWhatTheLibraryReads) {
  for (const char* const text :
       {"null", " true", "-7", "18446744073709551615", "-9223372036854775808", "1.5e300", "\"\"",
        "\"a\\\"[\\\\\"", "[]", "{}", "[[],{},[{}]]", "[1,[2,{\"a\":[3,null]},\"x\"],false]\n",
        "{\"z\":1,\"a\":{\"z\":[{}],\"y\":2},\"\":\"\\u0000\\ud83d\\ude00\"}"}) {
    EXPECT_EQ(parse_json(text, "it"), nlohmann::json::parse(text)) << text;
    EXPECT_EQ(parse_ordered_json(text, "it").dump(), nlohmann::ordered_json::parse(text).dump());
  }
}

TEST(Json, ReadsRandomDocumentsAsTheLibraryDoes) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return std::uniform_int_distribution(0, n - 1)(random); };
  const std::function<std::string(int)> value = [&](int depth) -> std::string {
    const int kind = depth == 0 ? below(2) : below(4);
    if (kind < 2) {
      return kind == 0 ? fmt::format("{}", below(2000) - 1000) : fmt::format("\"s{}\"", below(99));
    }
    std::string text = kind == 2 ? "[" : "{";
    for (int i = below(5); i > 0; --i) {
      text += kind == 2 ? value(depth - 1) : fmt::format("\"k{}\":{}", i, value(depth - 1));
      text += i > 1 ? "," : "";
    }
    return text + (kind == 2 ? "]" : "}");
  };
  for (int i = 0; i < 300; ++i) {
    const std::string text = value(6);
    EXPECT_EQ(parse_json(text, "it"), nlohmann::json::parse(text)) << text;
    EXPECT_EQ(parse_ordered_json(text, "it").dump(), nlohmann::ordered_json::parse(text).dump());
  }
}

TEST(Json, RefusesDeepNestingWithPlaceAndLimit) {
  EXPECT_EQ(parse_json(nested(64), "it"), nlohmann::json::parse(nested(64)));
  EXPECT_EQ(fault_of(" " + nested(65)),
            "'a.json' nests arrays and objects deeper than 64, the limit, at byte 66");
  EXPECT_THAT(fault_of(std::string(100'000, '[')), HasSubstr("at byte 65"));
  EXPECT_THAT(fault_of("{\"a\":" + nested(7), {.depth = 7}), EndsWith("at byte 12"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) {
    objects += "{\"a\":";
  }
  EXPECT_THAT(fault_of(objects), HasSubstr("deeper than 64"));
}

TEST(Json, BracketsInTextsAreNoNesting) {
  const std::string brackets(1000, '[');
  EXPECT_EQ(parse_json("\"" + brackets + "\"", "it"), brackets);
  EXPECT_EQ(parse_json("\"\\\"" + brackets + "\"", "it"), "\"" + brackets);
  EXPECT_EQ(parse_json("[\"\\\\\",\"" + brackets + "\"]", "it")[1], brackets);
}

TEST(Json, RefusesALongText) {
  EXPECT_EQ(parse_json("[1,2]", "it", {.size_bytes = 5}).size(), 2U);
  EXPECT_EQ(fault_of("[1,2] ", {.size_bytes = 5}),
            "'a.json' has 6 bytes of JSON, but the limit is 5");
}

TEST(Json, RefusesWhatIsNotJson) {
  EXPECT_THAT(fault_of(""), AllOf(HasSubstr("is not JSON at byte 1: "), HasSubstr("end of input")));
  EXPECT_THAT(fault_of("{\"a\":1,}"), HasSubstr("is not JSON at byte 8: "));
  EXPECT_THAT(fault_of("[1] 2"), HasSubstr("is not JSON at byte 5: "));
  EXPECT_THAT(fault_of("\"a\nb\""), HasSubstr("is not JSON at byte 3: "));
  EXPECT_THAT(fault_of("\"\xff\""), HasSubstr("is not JSON at byte 2: "));
  EXPECT_THAT(fault_of("]]]]"), HasSubstr("is not JSON at byte 1: "));
  EXPECT_EQ(fault_of("[1e999]"), "'a.json' holds a number that is out of range at byte 6");
}

TEST(Json, IntegersAreThoseOf64Bits) {
  const auto integer = [](const char* text) {
    EXPECT_EQ(json_integer(parse_ordered_json(text, "it")), json_integer(parse_json(text, "it")));
    return json_integer(parse_json(text, "it"));
  };
  EXPECT_EQ(integer("7"), 7);
  EXPECT_EQ(integer("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(integer("-9223372036854775808"), INT64_MIN);
  for (const char* const text : {"9223372036854775808", "7.0", "1e300", "\"7\"", "null", "[7]"}) {
    EXPECT_EQ(integer(text), std::nullopt) << text;
  }
}

TEST(Json, RefusesAKeyThatOccursTwice) {
  EXPECT_EQ(fault_of("{\"a\":1,\"b\":2,\"a\":3}"), "'a.json': key \"a\" occurs twice in an object");
  EXPECT_THAT(fault_of("[{\"x\":{\"\\u0061\":1,\"a\":[]}}]"), HasSubstr("key \"a\" occurs twice"));
  EXPECT_EQ(parse_json("[{\"a\":{\"a\":1}},{\"a\":2}]", "it").size(), 2U);
}

/// The library alone takes minutes for it: it looks at all members for each one that it adds.
TEST(Json, ReadsAnObjectOfManyKeys) {
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) {
    text += fmt::format("{}\"{}\":[{}]", i == 0 ? "" : ",", i * 7919 % 100'003, i);
  }
  text += "}";
  const nlohmann::ordered_json json = parse_ordered_json(text, "it");
  EXPECT_EQ(json.size(), 100'000U);
  EXPECT_EQ(json.dump(), text);
}

}  // namespace
}  // namespace braid
