#include "passes/tensor/ring_exchange.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ir/text.h"
#include "ir/verify.h"
#include "ops/op.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

SiteOverlaps one_site(const std::string& site, OverlapMethod method, int64_t splits = 2) {
  return {{site, {method, splits}}};
}

PassResult split(const std::string& text, const SiteOverlaps& sites, int64_t min_rows = 1) {
  const Program program = parse_program(text);
  EXPECT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
  const RingExchangeOptions options{.sites = sites, .min_rows = min_rows};
  PassResult result = ring_exchange(program, options);
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  EXPECT_EQ(result.report.changed, !(result.program == program));
  for (const Task& task : result.program.tasks) {
    EXPECT_NO_THROW(check_spec(result.program.spec(task)));
  }
  const PassResult again = ring_exchange(result.program, options);
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
  return result;
}

std::string tasks_of(const Program& program) {
  const std::string text = print_program(program);
  const size_t last_buffer = text.rfind("\nbuffer ");
  return text.substr(text.find('\n', last_buffer + 1) + 1);
}

/// Rank 1 of 3; a rank has two rows.
const std::string kGatherTables =
    "program step rank=1 ranks=3 events=0\n"
    "stream s kind=compute priority=0\n"
    "group tensor kind=tensor ranks=0,1,2\n"
    "buffer in f32 [2,4] io persistent device\n"
    "buffer w f32 [5,4] param persistent device\n"
    "buffer y f32 [6,5] io persistent device\n"
    "buffer g f32 [5,4] main_grad persistent device\n"
    "buffer n f32 [2,4] activation step device\n"
    "buffer x f32 [6,4] activation step device\n";
const std::string kMake = "copy(in -> n) s forward mb=0\n";
const std::string kGather = "all_gather(n -> x) {group=0} s comm mb=0 site=a.qkv.input\n";
const std::string kLinear =
    "linear(x, w -> y) {has_bias=false, adds_bias=true} s forward mb=0 site=a.qkv\n";
const std::string kWgrad =
    "linear_wgrad(x, y -> rw g) {has_bias=false, accumulate=true} s wgrad mb=0 site=a.qkv\n";

const std::string kGatherRing =
    "ring_shift(n -> x[0:8] [2,4]) {group=0, shift=1} comm.tensor comm mb=0 site=a.qkv.input\n"
    "linear(n, w -> y[10:20] [2,5]) {has_bias=false, adds_bias=true} s forward mb=0 site=a.qkv\n"
    "ring_shift(x[0:8] [2,4] -> x[16:24] [2,4]) {group=0, shift=1} comm.tensor comm mb=0 "
    "site=a.qkv.input\n"
    "linear(x[0:8] [2,4], w -> y[0:10] [2,5]) {has_bias=false, adds_bias=true} s forward mb=0 "
    "site=a.qkv\n"
    "linear(x[16:24] [2,4], w -> y[20:30] [2,5]) {has_bias=false, adds_bias=true} s forward mb=0 "
    "site=a.qkv\n";

TEST(RingExchange, MultipliesBlocksAsTheyArrive) {
  const PassResult result =
      split(kGatherTables + kMake + kGather + kLinear, one_site("qkv_fprop", OverlapMethod::kRing));
  EXPECT_EQ(tasks_of(result.program), kMake + kGatherRing);
  EXPECT_EQ(result.report.num_changes, 1);
  EXPECT_EQ(result.report.summary,
            "split 1 of 1 products beside the tensor communication that they depend on");
}

TEST(RingExchange, CopiesItsOwnBlockForOtherReaders) {
  const PassResult result = split(kGatherTables + kMake + kGather + kLinear + kWgrad,
                                  one_site("qkv_fprop", OverlapMethod::kRing));
  EXPECT_EQ(tasks_of(result.program),
            kMake + kGatherRing +
                "copy(n -> x[8:16] [2,4]) comm.tensor comm mb=0 site=a.qkv.input\n" + kWgrad);
}

// Halves of halve_forward.h: each half is gathered by its own ring. Products whose ring is not
// requested stay.
TEST(RingExchange, SplitsHalvesOfAProductEachByItself) {
  const auto half = [](int64_t i) {
    return fmt::format(
        "all_gather(n[{}:{}] [1,4] -> x[{}:{}] [3,4]) {{group=0}} s comm mb=0 site=a.qkv.input\n",
        4 * i, 4 * i + 4, 12 * i, 12 * i + 12);
  };
  const auto product = [](int64_t i) {
    return fmt::format(
        "linear(x[{}:{}] [3,4], w -> y[{}:{}] [3,5]) {{has_bias=false, adds_bias=true}} s forward "
        "mb=0 site=a.qkv\n",
        12 * i, 12 * i + 12, 15 * i, 15 * i + 15);
  };
  const PassResult result =
      split(kGatherTables + kMake + half(0) + half(1) + product(0) + product(1) + kWgrad,
            one_site("qkv_fprop", OverlapMethod::kRing));
  EXPECT_EQ(result.report.num_changes, 2);
  const auto row = [](const char* name, int64_t at, int64_t width) {
    return fmt::format("{}[{}:{}] [1,{}]", name, at * width, at * width + width, width);
  };
  const auto shift = [](const std::string& from, const std::string& to) {
    return fmt::format(
        "ring_shift({} -> {}) {{group=0, shift=1}} comm.tensor comm mb=0 site=a.qkv.input\n", from,
        to);
  };
  const auto multiply = [](const std::string& x, const std::string& y) {
    return fmt::format(
        "linear({}, w -> {}) {{has_bias=false, adds_bias=true}} s forward mb=0 site=a.qkv\n", x, y);
  };
  std::string expected = kMake;
  for (const int64_t i : {0, 1}) {
    const std::string own = row("n", i, 4);
    const int64_t first = 3 * i;  // row of the half
    expected += shift(own, row("x", first, 4)) + multiply(own, row("y", first + 1, 5)) +
                shift(row("x", first, 4), row("x", first + 2, 4)) +
                multiply(row("x", first, 4), row("y", first, 5)) +
                multiply(row("x", first + 2, 4), row("y", first + 2, 5)) +
                fmt::format("copy({} -> {}) comm.tensor comm mb=0 site=a.qkv.input\n", own,
                            row("x", first + 1, 4));
  }
  EXPECT_EQ(tasks_of(result.program), expected + kWgrad);
}

// What is sent has been there for long: the memory of what arrives is taken here.
TEST(RingExchange, HandsMemoryOverWhereTheRingCouldStartEarly) {
  const PassResult result =
      split(kGatherTables + kMake + "fill(-> g) {value=0.0} s wgrad mb=0\n" + kGather + kLinear,
            one_site("qkv_fprop", OverlapMethod::kRing));
  EXPECT_THAT(tasks_of(result.program),
              HasSubstr("undefine(-> x) s forward mb=0 site=a.qkv\nring_shift(n -> x[0:8]"));
}

TEST(RingExchange, LeavesWhatIsNotAskedForOrTooSmall) {
  const std::string text = kGatherTables + kMake + kGather + kLinear;
  EXPECT_FALSE(split(text, {}).report.changed);
  EXPECT_EQ(split(text, {}).report.summary, "no site has these methods");
  EXPECT_FALSE(split(text, one_site("fc1_fprop", OverlapMethod::kRing)).report.changed);
  EXPECT_FALSE(split(text, one_site("qkv_fprop", OverlapMethod::kBulk)).report.changed);
  EXPECT_FALSE(split(text, one_site("qkv_fprop", OverlapMethod::kChunked)).report.changed);
  EXPECT_TRUE(split(text, one_site("qkv_fprop", OverlapMethod::kRing), 2).report.changed);
  const PassResult small = split(text, one_site("qkv_fprop", OverlapMethod::kRing), 3);
  EXPECT_FALSE(small.report.changed);
  EXPECT_THAT(small.report.summary, HasSubstr("split 0 of 1 products"));
}

// Compute of the other job hides the gather without the cost of pieces.
TEST(RingExchange, LeavesProductsOfJobsThatWillBeWoven) {
  std::string text = kMake + kGather + kLinear;
  for (size_t at = 0; (at = text.find("mb=0", at)) != std::string::npos; at += 4) {
    text.replace(at, 4, "mb=0 vs=0");
  }
  const Program program = parse_program(kGatherTables + text);
  RingExchangeOptions options{.sites = one_site("qkv_fprop", OverlapMethod::kRing), .min_rows = 1};
  const Job forward{.kind = JobKind::kForward, .microbatch = 0};
  const Job backward{.kind = JobKind::kBackward, .microbatch = 0};
  const Job other{.kind = JobKind::kForward, .microbatch = 1};
  options.pairs = {{other, backward}};
  EXPECT_TRUE(ring_exchange(program, options).report.changed);
  options.pairs = {{forward, backward}};
  EXPECT_FALSE(ring_exchange(program, options).report.changed);
}

TEST(RingExchange, LeavesAGatherThatSomethingReadsBeforeTheProduct) {
  const PassResult result =
      split(kGatherTables + kMake + kGather + "copy(x[0:8] [2,4] -> in) s forward\n" + kLinear,
            one_site("qkv_fprop", OverlapMethod::kRing));
  EXPECT_THAT(result.report.summary, HasSubstr("split 0 of 0 products"));
}

// The source would be sent after it has changed.
TEST(RingExchange, LeavesAGatherWhoseSourceChangesBeforeTheProduct) {
  const PassResult result =
      split(kGatherTables + kMake + kGather + "fill(-> n) {value=0.0} s forward\n" + kLinear,
            one_site("qkv_fprop", OverlapMethod::kRing));
  EXPECT_FALSE(result.report.changed);
}

/// Rank 1 of 3; a rank has two of the six rows of the sum.
const std::string kScatterTables =
    "program step rank=1 ranks=3 events=0\n"
    "stream s kind=compute priority=0\n"
    "group tensor kind=tensor ranks=0,1,2\n"
    "buffer a f32 [6,3] io persistent device\n"
    "buffer w f32 [5,3] param persistent device\n"
    "buffer b f32 [5] param persistent device\n"
    "buffer out f32 [2,5] io persistent device\n"
    "buffer z f32 [6,5] activation step device\n"
    "buffer sum f32 [2,5] activation step device\n";
const std::string kProject =
    "linear(a, w, b -> z) {has_bias=true, adds_bias=true} s forward mb=0 site=a.proj\n";
const std::string kBetween = "fill(-> out) {value=0.0} s forward mb=0\n";
const std::string kScatter = "reduce_scatter(z -> sum) {group=0} s comm mb=0 site=a.proj.sum\n";
const std::string kUse = "copy(sum -> out) s forward mb=0\n";

TEST(RingExchange, SendsEachBlockToItsOwnerAndAddsInGroupOrder) {
  const PassResult result = split(kScatterTables + kProject + kBetween + kScatter + kUse,
                                  one_site("proj_fprop", OverlapMethod::kRing));
  const std::string end = " {has_bias=true, adds_bias=true} s forward mb=0 site=a.proj\n";
  EXPECT_EQ(
      tasks_of(result.program),
      "linear(a[12:18] [2,3], w, b -> z[20:30] [2,5])" + end +
          "ring_shift(z[20:30] [2,5] -> z.received[0:10] [2,5]) {group=0, shift=1} comm.tensor "
          "comm mb=0 site=a.proj.sum\n"
          "linear(a[0:6] [2,3], w, b -> z[0:10] [2,5])" +
          end +
          "ring_shift(z[0:10] [2,5] -> z.received[10:20] [2,5]) {group=0, shift=2} comm.tensor "
          "comm mb=0 site=a.proj.sum\n"
          "linear(a[6:12] [2,3], w, b -> z[10:20] [2,5])" +
          end + kBetween +
          "sum_blocks(z.received[0:10] [2,5], z[10:20] [2,5], z.received[10:20] [2,5] -> sum) s "
          "forward mb=0 site=a.proj.sum\n" +
          kUse);
  EXPECT_THAT(print_program(result.program),
              HasSubstr("buffer z.received f32 [4,5] activation step device\n"));
}

// Five features in two pieces: two and three.
TEST(RingExchange, CutsFeaturesIntoUnequalPieces) {
  const PassResult result = split(kScatterTables + kProject + kBetween + kScatter + kUse,
                                  one_site("proj_fprop", OverlapMethod::kChunked, 2));
  const std::string end = " {has_bias=true, adds_bias=true} s forward mb=0 site=a.proj\n";
  const std::string call = " {group=0} comm.tensor comm mb=0 site=a.proj.sum\n";
  EXPECT_EQ(tasks_of(result.program),
            "linear(a, w[0:6] [2,3], b[0:2] -> z[0:12] [6,2])" + end +
                "reduce_scatter(z[0:12] [6,2] -> z.chunk0.sum)" + call +
                "linear(a, w[6:15] [3,3], b[2:5] -> z[12:30] [6,3])" + end +
                "reduce_scatter(z[12:30] [6,3] -> z.chunk1.sum)" + call + kBetween +
                "join_columns(z.chunk0.sum, z.chunk1.sum -> sum) s forward mb=0 site=a.proj.sum\n" +
                kUse);
}

TEST(RingExchange, DoesNotCutFeaturesOfWhatIsReadWhole) {
  const std::string text =
      kScatterTables + kProject + kScatter + kUse + "copy(z[0:10] [2,5] -> out) s forward mb=0\n";
  EXPECT_FALSE(split(text, one_site("proj_fprop", OverlapMethod::kChunked)).report.changed);
  EXPECT_TRUE(split(text, one_site("proj_fprop", OverlapMethod::kRing)).report.changed);
}

// Without sequence parallelism; six rows in four pieces.
TEST(RingExchange, CutsRowsOfAnAllReduce) {
  const std::string reduce = "all_reduce(-> rw z) {group=0} s comm mb=0 site=a.proj.sum\n";
  const std::string use = "copy(z[0:10] [2,5] -> out) s forward mb=0\n";
  const PassResult result = split(kScatterTables + kProject + kBetween + reduce + use,
                                  one_site("proj_fprop", OverlapMethod::kChunked, 4));
  const auto piece = [](const std::string& a, const std::string& z) {
    return "linear(a" + a + ", w, b -> z" + z +
           ") {has_bias=true, adds_bias=true} s forward mb=0 site=a.proj\n"
           "all_reduce(-> rw z" +
           z + ") {group=0} comm.tensor comm mb=0 site=a.proj.sum\n";
  };
  EXPECT_EQ(tasks_of(result.program), piece("[0:3] [1,3]", "[0:5] [1,5]") +
                                          piece("[3:9] [2,3]", "[5:15] [2,5]") +
                                          piece("[9:12] [1,3]", "[15:20] [1,5]") +
                                          piece("[12:18] [2,3]", "[20:30] [2,5]") + kBetween + use);
}

TEST(RingExchange, CutsTheDgradOfAColumnParallelLinear) {
  const std::string text =
      "program step rank=0 ranks=2 events=0\n"
      "stream s kind=compute priority=0\n"
      "group tensor kind=tensor ranks=0,1\n"
      "buffer dy f32 [4,6] io persistent device\n"
      "buffer w f32 [6,3] param persistent device\n"
      "buffer out f32 [2,3] io persistent device\n"
      "buffer dx f32 [4,3] activation step device\n"
      "linear_dgrad(dy, w -> dx) {accumulate=false} s dgrad mb=0 site=a.qkv\n"
      "reduce_scatter(dx -> out) {group=0} s comm mb=0 site=a.qkv.input\n";
  const PassResult result = split(text, one_site("qkv_dgrad", OverlapMethod::kRing));
  EXPECT_EQ(tasks_of(result.program),
            "linear_dgrad(dy[12:24] [2,6], w -> dx[6:12] [2,3]) {accumulate=false} s dgrad mb=0 "
            "site=a.qkv\n"
            "ring_shift(dx[6:12] [2,3] -> dx.received) {group=0, shift=1} comm.tensor comm mb=0 "
            "site=a.qkv.input\n"
            "linear_dgrad(dy[0:12] [2,6], w -> dx[0:6] [2,3]) {accumulate=false} s dgrad mb=0 "
            "site=a.qkv\n"
            "sum_blocks(dx[0:6] [2,3], dx.received -> out) s dgrad mb=0 site=a.qkv.input\n");
  EXPECT_FALSE(split(text, one_site("qkv_dgrad", OverlapMethod::kChunked)).report.changed);
}

/// Rank 1 of 2; a rank has 128 rows of FP8 copies and their scales.
const std::string kScaledTables =
    "program step rank=1 ranks=2 events=0\n"
    "stream s kind=compute priority=0\n"
    "group tensor kind=tensor ranks=0,1\n"
    "buffer n f8e4m3 [128,256] io persistent device\n"
    "buffer ns f32 [2,128] io persistent device\n"
    "buffer a f8e4m3 [256,256] io persistent device\n"
    "buffer as f32 [2,256] io persistent device\n"
    "buffer w f8e4m3 [256,256] param persistent device\n"
    "buffer ws f32 [2,4] param persistent device\n"
    "buffer y f32 [256,256] io persistent device\n"
    "buffer out f32 [128,256] io persistent device\n"
    "buffer kept f32 [2,256] io persistent device\n"
    "buffer x f8e4m3 [256,256] activation step device\n"
    "buffer xs f32 [4,128] activation step device\n"
    "buffer joined f32 [2,256] activation step device\n"
    "buffer z f32 [256,256] activation step device\n";
const std::string kJoin = "join_blocks(xs -> joined) s forward mb=0 site=a.qkv\n";

std::string scaled(const std::string& operands, const std::string& site) {
  return "scaled_linear(" + operands +
         ") {block=128, has_bias=false, adds_bias=true} s forward mb=0 site=a." + site + "\n";
}

const std::string kScaledGather = kScaledTables +
                                  "all_gather(n -> x) {group=0} s comm mb=0 site=a.qkv.input.row\n"
                                  "all_gather(ns -> xs) {group=0} s comm mb=0 "
                                  "site=a.qkv.input.row_scales\n" +
                                  kJoin + scaled("x, joined, w, ws -> y", "qkv");

// A block of rows takes its own scales, which lie together before they are joined.
TEST(RingExchange, MultipliesScaledBlocksAsTheyArrive) {
  const std::string scales =
      "all_gather(ns -> xs) {group=0} comm.tensor comm mb=0 site=a.qkv.input.row_scales\n";
  const std::string ring =
      "undefine(-> x) s forward mb=0 site=a.qkv\n"
      "ring_shift(n -> x[0:32768] [128,256]) {group=0, shift=1} comm.tensor comm mb=0 "
      "site=a.qkv.input.row\n" +
      scaled("n, ns, w, ws -> y[32768:65536] [128,256]", "qkv") +
      scaled("x[0:32768] [128,256], xs[0:256] [2,128], w, ws -> y[0:32768] [128,256]", "qkv");
  const SiteOverlaps sites = one_site("qkv_fprop", OverlapMethod::kRing);
  EXPECT_EQ(tasks_of(split(kScaledGather, sites).program), scales + ring);
  const std::string use = "copy(joined -> kept) s forward mb=0\n";
  EXPECT_EQ(tasks_of(split(kScaledGather + use, sites).program), scales + kJoin + ring + use);
}

TEST(RingExchange, LeavesScaledProductsWhoseScalesAreReadBeforeTheyAreJoined) {
  std::string text = kScaledGather;
  text.insert(text.find(kJoin), "copy(xs [2,256] -> kept) s forward mb=0\n");
  EXPECT_FALSE(split(text, one_site("qkv_fprop", OverlapMethod::kRing)).report.changed);
}

const std::string kScaledScatter = kScaledTables + scaled("a, as, w, ws -> z", "proj") +
                                   "reduce_scatter(z -> out) {group=0} s comm mb=0 "
                                   "site=a.proj.sum\n";

// One task cuts the scales of all blocks out of their matrix.
TEST(RingExchange, SendsScaledBlocksToTheirOwners) {
  EXPECT_EQ(tasks_of(split(kScaledScatter, one_site("proj_fprop", OverlapMethod::kRing)).program),
            "join_blocks(as [4,128] -> z.scales) s forward mb=0 site=a.proj\n" +
                scaled("a[0:32768] [128,256], z.scales[0:256] [2,128], w, ws -> z[0:32768] "
                       "[128,256]",
                       "proj") +
                "ring_shift(z[0:32768] [128,256] -> z.received) {group=0, shift=1} comm.tensor "
                "comm mb=0 site=a.proj.sum\n" +
                scaled("a[32768:65536] [128,256], z.scales[256:512] [2,128], w, ws -> "
                       "z[32768:65536] [128,256]",
                       "proj") +
                "sum_blocks(z.received, z[32768:65536] [128,256] -> out) s forward mb=0 "
                "site=a.proj.sum\n");
}

TEST(RingExchange, CutsFeaturesOfScaledProductsBetweenSquares) {
  const PassResult result =
      split(kScaledScatter, one_site("proj_fprop", OverlapMethod::kChunked, 2));
  EXPECT_THAT(tasks_of(result.program),
              HasSubstr(scaled("a, as, w[32768:65536] [128,256], ws[4:8] [1,4] -> z[32768:65536] "
                               "[256,128]",
                               "proj")));
}

// Pieces would end inside a block of scales, or be smaller than asked for.
TEST(RingExchange, LeavesScaledProductsThatHaveTooFewBlocks) {
  for (const std::string& text :
       {kScaledScatter, kScaledTables + scaled("a, as, w, ws -> z", "proj") +
                            "all_reduce(-> rw z) {group=0} s comm mb=0 "
                            "site=a.proj.sum\n"}) {
    EXPECT_TRUE(split(text, one_site("proj_fprop", OverlapMethod::kChunked, 2)).report.changed);
    EXPECT_FALSE(split(text, one_site("proj_fprop", OverlapMethod::kChunked, 3)).report.changed);
  }
  EXPECT_FALSE(
      split(kScaledGather, one_site("qkv_fprop", OverlapMethod::kRing), 129).report.changed);
}

}  // namespace
}  // namespace braid
