#include "base/build_id.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace braid {
namespace {

TEST(BuildId, IsTheLinkersHashOfThisProgram) {
  EXPECT_THAT(build_id(), ::testing::MatchesRegex("[0-9a-f]{40}"));
}

}  // namespace
}  // namespace braid
