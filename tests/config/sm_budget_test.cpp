#include "config/sm_budget.h"

#include <gmock/gmock.h>

#include "base/expect_error.h"
#include "ir/program.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

OverlapConfig with(std::vector<std::string> entries) {
  OverlapConfig overlap;
  overlap.comm_sms = std::move(entries);
  return overlap;
}

TEST(SmBudget, KindsAreThoseOfPrograms) {
  for (size_t i = 0; i < kCommKindNames.size(); ++i) {
    EXPECT_EQ(kCommKindNames[i], group_kind_name(static_cast<GroupKind>(i)));
  }
}

TEST(SmBudget, HasANumberForEachKindThatIsNamed) {
  EXPECT_TRUE(comm_sms_by_kind({}).empty());
  EXPECT_EQ(comm_sms_by_kind(with({"tensor=8", "data=64", "world=1"})),
            (std::map<std::string_view, int>{{"tensor", 8}, {"data", 64}, {"world", 1}}));
}

std::string refusal(std::vector<std::string> entries) {
  return message_of<ConfigError>([&] { comm_sms_by_kind(with(std::move(entries))); });
}

TEST(SmBudget, SaysWhatIsWrongWithAnEntry) {
  EXPECT_EQ(refusal({"tensor"}),
            "overlap.comm_sms: \"tensor\" does not have the form KIND=NUMBER; write for example "
            "\"tensor=8\"");
  EXPECT_EQ(refusal({"tensors=4"}),
            "overlap.comm_sms: \"tensors=4\" names no kind of ranks; there are data, tensor, "
            "pipeline, context, expert, world; did you mean \"tensor\"?");
  for (const char* const entry : {"data=0", "data=65", "data=-1", "data=", "data=4x", "data= 4"}) {
    EXPECT_THAT(refusal({entry}), HasSubstr("the number of multiprocessors must be 1 to 64"));
  }
  EXPECT_EQ(refusal({"data=4", "tensor=4", "data=4"}),
            "overlap.comm_sms: \"data=4\": there is another number for data; keep one");
}

}  // namespace
}  // namespace braid
