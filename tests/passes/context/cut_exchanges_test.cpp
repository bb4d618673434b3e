#include "passes/context/cut_exchanges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ir/text.h"
#include "ir/verify.h"
#include "passes/exchange_text.h"

namespace braid {
namespace {

using ::testing::IsEmpty;
using namespace exchange_text;

Program parsed(const std::string& tasks) {
  Program program = parse_program(kHead + tasks);
  EXPECT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
  return program;
}

std::string cut(const std::string& tasks) {
  const Program result = cut_exchanges(parsed(tasks)).program;
  EXPECT_THAT(verify(result, 1, Ordering::kProgramOrder), IsEmpty());
  EXPECT_FALSE(cut_exchanges(result).report.changed);
  const std::string text = print_program(result);
  return text.substr(text.find("fill("));
}

TEST(CutExchanges, EachHalfGoesToItsPlaceAtOnce) {
  EXPECT_EQ(cut(kForward), kFill + kQkv + kRope + kInHalves + kAttention + kOutHalves + kProj);
}

TEST(CutExchanges, OfABackwardToo) {
  const std::string made = kFill + "fill(-> x) s dgrad mb=0 layer=0\n";
  const std::string attention = "d_attention(y -> m) s dgrad mb=0 layer=0\n";
  EXPECT_EQ(cut(made + kIn + attention + kOut), made + kInHalves + attention + kOutHalves);
}

// Other blocks than halves, a buffer that something else reads, and a call whose result is in
// order.
TEST(CutExchanges, LeavesWhatItDoesNotKnow) {
  const std::string made = kFill + "fill(-> x) s forward mb=0 layer=0\n";
  const std::string call_alone = split("x -> h", false) + call("h -> e");
  for (const std::string& tasks :
       {made + call_alone + swap("e -> y", 2, 4),
        made + kIn + "look(e -> m) s forward mb=0 layer=0\n", made + call_alone}) {
    EXPECT_EQ(cut(tasks), tasks);
  }
}

}  // namespace
}  // namespace braid
