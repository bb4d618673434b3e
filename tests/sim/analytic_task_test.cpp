#include <cmath>
#include <tuple>

#include "ops/attention.h"
#include "ops/attributes.h"
#include "ops/expert_rows.h"
#include "ops/linear_swiglu.h"
#include "ops/mamba2.h"
#include "sim/analytic_model.h"
#include "sim/op_family.h"
#include "sim/sim_specs.h"

namespace braid {
namespace {

/// Rate in TFLOP/s that the model expects.
double rate(const CostModel& model, const OpSpec& spec) {
  return spec_cost(spec).flops / static_cast<double>(model.task_ns(spec)) * 1e-3;
}

std::unique_ptr<CostModel> model_of(const char* cluster) {
  return make_analytic_model(parse_cluster(cluster));
}

struct MeasuredRate {
  OpSpec spec;
  double tflops_per_s;
};

// PyTorch and cuBLAS on an H200, random data, short runs; the device sustains 0.89 to 1.07 of
// them. 15%: what lies between bursts and steady load, and the library's luck with a shape.
TEST(AnalyticGemm, IsWithin15PercentOfH200) {
  const auto model = model_of("h200");
  const std::vector<MeasuredRate> measured = {{linear_spec(8192, 8192, 8192), 796},
                                              {linear_spec(8192, 12288, 4096), 778},
                                              {linear_spec(8192, 4096, 14336), 774},
                                              {linear_spec(8192, 28672, 4096), 686},
                                              {linear_spec(4096, 4096, 4096), 627},
                                              {linear_spec(8192, 2560, 4096), 640},
                                              {linear_wgrad_spec(8192, 4096, 4096), 783},
                                              {linear_wgrad_spec(8192, 14336, 4096), 691},
                                              {linear_wgrad_spec(8192, 6144, 4096), 663},
                                              {linear_wgrad_spec(8192, 28672, 4096), 687},
                                              // Steady load (bench/notes.md).
                                              {linear_spec(16384, 3072, 2048), 696},
                                              {linear_spec(4096, 128256, 2048), 714},
                                              {linear_dgrad_spec(8192, 28672, 4096), 683},
                                              {linear_wgrad_spec(16384, 16384, 2048), 675}};
  for (const MeasuredRate& point : measured) {
    EXPECT_NEAR(rate(*model, point.spec) / point.tflops_per_s, 1.0, 0.15)
        << point.spec.op << " " << to_string(point.spec.operands[0].shape);
  }
}

struct AttentionCase {
  AttentionSizes sizes;
  double forward;
  double backward;  ///< bitwise repeatable
};

void expect_rates(const CostModel& model, const std::vector<AttentionCase>& cases, double part) {
  for (const AttentionCase& point : cases) {
    EXPECT_NEAR(rate(model, attention_spec(point.sizes)) / point.forward, 1.0, part)
        << point.sizes.sequences << " x " << point.sizes.sequence << " " << point.sizes.head_size;
    EXPECT_NEAR(rate(model, attention_spec(point.sizes, true)) / point.backward, 1.0, part)
        << point.sizes.sequences << " x " << point.sizes.sequence << " " << point.sizes.head_size;
  }
}

// By the kernels that steps take on an H200: those of flash-attn-4 and, for short sequences,
// cuDNN's (bench/gpu/h200.md; forward of 2048 and backward of 2048 and 4096 tokens:
// bench/notes.md).
TEST(AnalyticAttention, IsWithin12PercentOfH200) {
  const auto model = model_of("h200");
  expect_rates(*model,
               {{{1, 8192, 32, 8, 128}, 605, 493},
                {{2, 8192, 32, 8, 64}, 492, 470},
                {{4, 8192, 32, 8, 64}, 454, 473},
                {{64, 1024, 12, 12, 64}, 323, 302},
                {{16, 1024, 28, 4, 128}, 423, 312},
                {{4, 2048, 32, 8, 128}, 486, 364}},
               0.12);
  EXPECT_NEAR(rate(*model, attention_spec({2, 4096, 32, 8, 64}, true)) / 383, 1.0, 0.12);
  EXPECT_NEAR(rate(*model, attention_spec({2, 4096, 32, 8, 128}, true)) / 433, 1.0, 0.12);
}

// Kernels of braid's own on an H200 (bench/notes.md, "Attention inside documents").
TEST(AnalyticAttention, OfDocumentsIsWithin20PercentOfH200) {
  const auto model = model_of("h200");
  const auto expect_rate = [&](OpSpec spec, int64_t document_length, double measured) {
    auto attributes = attributes_of<AttentionAttributes>(spec);
    attributes.documents = {.documents = true, .document_length = document_length};
    spec.attributes = to_attributes(attributes);
    spec.operands.insert(spec.operands.end() - (spec.op == "attention" ? 2 : 1),
                         read(DType::kI32, {spec.operands[0].shape[0]}));
    EXPECT_NEAR(rate(*model, spec) / measured, 1.0, 0.2) << spec.op << " " << document_length;
  };
  for (const auto& [length, forward, backward] :
       {std::tuple{256, 123, 86}, {1024, 185, 128}, {8192, 222, 151}}) {
    expect_rate(attention_spec({1, 8192, 32, 8, 128}), length, forward);
    expect_rate(attention_spec({1, 8192, 32, 8, 128}, true), length, backward);
  }
  for (const auto& [length, forward, backward] :
       {std::tuple{256, 108, 80}, {1024, 160, 122}, {8192, 195, 143}}) {
    expect_rate(attention_spec({2, 8192, 32, 8, 64}), length, forward);
    expect_rate(attention_spec({2, 8192, 32, 8, 64}, true), length, backward);
  }
}

// A window is priced as documents whose queries see as many keys, by the kernels that compute both:
// 1,024 keys as documents of twice as many tokens, less the first queries' part.
TEST(AnalyticAttention, OfWindowsTakesTheTimeOfDocumentsWithAsManyPairs) {
  const auto model = model_of("h200");
  for (const bool backward : {false, true}) {
    const OpSpec whole = attention_spec({1, 16384, 32, 8, 128}, backward);
    const auto with = [&](const auto& change) {
      OpSpec spec = whole;
      auto attributes = attributes_of<AttentionAttributes>(spec);
      change(attributes);
      spec.attributes = to_attributes(attributes);
      return spec;
    };
    const OpSpec window = with([](AttentionAttributes& a) { a.window.window = 1024; });
    OpSpec documents = with(
        [](AttentionAttributes& a) { a.documents = {.documents = true, .document_length = 2048}; });
    documents.operands.insert(documents.operands.end() - (backward ? 1 : 2),
                              read(DType::kI32, {documents.operands[0].shape[0]}));
    const auto ns = [&](const OpSpec& spec) { return static_cast<double>(model->task_ns(spec)); };
    EXPECT_NEAR(ns(window) / ns(documents), 1.0, 0.05);
    EXPECT_LT(ns(window), 0.6 * ns(whole));
  }
}

// cuDNN's, on a device that has no others: those of an H200 (bench/notes.md), as parts of the peak.
TEST(AnalyticAttention, IsWithin8PercentOfCudnn) {
  Cluster cluster = parse_cluster("h200");
  cluster.device.attention = parse_cluster("b200").device.attention;
  cluster.device.attention_backward = parse_cluster("b200").device.attention_backward;
  const auto model = make_analytic_model(cluster);
  expect_rates(*model,
               {{{4, 2048, 32, 8, 128}, 486, 364},
                {{2, 4096, 32, 8, 128}, 527, 398},
                {{1, 8192, 32, 8, 128}, 558, 433},
                {{2, 4096, 32, 8, 64}, 402, 288},
                {{2, 8192, 32, 8, 64}, 435, 304},
                {{16, 1024, 12, 12, 64}, 306, 211},
                {{16, 1024, 28, 4, 128}, 430, 313}},
               0.08);
  // Padded to 128.
  expect_rates(*model, {{{2, 4096, 32, 8, 96}, 412, 311}}, 0.08);
}

// 218 M bf16 numbers added: 1.31 GB at the bandwidth of a copy, 4.19 TB/s of 4.80.
TEST(AnalyticMemoryBound, IsBytesOverTheBandwidthOfACopy) {
  const auto model = model_of("h200");
  const OpSpec add = add_spec(218'000'000);
  EXPECT_NEAR(static_cast<double>(model->task_ns(add)), 218e6 * 6 / 4.19e3,
              0.01 * 218e6 * 6 / 4.19e3);
  EXPECT_EQ(model->task_ns(add_spec(1)), model->launch_ns());
}

// The same bytes take longer where kernels are slower than copies, or have a least time; on a CPU
// nothing is known.
TEST(AnalyticMemoryBound, HasTheRateOfItsKernel) {
  const DeviceSpec& h200 = *find_device("h200");
  DeviceSpec host = h200;
  host.is_host = true;
  const OpSpec norm{"rmsnorm",
                    to_attributes(NormAttributes{}),
                    {read(DType::kBF16, {16384, 4096}), read(DType::kBF16, {4096}),
                     write(DType::kBF16, {16384, 4096}), write(DType::kF32, {16384})}};
  const auto launch = static_cast<double>(h200.launch_ns);
  const double copy_ns = 1e9 * (spec_cost(norm).bytes_read + spec_cost(norm).bytes_written) /
                         (h200.memory_bytes_per_s * h200.memory_fraction);
  EXPECT_LT(kRmsnormOp.kernel_rate.part, 0.95);
  EXPECT_NEAR(analytic_task_ns(h200, norm), copy_ns / kRmsnormOp.kernel_rate.part + launch, 1);
  EXPECT_NEAR(analytic_task_ns(host, norm), copy_ns + launch, 1);
  const OpSpec sort{"sort_rows",
                    to_attributes(SortRowsAttributes{}),
                    {read(DType::kI32, {8, 2}), write(DType::kI32, {8, 2}),
                     write(DType::kI32, {16}), write(DType::kI32, {5}), write(DType::kF32, {4})}};
  EXPECT_NEAR(analytic_task_ns(h200, sort),
              static_cast<double>(kSortRowsOp.kernel_rate.least_ns) + launch, 1);
}

/// A Mamba-2 layer with 8,192 rows, heads of 64 and states of 128.
struct StatesLayer {
  int64_t sequence;
  int64_t heads;
  int64_t groups;
  int64_t chunk;

  Mamba2Attributes attributes() const {
    return {.sequence = sequence,
            .heads = heads,
            .head_size = 64,
            .groups = groups,
            .state = 128,
            .chunk = chunk,
            .norm_groups = groups};
  }
  OpSpec forward() const {
    return {"mamba2", to_attributes(attributes()),
            with_inputs({write(DType::kBF16, inner()), write(DType::kF32, {kRows, groups}),
                         write(DType::kBF16, inner())})};
  }
  OpSpec backward() const {
    const Mamba2Attributes a = attributes();
    const auto add = [](const Shape& shape) { return read_write(DType::kF32, shape); };
    return {"mamba2_backward", to_attributes(Mamba2BackwardAttributes{.core = a}),
            with_inputs({read(DType::kBF16, inner()), read(DType::kF32, {kRows, groups}),
                         read(DType::kBF16, inner()), write(DType::kBF16, {kRows, a.row_elems()}),
                         add({a.convolved(), 4}), add({a.convolved()}), add({heads}), add({heads}),
                         add({heads}), add({a.inner()})})};
  }

 private:
  static constexpr int64_t kRows = 8192;

  Shape inner() const { return {kRows, attributes().inner()}; }
  std::vector<OperandSpec> with_inputs(std::initializer_list<OperandSpec> others) const {
    const Mamba2Attributes a = attributes();
    std::vector<OperandSpec> operands;
    for (const Shape& shape :
         {Shape{kRows, a.row_elems()}, Shape{a.convolved(), 4}, Shape{a.convolved()}, Shape{heads},
          Shape{heads}, Shape{heads}, Shape{a.inner()}}) {
      operands.push_back(read(DType::kBF16, shape));
    }
    operands.insert(operands.end(), others);
    return operands;
  }
};

constexpr StatesLayer kNemotronH8b{.sequence = 8192, .heads = 128, .groups = 8, .chunk = 128};

// Sums over chunks at a small part of the rate of large products, no faster than rows cross memory.
TEST(AnalyticMemoryBound, StatesHaveTensorCores) {
  const auto model = model_of("h200");
  const OpSpec spec = kNemotronH8b.forward();
  EXPECT_GT(rate(*model, spec), 61.0);  // TFLOP/s, what the device has without them
  EXPECT_LT(rate(*model, spec), 989.0 / 5);
  const OpCost cost = spec_cost(spec);
  EXPECT_GE(static_cast<double>(model->task_ns(spec)),
            (cost.bytes_read + cost.bytes_written) / 4.2e12 * 1e9);
}

// Microseconds of forward and backward on an H200 (bench/notes.md, "States of Mamba-2", version
// 10). 20%: chunks of the kernels have 64 rows, and flops are those of the chunks that a model
// names.
TEST(AnalyticMemoryBound, StatesAreWithin20PercentOfH200) {
  struct Measured {
    const char* model;
    StatesLayer layer;
    double us;
  };
  const auto model = model_of("h200");
  for (const Measured& it : {Measured{"nemotron-h-8b", kNemotronH8b, 431 + 1340},
                             Measured{"nemotron-h-4b", {8192, 112, 8, 128}, 420 + 1233},
                             Measured{"mamba2-2.7b", {4096, 80, 1, 256}, 333 + 1010}}) {
    const int64_t ns = model->task_ns(it.layer.forward()) + model->task_ns(it.layer.backward());
    EXPECT_NEAR(static_cast<double>(ns) * 1e-3 / it.us, 1.0, 0.2) << it.model;
  }
}

// Hopper's kernels of states reach a larger part of its products' rate than those of other GPUs.
TEST(AnalyticMemoryBound, StatesOfOtherGpusHaveOtherKernels) {
  const auto part = [](const char* name) {
    const DeviceSpec& device = *find_device(name);
    const OpSpec spec = kNemotronH8b.backward();
    return spec_cost(spec).flops /
           static_cast<double>(analytic_task_ns(device, spec) - device.launch_ns) * 1e9 /
           (device.bf16_flops_per_s * device.gemm_fraction);
  };
  EXPECT_NEAR(part("h200"), 0.24, 0.001);
  EXPECT_NEAR(part("h100"), 0.24, 0.001);
  EXPECT_NEAR(part("a100"), 0.2, 0.001);
}

// One tile more than the device has SMs costs a second wave, of which the power limit takes back a
// part.
TEST(AnalyticGemm, HasWaves) {
  const auto model = model_of("h200");
  const int64_t full = model->task_ns(linear_spec(132 * 128, 256, 8192));
  const int64_t more = model->task_ns(linear_spec(132 * 128 + 1, 256, 8192));
  EXPECT_GT(static_cast<double>(more), 1.05 * static_cast<double>(full));
  const int64_t less = model->task_ns(linear_spec(132 * 128 - 1, 256, 8192));
  EXPECT_NEAR(static_cast<double>(less), static_cast<double>(full),
              0.001 * static_cast<double>(full));
}

// Few tiles leave SMs idle, which splitting the depth helps.
TEST(AnalyticGemm, SplitsTheDepthWhereTilesAreFew) {
  const auto model = model_of("h200");
  const OpSpec deep = linear_spec(256, 256, 131072);
  const double one_sm_each = 4.0 / 132 * 989 * 0.715;  // TFLOP/s of four 128 x 128 tiles
  EXPECT_GT(rate(*model, deep), 4 * one_sm_each);
}

TEST(AnalyticGemm, GrowsWithEachSize) {
  const auto model = model_of("b200");
  const auto along = [&](auto&& spec_of) {
    int64_t last = 0;
    for (int64_t size = 64; size <= 16384; size += 192) {
      const int64_t now = model->task_ns(spec_of(size));
      EXPECT_GE(now, last) << size;
      last = now;
    }
  };
  along([](int64_t size) { return linear_spec(size, 4096, 2048); });
  along([](int64_t size) { return linear_spec(4096, size, 2048); });
  along([](int64_t size) { return linear_spec(4096, 2048, size); });
  along([](int64_t size) { return attention_spec({.sequence = size}); });
}

// Eight pieces cost more than the whole: what passes that split products have to know. Measured on
// an H200 with the library's first suggestion: 155 to 194, 613 to 738 us.
TEST(AnalyticGemm, PiecesCostMoreThanTheWhole) {
  const auto model = model_of("h200");
  for (const auto& [m, k] : {std::pair<int64_t, int64_t>{1536, 4096}, {3584, 4096}}) {
    const auto whole = static_cast<double>(model->task_ns(linear_spec(16384, m, k)));
    const auto pieces = 8.0 * static_cast<double>(model->task_ns(linear_spec(2048, m, k)));
    EXPECT_GT(pieces, whole) << m;
    EXPECT_LT(pieces, 2.0 * whole) << m;
  }
}

TEST(SlowdownByLeftSms, IsAtMostInProportion) {
  const DeviceSpec& h100 = *find_device("h100");
  const OpSpec mixtral = grouped_linear_spec(32768, 28672, 4096, 2);
  EXPECT_TRUE(stays_on_its_sms(h100, mixtral));
  EXPECT_GT(slowdown_by_left_sms(h100, mixtral, 16), 1.03);  // the power limit bounds it on all SMs
  EXPECT_LT(slowdown_by_left_sms(h100, mixtral, 16), 132.0 / 116);
  EXPECT_GT(slowdown_by_left_sms(h100, mixtral, 66), 1.8);
  EXPECT_EQ(slowdown_by_left_sms(h100, mixtral, 0), 1.0);
  EXPECT_TRUE(stays_on_its_sms(h100, linear_swiglu_spec(8192, 4096, 2048)));
  EXPECT_FALSE(stays_on_its_sms(h100, linear_spec(8192, 4096, 2048)));
  EXPECT_FALSE(stays_on_its_sms(*find_device("a100"), mixtral));
}

/// The time of a dense product with the same rows, over that of the grouped one.
double grouped_rate(const OpSpec& grouped, const OpSpec& dense) {
  const DeviceSpec& h200 = *find_device("h200");
  return analytic_task_ns(h200, dense) / analytic_task_ns(h200, grouped);
}

/// That the model's rates on an H200 are within `limit` of the measured ones.
void expect_rates_of_h200(const std::vector<MeasuredRate>& measured, double limit) {
  const auto model = model_of("h200");
  for (const MeasuredRate& point : measured) {
    EXPECT_NEAR(rate(*model, point.spec) / point.tflops_per_s, 1.0, limit)
        << point.spec.op << " " << to_string(point.spec.operands[0].shape);
  }
}

// Steady products of groups on an H200 (bench/notes.md, "FP8 experts"): those of Qwen3-30B-A3B, 128
// experts with 1,024 rows each, and of Mixtral 8x7B, 8 with 4,096.
TEST(AnalyticGemm, OfGroupsIsWithin12PercentOfH200) {
  const std::vector<MeasuredRate> measured = {
      {grouped_linear_spec(131072, 1536, 2048, 128), 653},
      {grouped_linear_spec(131072, 2048, 1536, 128), 634},
      {grouped_linear_spec(32768, 28672, 4096, 8), 643},
      {grouped_linear_spec(32768, 4096, 28672, 8), 677},
      {grouped_linear_wgrad_spec(32768, 28672, 4096, 8), 639}};
  expect_rates_of_h200(measured, 0.12);
}

// The same of FP8 factors with scales of blocks (docs/experts.md, "FP8 experts"), where a forward
// of k and m also stands for the other matrix's gradient of x.
TEST(AnalyticGemm, OfFp8GroupsIsWithin9PercentOfH200) {
  const std::vector<MeasuredRate> measured = {
      {scaled_grouped_linear_spec(131072, 1536, 2048, 128), 916},
      {scaled_grouped_linear_spec(131072, 2048, 1536, 128), 879},
      {scaled_grouped_linear_spec(131072, 2048, 768, 128), 744},
      {scaled_grouped_linear_spec(131072, 768, 2048, 128), 849},
      {scaled_grouped_linear_spec(32768, 28672, 4096, 8), 1051},
      {scaled_grouped_linear_spec(32768, 4096, 28672, 8), 997},
      {scaled_grouped_linear_spec(32768, 4096, 14336, 8), 1042},
      {scaled_grouped_linear_spec(32768, 14336, 4096, 8), 1054},
      {scaled_grouped_linear_wgrad_spec(131072, 1536, 2048, 128), 545},
      {scaled_grouped_linear_wgrad_spec(131072, 2048, 768, 128), 532},
      {scaled_grouped_linear_wgrad_spec(32768, 28672, 4096, 8), 713},
      {scaled_grouped_linear_wgrad_spec(32768, 4096, 14336, 8), 717}};
  expect_rates_of_h200(measured, 0.09);
}

TEST(AnalyticGemm, GroupsReachAShareOfTheDenseRate) {
  const auto rate = [](int64_t rows_per_expert) {
    const int64_t rows = 64 * rows_per_expert;
    return grouped_rate(grouped_linear_spec(rows, 2816, 2048, 64), linear_spec(rows, 2816, 2048));
  };
  EXPECT_GT(rate(512), 0.75);
  EXPECT_LT(rate(512), rate(1024));
  EXPECT_LT(rate(1024), rate(4096));
  EXPECT_LT(rate(4096), 1.0);
  const double of_wgrad = grouped_rate(grouped_linear_wgrad_spec(64 * 1024, 2816, 2048, 64),
                                       linear_wgrad_spec(64 * 1024, 2816, 2048));
  EXPECT_GT(of_wgrad, 0.6);
  EXPECT_LT(of_wgrad, 0.97);
}

// A rank with one expert takes the kernel for groups, which is slower than that for products.
TEST(AnalyticGemm, OneGroupIsNotADenseProduct) {
  const OpSpec one = grouped_linear_spec(16384, 28672, 4096, 1);
  EXPECT_TRUE(is_grouped_product(one));
  EXPECT_FALSE(is_grouped_product(linear_spec(16384, 28672, 4096)));
  EXPECT_FALSE(is_grouped_product(add_spec(64)));
  const double part = grouped_rate(one, linear_spec(16384, 28672, 4096));
  EXPECT_GT(part, 0.9);
  EXPECT_LT(part, 0.98);
}

// With few rows, reading the weights of all experts is the limit.
TEST(AnalyticGemm, GroupsWithFewRowsTakeTheTimeOfTheirWeights) {
  const OpSpec spec = grouped_linear_spec(128, 2816, 2048, 128);
  const DeviceSpec& h200 = *find_device("h200");
  const double weights_ns =
      2.0 * 128 * 2816 * 2048 / (h200.memory_bytes_per_s * h200.memory_fraction) * 1e9;
  EXPECT_GT(analytic_task_ns(h200, spec), weights_ns);
}

TEST(AnalyticModel, FasterDevicesAreFaster) {
  for (const OpSpec& spec :
       {linear_spec(8192, 8192, 8192), attention_spec({}), add_spec(100'000'000)}) {
    const int64_t a100 = model_of("a100")->task_ns(spec);
    const int64_t h100 = model_of("h100")->task_ns(spec);
    const int64_t h200 = model_of("h200")->task_ns(spec);
    const int64_t b200 = model_of("b200")->task_ns(spec);
    EXPECT_GT(a100, h100) << spec.op;
    EXPECT_GE(h100, h200) << spec.op;
    EXPECT_GT(h200, b200) << spec.op;
    EXPECT_GT(model_of("cpu")->task_ns(spec), a100) << spec.op;
  }
}

// Best products of other devices as published (docs/profiles.md): 271, 795, 1745 TFLOP/s; our
// figure is for steady load, so it lies below, by no more than 15%.
TEST(AnalyticGemm, IsBelowTheBestProductsOfOtherDevices) {
  const std::vector<std::pair<const char*, double>> best = {
      {"a100", 271.2}, {"h100", 794.5}, {"b200", 1745}};
  for (const auto& [device, tflops_per_s] : best) {
    const double expected = rate(*model_of(device), linear_spec(16384, 16384, 16384));
    EXPECT_LT(expected, tflops_per_s) << device;
    EXPECT_GT(expected, 0.85 * tflops_per_s) << device;
  }
}

// A little more than the product on Hopper, where kernels do both, and both elsewhere. Measured
// alone, against products of as many operations (bench/gpu/h200.md): 669, 675, 681 and 613, 572,
// 614. The prices of the backward are those of steps, in which it takes up to 8% less.
TEST(AnalyticGemm, WithSwigluIsCloseToH200) {
  const auto model = model_of("h200");
  const std::vector<MeasuredRate> forward = {{linear_swiglu_spec(8192, 14336, 4096), 669},
                                             {linear_swiglu_spec(16384, 8192, 2048), 675},
                                             {linear_swiglu_spec(16384, 18944, 3584), 681}};
  const std::vector<MeasuredRate> backward = {
      {linear_dgrad_swiglu_backward_spec(8192, 4096, 14336), 613},
      {linear_dgrad_swiglu_backward_spec(16384, 2048, 8192), 572},
      {linear_dgrad_swiglu_backward_spec(16384, 3584, 18944), 614}};
  for (const MeasuredRate& point : forward) {
    EXPECT_NEAR(rate(*model, point.spec) / point.tflops_per_s, 1.0, 0.04);
  }
  for (const MeasuredRate& point : backward) {
    EXPECT_NEAR(rate(*model, point.spec) / point.tflops_per_s, 1.04, 0.05);
  }
}

// Alone, with equal loads: OLMoE, Qwen3-30B-A3B and Mixtral 8x7B with 16,384 tokens
// (bench/notes.md, "Products of experts with SwiGLU in their epilogue"). Prices are those of steps,
// at lower clocks.
TEST(AnalyticGemm, OfExpertsWithSwigluIsCloseToH200) {
  const auto model = model_of("h200");
  const std::vector<MeasuredRate> measured = {
      {grouped_linear_swiglu_spec(131072, 1024, 2048, 64), 641},
      {grouped_linear_swiglu_spec(131072, 768, 2048, 128), 615},
      {grouped_linear_swiglu_spec(32768, 14336, 4096, 8), 674},
      {grouped_linear_dgrad_swiglu_backward_spec(131072, 1024, 2048, 64), 527},
      {grouped_linear_dgrad_swiglu_backward_spec(131072, 768, 2048, 128), 496},
      {grouped_linear_dgrad_swiglu_backward_spec(32768, 14336, 4096, 8), 597}};
  for (const MeasuredRate& point : measured) {
    EXPECT_NEAR(rate(*model, point.spec) / point.tflops_per_s, 0.95, 0.07) << point.spec.op;
  }
  for (const MeasuredRate& point : measured) {
    const ProductAndActivation parts = unfused(point.spec);
    EXPECT_GT(model->task_ns(point.spec), model->task_ns(parts.product));
    EXPECT_LT(model->task_ns(point.spec),
              model->task_ns(parts.product) + model->task_ns(parts.activation));
    EXPECT_TRUE(stays_on_its_sms(*find_device("h200"), point.spec));
  }
}

TEST(AnalyticGemm, WithSwigluCostsWhatItsEpilogueAdds) {
  const OpSpec forward = linear_swiglu_spec(8192, 14336, 4096);
  const OpSpec backward = linear_dgrad_swiglu_backward_spec(8192, 4096, 14336);
  const auto in_products = [](const CostModel& model, const OpSpec& spec) {
    return static_cast<double>(model.task_ns(spec)) /
           static_cast<double>(model.task_ns(unfused(spec).product));
  };
  for (const char* const device : {"h100", "h200"}) {
    EXPECT_NEAR(in_products(*model_of(device), forward), 1.0, 1e-4) << device;
    EXPECT_NEAR(in_products(*model_of(device), backward), 1.07, 1e-4) << device;
  }
  for (const char* const device : {"a100", "b200", "cpu"}) {
    const auto model = model_of(device);
    for (const OpSpec& spec : {forward, backward}) {
      const int64_t both =
          model->task_ns(unfused(spec).product) + model->task_ns(unfused(spec).activation);
      EXPECT_NEAR(static_cast<double>(model->task_ns(spec)), static_cast<double>(both), 1.0)
          << device << " " << spec.op;
    }
  }
  // Never more than both, and never less than its bytes take.
  const auto model = model_of("h200");
  for (const int64_t depth : {8, 64, 512, 2048, 3000, 4096, 16384}) {
    const OpSpec spec = linear_dgrad_swiglu_backward_spec(4096, depth, 4096);
    const int64_t product = model->task_ns(unfused(spec).product);
    EXPECT_GE(model->task_ns(spec), product) << depth;
    const OpCost cost = spec_cost(spec);
    EXPECT_GE(static_cast<double>(model->task_ns(spec)),
              (cost.bytes_read + cost.bytes_written) / (4.8e12 * 0.875) * 1e9)
        << depth;
    EXPECT_LE(model->task_ns(spec), product + model->task_ns(unfused(spec).activation)) << depth;
  }
}

TEST(AnalyticModel, SaysThatItIsAnalytic) {
  const auto model = model_of("h200x8");
  EXPECT_EQ(model->task_cost(add_spec(10)).source, CostSource::kAnalytic);
  EXPECT_THAT(model->description(), testing::HasSubstr("h200x8, analytic"));
}

TEST(AnalyticModel, RefusesWhatTheOpRefusesAndCommunication) {
  const auto model = model_of("h200");
  OpSpec bad = add_spec(10);
  bad.operands.pop_back();
  EXPECT_THROW(model->task_ns(bad), InternalError);
  EXPECT_THROW(model->task_ns(all_reduce_spec(10)), InternalError);
}

TEST(AnalyticModel, CopiesToTheHostTakeTheHostsLink) {
  const auto model = model_of("h200");
  const int64_t copy = model->host_copy_cost(HostCopy::kToHost, 500'000'000).ns;
  EXPECT_NEAR(static_cast<double>(copy), 10.01e6, 1e4);  // 50 GB/s and 10 us
}

}  // namespace
}  // namespace braid
