#include "passes/memory/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/expect_error.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/analysis/step_meaning.h"
#include "support/random_layers.h"
#include "support/symbolic.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Layer 1 of a model, and the end of layer 0 that it reads.
const char* const kBlock = R"(program step rank=0 ranks=1 events=0
stream s kind=compute priority=0
buffer w f32 [216] param persistent device
buffer g f32 [216] main_grad persistent device
buffer f0 f32 [4,8] activation step device
buffer r0 f32 [4,8] activation step device
buffer sum_a f32 [4,8] activation step device
buffer y_a f32 [4,8] activation step device
buffer rstd_a f32 [4] activation step device
buffer qkv f32 [4,24] activation step device
buffer qkv_r f32 [4,24] activation step device
buffer o f32 [4,8] activation step device
buffer lse f32 [1,1,4] activation step device
buffer p f32 [4,8] activation step device
buffer sum_m f32 [4,8] activation step device
buffer y_m f32 [4,8] activation step device
buffer rstd_m f32 [4] activation step device
buffer h f32 [4,8] activation step device
buffer a f32 [4,8] activation step device
buffer f f32 [4,8] activation step device
buffer d f32 [4,8] activation step device
buffer da f32 [4,8] activation step device
buffer dh f32 [4,8] activation step device
buffer dm f32 [4,8] activation step device
buffer dp f32 [4,8] activation step device
buffer do f32 [4,8] activation step device
buffer dqkv_r f32 [4,24] activation step device
buffer dqkv f32 [4,24] activation step device
buffer dy f32 [4,8] activation step device
buffer dx f32 [4,8] activation step device
fill(-> f0) {value=1.0} s forward mb=0 layer=0
fill(-> r0) {value=2.0} s forward mb=0 layer=0
add_rmsnorm(f0, r0, w[0:8] -> sum_a, y_a, rstd_a) {epsilon=1e-05} s forward mb=0 layer=1 site=norm
linear(y_a, w[24:216] [24,8] -> qkv) {has_bias=false, adds_bias=true} s forward mb=0 layer=1
rope(qkv -> qkv_r) {heads=1, kv_heads=1, head_size=8, sequence=4, theta=10000.0, inverse=false} s forward mb=0 layer=1
attention(qkv_r -> o, lse) {heads=1, kv_heads=1, head_size=8, sequence=4, scale=1.0} s forward mb=0 layer=1 site=core
linear(o, w[24:88] [8,8] -> p) {has_bias=false, adds_bias=true} s forward mb=0 layer=1
add_rmsnorm(p, sum_a, w[8:16] -> sum_m, y_m, rstd_m) {epsilon=1e-05} s forward mb=0 layer=1 site=norm2
linear(y_m, w[88:152] [8,8] -> h) {has_bias=false, adds_bias=true} s forward mb=0 layer=1
gelu(h -> a) s forward mb=0 layer=1
linear(a, w[152:216] [8,8] -> f) {has_bias=false, adds_bias=true} s forward mb=0 layer=1
)";
const std::string kBackward = R"(add(f, sum_m -> d) s dgrad mb=0
linear_dgrad(d, w[152:216] [8,8] -> da) {accumulate=false} s dgrad mb=0 layer=1
linear_wgrad(a, d -> rw g[152:216] [8,8]) {has_bias=false, accumulate=true} s wgrad mb=0 layer=1
gelu_backward(h, da -> dh) s dgrad mb=0 layer=1
linear_wgrad(y_m, dh -> rw g[88:152] [8,8]) {has_bias=false, accumulate=true} s wgrad mb=0 layer=1
linear_dgrad(dh, w[88:152] [8,8] -> dm) {accumulate=false} s dgrad mb=0 layer=1
rmsnorm_backward(sum_m, w[8:16], rstd_m, dm, d -> dp, rw g[8:16]) {has_d_sum=true, accumulate=true} s dgrad mb=0 layer=1
linear_dgrad(dp, w[24:88] [8,8] -> do) {accumulate=false} s dgrad mb=0 layer=1
linear_wgrad(o, dp -> rw g[24:88] [8,8]) {has_bias=false, accumulate=true} s wgrad mb=0 layer=1
attention_backward(qkv_r, o, lse, do -> dqkv_r) {heads=1, kv_heads=1, head_size=8, sequence=4, scale=1.0} s dgrad mb=0 layer=1
rope(dqkv_r -> dqkv) {heads=1, kv_heads=1, head_size=8, sequence=4, theta=10000.0, inverse=true} s dgrad mb=0 layer=1
linear_dgrad(dqkv, w[24:216] [24,8] -> dy) {accumulate=false} s dgrad mb=0 layer=1
linear_wgrad(y_a, dqkv -> rw g[24:216] [24,8]) {has_bias=false, accumulate=true} s wgrad mb=0 layer=1
rmsnorm_backward(sum_a, w[0:8], rstd_a, dy, dp -> dx, rw g[0:8]) {has_d_sum=true, accumulate=true} s dgrad mb=0 layer=1
)";

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    text += line + "\n";
  }
  return text;
}

/// Tasks from the first of the backward on.
std::string backward_of(const Program& program) {
  const std::string text = print_program(program);
  return text.substr(text.find("add(f, sum_m"));
}

Program block() {
  return parse_program(kBlock + kBackward);
}

/// The policy on kBlock; what must hold for any policy.
PassResult recompute_block(Recompute policy) {
  const Program program = block();
  EXPECT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
  for (const OpSpec& spec : program.specs.all()) {
    EXPECT_NO_THROW(check_spec(spec));
  }
  PassResult result = recompute(program, {.policy = policy});
  EXPECT_TRUE(result.report.changed);
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  for (const OpSpec& spec : result.program.specs.all()) {
    EXPECT_NO_THROW(check_spec(spec));
  }
  const PassResult again = recompute(result.program, {.policy = policy});
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
  return result;
}

const std::string kGelu = "gelu(h -> a.recomputed) s dgrad mb=0 layer=1";
const std::string kSecondNorm =
    "rmsnorm(sum_m, w[8:16] -> y_m.recomputed, rstd_m.recomputed) {epsilon=1e-05} s dgrad mb=0 "
    "layer=1 site=norm2";
const std::string kFirstNorm =
    "rmsnorm(sum_a, w[0:8] -> y_a.recomputed, rstd_a.recomputed) {epsilon=1e-05} s dgrad mb=0 "
    "layer=1 site=norm";
const std::string kAttention =
    "{heads=1, kv_heads=1, head_size=8, sequence=4, scale=1.0} s dgrad mb=0 layer=1";

// The backward reads y, as large as v, of which it is made; v is made of weights, which are small
// and never made again.
TEST(Recompute, OfAChainOfTasksKeepsTheSmallestInputs) {
  const std::string tables = R"(program step rank=0 ranks=1 events=0
stream s kind=compute priority=0
buffer x f32 [8,16] param persistent device
buffer order i32 [8] io persistent device
buffer inverse i32 [8,1] io persistent device
buffer offsets i32 [2] io persistent device
buffer c f32 [8,1] param persistent device
buffer g f32 [16,16] main_grad persistent device
buffer weights f32 [8] activation step device
buffer v f32 [8,16] activation step device
buffer y f32 [8,16] activation step device
buffer d f32 [8,16] activation step device
)";
  const std::string forward = R"(permute_elems(c, order, inverse -> weights) s forward mb=0 layer=1
routed_relu2(x, weights, offsets -> v) s forward mb=0 layer=1
gelu(v -> y) s forward mb=0 layer=1
)";
  const Program program = parse_program(tables + forward + R"(copy(x -> d) s dgrad mb=0 layer=1
linear_wgrad(y, d -> rw g) {has_bias=false, accumulate=true} s wgrad mb=0 layer=1
)");
  const PassResult result = recompute(program, {.policy = Recompute::kNorms});
  EXPECT_THAT(print_program(result.program),
              HasSubstr("routed_relu2(x, weights, offsets -> v.recomputed) s dgrad mb=0 layer=1\n"
                        "gelu(v.recomputed -> y.recomputed) s dgrad mb=0 layer=1\n"));
  EXPECT_THAT(result.report.summary, HasSubstr("480 B")) << "y without the weights";
}

// Copies in FP8 whose losses a tally counts: a repeated task does not count again.
TEST(Recompute, RepeatedTasksHaveNoTally) {
  const Program program = parse_program(R"(program step rank=0 ranks=1 events=0
stream s kind=compute priority=0
buffer n i64 [4] io persistent device
buffer g f32 [128,128] main_grad persistent device
buffer h f32 [128,128] param persistent device
buffer a f32 [128,128] activation step device
buffer a8 f8e4m3 [128,128] activation step device
buffer a8s f32 [1,128] activation step device
fill(-> n) {value=0.0} s forward
gelu(h -> a) s forward mb=0 layer=1
quantize(a -> a8, a8s, rw n) {block=128, square=false, row=true, column=false, has_bias=false, accumulate=true, watch=true} s forward mb=0 layer=1
scaled_linear_wgrad(a8, a8s, a8, a8s -> rw g) {block=128, accumulate=true} s wgrad mb=0 layer=1
)");
  ASSERT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
  const PassResult result = recompute(program, {.policy = Recompute::kFull});
  const std::string text = print_program(result.program);
  EXPECT_THAT(text, HasSubstr("quantize(a.recomputed -> a8.recomputed, a8s.recomputed) {block=128, "
                              "square=false, row=true, column=false, has_bias=false, "
                              "accumulate=true} s dgrad"));
  EXPECT_THAT(text, HasSubstr("quantize(a -> a8, a8s, rw n)"));
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  EXPECT_THAT(compare_meaning(StepMeaning(program), result.program, StepMeaning(result.program)),
              IsEmpty());
}

// Copies of a norm's result: from the kept sum, with the norm's attributes.
TEST(Recompute, CopiesOfANormAreRepeatedFromItsSum) {
  const Program program = parse_program(R"(program step rank=0 ranks=1 events=0
stream s kind=compute priority=0
buffer n i64 [4] io persistent device
buffer g f32 [128,128] main_grad persistent device
buffer w f32 [128] param persistent device
buffer x f32 [128,128] activation step device
buffer r f32 [128,128] activation step device
buffer sum f32 [128,128] activation step device
buffer rstd f32 [128] activation step device
buffer d f32 [128,128] activation step device
buffer a8 f8e4m3 [128,128] activation step device
buffer a8s f32 [1,128] activation step device
fill(-> n) {value=0.0} s forward
fill(-> x) {value=1.0} s forward mb=0 layer=0
fill(-> r) {value=2.0} s forward mb=0 layer=0
quantize(x, r, w -> sum, rstd, a8, a8s, rw n) {block=128, square=false, row=true, column=false, has_bias=false, accumulate=true, of="add_rmsnorm", of_epsilon=0.001, watch=true} s forward mb=0 layer=1
scaled_linear_wgrad(a8, a8s, a8, a8s -> rw g) {block=128, accumulate=true} s wgrad mb=0 layer=1
add(sum, sum -> d) s dgrad mb=0 layer=1
)");
  ASSERT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
  EXPECT_EQ(parse_program(print_program(program)), program);
  const PassResult result = recompute(program, {.policy = Recompute::kNorms});
  EXPECT_THAT(print_program(result.program),
              HasSubstr("quantize(sum, w -> rstd.recomputed, a8.recomputed, a8s.recomputed) "
                        "{block=128, square=false, row=true, column=false, has_bias=false, "
                        "accumulate=true, of=\"rmsnorm\", of_epsilon=0.001} s dgrad"));
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  EXPECT_THAT(compare_meaning(StepMeaning(program), result.program, StepMeaning(result.program)),
              IsEmpty());
}

TEST(Recompute, NoneChangesNothing) {
  const PassResult result = recompute(block(), {});
  EXPECT_EQ(result.program, block());
  EXPECT_FALSE(result.report.changed);
  EXPECT_EQ(result.report.summary, "keeps all activations");
}

// The residual sums are kept, so the norms are repeated from them.
TEST(Recompute, NormsRepeatsNormsAndActivationFunctions) {
  const PassResult result = recompute_block(Recompute::kNorms);
  EXPECT_EQ(
      backward_of(result.program),
      join({"add(f, sum_m -> d) s dgrad mb=0",
            "linear_dgrad(d, w[152:216] [8,8] -> da) {accumulate=false} s dgrad mb=0 layer=1",
            kGelu,
            "linear_wgrad(a.recomputed, d -> rw g[152:216] [8,8]) {has_bias=false, "
            "accumulate=true} s wgrad mb=0 layer=1",
            "gelu_backward(h, da -> dh) s dgrad mb=0 layer=1", kSecondNorm,
            "linear_wgrad(y_m.recomputed, dh -> rw g[88:152] [8,8]) {has_bias=false, "
            "accumulate=true} s wgrad mb=0 layer=1",
            "linear_dgrad(dh, w[88:152] [8,8] -> dm) {accumulate=false} s dgrad mb=0 layer=1",
            "rmsnorm_backward(sum_m, w[8:16], rstd_m.recomputed, dm, d -> dp, rw g[8:16]) "
            "{has_d_sum=true, accumulate=true} s dgrad mb=0 layer=1",
            "linear_dgrad(dp, w[24:88] [8,8] -> do) {accumulate=false} s dgrad mb=0 layer=1",
            "linear_wgrad(o, dp -> rw g[24:88] [8,8]) {has_bias=false, accumulate=true} s wgrad "
            "mb=0 layer=1",
            "attention_backward(qkv_r, o, lse, do -> dqkv_r) " + kAttention,
            "rope(dqkv_r -> dqkv) {heads=1, kv_heads=1, head_size=8, sequence=4, theta=10000.0, "
            "inverse=true} s dgrad mb=0 layer=1",
            "linear_dgrad(dqkv, w[24:216] [24,8] -> dy) {accumulate=false} s dgrad mb=0 layer=1",
            kFirstNorm,
            "linear_wgrad(y_a.recomputed, dqkv -> rw g[24:216] [24,8]) {has_bias=false, "
            "accumulate=true} s wgrad mb=0 layer=1",
            "rmsnorm_backward(sum_a, w[0:8], rstd_a.recomputed, dy, dp -> dx, rw g[0:8]) "
            "{has_d_sum=true, accumulate=true} s dgrad mb=0 layer=1"}));
  EXPECT_EQ(result.report.num_changes, 3);
  // Three values of 128 bytes and two of 16.
  EXPECT_THAT(result.report.summary,
              HasSubstr("recomputes 3 of 25 tasks: saves 416 B per microbatch for 544 FLOP more"));
}

/// Repeated tasks, and tasks that read what they made.
std::vector<std::string> lines_about(const PassResult& result, const std::string& what) {
  std::vector<std::string> lines;
  std::string text = backward_of(result.program);
  while (!text.empty()) {
    const std::string line = text.substr(0, text.find('\n'));
    if (line.find(what) != std::string::npos) {
      lines.push_back(line);
    }
    text.erase(0, line.size() + 1);
  }
  return lines;
}

TEST(Recompute, AttentionAlsoRepeatsTheAttention) {
  const PassResult result = recompute_block(Recompute::kAttention);
  EXPECT_EQ(result.report.num_changes, 4);
  EXPECT_EQ(
      lines_about(result, "o.recomputed"),
      (std::vector<std::string>{
          "attention(qkv_r -> o.recomputed, lse.recomputed) " + kAttention + " site=core",
          "linear_wgrad(o.recomputed, dp -> rw g[24:88] [8,8]) {has_bias=false, "
          "accumulate=true} s wgrad mb=0 layer=1",
          "attention_backward(qkv_r, o.recomputed, lse.recomputed, do -> dqkv_r) " + kAttention}));
  EXPECT_THAT(backward_of(result.program), HasSubstr(kGelu));
}

// What enters is the sum of the first norm; all else of the layer is made again before the
// first task that needs it, but for the last matrix product, which no backward reads.
TEST(Recompute, FullRepeatsTheLayerFromTheSumThatEntersIt) {
  std::string text = kBackward;
  text.replace(text.find("add(f, sum_m"), 12, "add(f, f");  // nothing between layers needs sum_m
  const Program program = parse_program(kBlock + text);
  const PassResult result = recompute(program, {.policy = Recompute::kFull});
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  const std::string printed = print_program(result.program);
  const size_t begin = printed.find("linear_dgrad(d,");
  const size_t end = printed.find("gelu_backward");
  EXPECT_EQ(printed.substr(begin, end - begin),
            join({"linear_dgrad(d, w[152:216] [8,8] -> da) {accumulate=false} s dgrad mb=0 layer=1",
                  kFirstNorm,
                  "linear(y_a.recomputed, w[24:216] [24,8] -> qkv.recomputed) {has_bias=false, "
                  "adds_bias=true} s dgrad mb=0 layer=1",
                  "rope(qkv.recomputed -> qkv_r.recomputed) {heads=1, kv_heads=1, head_size=8, "
                  "sequence=4, theta=10000.0, inverse=false} s dgrad mb=0 layer=1",
                  "attention(qkv_r.recomputed -> o.recomputed, lse.recomputed) " + kAttention +
                      " site=core",
                  "linear(o.recomputed, w[24:88] [8,8] -> p.recomputed) {has_bias=false, "
                  "adds_bias=true} s dgrad mb=0 layer=1",
                  "add_rmsnorm(p.recomputed, sum_a, w[8:16] -> sum_m.recomputed, y_m.recomputed, "
                  "rstd_m.recomputed) {epsilon=1e-05} s dgrad mb=0 layer=1 site=norm2",
                  "linear(y_m.recomputed, w[88:152] [8,8] -> h.recomputed) {has_bias=false, "
                  "adds_bias=true} s dgrad mb=0 layer=1",
                  "gelu(h.recomputed -> a.recomputed) s dgrad mb=0 layer=1",
                  "linear_wgrad(a.recomputed, d -> rw g[152:216] [8,8]) {has_bias=false, "
                  "accumulate=true} s wgrad mb=0 layer=1"}));
  EXPECT_EQ(result.report.num_changes, 8);
  for (const char* const kept : {"a,", "h,", "y_m,", "sum_m,", "o,", "qkv_r,", "y_a,", "rstd_a,"}) {
    EXPECT_EQ(printed.find(std::string("(") + kept, end), std::string::npos) << kept;
  }
  EXPECT_THAT(printed.substr(end), HasSubstr("rmsnorm_backward(sum_a, w[0:8], rstd_a.recomputed,"));
}

// The first task of the backward, which belongs to no layer, reads sum_m: so that is kept.
TEST(Recompute, KeepsWhatOtherLayersRead) {
  const PassResult result = recompute_block(Recompute::kFull);
  EXPECT_THAT(lines_about(result, "sum_m.recomputed"), IsEmpty());
  EXPECT_THAT(backward_of(result.program), HasSubstr(kSecondNorm));
  // Nothing needs the projection then.
  EXPECT_THAT(lines_about(result, "p.recomputed"), IsEmpty());
}

TEST(Recompute, TakesTheFirstLayersOnly) {
  const PassResult all = recompute(block(), {.policy = Recompute::kNorms, .num_layers = 2});
  EXPECT_EQ(all.program, recompute_block(Recompute::kNorms).program);
  const PassResult none = recompute(block(), {.policy = Recompute::kNorms, .num_layers = 1});
  EXPECT_EQ(none.program, block());
  EXPECT_EQ(none.report.summary, "found nothing to recompute");
}

TEST(Recompute, LeavesAForwardWithoutBackwardAlone) {
  const Program forward = parse_program(kBlock);
  const PassResult result = recompute(forward, {.policy = Recompute::kFull});
  EXPECT_EQ(result.program, forward);
  EXPECT_FALSE(result.report.changed);
}

// ---- small cases ----

const std::string kTables =
    "program step rank=0 ranks=2 events=0\n"
    "stream s kind=compute priority=0\n"
    "group tp kind=tensor ranks=0,1\n"
    "buffer w f32 [64] param persistent device\n"
    "buffer g f32 [64] main_grad persistent device\n"
    "buffer x f32 [4,8] activation step device\n"
    "buffer y f32 [4,8] activation step device\n"
    "buffer z f32 [4,8] activation step device\n"
    "buffer d f32 [4,8] activation step device\n"
    "buffer e f32 [4,8] activation step device\n";

std::string full(const std::string& tasks) {
  const Program program = parse_program(kTables + tasks);
  EXPECT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
  const PassResult result = recompute(program, {.policy = Recompute::kFull});
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  EXPECT_EQ(result.report.changed, !(result.program == program));
  const PassResult again = recompute(result.program, {.policy = Recompute::kFull});
  EXPECT_EQ(again.program, result.program);
  const std::string text = print_program(result.program);
  return text.substr(text.find("fill("));
}

const std::string kEnter = "fill(-> x) {value=1.0} s forward mb=0 layer=0\n";

TEST(Recompute, RepeatsOnceWhatSeveralTasksNeed) {
  EXPECT_EQ(full(kEnter +
                 "gelu(x -> y) s forward mb=0 layer=1\n"
                 "gelu(y -> z) s forward mb=0 layer=1\n"
                 "add(x, z -> d) s dgrad mb=0 layer=1\n"
                 "add(y, d -> e) s dgrad mb=0 layer=1\n"
                 "linear_wgrad(z, e -> rw g [8,8]) {has_bias=false, accumulate=true} s wgrad mb=0 "
                 "layer=1\n"),
            kEnter +
                "gelu(x -> y) s forward mb=0 layer=1\n"
                "gelu(y -> z) s forward mb=0 layer=1\n"
                "gelu(x -> y.recomputed) s dgrad mb=0 layer=1\n"
                "gelu(y.recomputed -> z.recomputed) s dgrad mb=0 layer=1\n"
                "add(x, z.recomputed -> d) s dgrad mb=0 layer=1\n"
                "add(y.recomputed, d -> e) s dgrad mb=0 layer=1\n"
                "linear_wgrad(z.recomputed, e -> rw g [8,8]) {has_bias=false, accumulate=true} s "
                "wgrad mb=0 layer=1\n");
}

// Two values enter the layer that nothing else keeps, for one that leaves it: it is kept instead.
TEST(Recompute, DoesNotKeepMoreInputsThanItSaves) {
  const std::string tasks = kEnter +
                            "fill(-> y) {value=2.0} s forward mb=0 layer=0\n"
                            "add(x, y -> z) s forward mb=0 layer=1\n"
                            "add(z, z -> d) s dgrad mb=0 layer=1\n";
  EXPECT_EQ(full(tasks), tasks);
}

TEST(Recompute, DoesNotRepeatWhatReadsAWeightThatHasChanged) {
  const std::string forward = kEnter +
                              "linear(x, w [8,8] -> y) {has_bias=false, adds_bias=true} s forward "
                              "mb=0 layer=1\n";
  const std::string backward = "add(x, y -> d) s dgrad mb=0 layer=1\n";
  const std::string change = "copy(g -> w) s optimizer\n";
  const std::string repeated =
      "linear(x, w [8,8] -> y.recomputed) {has_bias=false, adds_bias=true} s dgrad mb=0 layer=1\n"
      "add(x, y.recomputed -> d) s dgrad mb=0 layer=1\n";
  EXPECT_EQ(full(forward + backward + change), forward + repeated + change);
  EXPECT_EQ(full(forward + change + backward), forward + change + backward);
}

// A sum over ranks in place belongs to what it completes, and stays communication.
TEST(Recompute, RepeatsInPlaceCommunicationWithWhatItAddsTo) {
  const std::string forward = kEnter +
                              "gelu(x -> y) s forward mb=0 layer=1\n"
                              "all_reduce(-> rw y [32]) {group=0} s comm mb=0 layer=1\n"
                              "gelu(y -> z) s forward mb=0 layer=1\n";
  EXPECT_EQ(full(forward + "add(x, z -> d) s dgrad mb=0 layer=1\n"),
            forward +
                "gelu(x -> y.recomputed) s dgrad mb=0 layer=1\n"
                "all_reduce(-> rw y.recomputed [32]) {group=0} s comm mb=0 layer=1\n"
                "gelu(y.recomputed -> z.recomputed) s dgrad mb=0 layer=1\n"
                "add(x, z.recomputed -> d) s dgrad mb=0 layer=1\n");
}

TEST(Recompute, RepeatsBothWritersOfAValueInHalves) {
  const std::string forward = kEnter +
                              "copy(x[0:16] -> y[0:16]) s forward mb=0 layer=1\n"
                              "copy(x[16:32] -> y[16:32]) s forward mb=0 layer=1\n";
  EXPECT_EQ(full(forward + "add(x, y -> d) s dgrad mb=0 layer=1\n"),
            forward +
                "copy(x[0:16] -> y.recomputed[0:16]) s dgrad mb=0 layer=1\n"
                "copy(x[16:32] -> y.recomputed[16:32]) s dgrad mb=0 layer=1\n"
                "add(x, y.recomputed -> d) s dgrad mb=0 layer=1\n");
}

TEST(Recompute, KeepsWhatIsReadHalfMadeOrWrittenTwice) {
  const std::string half_made = kEnter +
                                "copy(x[0:16] -> y[0:16]) s forward mb=0 layer=1\n"
                                "copy(y[0:16] -> z[0:16]) s forward mb=0 layer=1\n"
                                "copy(x[16:32] -> y[16:32]) s forward mb=0 layer=1\n"
                                "add(x, y -> d) s dgrad mb=0 layer=1\n";
  EXPECT_EQ(full(half_made), half_made);
  const std::string twice = kEnter +
                            "gelu(x -> y) s forward mb=0 layer=1\n"
                            "add(x, y -> d) s dgrad mb=0 layer=1\n"
                            "add(x, d -> y) s dgrad mb=0 layer=1\n"
                            "add(x, y -> e) s dgrad mb=0 layer=1\n";
  EXPECT_EQ(full(twice), twice);
}

TEST(Recompute, NeverRepeatsMessages) {
  const std::string tasks = kEnter +
                            "recv(-> y) {group=0, peer=1, channel=0} s comm mb=0 layer=1\n"
                            "add(x, y -> z) s forward mb=0 layer=1\n"
                            "add(x, y -> d) s dgrad mb=0 layer=1\n";
  EXPECT_EQ(full(tasks), tasks);
}

// The message of an earlier stage comes before the stage's first task, and its backward reads it
// anyway: keeping it costs nothing.
TEST(Recompute, RepeatsFromTheMessageThatTheBackwardReads) {
  const std::string receive =
      "fill(-> z) {value=1.0} s forward mb=0 layer=0\n"
      "recv(-> x) {group=0, peer=1, channel=0} s comm mb=0\n";
  const std::string forward = "gelu(x -> y) s forward mb=0 layer=1\n";
  const std::string read_x = "add(x, x -> d) s dgrad mb=0 layer=1\n";
  const std::string again = "gelu(x -> y.recomputed) s dgrad mb=0 layer=1\n";
  const auto read = [](const std::string& y) {
    return "add(d, " + y + " -> e) s dgrad mb=0 layer=1\n";
  };
  EXPECT_EQ(full(receive + forward + read_x + read("y")),
            receive + forward + read_x + again + read("y.recomputed"));
  // If nothing else reads it, or it changes before, one of the two is kept.
  const std::string alone = receive + forward + "add(y, y -> e) s dgrad mb=0 layer=1\n";
  EXPECT_EQ(full(alone), alone);
  const std::string changes =
      receive + forward + "fill(-> x) {value=2.0} s dgrad mb=0\n" + read_x + read("y");
  EXPECT_EQ(full(changes), changes);
}

// A gather at the start of a backward reads no forward value, though it is communication in front
// of the layer's first gradient.
TEST(Recompute, LeavesTheCommunicationOfTheBackwardAlone) {
  const std::string tasks = kEnter +
                            "gelu(x -> y) s forward mb=0 layer=1\n"
                            "fill(-> e) {value=3.0} s dgrad mb=0\n"
                            "all_reduce(-> rw e [32]) {group=0} s comm mb=0 layer=1\n"
                            "add(x, e -> d) s dgrad mb=0 layer=1\n";
  EXPECT_EQ(full(tasks), tasks);
}

// Each job gathers its own weights: repeated tasks read those that the backward gathers.
TEST(Recompute, ReadsTheWeightsThatTheBackwardGathers) {
  const std::string gather_f = "all_gather(w[0:32] -> wf) {group=0} s comm mb=0 vs=0 layer=1\n";
  const std::string gather_b = "all_gather(w[0:32] -> wb) {group=0} s comm mb=0 vs=0 layer=1\n";
  const std::string forward =
      "fill(-> x) {value=1.0} s forward mb=0 vs=0 layer=0\n" + gather_f +
      "linear(x, wf [8,8] -> y) {has_bias=false, adds_bias=true} s forward mb=0 vs=0 layer=1\n";
  const std::string dgrad =
      "linear_dgrad(x, wb [8,8] -> e) {accumulate=false} s dgrad mb=0 vs=0 layer=1\n";
  const std::string tables =
      "buffer wf f32 [64] gathered step device\n"
      "buffer wb f32 [64] gathered step device\n";
  const std::string use = "add(x, y -> d) s dgrad mb=0 vs=0 layer=1\n";
  const std::string reuse = "add(x, y.recomputed -> d) s dgrad mb=0 vs=0 layer=1\n";
  const auto repeated = [](const std::string& weights) {
    return "linear(x, " + weights +
           " [8,8] -> y.recomputed) {has_bias=false, adds_bias=true} s dgrad mb=0 vs=0 layer=1\n";
  };
  const std::string head = "fill(-> z) {value=3.0} s dgrad mb=0 vs=0\n";
  EXPECT_EQ(full(tables + forward + head + gather_b + dgrad + use),
            forward + head + gather_b + dgrad + repeated("wb") + reuse);
  // Gathered again if the backward comes to that only later.
  EXPECT_EQ(full(tables + forward + head + use + gather_b + dgrad),
            forward + head +
                "all_gather(w[0:32] -> wf.recomputed) {group=0} s comm mb=0 vs=0 layer=1\n" +
                repeated("wf.recomputed") + reuse + gather_b + dgrad);
}

TEST(Recompute, RefusesForwardTasksOfUnknownOps) {
  const Program program = parse_program(kTables + kEnter +
                                        "twist(x -> y) s forward mb=0 layer=1\n"
                                        "add(x, y -> d) s dgrad mb=0 layer=1\n");
  EXPECT_EQ(message_of<InternalError>([&] { recompute(program, {.policy = Recompute::kFull}); }),
            "no op is called twist");
}

// ---- random programs ----

TEST(Recompute, KeepsTheMeaningOfRandomLayers) {
  int64_t num_repeated = 0;
  for (uint64_t seed = 0; seed < thinned_count(1500u, 5) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program program = random_layers(seed, {.num_layers = 1 + static_cast<int>(seed % 4),
                                                 .num_microbatches = 1 + static_cast<int>(seed % 3),
                                                 .num_ranks = 1 + static_cast<int>(seed % 2),
                                                 .gathers = seed % 5 == 0,
                                                 .is_strange = seed % 7 < 3});
    ASSERT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
    const SymbolicState meaning = run_in_order(program);
    for (const Recompute policy :
         {Recompute::kNorms, Recompute::kAttention, Recompute::kCompute, Recompute::kFull}) {
      const RecomputeOptions options{.policy = policy, .num_layers = static_cast<int>(seed % 3)};
      const PassResult result = recompute(program, options);
      num_repeated += result.report.num_changes;
      EXPECT_EQ(result.report.changed, !(result.program == program));
      EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
      SymbolicState state = run_in_order(result.program);
      state.resize(meaning.size());  // without the buffers that were added
      EXPECT_EQ(state, meaning);
      if (seed % 7 >= 3) {  // strange programs have forward tasks that only now are in the backward
        EXPECT_EQ(recompute(result.program, options).program, result.program);
      }
    }
  }
  EXPECT_GT(num_repeated, thinned_count(5000, 5));
}

}  // namespace
}  // namespace braid
