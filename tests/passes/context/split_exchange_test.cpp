#include "passes/context/split_exchange.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ir/text.h"
#include "ir/verify.h"
#include "passes/exchange_text.h"
#include "sim/fixed_costs.h"

namespace braid {
namespace {

using ::testing::IsEmpty;
using namespace exchange_text;

const std::string kCut = kFill + kQkv + kRope + kInHalves + kAttention + kOutHalves + kProj;

Program parsed(const std::string& tasks) {
  Program program = parse_program(kHead + tasks);
  EXPECT_THAT(verify(program, 1, Ordering::kProgramOrder), IsEmpty());
  return program;
}

PassResult split_around(const std::string& tasks, const CostModel* model = nullptr) {
  const PassContext context{.may_change_rounding = true, .cost_model = model};
  PassResult result = split_exchange(parsed(tasks), {}, context);
  EXPECT_THAT(verify(result.program, 1, Ordering::kProgramOrder), IsEmpty());
  const PassResult again = split_exchange(result.program, {}, context);
  EXPECT_FALSE(again.report.changed);
  EXPECT_EQ(again.program, result.program);
  return result;
}

std::string tasks_of(const PassResult& result) {
  const std::string text = print_program(result.program);
  return text.substr(text.find("fill("));
}

std::string linear(const std::string& operands) {
  return fmt::format("linear({}) {}", operands, kLinear);
}

TEST(SplitExchange, EachCallHasAHalfOfSomethingBesideIt) {
  const PassResult result = split_around(kCut);
  const std::string in = linear("in[0:256] [16,16], w -> qkv[0:256] [16,16]") +
                         rope("qkv[0:256] [16,16] -> x[0:256] [16,16]", 16,
                              ", first_begin=0, second_begin=0, split=16") +
                         split("x[0:256] [16,16] -> h[0:256] [32,8]", false) +
                         call("h[0:256] [32,8] -> y[0:256] [32,8]") +
                         linear("in[256:512] [16,16], w -> qkv[256:512] [16,16]") +
                         rope("qkv[256:512] [16,16] -> x[256:512] [16,16]", 16,
                              ", first_begin=0, second_begin=32, split=0") +
                         split("x[256:512] [16,16] -> h[256:512] [32,8]", false) +
                         call("h[256:512] [32,8] -> y[256:512] [32,8]");
  const std::string queries =
      attention("y[0:256] [32,8] -> m[0:128] [32,4], lse.first", 32) + kBackCall0 +
      "pack_kv(y -> y.kv) s forward mb=0 layer=0\n"
      "attention_step(y[256:512] [32,8], y.kv -> m.sum, lse.second) {heads=2, kv_heads=1, "
      "head_size=2, sequence=32, kv_sequence=64, scale=0.5, query_begin=0, queries=32, "
      "key_begin=0, keys=64, causal=true, accumulate=false} s forward mb=0 layer=0\n"
      "copy(m.sum -> m[128:256] [32,4]) s forward mb=0 layer=0\n"
      "join_columns(lse.first [2,32], lse.second [2,32] -> lse [2,64]) s forward mb=0 layer=0\n" +
      kBackCall1;
  const std::string out = kBack0 + linear("o[0:128] [16,8], v -> out[0:256] [16,16]") + kBack1 +
                          linear("o[128:256] [16,8], v -> out[256:512] [16,16]");
  EXPECT_EQ(tasks_of(result), kFill + in + queries + out);
  EXPECT_EQ(result.report.num_changes, 1);
  EXPECT_EQ(result.report.summary, "split 1 attention calls between exchanges of heads");
}

TEST(SplitExchange, WithoutRopeToo) {
  const std::string qkv = std::string("linear(in, w -> x) ") + kLinear;
  EXPECT_EQ(
      split_around(kFill + qkv + kInHalves + kAttention + kOutHalves + kProj).report.num_changes,
      1);
}

/// A product takes as long as it has rows, and as if it had `rows_lost` more.
class ProductCosts final : public CostModel {
 public:
  ProductCosts(int64_t call_ns, int64_t rows_lost) : call_ns_(call_ns), rows_lost_(rows_lost) {}

  Cost task_cost(const OpSpec& spec) const override {
    return {.ns = spec.op == "linear" ? spec.operands[0].shape[0] + rows_lost_ : 0};
  }
  Cost comm_cost(const CommSpec& /*spec*/) const override { return {.ns = call_ns_}; }
  Cost host_copy_cost(HostCopy /*direction*/, int64_t /*bytes*/) const override { return {}; }
  const Contention& contention() const override { return contention_; }
  const Cluster& cluster() const override { return cluster_; }
  int64_t launch_ns() const override { return 0; }
  int64_t step_overhead_ns() const override { return 0; }
  std::string description() const override { return "products"; }

 private:
  int64_t call_ns_;
  int64_t rows_lost_;
  Cluster cluster_ = small_cluster(2, 2);
  Contention contention_;
};

// Both products lose 10 rows each; four calls are hidden.
TEST(SplitExchange, IfTheCallsTakeLongerThanWhatHalvesLose) {
  const ProductCosts worth(6, 10);
  EXPECT_TRUE(split_around(kCut, &worth).report.changed);
  const ProductCosts not_worth(5, 10);
  EXPECT_FALSE(split_around(kCut, &not_worth).report.changed);
}

TEST(SplitExchange, OnlyIfAskedForAndOfForwards) {
  const PassContext context{.may_change_rounding = true};
  EXPECT_FALSE(split_exchange(parsed(kCut), {.enabled = false}, context).report.changed);
  std::string backward = kCut;
  for (size_t at = 0; (at = backward.find("forward", at)) != std::string::npos;) {
    backward.replace(at, 7, "dgrad");
  }
  EXPECT_FALSE(split_around(backward).report.changed);
}

TEST(SplitExchange, LeavesOtherNeighbours) {
  const std::string others = "look(y -> lse) s forward mb=0 layer=0\n";
  for (const std::string& tasks :
       {kForward,  // exchanges that are not cut
        kFill + kQkv + kRope + kInHalves + kAttention + kOutHalves,
        kFill + kQkv + kRope + kInHalves + others + kAttention + kOutHalves + kProj,
        kFill + "fill(-> x) s forward mb=0 layer=0\n" + kInHalves + kAttention + kOutHalves +
            kProj}) {
    EXPECT_FALSE(split_around(tasks).report.changed);
  }
}

}  // namespace
}  // namespace braid
