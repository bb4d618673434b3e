#include "sim/scaled_product.h"

#include <gtest/gtest.h>

#include "ops/quantize.h"
#include "ops/quantize_grouped.h"
#include "ops/scaled_grouped_linear.h"
#include "ops/scaled_linear.h"
#include "sim/analytic_model.h"
#include "sim/cluster.h"
#include "sim/sim_specs.h"

namespace braid {
namespace {

void append_factor(OpSpec& spec, const Shape& shape, const ScaleLayout& scales) {
  spec.operands.push_back(read(DType::kF8E4M3, shape));
  spec.operands.push_back(read(scales.dtype(), scales.shape(shape)));
}

/// x [n, k] times a weight [m, k].
OpSpec forward_spec(int64_t n, int64_t m, int64_t k, int64_t block) {
  OpSpec spec{"scaled_linear", to_attributes(ScaledLinearAttributes{.block = block}), {}};
  append_factor(spec, {n, k}, {.block = block});
  append_factor(spec, {m, k}, {.block = block, .square = block == 128});
  spec.operands.push_back(write(DType::kBF16, {n, m}));
  return spec;
}

/// dy [n, m] times a weight [m, k].
OpSpec dgrad_spec(int64_t n, int64_t m, int64_t k, int64_t block) {
  OpSpec spec{
      "scaled_linear_dgrad", to_attributes(ScaledLinearDgradAttributes{.block = block}), {}};
  append_factor(spec, {n, m}, {.block = block});
  append_factor(spec, {k, m}, {.block = block, .square = block == 128});
  spec.operands.push_back(write(DType::kBF16, {n, k}));
  return spec;
}

/// The gradient [m, k] of a weight.
OpSpec wgrad_spec(int64_t n, int64_t m, int64_t k, int64_t block) {
  OpSpec spec{
      "scaled_linear_wgrad", to_attributes(ScaledLinearWgradAttributes{.block = block}), {}};
  append_factor(spec, {k, n}, {.block = block});
  append_factor(spec, {m, n}, {.block = block});
  spec.operands.push_back(read_write(DType::kF32, {m, k}));
  return spec;
}

/// `rows` rows of all experts together times weights [m, k] of each.
OpSpec grouped_spec(int64_t rows, int64_t m, int64_t k, int64_t experts) {
  OpSpec spec{"scaled_grouped_linear", to_attributes(ScaledGroupedLinearAttributes{}), {}};
  append_factor(spec, {rows, k}, {.block = 128});
  append_factor(spec, {experts * m, k}, {.block = 128, .square = true});
  spec.operands.push_back(read(DType::kI32, {experts + 1}));
  spec.operands.push_back(write(DType::kBF16, {rows, m}));
  return spec;
}

/// The gradients [m, k] of their weights.
OpSpec grouped_wgrad_spec(int64_t rows, int64_t m, int64_t k, int64_t experts) {
  OpSpec spec{
      "scaled_grouped_linear_wgrad", to_attributes(ScaledGroupedWgradAttributes{.rows = rows}), {}};
  const int64_t width = GroupedColumns::width(rows, experts);
  append_factor(spec, {k, width}, {.block = 128});
  append_factor(spec, {m, width}, {.block = 128});
  spec.operands.push_back(read(DType::kI32, {experts + 1}));
  spec.operands.push_back(read_write(DType::kF32, {experts * m, k}));
  return spec;
}

double ns_of(const char* cluster, const OpSpec& spec) {
  return static_cast<double>(make_analytic_model(parse_cluster(cluster))->task_ns(spec));
}

TEST(SwizzledScales, ArePaddedToTilesOf128By4) {
  EXPECT_EQ(swizzled_scale_bytes({1, 32}), 512);
  EXPECT_EQ(swizzled_scale_bytes({128, 128}), 512);
  EXPECT_EQ(swizzled_scale_bytes({129, 128}), 1024);
  EXPECT_EQ(swizzled_scale_bytes({128, 129}), 1024);
  EXPECT_EQ(swizzled_scale_bytes({8192, 4096}), 8192 * 4096 / 32);
}

TEST(ScaledProduct, IsNamedAfterWhatTheDeviceMultiplies) {
  const auto name = [](const char* device, FactorScales scales) {
    return scaled_product_name(*find_device(device), scales);
  };
  EXPECT_EQ(name("b200", FactorScales::kRunsOf32), "MXFP8");
  EXPECT_EQ(name("b200", FactorScales::kSquares), "MXFP8 (four E8M0 bytes for each f32 scale)");
  EXPECT_EQ(name("b200", FactorScales::kRuns), "MXFP8 (four E8M0 bytes for each f32 scale)");
  EXPECT_EQ(name("b200", FactorScales::kOne), "FP8 with one scale per factor");
  EXPECT_EQ(name("h200", FactorScales::kOne), "FP8 with one scale per factor");
  EXPECT_EQ(name("h200", FactorScales::kRuns), "FP8 with scales of blocks");
  EXPECT_EQ(name("h200", FactorScales::kRunsOf32), "bf16, after conversion of both factors");
  EXPECT_EQ(name("a100", FactorScales::kOne), "bf16, after conversion of both factors");
}

TEST(ScaledProduct, ScalesOfFactorsAreThoseOfTheOp) {
  EXPECT_EQ(scales_of_factors(forward_spec(128, 128, 128, 0)), FactorScales::kOne);
  EXPECT_EQ(scales_of_factors(forward_spec(128, 128, 128, 128)), FactorScales::kSquares);
  EXPECT_EQ(scales_of_factors(dgrad_spec(128, 128, 128, 128)), FactorScales::kSquares);
  EXPECT_EQ(scales_of_factors(wgrad_spec(128, 128, 128, 128)), FactorScales::kRuns);
  EXPECT_EQ(scales_of_factors(wgrad_spec(128, 128, 128, 32)), FactorScales::kRunsOf32);
  EXPECT_EQ(scales_of_factors(linear_spec(128, 128, 128)), FactorScales::kNone);
  EXPECT_EQ(scales_of_factors(add_spec(128)), FactorScales::kNone);
}

// The rate of dense products of such factors, times what groups reach of that of dense ones.
TEST(ScaledProduct, OfExpertsGainsWhatDenseProductsGain) {
  constexpr int64_t kRows = 64 * 2048;
  for (const char* const cluster : {"h100", "h200", "b200"}) {
    const double dense = ns_of(cluster, linear_spec(kRows, 2816, 2048)) /
                         ns_of(cluster, forward_spec(kRows, 2816, 2048, 128));
    const double grouped = ns_of(cluster, grouped_linear_spec(kRows, 2816, 2048, 64)) /
                           ns_of(cluster, grouped_spec(kRows, 2816, 2048, 64));
    EXPECT_GT(grouped, 1.15) << cluster;
    EXPECT_NEAR(grouped / dense, 1.0, 0.12) << cluster;
    EXPECT_GT(ns_of(cluster, grouped_wgrad_spec(kRows, 2816, 2048, 64)),
              ns_of(cluster, wgrad_spec(kRows, 2816, 2048, 128)));
    EXPECT_LT(ns_of(cluster, grouped_wgrad_spec(kRows, 2816, 2048, 64)),
              ns_of(cluster, grouped_linear_wgrad_spec(kRows, 2816, 2048, 64)));
  }
  EXPECT_GT(ns_of("a100", grouped_spec(kRows, 2816, 2048, 64)),
            ns_of("a100", grouped_linear_spec(kRows, 2816, 2048, 64)));
  EXPECT_EQ(scales_of_factors(grouped_spec(kRows, 2816, 2048, 64)), FactorScales::kSquares);
  EXPECT_EQ(scales_of_factors(grouped_wgrad_spec(kRows, 2816, 2048, 64)), FactorScales::kRuns);
}

// 4,500 against 2,250 TFLOP/s.
TEST(ScaledProduct, OfLongSumsTakesHalfOfBf16OnBlackwell) {
  const double bf16 = ns_of("b200", linear_spec(16384, 16384, 16384));
  for (const int64_t block : {0, 32, 128}) {
    EXPECT_NEAR(bf16 / ns_of("b200", forward_spec(16384, 16384, 16384, block)), 2.0, 0.05) << block;
  }
}

// Blocks of 128 are MXFP8 there: the same elements and the same bytes of scales.
TEST(ScaledProduct, OfBlocksIsThatOfMxfp8OnBlackwell) {
  for (const auto& [n, m, k] : {std::tuple{8192, 4096, 14336}, std::tuple{16, 65536, 16384}}) {
    EXPECT_EQ(ns_of("b200", forward_spec(n, m, k, 128)), ns_of("b200", forward_spec(n, m, k, 32)));
    EXPECT_EQ(ns_of("b200", wgrad_spec(k, m, n, 128)), ns_of("b200", wgrad_spec(k, m, n, 32)));
  }
}

// One byte per element and a 32nd of it for scales; x is padded to 128 rows of scales.
TEST(ScaledProduct, OfFewRowsTakesTheTimeOfItsBytes) {
  const double weight = 65536.0 * 16384;
  const double x = 16.0 * 16384;
  const double y = 2.0 * 16 * 65536;
  const double launch = 1'600;
  const double bytes_per_ns = 7.7e12 * 0.875 * 1e-9;
  EXPECT_NEAR(ns_of("b200", forward_spec(16, 65536, 16384, 0)),
              launch + (weight + x + y) / bytes_per_ns, 2);
  EXPECT_NEAR(ns_of("b200", forward_spec(16, 65536, 16384, 32)),
              launch + (weight * 33 / 32 + x + 128 * 16384 / 32 + y) / bytes_per_ns, 2);
}

TEST(ScaledProduct, OfMxfp8IsConvertedToBf16OnHopper) {
  const double elems = 8192.0 * 4096 + 6144.0 * 4096;
  const double conversion = elems * (1 + 1.0 / 32 + 2) / (4.8e12 * 0.875 * 1e-9) + 2 * 1'600;
  EXPECT_NEAR(ns_of("h200", forward_spec(8192, 6144, 4096, 32)),
              ns_of("h200", linear_spec(8192, 6144, 4096)) + conversion, 2);
}

/// The products of a layer of llama-8b with 8,192 tokens, in ms.
double layer_ms(const char* cluster, int64_t block) {
  double ns = 0;
  for (const auto& [m, k] : {std::pair{6144, 4096}, std::pair{4096, 4096}, std::pair{28672, 4096},
                             std::pair{4096, 14336}}) {
    for (const OpSpec& spec : {forward_spec(8192, m, k, block), dgrad_spec(8192, m, k, block),
                               wgrad_spec(8192, m, k, block)}) {
      ns += ns_of(cluster, spec);
    }
  }
  return ns * 1e-6;
}

// Measured: bench/notes.md, "FP8 copies and products".
TEST(ScaledProduct, IsWithin5PercentOfH200) {
  EXPECT_NEAR(layer_ms("h200", 0) / 8.94, 1.0, 0.05);
  EXPECT_NEAR(layer_ms("h200", 128) / 11.03, 1.0, 0.05);
}

// Peaks 4,500 and 1,979 TFLOP/s, of which they reach 0.70, and 0.715 times 0.90, forward times 1.1
// of that; 0.82 and 0.63 with blocks.
TEST(ScaledProduct, IsFasterOnBlackwellInTheRatioOfTheRates) {
  const double peaks = 4500 * 0.70 / (1979 * 0.715);
  const double one = peaks * (2 / 0.90 + 1 / (0.90 * 1.1)) / 3;
  EXPECT_NEAR(layer_ms("h200", 0) / layer_ms("b200", 0) / one, 1.0, 0.05);
  const double blocks = peaks * (2 / 0.82 + 1 / 0.63) / 3;
  EXPECT_NEAR(layer_ms("h200", 128) / layer_ms("b200", 128) / blocks, 1.0, 0.05);
}

}  // namespace
}  // namespace braid
