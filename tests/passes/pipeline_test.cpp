#include "passes/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/expect_error.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/runner.h"
#include "support/program_files.h"
#include "support/random_program.h"
#include "support/symbolic.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Pipeline, ListsPassesWithANameAndASentenceEach) {
  const std::vector<Pass> passes = default_pipeline();
  std::set<std::string_view> names;
  for (const Pass& pass : passes) {
    EXPECT_TRUE(names.insert(pass.name).second) << pass.name;
    EXPECT_TRUE(pass.summary.ends_with('.')) << pass.summary;
  }
  EXPECT_EQ(passes.front().name, "limit_sms");
  EXPECT_EQ(rank_passes(passes).back().name, "insert_events");
  EXPECT_EQ(all_ranks_passes(passes).front().name, "list_schedule");
  EXPECT_TRUE(std::ranges::is_partitioned(
      passes, [](const Pass& pass) { return static_cast<bool>(pass.run); }));
}

TEST(Pipeline, OnlyEventsAreRequired) {
  const Program program = read_program("data_parallel_step");
  const std::vector<Pass> passes = default_pipeline();
  for (const Pass& pass : passes) {
    SCOPED_TRACE(pass.name);
    const RunOptions without{.disabled_passes = {std::string(pass.name)}};
    if (pass.why_required.empty()) {
      const Program result = run_passes(program, passes, {}, without).program;
      EXPECT_EQ(run_in_order(result), run_in_order(program));
    } else {
      EXPECT_THAT(message_of<ConfigError>([&] { run_passes(program, passes, {}, without); }),
                  HasSubstr("it is required, because without it tasks of different streams"));
    }
  }
}

TEST(Pipeline, OverlapsTheReductionsOfADataParallelStep) {
  // The last adamw needs no wait: the one before it has waited for the later of the two reductions.
  const Program program =
      run_passes(read_program("data_parallel_step"), default_pipeline()).program;
  const std::string text = print_program(program);
  EXPECT_EQ(
      text.substr(text.find("linear(tokens, w0 -> h0) {has_bias=false} compute forward mb=1")),
      "linear(tokens, w0 -> h0) {has_bias=false} compute forward mb=1 layer=0 site=mlp\n"
      "linear(h0, w1 -> h1) {has_bias=false} compute forward mb=1 layer=1 site=mlp\n"
      "cross_entropy_backward(h1 -> d1) compute dgrad mb=1\n"
      "linear_wgrad(h0, d1 -> rw g1) {accumulate=true} compute wgrad mb=1 layer=1 site=mlp "
      "record=e0\n"
      "all_reduce(-> rw g1) {group=0} comm.data comm layer=1 site=mlp wait=e0\n"
      "linear_dgrad(d1, w1 -> d0) compute dgrad mb=1 layer=1 site=mlp\n"
      "linear_wgrad(tokens, d0 -> rw g0) {accumulate=true} compute wgrad mb=1 layer=0 "
      "site=mlp record=e1\n"
      "all_reduce(-> rw g0) {group=0} comm.data comm layer=0 site=mlp record=e2 wait=e1\n"
      "adamw(g0 -> rw w0) {epsilon=1e-08, weight_decay=0.1} compute optimizer layer=0 "
      "site=mlp wait=e2\n"
      "adamw(g1 -> rw w1) {epsilon=1e-08, weight_decay=0.1} compute optimizer layer=1 "
      "site=mlp\n");
}

Program random_step(uint64_t seed) {
  return random_program(seed, {.num_tasks = 10 + static_cast<int>(seed % 50),
                               .num_buffers = 4 + static_cast<int>(seed % 6),
                               .num_streams = 1 + static_cast<int>(seed % 3),
                               .num_ranks = 1 + static_cast<int>(seed % 2),
                               .more_communication = seed % 4 != 0});
}

/// Runs the pass with this index alone, and says whether its report is true.
Program apply(const std::vector<Pass>& passes, size_t index, Program program) {
  const Program before = program;
  PassResult result = passes[index].run(std::move(program), {});
  EXPECT_EQ(result.report.changed, !(result.program == before)) << passes[index].name;
  return std::move(result.program);
}

TEST(Pipeline, AnySequenceOfPassesKeepsTheMeaning) {
  const std::vector<Pass> passes = rank_passes(default_pipeline());
  for (uint64_t seed = 0; seed < thinned_count(1000u, 5) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    Program program = random_step(seed);
    const SymbolicState meaning = run_in_order(program);
    for (size_t length = random() % 6; length > 0; --length) {
      const size_t index = random() % passes.size();
      SCOPED_TRACE(passes[index].name);
      program = apply(passes, index, std::move(program));
      const Ordering ordering =
          passes[index].places_events ? Ordering::kEvents : Ordering::kProgramOrder;
      EXPECT_THAT(verify(program, 1, ordering), IsEmpty());
      EXPECT_EQ(defined_like(program, run_in_order(program), meaning), meaning);
    }
    program = apply(passes, passes.size() - 1, std::move(program));
    EXPECT_THAT(verify(program, 1), IsEmpty());
    EXPECT_EQ(defined_like(program, run_interleaved(program, seed), meaning), meaning);
  }
}

TEST(Pipeline, EveryPassChangesNothingTheSecondTime) {
  const std::vector<Pass> passes = rank_passes(default_pipeline());
  for (uint64_t seed = 0; seed < thinned_count(300u, 5); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    for (size_t index = 0; index < passes.size(); ++index) {
      SCOPED_TRACE(passes[index].name);
      const Program once = apply(passes, index, random_step(seed));
      const PassResult twice = passes[index].run(once, {});
      ASSERT_FALSE(twice.report.changed);
      ASSERT_EQ(twice.program, once);
    }
    const Program once = run_passes(random_step(seed), passes).program;
    ASSERT_EQ(print_program(run_passes(once, passes).program), print_program(once));
  }
}

}  // namespace
}  // namespace braid
