#include "runtime/choose_gather_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "config/reference.h"
#include "plan/unit_budgets.h"
#include "support/memory_runs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

RunSpec with_budget(const std::string& budget) {
  RunConfig config = memory_config({"parallel.ranks=2", "parallel.shard=parameters"});
  config.memory.gather_budget = budget;
  return resolve_run(config, kMemoryVocabulary);
}

std::string chosen_for(int64_t free_bytes, std::string* text = nullptr) {
  return choose_gather_budget(with_budget("auto"), gpu_of(free_bytes),
                              [&](std::string_view line) {
                                if (text != nullptr) {
                                  *text += line;
                                }
                              })
      .config.memory.gather_budget;
}

TEST(ChooseGatherBudget, LeavesASizeAlone) {
  const RunSpec run = with_budget("3MB");
  EXPECT_EQ(to_toml(choose_gather_budget(run, gpu_of(1)).config), to_toml(run.config));
}

TEST(ChooseGatherBudget, IsEnoughForAllUnitsWhereMemoryIs) {
  std::string text;
  const std::string budget = chosen_for(int64_t{1} << 40, &text);
  EXPECT_THAT(text, AllOf(StartsWith("gather budget " + budget + ": "), HasSubstr("1.00 TiB")));
  // Nothing is gathered twice.
  RunConfig config = with_budget(budget).config;
  const int64_t all = most_gathered_bytes(memory_plan_of(config));
  config.memory.gather_budget = "1TiB";
  EXPECT_EQ(most_gathered_bytes(memory_plan_of(config)), all);
}

TEST(ChooseGatherBudget, FillsWhatIsLeftAndFits) {
  RunConfig config = with_budget("").config;
  const int64_t by_units = needed_bytes(config);
  const int64_t gathered = most_gathered_bytes(memory_plan_of(config));
  const int64_t free = (by_units + gathered / 2) * 128 / 127 + 1;
  config.memory.gather_budget = chosen_for(free);
  EXPECT_GT(parse_byte_size(config.memory.gather_budget), gathered);
  EXPECT_LE(needed_bytes(config), free);
  // No room: as much as by units.
  config.memory.gather_budget = chosen_for(by_units);
  EXPECT_EQ(parse_byte_size(config.memory.gather_budget), gathered);
}

}  // namespace
}  // namespace braid
