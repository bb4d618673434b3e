#include "config/mistakes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace braid {
namespace {

using ::testing::ElementsAre;

/// The error that the list throws; null if it throws none.
std::unique_ptr<ConfigError> error_of(const Mistakes& mistakes) {
  try {
    mistakes.throw_if_any();
    return nullptr;
  } catch (const ConfigMistakes& error) {
    return std::make_unique<ConfigMistakes>(error);
  } catch (const ConfigError& error) {
    return std::make_unique<ConfigError>(error);
  }
}

TEST(Mistakes, NoneIsNoError) {
  Mistakes mistakes;
  EXPECT_TRUE(mistakes.require(true, "{} is good", 1));
  EXPECT_TRUE(mistakes.check([] {}));
  EXPECT_EQ(error_of(mistakes), nullptr);
}

TEST(Mistakes, OneIsTheErrorItself) {
  Mistakes mistakes;
  EXPECT_FALSE(mistakes.check([] { throw_config_error("a = {}", 1); }));
  const auto error = error_of(mistakes);
  ASSERT_NE(error, nullptr);
  EXPECT_STREQ(error->what(), "a = 1");
  EXPECT_EQ(dynamic_cast<ConfigMistakes*>(error.get()), nullptr);
  EXPECT_THAT(mistakes_of(*error), ElementsAre("a = 1"));
}

TEST(Mistakes, SeveralKeepTheirOrderThroughOtherLists) {
  Mistakes inner;
  inner.require(false, "b = {}", 2);
  inner.require(false, "c = {}", 3);
  Mistakes mistakes;
  mistakes.require(false, "a = {}", 1);
  EXPECT_FALSE(mistakes.check([&] { inner.throw_if_any(); }));
  mistakes.require(false, "d = {}", 4);
  const auto error = error_of(mistakes);
  ASSERT_NE(error, nullptr);
  EXPECT_STREQ(error->what(), "a = 1; b = 2; c = 3; d = 4");
  EXPECT_THAT(mistakes_of(*error), ElementsAre("a = 1", "b = 2", "c = 3", "d = 4"));
}

TEST(Mistakes, OtherErrorsPass) {
  Mistakes mistakes;
  EXPECT_THROW(mistakes.check([] { throw_data_error("no such file"); }), DataError);
  EXPECT_EQ(error_of(mistakes), nullptr);
}

}  // namespace
}  // namespace braid
