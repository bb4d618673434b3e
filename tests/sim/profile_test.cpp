#include "sim/profile.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/temp_folder.h"
#include "sim/op_family.h"
#include "sim/sim_specs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

Profile sample_profile() {
  return {.device_kind = "h200",
          .origin = {.device = "NVIDIA H200",
                     .software = "driver 1",
                     .date = "2026-01-31",
                     .threads = 3},
          .peak_flops_per_s = {{DType::kF32, 1.5e12}},
          .memory_bytes_per_s = 4.5e12,
          .launch_ns = 1700,
          .step_overhead_ns = 25'000,
          .contention = Contention{{0.5, 1.0}, {0.75, 0.9}, {1.0, 1.0}, 16},
          .tasks = {{linear_spec(64, 32, 16), {1000, 0.01}},
                    {linear_spec(128, 32, 16), {1900, 0.02}},
                    {attention_spec({2, 64, 4, 2, 16}), {5000, 0}},
                    {add_spec(4096), {900, 0.5}}},
          .to_device = {{1 << 20, {30'000, 0.1}}},
          .to_host = {{1 << 20, {31'000, 0.1}}, {2 << 20, {60'000, 0.1}}},
          .communication = {
              {{CommKind::kAllGather, CommAlgorithm::kRing, {8, 1, 8}, 1 << 25}, {128'000, 0.02}}}};
}

/// The text with one piece replaced, which must be there.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text) {
  const std::string message = message_of<DataError>([&] { parse_profile(text, "x.json"); });
  EXPECT_THAT(message, testing::StartsWith("profile 'x.json'"));
  return message;
}

/// The error after replacing a piece of a good profile.
std::string error_with(const std::string& from, const std::string& to) {
  return error_of(replaced(print_profile(sample_profile()), from, to));
}

TEST(Profile, PrintsAndParsesBack) {
  const std::string text = print_profile(sample_profile());
  const Profile parsed = parse_profile(text, "x");
  EXPECT_EQ(parsed, sample_profile());
  EXPECT_EQ(print_profile(parsed), text);
  for (const char* line :
       {"\"device\": \"h200\"",
        "{\"operands\":[\"bf16 [64,16]\",\"bf16 [32,16]\",\"write bf16 [64,32]\"]",
        "{\"bytes\":1048576,\"ns\":30000,\"spread\":0.1}"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Profile, SmallestOneParsesBack) {
  const Profile empty{.device_kind = "cpu"};
  EXPECT_EQ(parse_profile(print_profile(empty), "x"), empty);
}

TEST(Profile, LoadsFromAFile) {
  const TempFolder folder;
  write_test_file(folder / "p.json", print_profile(sample_profile()));
  EXPECT_EQ(load_profile(folder / "p.json"), sample_profile());
  EXPECT_THAT(message_of<DataError>([&] { load_profile(folder / "none.json"); }),
              HasSubstr("none.json"));
}

TEST(Profile, WhatIsNoProfileIsRefused) {
  EXPECT_THAT(error_of(""), HasSubstr("not JSON at byte"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("expected an object, found [1]"));
  EXPECT_THAT(error_of("{}"), HasSubstr("format \"braid profile\""));
  EXPECT_THAT(error_of("{\"format\": 3}"), HasSubstr("format: expected a text, found 3"));
  EXPECT_THAT(error_of("{\"x\": 1e999}"), HasSubstr("out of range"));
  EXPECT_THAT(error_of(std::string(100'000, '[') + std::string(100'000, ']')),
              HasSubstr("deeper than 64"));
  EXPECT_THAT(error_with("\"version\": 1", "\"version\": 2"),
              HasSubstr("version 2, this braid reads version 1"));
}

TEST(Profile, UnknownMissingAndWrongKeysAreNamed) {
  EXPECT_THAT(
      error_with("\"launch_ns\"", "\"lunch_ns\""),
      AllOf(HasSubstr("unknown key \"lunch_ns\""), HasSubstr("did you mean \"launch_ns\"?")));
  EXPECT_THAT(error_with("  \"launch_ns\": 1700,\n", ""), HasSubstr("\"launch_ns\" is missing"));
  EXPECT_THAT(error_with("1700", "-1"), HasSubstr("launch_ns: expected an integer from 0"));
  EXPECT_THAT(error_with("1700", "1.5"), HasSubstr("launch_ns: expected an integer from 0"));
  EXPECT_THAT(error_with("1700", "18446744073709551615"), HasSubstr("launch_ns: expected"));
  EXPECT_THAT(error_with("\"h200\"", "\"h300\""),
              AllOf(HasSubstr("device: \"h300\" is not a known device"), HasSubstr("b200")));
  EXPECT_THAT(error_with("\"f32\":", "\"f31\":"), HasSubstr("peak_flops_per_s.f31"));
  EXPECT_THAT(error_with("1500000000000.0", "0"),
              HasSubstr("peak_flops_per_s.f32: expected a number"));
  EXPECT_THAT(error_with("\"driver 1\"", "\"driver\\n1\""), HasSubstr("origin.software"));
  EXPECT_THAT(
      error_with("\"communication\":0.9", "\"communication\":0"),
      HasSubstr("contention.memory_bound_and_sm_comm.communication: expected a number from"));
  EXPECT_THAT(error_with("\"comm_sms\":16", "\"comm_sms\":0"),
              HasSubstr("contention.comm_sms: expected an integer from 1"));
}

TEST(Profile, ValuesOfOtherTypesAreNamed) {
  const auto error_as = [](const char* key, const Json& value) {
    Json json = Json::parse(print_profile(sample_profile()));
    json[key] = value;
    return error_of(json.dump());
  };
  EXPECT_THAT(error_as("origin", "here"), HasSubstr("origin: expected an object, found \"here\""));
  EXPECT_THAT(error_as("peak_flops_per_s", 7), HasSubstr("expected an object, found 7"));
  EXPECT_THAT(error_as("peak_flops_per_s", {{"i32", 7}}),
              HasSubstr("\"i32\" is not a floating-point type"));
  EXPECT_THAT(error_as("communication", 7), HasSubstr("communication: expected a list, found 7"));
  EXPECT_THAT(error_as("memory_bytes_per_s", "fast"),
              HasSubstr("memory_bytes_per_s: expected a number from 1 to"));
  EXPECT_THAT(error_as("memory_bytes_per_s", 1e300),
              AllOf(HasSubstr("memory_bytes_per_s: expected a number"), HasSubstr("1e+300")));
  EXPECT_THAT(
      error_as("device", std::vector<int>(100, 7)),
      testing::EndsWith(
          "found [7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,"
          "7,7,7..."));
}

TEST(Profile, BadTasksAreNamedWithTheirPlace) {
  EXPECT_THAT(error_with("\"linear\":", "\"liner\":"), HasSubstr("tasks.liner: unknown op"));
  EXPECT_THAT(error_with("\"ns\":1900", "\"ns\":0"),
              HasSubstr("tasks.linear[1].ns: expected an integer from 1"));
  EXPECT_THAT(error_with("\"spread\":0.02", "\"spread\":-1"), HasSubstr("tasks.linear[1].spread"));
  EXPECT_THAT(error_with("bf16 [128,16]", "bf16 [128,17]"),
              AllOf(HasSubstr("tasks.linear[1]: op linear"), HasSubstr("[M,K]")));
  EXPECT_THAT(error_with("bf16 [128,16]", "bf17 [128,16]"),
              HasSubstr("tasks.linear[1].operands[0]: expected an operand like"));
  EXPECT_THAT(error_with("\"kv_heads\":2", "\"kv_heads\":3"),
              HasSubstr("tasks.attention[0]: op attention"));
  EXPECT_THAT(error_with("\"kv_heads\":2", "\"kv_heads\":9999999999"),
              HasSubstr("tasks.attention[0].attributes.kv_heads: expected an integer"));
  EXPECT_THAT(error_with("\"kv_heads\":2", "\"kv_heads\":null"), HasSubstr("kv_heads"));
  EXPECT_THAT(error_with("\"kv_heads\":2", "\"kv_heads\":\"2\""),
              HasSubstr("tasks.attention[0]: op attention"));
  EXPECT_THAT(error_with("\"add\":", "\"all_reduce\":"),
              HasSubstr("belongs into \"communication\""));
}

TEST(Profile, TheSameQuestionTwiceIsRefused) {
  Profile profile = sample_profile();
  profile.tasks.insert(profile.tasks.begin(),
                       {with_attribute(attention_spec({2, 64, 4, 2, 16}), "scale", 0.75), {1, 0}});
  EXPECT_THAT(error_of(print_profile(profile)),
              AllOf(HasSubstr("tasks.attention[1]: attention("), HasSubstr("given before")));
  profile = sample_profile();
  profile.to_host.push_back(profile.to_host.front());
  EXPECT_THAT(error_of(print_profile(profile)),
              HasSubstr("host_copies.to_host[2]: 1048576 bytes were given before"));
  profile = sample_profile();
  profile.communication.push_back(profile.communication.front());
  EXPECT_THAT(error_of(print_profile(profile)), HasSubstr("communication[1]: the same"));
}

TEST(Profile, BadCommunicationIsNamed) {
  EXPECT_THAT(error_with("\"all_gather\"", "\"gather\""),
              HasSubstr("communication[0].kind: unknown communication \"gather\""));
  EXPECT_THAT(error_with("\"ring\"", "\"rings\""), HasSubstr("communication[0].algorithm"));
  EXPECT_THAT(error_with("\"ring\"", "\"tree\""), HasSubstr("there is no tree for all_gather"));
  EXPECT_THAT(error_with("\"nodes\":1", "\"nodes\":9"), HasSubstr("communication[0].nodes"));
  EXPECT_THAT(error_with("\"fewest_per_node\":8", "\"fewest_per_node\":9"),
              HasSubstr("communication[0].fewest_per_node: expected an integer from 1 to 8"));
}

TEST(OperandText, ParsesBack) {
  for (const OperandSpec& operand :
       {read(DType::kBF16, {3, 5}), write(DType::kF32, {1}), read_write(DType::kI32, {}),
        read(DType::kF64, {1, 2, 3, 4, 5})}) {
    EXPECT_EQ(parse_operand_spec(print_operand_spec(operand)), operand);
  }
  EXPECT_EQ(print_operand_spec(write(DType::kBF16, {3, 5})), "write bf16 [3,5]");
}

TEST(OperandText, AnythingElseIsRefused) {
  for (const char* text : {"",
                           "bf16",
                           "bf16 ",
                           "bf16 3",
                           "bf16 [",
                           "bf16 [3",
                           "bf16 3]",
                           "bf16 [3,]",
                           "bf16 [,3]",
                           "bf16 [0]",
                           "bf16 [-1]",
                           "bf16 [3 ,5]",
                           "bf16  [3]",
                           "bf16 [3] ",
                           "read bf16 [3]",
                           "rw write bf16 [3]",
                           "bf99 [3]",
                           "bf16 [1,1,1,1,1,1]",
                           "bf16 [99999999999999999999]",
                           "bf16 [9223372036854775807,9223372036854775807]"}) {
    EXPECT_EQ(parse_operand_spec(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace braid
