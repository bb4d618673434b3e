#include "config/sm_budget.h"

#include <gmock/gmock.h>

#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

OverlapConfig with(std::vector<std::string> entries) {
  OverlapConfig overlap;
  overlap.comm_sms = std::move(entries);
  return overlap;
}

TEST(SmBudget, IsEmptyByDefault) {
  EXPECT_EQ(sm_budget({}), SmBudget());
}

TEST(SmBudget, HasANumberForEachKindThatIsNamed) {
  OverlapConfig overlap = with({"tensor=8", "data=64", "world=1"});
  overlap.product_sm_margin = 12;
  EXPECT_EQ(
      sm_budget(overlap),
      (SmBudget{
          .comm_sms = {{GroupKind::kTensor, 8}, {GroupKind::kData, 64}, {GroupKind::kWorld, 1}},
          .product_margin = 12}));
}

void expect_refusal(const std::string& entry, const std::string& part) {
  expect_error<ConfigError>([&] { sm_budget(with({entry})); }, part);
}

TEST(SmBudget, SaysWhatIsWrongWithAnEntry) {
  expect_refusal("tensor", "overlap.comm_sms: \"tensor\" does not have the form KIND=NUMBER");
  expect_refusal("tensors=4",
                 "names no kind of ranks; there are data, tensor, pipeline, context, "
                 "expert, world; did you mean \"tensor\"?");
  for (const char* const entry : {"data=0", "data=65", "data=-1", "data=", "data=4x", "data= 4"}) {
    expect_refusal(entry, "the number of multiprocessors must be 1 to 64");
  }
  expect_error<ConfigError>(
      [] {
        sm_budget(with({"data=4", "tensor=4", "data=4"}));
      },
      "overlap.comm_sms: \"data=4\": there is another number for data");
}

}  // namespace
}  // namespace braid
