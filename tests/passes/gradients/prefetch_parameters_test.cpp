#include "passes/gradients/prefetch_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "ir/text.h"
#include "ir/verify.h"
#include "memory/memory_plan.h"
#include "passes/overlap_axis.h"
#include "passes/pipeline_options.h"
#include "passes/streams/assign_streams.h"
#include "passes/streams/insert_events.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Shards a, b, ... and ga, gb, ... where they are gathered.
std::string tables(int num_units, const std::string& gathered = "gathered step") {
  std::string text =
      "program step rank=0 ranks=2 events=0\n"
      "stream s kind=compute priority=0\n"
      "group dp kind=data ranks=0,1\n";
  for (int unit = 0; unit < num_units; ++unit) {
    const char name = static_cast<char>('a' + unit);
    text += fmt::format("buffer {} f32 [64] param persistent device\n", name);
    text += fmt::format("buffer g{} f32 [128] {} device\n", name, gathered);
  }
  return text + "buffer out f32 [64] io persistent device\n";
}

std::string gather(char unit) {
  return fmt::format("all_gather({0} -> g{0}) {{group=0}} s comm mb=0 site={0}\n", unit);
}
std::string use(char unit, const char* phase = "forward") {
  return fmt::format("x(g{} -> rw out) s {} mb=0\n", unit, phase);
}
std::string take(char unit, const char* phase = "forward") {
  return fmt::format("undefine(-> g{0}) s {1} mb=0 site={0}\n", unit, phase);
}

PassResult prefetched(const std::string& text, const PrefetchParametersOptions& options = {}) {
  PassResult result = prefetch_parameters(parse_program(text), options);
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  const PassResult again = prefetch_parameters(result.program, options);
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
  return result;
}
std::string tasks_of(const PassResult& result, const std::string& head) {
  return print_program(result.program).substr(head.size());
}

/// Bytes of step memory once gathers run beside compute.
int64_t step_bytes(const std::string& text, const PrefetchParametersOptions& options) {
  Program program = prefetch_parameters(parse_program(text), options).program;
  program = insert_events(assign_streams(std::move(program), {}).program).program;
  EXPECT_THAT(verify(program, 1), IsEmpty());
  const std::array programs = {&program};
  return plan_memory(programs).step_bytes;
}

TEST(PrefetchParameters, GathersAUnitAheadOfItsUse) {
  const std::string head = tables(3);
  const PassResult result = prefetched(head + gather('a') + use('a') + gather('b') + use('b') +
                                       gather('c') + use('c', "dgrad"));
  EXPECT_EQ(tasks_of(result, head), take('a') + gather('a') + take('b') + gather('b') + use('a') +
                                        take('c') + gather('c') + use('b') + use('c', "dgrad"));
  EXPECT_EQ(result.report.summary, "started 2 of 3 parameter all-gathers early");
}

TEST(PrefetchParameters, DistanceIsCountedInUnits) {
  const std::string head = tables(4);
  const std::string text = head + gather('a') + use('a') + gather('b') + use('b') + gather('c') +
                           use('c') + gather('d') + use('d');
  EXPECT_EQ(tasks_of(prefetched(text, {.units = 2}), head),
            take('a') + gather('a') + take('b') + gather('b') + take('c') + gather('c') + use('a') +
                take('d') + gather('d') + use('b') + use('c') + use('d'));
  EXPECT_EQ(tasks_of(prefetched(text, {.units = 0}), head),
            take('a') + gather('a') + use('a') + take('b') + gather('b') + use('b') + take('c') +
                gather('c') + use('c') + take('d') + gather('d') + use('d'));
  EXPECT_EQ(tasks_of(prefetched(text, {.units = 9}), head),
            take('a') + gather('a') + take('b') + gather('b') + take('c') + gather('c') +
                take('d') + gather('d') + use('a') + use('b') + use('c') + use('d'));
}

// 512 bytes each.
TEST(PrefetchParameters, NoMoreUnitsAreGatheredThanTheDistanceAndOne) {
  std::string text = tables(6);
  for (const char unit : {'a', 'b', 'c', 'd', 'e', 'f'}) {
    text += gather(unit) + use(unit) + use(unit);
  }
  for (const int64_t units : {1, 2, 3}) {
    EXPECT_EQ(step_bytes(text, {.units = units}), (units + 1) * 512) << units << " units ahead";
  }
  EXPECT_EQ(step_bytes(text, {.units = 0}), 512);
}

// a is used once more while b is: c must wait for that.
TEST(PrefetchParameters, WaitsForTheLastUseOfTheUnitWhoseMemoryItMayTake) {
  const std::string head = tables(3);
  const std::string text = head + gather('a') + use('a') + gather('b') + use('b') + use('a') +
                           use('b') + gather('c') + use('c');
  EXPECT_EQ(tasks_of(prefetched(text), head), take('a') + gather('a') + take('b') + gather('b') +
                                                  use('a') + use('b') + use('a') + take('c') +
                                                  gather('c') + use('b') + use('c'));
}

// Replicas update halves of b and c: the gather of the halves and that of the shards start
// together, a unit ahead, and count as one unit.
TEST(PrefetchParameters, GathersOfPartsMoveWithThoseOfTheirShard) {
  std::string head = tables(3);
  head.replace(head.find("ranks=2"), 7, "ranks=4");
  head.insert(head.find("buffer"), "group replicas kind=data ranks=0,2\n");
  const auto parts = [](char unit) {
    return fmt::format("all_gather({0}[0:32] -> {0}) {{group=1}} s comm site={0}\n", unit);
  };
  const PassResult result = prefetched(head + gather('a') + use('a') + parts('b') + gather('b') +
                                       use('b') + parts('c') + gather('c') + use('c'));
  EXPECT_EQ(tasks_of(result, head), take('a') + gather('a') + take('b') + parts('b') + gather('b') +
                                        use('a') + take('c') + parts('c') + gather('c') + use('b') +
                                        use('c'));
}

// A tied embedding is used again at the end: it holds up nothing in between.
TEST(PrefetchParameters, AUnitThatIsUsedMuchLaterAgainDoesNotCount) {
  const std::string head = tables(3);
  const std::string text =
      head + gather('a') + use('a') + gather('b') + use('b') + gather('c') + use('c') + use('a');
  EXPECT_EQ(tasks_of(prefetched(text), head), take('a') + gather('a') + take('b') + gather('b') +
                                                  use('a') + take('c') + gather('c') + use('b') +
                                                  use('c') + use('a'));
}

TEST(PrefetchParameters, AUnitThatIsStillThereIsNotGatheredAgain) {
  const std::string head = tables(2) + "buffer again f32 [128] gathered step device\n";
  const std::string repeat = "all_gather(b -> again) {group=0} s comm mb=0 site=b\n";
  const std::string uses = "x(again -> rw out) s dgrad mb=0\n";
  const PassResult result =
      prefetched(head + gather('a') + use('a') + gather('b') + use('b') + repeat + uses);
  EXPECT_EQ(tasks_of(result, head), take('a') + gather('a') + take('b') + gather('b') + use('a') +
                                        use('b') + use('b', "dgrad"));
  EXPECT_EQ(result.report.summary,
            "started 1 of 3 parameter all-gathers early, removed 1 whose parameters were still in "
            "memory");
  // Written in between: gathered twice.
  const std::string write = "adamw(-> rw b) s optimizer\n";
  const PassResult both =
      prefetched(head + gather('a') + use('a') + gather('b') + use('b') + write + repeat + uses);
  EXPECT_THAT(tasks_of(both, head),
              HasSubstr(write + "undefine(-> again) s dgrad mb=0 site=b\n" + repeat + uses));
}

/// The gather of one of several units of a layer.
std::string gather_of_layer(char unit, int layer) {
  return fmt::format("all_gather({0} -> g{0}) {{group=0}} s comm mb=0 layer={1} site={0}\n", unit,
                     layer);
}

// Copies and other weights of a layer are used in turn: both go one layer ahead.
TEST(PrefetchParameters, UnitsOfOneLayerGoTogether) {
  const std::string head = tables(6);
  std::string text = head;
  std::string uses[3];
  std::string gathers[3];
  for (int layer = 0; layer < 3; ++layer) {
    const char norms = static_cast<char>('a' + 2 * layer);
    const char copies = static_cast<char>(norms + 1);
    uses[layer] = use(norms) + use(copies) + use(norms) + use(copies);
    text += gather_of_layer(norms, layer) + use(norms) + gather_of_layer(copies, layer) +
            use(copies) + use(norms) + use(copies);
    gathers[layer] =
        take(norms) + gather_of_layer(norms, layer) + take(copies) + gather_of_layer(copies, layer);
  }
  EXPECT_EQ(tasks_of(prefetched(text), head),
            gathers[0] + gathers[1] + uses[0] + gathers[2] + uses[1] + uses[2]);
}

TEST(PrefetchParameters, UpdatedWeightsAreGatheredFromTheBeginningOfTheStep) {
  const std::string head = tables(3, "param persistent");
  const std::string text =
      head + gather('a') + use('a') + gather('b') + use('b') + gather('c') + use('c');
  EXPECT_EQ(tasks_of(prefetched(text), head),
            gather('a') + gather('b') + gather('c') + use('a') + use('b') + use('c'));
  EXPECT_EQ(tasks_of(prefetched(text, {.aligns = false}), head),
            gather('a') + gather('b') + use('a') + gather('c') + use('b') + use('c'));
}

TEST(PrefetchParameters, LeavesWhatIsGatheredForTheNextStepAndWhatIsInUse) {
  const std::string head = tables(2, "param persistent");
  const std::string update = "adamw(-> rw a) s optimizer mb=0\n";
  for (const std::string& tasks : {
           use('a') + update + gather('a'),             // nobody reads it in this step
           use('b') + update + gather('a') + use('a'),  // after what it gathers
       }) {
    const PassResult result = prefetched(head + tasks);
    EXPECT_EQ(tasks_of(result, head), tasks);
    EXPECT_FALSE(result.report.changed);
  }
}

// 512 bytes each: a budget for three of them is as two units ahead, and c is held for its second
// use, as the last unit of a forward is.
TEST(PrefetchParameters, StartsGathersAsEarlyAsTheBudgetPermits) {
  const std::string head = tables(4);
  const std::string text = head + gather('a') + use('a') + gather('b') + use('b') + gather('c') +
                           use('c') + gather('d') + use('d');
  const PassResult three = prefetched(text, {.budget_bytes = 3 * 512 + 511});
  EXPECT_EQ(tasks_of(three, head), tasks_of(prefetched(text, {.units = 2}), head));
  EXPECT_EQ(three.report.summary,
            "started 3 of 4 parameter all-gathers early, in 1.50 KiB of 2.00 KiB");
  EXPECT_EQ(tasks_of(prefetched(text, {.budget_bytes = 512}), head),
            tasks_of(prefetched(text, {.units = 0}), head));
  EXPECT_EQ(tasks_of(prefetched(text, {.budget_bytes = 3 * 512, .fills_budget = false}), head),
            tasks_of(prefetched(text, {.units = 1}), head));
}

/// A step with a forward and a backward: the buffer of a second gather has the unit's name twice.
std::string second_gather(char unit) {
  return fmt::format("all_gather({0} -> g{0}{0}) {{group=0}} s comm mb=0 site={0}\n", unit);
}
std::string second_use(char unit) {
  return fmt::format("x(g{0}{0} -> rw out) s dgrad mb=0\n", unit);
}

TEST(PrefetchParameters, KeepsWeightsThatTheBudgetHoldsUntilTheirNextUse) {
  std::string head = tables(3);
  for (const char* const unit : {"aa", "bb"}) {
    head += fmt::format("buffer g{} f32 [128] gathered step device\n", unit);
  }
  const std::string text = head + gather('a') + use('a') + gather('b') + use('b') + gather('c') +
                           use('c') + second_gather('b') + second_use('b') + second_gather('a') +
                           second_use('a');
  const PassResult two = prefetched(text, {.budget_bytes = 2 * 512});
  EXPECT_EQ(tasks_of(two, head), take('a') + gather('a') + take('b') + gather('b') + use('a') +
                                     take('c') + gather('c') + use('b') + use('c') +
                                     "undefine(-> gaa) s dgrad mb=0 site=a\n" + second_gather('a') +
                                     use('b', "dgrad") + second_use('a'));
  const PassResult all = prefetched(text, {.budget_bytes = 3 * 512});
  EXPECT_EQ(tasks_of(all, head), take('a') + gather('a') + take('b') + gather('b') + take('c') +
                                     gather('c') + use('a') + use('b') + use('c') +
                                     use('b', "dgrad") + use('a', "dgrad"));
  EXPECT_THAT(all.report.summary, HasSubstr("removed 2 whose parameters were still in memory"));
}

/// A tied table, used at both ends of a forward with four units in between.
std::string tied_step() {
  std::string text = tables(5) + gather('a') + use('a');
  for (const char unit : {'b', 'c', 'd', 'e'}) {
    text += gather(unit) + use(unit);
  }
  return text + use('a');
}

// Beside the table, each unit in between still starts while the one before it is used.
TEST(PrefetchParameters, HoldsATableThatLeavesRoomForTwoUnits) {
  const PassResult result = prefetched(tied_step(), {.budget_bytes = 3 * 512});
  EXPECT_THAT(print_program(result.program), Not(HasSubstr("again")));
  EXPECT_EQ(step_bytes(tied_step(), {.budget_bytes = 3 * 512}), 3 * 512);
}

TEST(PrefetchParameters, GathersATableAgainThatWouldPushTheNextUnitOut) {
  const PassResult result = prefetched(tied_step(), {.budget_bytes = 3 * 512 - 1});
  EXPECT_THAT(print_program(result.program), HasSubstr("all_gather(a -> ga.again1)"));
  EXPECT_THAT(result.report.summary, HasSubstr("gathered 1 tables again instead of holding them"));
  EXPECT_EQ(step_bytes(tied_step(), {.budget_bytes = 3 * 512 - 1}), 2 * 512);
}

/// The section after each choice of the axis "prefetch", with gathers on.
std::vector<OverlapConfig> prefetch_choices(const std::string& budget) {
  RunConfig config;
  config.parallel.data = 2;
  config.parallel.shard = "parameters";
  config.memory.gather_budget = budget;
  config.overlap.overlap_param_gather = true;
  std::vector<OverlapConfig> sections;
  for (const OverlapAxis& axis : prefetch_parameters_pass({}).axes(config, {})) {
    for (const OverlapChange& choice : axis.choices) {
      if (axis.name == "prefetch") {
        sections.push_back(config.overlap);
        choice(sections.back());
      }
    }
  }
  return sections;
}

TEST(PrefetchParameters, ASearchTriesUnitsWithinTheBudgetAndAllOfIt) {
  const auto fills = [](const OverlapConfig& overlap) { return overlap.param_gather_fills_budget; };
  const std::vector<OverlapConfig> by_units = prefetch_choices("");
  EXPECT_EQ(by_units.size(), 4u);
  EXPECT_TRUE(std::ranges::all_of(by_units, fills));  // the default: the key is not read
  const std::vector<OverlapConfig> by_bytes = prefetch_choices("2GiB");
  EXPECT_EQ(by_bytes.size(), 5u);
  EXPECT_EQ(std::ranges::count_if(by_bytes, fills), 1);
}

}  // namespace
}  // namespace braid
