#include "passes/memory/offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ir/text.h"
#include "ir/verify.h"
#include "passes/memory/recompute.h"
#include "passes/streams/assign_streams.h"
#include "passes/streams/insert_events.h"
#include "support/random_layers.h"
#include "support/symbolic.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Three layers of one microbatch: each keeps what it has made.
const std::string kTables =
    "program step rank=0 ranks=1 events=0\n"
    "stream s kind=compute priority=0\n"
    "buffer x f32 [2,2] activation step device\n"
    "buffer y f32 [2,2] activation step device\n"
    "buffer z f32 [2,2] activation step device\n"
    "buffer l f32 [2,2] activation step device\n"
    "buffer d f32 [2,2] activation step device\n"
    "buffer c f32 [2,2] activation step device\n"
    "buffer b f32 [2,2] activation step device\n"
    "buffer a f32 [2,2] io persistent device\n";
const std::string kForward0 = "fill(-> x) {value=1.0} s forward mb=0 layer=0 site=first\n";
const std::string kForward1 = "gelu(x -> y) s forward mb=0 layer=1\n";
const std::string kForward2 = "gelu(y -> z) s forward mb=0 layer=2\n";
const std::string kHead =
    "gelu(z -> l) s forward mb=0\n"
    "gelu(l -> d) s dgrad mb=0\n";
const std::string kBackward2 = "add(z, d -> c) s dgrad mb=0 layer=2\n";
const std::string kBackward1 = "add(y, c -> b) s dgrad mb=0 layer=1\n";
const std::string kBackward0 = "add(x, b -> a) s dgrad mb=0 layer=0\n";

Program three_layers() {
  return parse_program(kTables + kForward0 + kForward1 + kForward2 + kHead + kBackward2 +
                       kBackward1 + kBackward0);
}

PassResult offload_layers(const Program& program, OffloadOptions options) {
  options.min_bytes = 1;
  PassResult result = offload(program, options);
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  for (const OpSpec& spec : result.program.specs.all()) {
    EXPECT_NO_THROW(check_spec(spec));
  }
  EXPECT_EQ(result.report.changed, !(result.program == program));
  return result;
}

void expect_nothing_left(const PassResult& result, OffloadOptions options) {
  options.min_bytes = 1;
  const PassResult again = offload(result.program, options);
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
}

std::string tasks_of(const Program& program) {
  const std::string text = print_program(program);
  return text.substr(text.find("fill("));
}

TEST(Offload, NoneChangesNothing) {
  const PassResult result = offload(three_layers(), {});
  EXPECT_EQ(result.program, three_layers());
  EXPECT_FALSE(result.report.changed);
  EXPECT_EQ(result.report.summary, "not asked for");
}

// y goes after layer 2 has read it, has left two layers later, when the head's backward begins, and
// comes back when the backward of layer 2 begins; x goes one layer earlier and comes one later.
TEST(Offload, MovesValuesBetweenTheirUsesALayerAhead) {
  const PassResult result = offload_layers(three_layers(), {.num_layers = 2});
  EXPECT_EQ(tasks_of(result.program),
            kForward0 + kForward1 + "offload(x -> x.host) s forward mb=0 layer=0 site=first\n" +
                kForward2 +
                "offload(y -> y.host) s forward mb=0 layer=1\n"
                "undefine(-> x) s forward mb=0 layer=0 site=first\n"
                "gelu(z -> l) s forward mb=0\n"
                "undefine(-> y) s forward mb=0 layer=1\n"
                "gelu(l -> d) s dgrad mb=0\n"
                "undefine(-> y.restored) s dgrad mb=0 layer=1\n"
                "reload(y.host -> y.restored) s dgrad mb=0 layer=1\n" +
                kBackward2 +
                "undefine(-> x.restored) s dgrad mb=0 layer=0 site=first\n"
                "reload(x.host -> x.restored) s dgrad mb=0 layer=0 site=first\n"
                "add(y.restored, c -> b) s dgrad mb=0 layer=1\n"
                "add(x.restored, b -> a) s dgrad mb=0 layer=0\n");
  expect_nothing_left(result, {.num_layers = 2});
  EXPECT_EQ(result.report.num_changes, 2);
  EXPECT_EQ(result.report.summary, "offloaded 2 activations, 32 B per microbatch");
  const std::string text = print_program(result.program);
  EXPECT_THAT(text, HasSubstr("buffer x.host f32 [2,2] activation step host\n"));
  EXPECT_THAT(text, HasSubstr("buffer x.restored f32 [2,2] activation step device\n"));
}

TEST(Offload, WhatWouldComeBackAtOnceStays) {
  const PassResult all = offload_layers(three_layers(), {.num_layers = 3});
  EXPECT_EQ(all.program, offload_layers(three_layers(), {.num_layers = 2}).program);
  EXPECT_THAT(all.report.summary, HasSubstr("; kept 1 that would be reloaded at once"));
  const PassResult far = offload_layers(three_layers(), {.num_layers = 3, .prefetch_layers = 9});
  EXPECT_EQ(far.program, three_layers());
  EXPECT_EQ(far.report.summary, "found nothing to offload; kept 3 that would be reloaded at once");
}

// Without looking ahead, every layer but what is used at once can go.
TEST(Offload, WithoutPrefetchComesBackInFrontOfItsLayer) {
  const PassResult result = offload_layers(three_layers(), {.num_layers = 3, .prefetch_layers = 0});
  EXPECT_EQ(result.report.num_changes, 3);
  EXPECT_THAT(tasks_of(result.program),
              HasSubstr("undefine(-> x.restored) s dgrad mb=0 layer=0 site=first\n"
                        "reload(x.host -> x.restored) s dgrad mb=0 layer=0 site=first\n"
                        "add(x.restored, b -> a)"));
}

TEST(Offload, LeavesSmallValuesAndOtherRolesAlone) {
  const Program program = three_layers();
  EXPECT_FALSE(offload(program, {.num_layers = 2, .min_bytes = 17}).report.changed);
  EXPECT_TRUE(offload(program, {.num_layers = 2, .min_bytes = 16}).report.changed);
  Program gathered = program;
  for (Buffer& buffer : gathered.buffers) {
    if (buffer.role == BufferRole::kActivation) {
      buffer.role = BufferRole::kGathered;
    }
  }
  EXPECT_FALSE(offload(gathered, {.num_layers = 2, .min_bytes = 1}).report.changed);
}

// Copies are of whole buffers, so all of it must have been written.
TEST(Offload, LeavesValuesThatAreMadeInPartsAlone) {
  const Program program =
      parse_program(kTables + "fill(-> x[0:2]) {value=1.0} s forward mb=0 layer=0\n" +
                    "gelu(x[0:2] [1,2] -> y[0:2] [1,2]) s forward mb=0 layer=1\n"
                    "fill(-> z) {value=1.0} s forward mb=0 layer=2\n" +
                    kHead + kBackward2 + "add(x[0:2], c[0:2] -> b[0:2]) s dgrad mb=0 layer=0\n");
  EXPECT_FALSE(offload_layers(program, {.num_layers = 1}).report.changed);
}

TEST(Offload, CopiesRunOnStreamsOfTheirOwn) {
  Program program = offload_layers(three_layers(), {.num_layers = 2}).program;
  program = assign_streams(std::move(program), {}).program;
  program = insert_events(std::move(program)).program;
  EXPECT_THAT(verify(program, 1), IsEmpty());
  const std::string text = print_program(program);
  EXPECT_THAT(text, HasSubstr("stream copy.out kind=copy priority=0\n"
                              "stream copy.in kind=copy priority=0\n"));
  EXPECT_EQ(tasks_of(program),
            "fill(-> x) {value=1.0} s forward mb=0 layer=0 site=first record=e0\n"
            "gelu(x -> y) s forward mb=0 layer=1 record=e1\n"
            "offload(x -> x.host) copy.out forward mb=0 layer=0 site=first record=e2 wait=e0\n"
            "gelu(y -> z) s forward mb=0 layer=2\n"
            "offload(y -> y.host) copy.out forward mb=0 layer=1 record=e3 wait=e1\n"
            "undefine(-> x) s forward mb=0 layer=0 site=first wait=e2\n"
            "gelu(z -> l) s forward mb=0\n"
            "undefine(-> y) s forward mb=0 layer=1 wait=e3\n"
            "gelu(l -> d) s dgrad mb=0\n"
            "undefine(-> y.restored) s dgrad mb=0 layer=1 record=e4\n"
            "reload(y.host -> y.restored) copy.in dgrad mb=0 layer=1 record=e5 wait=e4\n"
            "add(z, d -> c) s dgrad mb=0 layer=2\n"
            "undefine(-> x.restored) s dgrad mb=0 layer=0 site=first record=e6\n"
            "reload(x.host -> x.restored) copy.in dgrad mb=0 layer=0 site=first record=e7 "
            "wait=e6\n"
            "add(y.restored, c -> b) s dgrad mb=0 layer=1 wait=e5\n"
            "add(x.restored, b -> a) s dgrad mb=0 layer=0 wait=e7\n");
}

// So the first wait of a stream covers that for the other.
TEST(Offload, ValuesOfOneLayerGoLatestFirstAndComeInOrderOfUse) {
  const std::string text = kTables +
                           "buffer u f32 [2,2] activation step device\n"
                           "fill(-> x) {value=1.0} s forward mb=0 layer=0\n"
                           "gelu(x -> u) s forward mb=0 layer=0\n"
                           "add(x, u -> y) s forward mb=0 layer=1\n" +
                           kForward2 + kHead + kBackward2 + kBackward1 +
                           "add(u, b -> d) s dgrad mb=0 layer=0\n"
                           "add(x, d -> a) s dgrad mb=0 layer=0\n";
  Program program = offload_layers(parse_program(text), {.num_layers = 1}).program;
  program = insert_events(assign_streams(std::move(program), {}).program).program;
  EXPECT_THAT(verify(program, 1), IsEmpty());
  const std::string tasks = tasks_of(program);
  EXPECT_THAT(tasks, HasSubstr("add(x, u -> y) s forward mb=0 layer=1\n"
                               "offload(x -> x.host) copy.out forward mb=0 layer=0 wait=e0\n"
                               "offload(u -> u.host) copy.out forward mb=0 layer=0 record=e2 "
                               "wait=e1\n"
                               "gelu(y -> z) s forward mb=0 layer=2\n"
                               "undefine(-> u) s forward mb=0 layer=0 wait=e2\n"
                               "undefine(-> x) s forward mb=0 layer=0\n"
                               "gelu(z -> l) s forward mb=0\n"));
  EXPECT_THAT(tasks, HasSubstr("undefine(-> x.restored) s dgrad mb=0 layer=0\n"
                               "undefine(-> u.restored) s dgrad mb=0 layer=0 record=e3\n"
                               "reload(u.host -> u.restored) copy.in dgrad mb=0 layer=0 record=e4 "
                               "wait=e3\n"
                               "reload(x.host -> x.restored) copy.in dgrad mb=0 layer=0 record=e5\n"
                               "add(y, c -> b)"));
}

// What recomputation still keeps is moved, and read there by what is repeated.
TEST(Offload, AfterRecomputeMovesWhatIsStillKept) {
  const std::string text = kTables +
                           "buffer u f32 [2,2] activation step device\n"
                           "fill(-> x) {value=1.0} s forward mb=0 layer=0\n"
                           "gelu(x -> u) s forward mb=0 layer=1\n"
                           "gelu(u -> y) s forward mb=0 layer=1\n" +
                           kForward2 + kHead + kBackward2 +
                           "add(y, c -> d) s dgrad mb=0 layer=1\n"
                           "add(x, d -> b) s dgrad mb=0 layer=1\n" +
                           kBackward0;
  const Program repeated =
      recompute(parse_program(text), {.policy = Recompute::kFull, .num_layers = 2}).program;
  const PassResult result = offload_layers(repeated, {.num_layers = 1});
  EXPECT_EQ(result.report.num_changes, 1);
  EXPECT_THAT(tasks_of(result.program),
              HasSubstr("gelu(x.restored -> u.recomputed) s dgrad mb=0 layer=1\n"
                        "gelu(u.recomputed -> y.recomputed) s dgrad mb=0 layer=1\n"
                        "add(y.recomputed, c -> d) s dgrad mb=0 layer=1\n"
                        "add(x.restored, d -> b) s dgrad mb=0 layer=1\n"));
}

// ---- random programs ----

/// What the host could see.
SymbolicState persistent_state(const Program& program, SymbolicState state) {
  SymbolicState persistent;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    if (program.buffers[i].lifetime == Lifetime::kPersistent) {
      persistent.push_back(std::move(state[i]));
    }
  }
  return persistent;
}

TEST(Offload, KeepsTheMeaningOfRandomLayersWithAndWithoutRecompute) {
  int64_t num_moved = 0;
  for (uint64_t seed = 0; seed < thinned_count(1000u, 5) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Program program = random_layers(seed, {.num_layers = 2 + static_cast<int>(seed % 4),
                                           .num_microbatches = 1 + static_cast<int>(seed % 3),
                                           .num_ranks = 1 + static_cast<int>(seed % 2),
                                           .gathers = seed % 5 == 0,
                                           .is_strange = seed % 7 < 3});
    const SymbolicState meaning = persistent_state(program, run_in_order(program));
    constexpr Recompute kPolicies[] = {Recompute::kNone, Recompute::kNorms, Recompute::kFull};
    program = recompute(std::move(program), {.policy = kPolicies[seed % 3]}).program;
    const OffloadOptions options{.num_layers = 1 + static_cast<int>(seed % 6),
                                 .prefetch_layers = static_cast<int>(seed / 3 % 3)};
    const PassResult result = offload_layers(program, options);
    if (seed % 7 >= 3) {  // strange programs have forward tasks that only now are in the backward
      expect_nothing_left(result, options);
    }
    num_moved += result.report.num_changes;
    EXPECT_EQ(persistent_state(result.program, run_in_order(result.program)), meaning);
    program = insert_events(assign_streams(result.program, {}).program).program;
    EXPECT_THAT(verify(program, 1), IsEmpty());
    EXPECT_EQ(persistent_state(program, run_interleaved(program, seed)), meaning);
  }
  EXPECT_GT(num_moved, thinned_count(2000, 5));
}

}  // namespace
}  // namespace braid
