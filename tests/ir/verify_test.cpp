#include "ir/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/expect_error.h"
#include "support/program_files.h"
#include "support/random_program.h"
#include "support/source_path.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string fault_of(const std::string& text) {
  try {
    const std::vector<Violation> violations = verify(parse_program(text));
    return violations.empty() ? "none" : violations.front().message;
  } catch (const DataError& error) {
    return error.what();
  }
}

TEST(Verify, RejectsEachBadProgramForItsReason) {
  const std::vector<std::string> paths = program_files("reject");
  EXPECT_GT(paths.size(), 40u);
  for (const std::string& path : paths) {
    SCOPED_TRACE(path);
    const std::string text = read_program_text(path);
    const std::string prefix = "# expect: ";
    ASSERT_THAT(text, StartsWith(prefix));
    EXPECT_THAT(fault_of(text),
                HasSubstr(text.substr(prefix.size(), text.find('\n') - prefix.size())));
  }
}

TEST(Verify, AcceptsGoodProgramsAndTheirTextIsCanonical) {
  for (const std::string& path : program_files("programs")) {
    SCOPED_TRACE(path);
    const std::string text = read_program_text(path);
    const Program program = parse_program(text);
    EXPECT_EQ(fault_of(text), "none");
    EXPECT_EQ(print_program(program), without_comments(text));
  }
}

TEST(Verify, AcceptsAnyOrderOnOneStream) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    EXPECT_EQ(fault_of(print_program(random_program(seed, {.num_ranks = 2}))), "none");
  }
}

TEST(Verify, IgnoresStreamsInProgramOrder) {
  const Program racy = random_program(7, {.num_streams = 3});
  EXPECT_EQ(verify(racy, 1).size(), 1u);
  EXPECT_THAT(verify(racy, 1, Ordering::kProgramOrder), IsEmpty());
  // But not structure, nor what was never written.
  for (const char* name : {"read_before_write", "missing_buffer", "wait_before_record"}) {
    const std::string path = source_path(std::string("tests/reject/") + name + ".txt");
    const Program bad = parse_program(read_program_text(path));
    EXPECT_EQ(verify(bad, 1, Ordering::kProgramOrder).size(), 1u) << name;
  }
}

TEST(Verify, StopsAtTheLimit) {
  const Program racy = random_program(7, {.num_tasks = 400, .num_streams = 3});
  EXPECT_EQ(verify(racy, 0).size(), 0u);
  EXPECT_EQ(verify(racy, 5).size(), 5u);
  EXPECT_GT(verify(racy, 1000).size(), 16u);
  EXPECT_EQ(verify(racy).size(), 16u);
}

TEST(Verify, SurvivesIdsThatPointNowhere) {
  const Program good = random_program(3, {.num_streams = 1, .num_ranks = 2});
  const auto first_fault = [&](auto&& change) {
    Program changed = good;
    change(changed);
    const auto violations = verify(changed);
    return violations.empty() ? "none" : violations.front().message;
  };
  EXPECT_EQ(first_fault([](Program&) {}), "none");
  EXPECT_THAT(first_fault([](Program& p) { p.tasks[2].spec = SpecId(); }), HasSubstr("spec"));
  EXPECT_THAT(first_fault([](Program& p) { p.tasks[2].stream = StreamId(); }), HasSubstr("stream"));
  EXPECT_THAT(first_fault([](Program& p) { p.operands.pop_back(); }), HasSubstr("operands"));
  EXPECT_THAT(first_fault([](Program& p) { p.tasks[2].operands_begin = UINT32_MAX; }),
              HasSubstr("operands"));
  EXPECT_THAT(first_fault([](Program& p) { p.tasks[2].num_waits = UINT32_MAX; }),
              HasSubstr("waits"));
  EXPECT_THAT(first_fault([](Program& p) { p.operands[0].end = INT64_MAX; }), HasSubstr("range"));
  EXPECT_THAT(first_fault([](Program& p) { p.operands[0].begin = INT64_MIN; }), HasSubstr("range"));
  EXPECT_THAT(first_fault([](Program& p) {
                p.buffers[0].shape = {INT64_MAX, INT64_MAX};
              }),
              HasSubstr("buffer buffer0: shape"));
  EXPECT_THAT(first_fault([](Program& p) { p.streams.resize(100000); }), HasSubstr("streams"));
  EXPECT_THAT(first_fault([](Program& p) { p.num_events = UINT32_MAX; }), HasSubstr("events"));
  EXPECT_THAT(first_fault([](Program& p) { p.buffers.clear(); }), HasSubstr("buffer #"));
}

TEST(Verify, ThrowsWithTheNameOfThePass) {
  const Program racy = random_program(7, {.num_streams = 3});
  const std::string message =
      message_of<InternalError>([&] { verify_or_throw(racy, "pass shuffle"); });
  EXPECT_THAT(message, HasSubstr("program random is wrong after pass shuffle: "));
  EXPECT_THAT(message, HasSubstr("race: task"));
  EXPECT_NO_THROW(verify_or_throw(racy, "pass shuffle", Ordering::kProgramOrder));
}

}  // namespace
}  // namespace braid
