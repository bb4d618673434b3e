#include "config/changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> lines(const RunConfig& before, const RunConfig& after) {
  std::vector<std::string> texts;
  for (const KeyChange& change : changed_keys(before, after)) {
    texts.push_back(to_text(change));
  }
  return texts;
}

TEST(ChangedKeys, NamesEachWithBothValues) {
  const RunConfig before;
  EXPECT_THAT(lines(before, before), IsEmpty());
  RunConfig after;
  after.model.width = 64;
  after.train.steps = 2000;
  after.optimizer.beta2 = 0.5;
  after.data.train = "a\nb";
  after.logging.trace_steps = {4};
  EXPECT_THAT(lines(before, after),
              ElementsAre("model.width = not given -> 64", "train.steps = 1000 -> 2000",
                          "optimizer.beta2 = 0.95 -> 0.5", "data.train = \"\" -> \"a\\u000Ab\"",
                          "logging.trace_steps = [2, 3] -> [4]"));
}

}  // namespace
}  // namespace braid
