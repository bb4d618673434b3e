#include "ops/routed_rows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "config/load.h"
#include "config/validate.h"
#include "ops/op.h"
#include "ops/row_blocks.h"
#include "plan/run_plan.h"
#include "sim/fixed_costs.h"
#include "sim/predict.h"

namespace braid {
namespace {

/// 2 ranks with 4 of 8 experts each and 32 tokens with 2 rows each: 64 rows with equal loads, and
/// room for 128. A matrix of all local experts has 128 rows, too.
Program program_of(std::vector<std::string> more = {}) {
  std::vector<std::string> keys{
      "logging.run_folder=none", "model.experts=8",      "model.experts_per_token=2",
      "model.expert_ffn=16",     "model.width=32",       "model.layers=1",
      "model.heads=4",           "model.kv_heads=2",     "train.sequence=16",
      "train.microbatch=2",      "train.global_batch=4", "parallel.ranks=2",
      "parallel.expert=2",       "train.dtype=float32",  "overlap.mode=off"};
  keys.insert(keys.end(), more.begin(), more.end());
  const RunConfig config = parse_config("", "routed_rows", keys);
  validate(config);
  return plan_run(resolve_run(resolved(config), 50), {.ranks = {0}}).ranks[0].programs[0];
}

/// By op: the first dimensions of its operands as they are priced.
std::vector<int64_t> rows_of(const Program& program, double load, std::string_view op) {
  const RoutedRows rows(program, load);
  for (const OpSpec& spec : program.specs.all()) {
    if (spec.op == op) {
      std::vector<int64_t> found;
      for (const OperandSpec& operand : rows.priced(spec).operands) {
        found.push_back(operand.shape[0]);
      }
      EXPECT_NO_THROW(check_spec(rows.priced(spec)));
      return found;
    }
  }
  return {};
}

using Rows = std::vector<int64_t>;

TEST(RoutedRows, AreThoseOfEqualLoadsAndNotTheRoom) {
  const Program program = program_of();
  EXPECT_EQ(rows_of(program, 1, "grouped_linear"), (Rows{64, 128, 5, 64}));
  EXPECT_EQ(rows_of(program, 1, "grouped_linear_wgrad"), (Rows{64, 64, 5, 128}));
  EXPECT_EQ(rows_of(program, 1, "routed_swiglu"), (Rows{64, 64, 5, 64}));
  EXPECT_EQ(rows_of(program, 1, "dispatch_rows"), (Rows{64, 64, 18, 128, 128, 5}));
}

TEST(RoutedRows, AreThoseOfProductsWithTheirActivationToo) {
  const Program program = program_of({"runtime.fuse_swiglu=on"});
  EXPECT_EQ(rows_of(program, 1, "grouped_linear_swiglu"), (Rows{64, 128, 5, 64, 64, 64}));
  EXPECT_EQ(rows_of(program, 1.5, "grouped_linear_dgrad_swiglu_backward"),
            (Rows{96, 128, 5, 96, 96, 96, 96}));
}

TEST(RoutedRows, GrowWithTheLoadUpToTheRoom) {
  const Program program = program_of();
  EXPECT_EQ(rows_of(program, 1.5, "grouped_linear_dgrad"), (Rows{96, 128, 5, 96}));
  EXPECT_EQ(rows_of(program, 1.5, "dispatch_rows")[0], 96);
  EXPECT_EQ(rows_of(program, 3, "grouped_linear"), (Rows{128, 128, 5, 128}));
  EXPECT_EQ(rows_of(program, 3, "dispatch_rows")[0], 128);
  const Program tight = program_of({"moe.capacity=1.25"});
  EXPECT_EQ(rows_of(tight, 1, "grouped_linear"), (Rows{64, 128, 5, 64}));
  EXPECT_EQ(rows_of(tight, 3, "grouped_linear"), (Rows{80, 128, 5, 80}));
}

// What goes into the exchange are the rank's own rows, whatever comes; blocks are sent whole.
TEST(RoutedRows, OfBlocksAreTheOwnOnesAndThoseThatCome) {
  const Program program = program_of({"moe.exchange=blocks", "moe.capacity=1.5"});
  const auto rows_of_blocks = [&](double load, bool packs, bool held) {
    const RoutedRows rows(program, load);
    for (const OpSpec& spec : program.specs.all()) {
      if (is_of_row_blocks(spec) && RowBlocks(spec).packs == packs &&
          RowBlocks(spec).attributes.held == held) {
        EXPECT_NO_THROW(check_spec(rows.priced(spec)));
        return rows.priced(spec).operands[RowBlocks(spec).rows].shape[0];
      }
    }
    return int64_t{0};
  };
  for (const bool packs : {true, false}) {
    EXPECT_EQ(rows_of_blocks(1.25, packs, false), 64);
    EXPECT_EQ(rows_of_blocks(1, packs, true), 64);
    EXPECT_EQ(rows_of_blocks(1.25, packs, true), 80);
    EXPECT_EQ(rows_of_blocks(3, packs, true), 96) << "the room";
  }
  EXPECT_EQ(rows_of(program, 1.25, "grouped_linear"), (Rows{80, 128, 5, 80}));
  // 48 rows of 32 floats with a weight for each of 2 ranks
  EXPECT_EQ(rows_of(program, 1.25, "all_to_all"), (Rows{2 * 48 * 33 * 4, 2 * 48 * 33 * 4}));
}

// 4 ranks on 2 hosts: of the rows of tokens that came there is room for 80, also at the experts.
TEST(RoutedRows, BehindCopiesForHostsAreThoseOfEqualLoads) {
  const Program program =
      program_of({"parallel.ranks=4", "parallel.expert=4", "train.global_batch=8",
                  "moe.exchange=hosts", "moe.exchange_hosts=2", "moe.capacity=1.25"});
  EXPECT_EQ(rows_of(program, 1, "dispatch_rows"), (Rows{64, 64, 10, 64, 64, 3}));
  EXPECT_EQ(rows_of(program, 1, "grouped_linear"), (Rows{64, 64, 3, 64}));
  EXPECT_EQ(rows_of(program, 1.1, "grouped_linear")[0], 70);
  EXPECT_EQ(rows_of(program, 3, "grouped_linear")[0], 80) << "the room";
  EXPECT_EQ(rows_of(program, 3, "all_to_all"), (Rows{64, 64})) << "two blocks, sent whole";
}

// Copies by columns are as wide as so many rows, and an expert alone has as many as all.
TEST(RoutedRows, AreThoseOfFp8CopiesToo) {
  for (const int64_t experts : {8, 2}) {
    const int64_t local = experts / 2;
    const bool is_alone = local == 1;  // then of twice as many tokens, with one row each
    const Program program =
        program_of({"train.fp8=block", "train.fp8_experts=true", "model.width=128",
                    "model.expert_ffn=128", fmt::format("model.experts={}", experts),
                    fmt::format("model.experts_per_token={}", is_alone ? 1 : 2),
                    fmt::format("train.microbatch={}", is_alone ? 4 : 2),
                    fmt::format("train.global_batch={}", is_alone ? 8 : 4)});
    const int64_t weights = local * 256;
    EXPECT_EQ(rows_of(program, 1, "quantize_grouped"), (Rows{64, local + 1, 64, 1, 128, local}));
    EXPECT_EQ(rows_of(program, 1, "scaled_grouped_linear"),
              (Rows{64, 1, weights, weights / 128, local + 1, 64}));
    EXPECT_EQ(rows_of(program, 1.5, "scaled_grouped_linear_dgrad")[0], 96);
    EXPECT_EQ(rows_of(program, 3, "quantize_grouped"),
              (Rows{128, local + 1, 128, 1, 128, local + 1}));
    EXPECT_EQ(rows_of(program, 1, "scaled_grouped_linear_wgrad"),
              (Rows{128, local, 128, local, local + 1, local * 128}));  // of fc2
    EXPECT_EQ(rows_of(program, 3, "scaled_grouped_linear_wgrad")[1], local + 1);
  }
}

TEST(RoutedRows, AreThoseOfRowsThatTravelAsFp8Too) {
  const Program program =
      program_of({"train.fp8=block", "train.fp8_experts=true", "train.fp8_dispatch=true",
                  "model.width=128", "model.expert_ffn=128"});
  EXPECT_EQ(rows_of(program, 1, "quantize_gathered"), (Rows{32, 64, 32, 64, 64}));
  EXPECT_EQ(rows_of(program, 3, "quantize_gathered"), (Rows{32, 64, 32, 64, 64}));
  EXPECT_EQ(rows_of(program, 1, "dispatch_rows"), (Rows{64, 64, 64, 18, 128, 128, 128, 5}));
  EXPECT_EQ(rows_of(program, 1.5, "dispatch_rows")[2], 96);
  EXPECT_EQ(rows_of(program, 1, "transpose_grouped"), (Rows{64, 64, 5, 1, 128, 4}));
  EXPECT_EQ(rows_of(program, 1.5, "transpose_grouped"), (Rows{96, 96, 5, 1, 128, 4}));
}

// An expert takes 8 * 1.25 rows of each rank. The room for 80 rows is that of the rank's own pairs
// with another capacity, which move as they are.
TEST(RoutedRows, AreAtMostThoseThatExpertsTake) {
  const Program program = program_of({"moe.expert_capacity=1.25"});
  EXPECT_EQ(rows_of(program, 1, "grouped_linear"), (Rows{64, 128, 5, 64}));
  EXPECT_EQ(rows_of(program, 3, "grouped_linear"), (Rows{80, 128, 5, 80}));
  const Program same = program_of({"moe.expert_capacity=1"});
  EXPECT_EQ(rows_of(same, 0.5, "grouped_linear"), (Rows{32, 128, 5, 32}));
  EXPECT_EQ(rows_of(same, 0.5, "gather_rows"), (Rows{32, 64, 32, 9, 64}));
  EXPECT_EQ(rows_of(same, 0.5, "sum_rows"), (Rows{64, 32, 64, 9, 32}));
}

TEST(RoutedRows, OfRanksWithAllExpertsAreAllRows) {
  const Program program = program_of({"parallel.expert=1"});
  const RoutedRows rows(program, 2);
  for (const OpSpec& spec : program.specs.all()) {
    EXPECT_EQ(rows.priced(spec), spec);
  }
}

TEST(RoutedRows, APredictionGrowsOnlyWithTheTasksOfExperts) {
  const FixedCosts model(small_cluster(2, 2));
  const Program split = program_of();
  const SerialPrediction equal = predict_serial(split, model);
  const SerialPrediction skewed = predict_serial(split, model, 1.5);
  EXPECT_GT(skewed.compute_ns(), equal.compute_ns());
  EXPECT_GT(skewed.communication_ns(), equal.communication_ns());
  // Per microbatch: 2 products of x [64,32] and [64,16], the wgrads and dgrads, SwiGLU and back.
  const int64_t elems = 32 + 16 + 32 + 32 + 32 + 16 + 32 + 32;
  EXPECT_EQ(skewed.compute_ns() - equal.compute_ns(), 32 * elems);
  const Program whole = program_of({"parallel.expert=1"});
  EXPECT_EQ(predict_serial(whole, model, 1.5).step_ns(), predict_serial(whole, model).step_ns());
}

}  // namespace
}  // namespace braid
