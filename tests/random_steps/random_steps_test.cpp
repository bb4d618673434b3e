// Real training steps of random layouts on CPU ranks, after random sequences of passes: every
// program is sound after every pass, the ranks fit together, memory is planned right, and two steps
// leave the same bytes as the program that no pass has seen. One case is one seed, so that
// --gtest_filter=*KeepsEveryBit/seed_417 is all that a failure takes to come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "ir/verify.h"
#include "memory/verify_plan.h"
#include "parallel/verify_ranks.h"
#include "passes/analysis/step_meaning.h"
#include "passes/context/cut_exchanges.h"
#include "passes/streams/insert_events.h"
#include "sim/analytic_model.h"
#include "support/random_passes.h"
#include "support/random_step.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::IsEmpty;

constexpr uint64_t kNumSeeds = 1000;
constexpr int kNumSteps = 2;

std::vector<std::string> messages(const std::vector<Violation>& violations) {
  std::vector<std::string> list;
  for (const Violation& violation : violations) {
    list.push_back(violation.message);
  }
  return list;
}

/// Passes that need more than a program (a schedule that is made for pairs), or that change more
/// bits than those of products (sums over other rows, attention in steps). They are tested in
/// tests/passes, tests/parallel and tests/parity, and do nothing with the options drawn here.
bool needs_more(std::string_view pass) {
  return pass == "pair_forward_backward" || pass == "halve_forward" || pass == "split_exchange";
}

/// Prices for passes that weigh them.
const CostModel& prices() {
  static const auto model = make_analytic_model(parse_cluster("h200x8"));
  return *model;
}

class RandomSteps : public testing::TestWithParam<uint64_t> {
 protected:
  static inline std::map<std::string_view, int> num_changed_;  // seeds, by pass
  static inline uint64_t num_seeds_ = 0;

  /// A pass that finds nothing to do on these programs is not tested by them.
  static void TearDownTestSuite() {
    if (num_seeds_ < kNumSeeds) {
      return;  // only some seeds were asked for
    }
    std::string table;
    for (const Pass& pass : rank_passes(default_pipeline())) {
      const int count = num_changed_[pass.name];
      table += fmt::format("{:<24}{:>5}\n", pass.name, count);
      EXPECT_TRUE(count >= 50 || needs_more(pass.name))
          << pass.name << " changes too few of the random steps";
    }
    std::cout << "seeds that a pass changes, of " << kNumSeeds << "\n" << table;
  }

  /// Runs the pass on every rank; the programs are sound after it, and its reports are true.
  static void apply(const Pass& pass, std::vector<Program>& programs) {
    SCOPED_TRACE(pass.name);
    bool changed = false;
    for (Program& program : programs) {
      Program before = program;
      PassResult result =
          pass.run(std::move(program), {.may_change_rounding = true, .cost_model = &prices()});
      program = std::move(result.program);
      ASSERT_EQ(result.report.changed, !(program == before)) << "rank " << program.rank;
      ASSERT_THAT(
          messages(
              verify(program, 4, pass.places_events ? Ordering::kEvents : Ordering::kProgramOrder)),
          IsEmpty());
      changed = changed || result.report.changed;
    }
    num_changed_[pass.name] += changed ? 1 : 0;
  }

  static void expect_sound_plans(const std::vector<Program>& programs,
                                 const std::vector<MemoryPlan>& plans) {
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      EXPECT_THAT(messages(verify_plan(programs[rank], plans[rank], 0)), IsEmpty())
          << "rank " << rank;
    }
  }
};

TEST_P(RandomSteps, KeepsEveryBit) {
  const uint64_t seed = GetParam();
  ++num_seeds_;
  const RandomRun run = random_run(seed);
  RandomPasses random(seed);
  const PipelineOptions options = random.options(run.config.memory);
  const PassSequence sequence =
      seed % 2 == 0 ? random.some_in_order(options) : random.some_in_any_order(options);
  SCOPED_TRACE(testing::Message() << "seed " << seed << "\n  layout " << run.words << "\n  passes "
                                  << sequence.names());
  const std::vector<Program> plain = build_step(run);
  std::vector<Program> programs = plain;
  apply(cut_exchanges_pass(), programs);
  for (const Pass& pass : sequence.passes) {
    apply(pass, programs);
    if (HasFatalFailure()) {
      return;
    }
  }
  ASSERT_THAT(
      messages(verify_ranks(one_program_per_rank(programs),
                            {.one_order_of_collectives = true, .one_order_of_messages = true})),
      IsEmpty());
  const std::vector<MemoryPlan> plans = planned_memory(programs, /*searches=*/seed % 8 == 0);
  expect_sound_plans(programs, plans);
  const StepState expected = plain_state(run.model, plain, kNumSteps);
  EXPECT_GT(grad_norm(plain, expected), 0);
  EXPECT_THAT(differences(plain, expected, state_after(run.model, programs, plans, kNumSteps)),
              IsEmpty());
}

std::vector<uint64_t> seeds() {
  std::vector<uint64_t> list(kNumSeeds);
  std::iota(list.begin(), list.end(), uint64_t{0});
  return thinned(std::move(list), 53);
}

std::string name_of(const testing::TestParamInfo<uint64_t>& seed) {
  return fmt::format("seed_{}", seed.param);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomSteps, testing::ValuesIn(seeds()), name_of);

}  // namespace
}  // namespace braid
