#include "checkpoint/state_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/checksum.h"
#include "base/errors.h"
#include "base/expect_error.h"
#include "checkpoint/samples.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

StoredState sample() {
  return {SampleTraining(12).state, {{"model.safetensors", 123, "0123456789abcdef"}}};
}

std::string fault_of(std::string_view text) {
  return message_of<DataError>([&] { parse_state(text, "state.json"); });
}

/// The text with one part replaced, and a checksum that fits again.
std::string forged(std::string text, std::string_view part, std::string_view other) {
  const size_t found = text.find(part);
  EXPECT_NE(found, std::string::npos) << part;
  text.replace(found, part.size(), other);
  const std::string field = "\"state_xxh3\": \"";
  const size_t digits = text.rfind(field) + field.size();
  const std::string rest = text.substr(0, digits) + text.substr(digits + 16);
  return text.replace(digits, 16, checksum_of(std::as_bytes(std::span(rest))));
}

TEST(StateFile, ParsesWhatItPrints) {
  StoredState stored = sample();
  stored.state.seed = std::numeric_limits<int64_t>::min();
  stored.state.step = std::numeric_limits<int64_t>::max();
  stored.state.extra["state_xxh3\": \"0"] = "\"state_xxh3\": \"0123456789abcdef\"";
  const StoredState parsed = parse_state(print_state(stored), "state.json");
  EXPECT_EQ(parsed.state, stored.state);
  EXPECT_EQ(parsed.version, 4);
  ASSERT_EQ(parsed.files.size(), 1u);
  EXPECT_EQ(parsed.files[0].name, "model.safetensors");
  EXPECT_EQ(parsed.files[0].size_bytes, 123);
  EXPECT_EQ(parsed.files[0].checksum, "0123456789abcdef");
}

TEST(StateFile, RefusesTextsThatAreNotUtf8) {
  StoredState stored = sample();
  stored.state.config = "\xff";
  EXPECT_THAT(message_of<InternalError>([&] { print_state(stored); }), HasSubstr("not UTF-8"));
}

TEST(StateFile, NamesDamageBeforeAnythingElse) {
  std::string text = print_state(sample());
  text.replace(text.find("\"step\": 12"), 10, "\"step\": 13");
  EXPECT_THAT(fault_of(text),
              HasSubstr("'state.json' is not a valid checkpoint state: it is damaged"));
}

TEST(StateFile, NamesTheVersion) {
  EXPECT_THAT(fault_of(forged(print_state(sample()), "\"version\": 4", "\"version\": 5")),
              HasSubstr("it has version 5, but this braid reads versions 1 to 4"));
  EXPECT_THAT(fault_of(R"({"format":"braid checkpoint","version":9})"),
              HasSubstr("it has version 9, but this braid reads versions 1 to 4"));
}

TEST(StateFile, RefusesOtherFiles) {
  EXPECT_THAT(fault_of(""), HasSubstr("not JSON at byte"));
  EXPECT_THAT(fault_of("[]"), HasSubstr("does not have the format"));
  EXPECT_THAT(fault_of("{}"), HasSubstr("does not have the format"));
  EXPECT_THAT(fault_of(R"({"format":1})"), HasSubstr("does not have the format"));
  EXPECT_THAT(fault_of(R"({"format":"braid checkpoint"})"), HasSubstr("\"version\" is missing"));
  EXPECT_THAT(fault_of(R"({"format":"braid checkpoint","version":1})"),
              HasSubstr("checksum is missing"));
  EXPECT_THAT(fault_of("1e999"), HasSubstr("out of range"));
  EXPECT_THAT(fault_of(fmt::format("{{\"format\":{}{}}}", std::string(100'000, '['),
                                   std::string(100'000, ']'))),
              HasSubstr("deeper than 64"));
}

TEST(StateFile, RefusesFieldsThatAreMissingOrOfAnotherKind) {
  const std::string good = print_state(sample());
  EXPECT_THAT(fault_of(forged(good, "\"step\"", "\"stop\"")), HasSubstr("\"step\" is missing"));
  EXPECT_THAT(fault_of(forged(good, "\"step\": 12", "\"step\": -1")),
              HasSubstr("\"step\" is out of range"));
  EXPECT_THAT(fault_of(forged(good, "\"step\": 12", "\"step\": 1.5")),
              HasSubstr("\"step\" is missing or of another type"));
  EXPECT_THAT(fault_of(forged(good, "\"3.25\"", "3.25")), HasSubstr("\"best_loss\" is missing or"));
  EXPECT_THAT(fault_of(forged(good, "\"size_bytes\"", "\"size\"")),
              HasSubstr("\"size_bytes\" is missing"));
}

}  // namespace
}  // namespace braid
