#include "sim/measured_model.h"

#include <cmath>

#include "base/temp_folder.h"
#include "ops/linear_swiglu.h"
#include "sim/analytic_model.h"
#include "sim/sim_specs.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

Profile h200_profile(std::vector<TaskPoint> tasks) {
  return {.device_kind = "h200",
          .origin = {.device = "NVIDIA H200", .software = "", .date = "2026-01-31", .threads = 0},
          .launch_ns = 1600,
          .step_overhead_ns = 30'000,
          .tasks = std::move(tasks)};
}

std::unique_ptr<CostModel> model_of(std::vector<TaskPoint> tasks) {
  return make_measured_model(h200_profile(std::move(tasks)), 1);
}

TEST(MeasuredModel, MeasuredSpecsCostWhatTheyTook) {
  const auto model = model_of({{linear_spec(4096, 4096, 4096), {200'000, 0}},
                               {attention_spec({}), {300'000, 0}},
                               {add_spec(1'000'000), {5'000, 0}}});
  for (const auto& [spec, ns] : {std::pair<OpSpec, int64_t>{linear_spec(4096, 4096, 4096), 200'000},
                                 {with_attribute(attention_spec({}), "scale", 0.9), 300'000},
                                 {add_spec(1'000'000), 5'000}}) {
    EXPECT_EQ(model->task_cost(spec), (Cost{ns, CostSource::kMeasured})) << spec.op;
  }
}

TEST(MeasuredModel, OpsThatWereNotMeasuredAreAnalytic) {
  const auto model = model_of({{add_spec(1'000'000), {5'000, 0}}});
  const auto analytic = make_analytic_model(parse_cluster("h200"));
  for (const OpSpec& spec :
       {linear_spec(512, 512, 512), attention_spec({}), add_spec(1'000'000, DType::kF32)}) {
    EXPECT_EQ(model->task_cost(spec), analytic->task_cost(spec)) << spec.op;
  }
}

// A device that is 1.25 times as slow as the analytic model says, everywhere.
TEST(MeasuredModel, KeepsTheEfficiencyOfItsPoints) {
  const auto analytic = make_analytic_model(parse_cluster("h200"));
  std::vector<TaskPoint> tasks;
  const auto measure = [&](const OpSpec& spec) {
    tasks.push_back({spec, {std::llround(1.25 * static_cast<double>(analytic->task_ns(spec))), 0}});
  };
  for (const int64_t n : {1024, 8192}) {
    for (const int64_t m : {1024, 8192}) {
      measure(linear_spec(n, m, 2048));
      measure(linear_spec(n, m, 8192));
    }
    measure(attention_spec({.sequence = n}));
    measure(attention_spec({.sequence = n, .head_size = 64}));
  }
  const auto model = model_of(tasks);
  const auto expect = [&](const OpSpec& spec, CostSource source) {
    const Cost cost = model->task_cost(spec);
    EXPECT_EQ(cost.source, source) << spec.op;
    EXPECT_NEAR(static_cast<double>(cost.ns) / static_cast<double>(analytic->task_ns(spec)), 1.25,
                1e-3)  // durations are whole nanoseconds
        << spec.op;
  };
  expect(linear_spec(3000, 5000, 4096), CostSource::kInterpolated);
  expect(linear_spec(32768, 5000, 4096), CostSource::kExtrapolated);
  expect(linear_spec(64, 64, 64), CostSource::kExtrapolated);
  expect(attention_spec({.sequence = 4096, .head_size = 128}), CostSource::kInterpolated);
}

TEST(MeasuredModel, StaysBetweenSmallerAndLargerMeasuredShapes) {
  // The large product was measured to be hardly slower than the small one.
  const auto model = model_of({{linear_spec(2048, 4096, 4096), {200'000, 0}},
                               {linear_spec(8192, 4096, 4096), {210'000, 0}}});
  for (const int64_t n : {2049, 2500, 4096, 8000}) {
    const int64_t ns = model->task_ns(linear_spec(n, 4096, 4096));
    EXPECT_GE(ns, 200'000) << n;
    EXPECT_LE(ns, 210'000) << n;
  }
}

// More groups of the same rows may take longer than fewer groups of more rows.
TEST(MeasuredModel, OfGroupsMoreAreNotASmallerShape) {
  const auto model = model_of({{grouped_linear_spec(8192, 2048, 2048, 128), {400'000, 0}},
                               {grouped_linear_spec(16384, 2048, 2048, 8), {250'000, 0}}});
  const OpSpec asked = grouped_linear_spec(16384, 2048, 2048, 16);
  const Cost cost = model->task_cost(asked);
  EXPECT_EQ(cost.source, CostSource::kInterpolated);
  EXPECT_LT(cost.ns, 400'000);
  EXPECT_GE(cost.ns, 250'000);
}

TEST(MeasuredModel, MemoryBoundOpsFollowTheirBytes) {
  const auto model =
      model_of({{add_spec(1'000'000), {4'000, 0}}, {add_spec(3'000'000), {10'000, 0}}});
  EXPECT_EQ(model->task_cost(add_spec(2'000'000)), (Cost{7'000, CostSource::kInterpolated}));
  const Cost large = model->task_cost(add_spec(30'000'000));
  EXPECT_EQ(large.source, CostSource::kExtrapolated);
  const auto analytic = make_analytic_model(parse_cluster("h200"));
  const double growth = static_cast<double>(analytic->task_ns(add_spec(30'000'000))) /
                        static_cast<double>(analytic->task_ns(add_spec(3'000'000)));
  EXPECT_NEAR(static_cast<double>(large.ns), 10'000 * growth, 10);
  int64_t last = 0;
  for (int64_t elems = 1; elems < 8'000'000; elems += 77'777) {
    EXPECT_GE(model->task_ns(add_spec(elems)), last);
    last = model->task_ns(add_spec(elems));
  }
}

TEST(MeasuredModel, CommunicationByBytesWhereItWasMeasured) {
  Profile profile = h200_profile({});
  const auto point = [](int64_t bytes, int64_t ns) {
    return CommPoint{{CommKind::kAllGather, CommAlgorithm::kRing, {8, 1, 8}, bytes}, {ns, 0}};
  };
  profile.communication = {point(32 << 20, 128'000), point(128 << 20, 399'000)};
  const auto model = make_measured_model(profile, 8);
  CommSpec spec = point(32 << 20, 0).spec;
  EXPECT_EQ(model->comm_cost(spec), (Cost{128'000, CostSource::kMeasured}));
  spec.bytes = 80 << 20;
  EXPECT_EQ(model->comm_cost(spec), (Cost{263'500, CostSource::kInterpolated}));
  spec.placement = {4, 1, 4};
  EXPECT_EQ(model->comm_cost(spec).source, CostSource::kAnalytic);
  spec.algorithm = CommAlgorithm::kTree;
  EXPECT_THROW(static_cast<void>(model->comm_cost(spec)), InternalError);
}

// The analytic model has a tree that is faster than what the library was measured to take.
TEST(MeasuredModel, WhatALibraryWasTimedToTakeIsNotLessByATreeThatWasNot) {
  Profile profile = h200_profile({});
  const CommSpec spec{CommKind::kAllReduce, CommAlgorithm::kRing, {8, 1, 8}, 4 << 20};
  profile.communication = {{spec, {900'000, 0}}};
  const auto model = make_measured_model(profile, 8);
  for (const int64_t bytes : {1 << 20, 4 << 20, 16 << 20}) {
    const CommChoice choice = cheapest_algorithm(*model, spec.kind, spec.placement, bytes);
    EXPECT_EQ(choice.spec.algorithm, CommAlgorithm::kRing);
    EXPECT_NE(choice.cost.source, CostSource::kAnalytic);
  }
  CommSpec tree = spec;
  tree.algorithm = CommAlgorithm::kTree;
  profile.communication.push_back({tree, {300'000, 0}});
  EXPECT_EQ(make_measured_model(profile, 8)->comm_ns(tree), 300'000);
}

TEST(MeasuredModel, HostCopiesByBytesWhereTheyWereMeasured) {
  Profile profile = h200_profile({});
  profile.to_device = {{1'000'000, {30'000, 0}}, {3'000'000, {70'000, 0}}};
  const auto model = make_measured_model(profile, 1);
  EXPECT_EQ(model->host_copy_cost(HostCopy::kToDevice, 2'000'000).ns, 50'000);
  EXPECT_EQ(model->host_copy_cost(HostCopy::kToHost, 2'000'000).source, CostSource::kAnalytic);
}

TEST(MeasuredModel, FiguresOfTheDeviceReplaceThoseOfItsKind) {
  Profile profile{.device_kind = "cpu"};
  profile.peak_flops_per_s[DType::kF32] = 100e9;
  profile.memory_bytes_per_s = 10e9;
  profile.launch_ns = 777;
  profile.contention = Contention{{0.5, 1.0}, {0.5, 1.0}, {0.5, 1.0}};
  const auto model = make_measured_model(profile, 2);
  EXPECT_EQ(model->cluster().device.f32_flops_per_s, 100e9);
  EXPECT_EQ(model->launch_ns(), 777);
  EXPECT_EQ(model->contention(), *profile.contention);
  const OpSpec add = add_spec(1'000'000, DType::kF32);
  EXPECT_NEAR(static_cast<double>(model->task_ns(add)), 1.2e6 + 777, 1);
}

TEST(MeasuredModel, RefusesBadSpecsAsTheAnalyticModelDoes) {
  const auto model = model_of({{add_spec(1'000'000), {4'000, 0}}});
  OpSpec bad = add_spec(10);
  bad.operands.pop_back();
  EXPECT_THROW(static_cast<void>(model->task_cost(bad)), InternalError);
  EXPECT_THROW(static_cast<void>(model->task_cost(all_reduce_spec(8))), InternalError);
}

// Figures of bench/notes.md: of a profile from before there were such ops.
TEST(MeasuredModel, PricesAProductWithSwigluByItsTwoOps) {
  const OpSpec forward = linear_swiglu_spec(8192, 14336, 4096);
  const OpSpec deep = linear_dgrad_swiglu_backward_spec(8192, 4096, 14336);
  const OpSpec shallow = linear_dgrad_swiglu_backward_spec(16384, 2048, 8192);
  const std::vector<TaskPoint> tasks = {
      {unfused(forward).product, {2'849'000, 0}}, {unfused(forward).activation, {162'000, 0}},
      {unfused(deep).product, {1'462'000, 0}},    {unfused(deep).activation, {274'000, 0}},
      {unfused(shallow).product, {816'000, 0}},   {unfused(shallow).activation, {314'000, 0}}};
  const auto model = model_of(tasks);
  EXPECT_EQ(model->task_cost(forward), (Cost{2'849'000, CostSource::kInterpolated}));
  EXPECT_EQ(model->task_cost(deep), (Cost{1'564'340, CostSource::kInterpolated}));
  EXPECT_EQ(model->task_cost(shallow), (Cost{922'590, CostSource::kInterpolated}));
  Profile profile = h200_profile(tasks);
  profile.device_kind = "cpu";
  EXPECT_EQ(make_measured_model(profile, 1)->task_ns(forward), 3'011'000);
  profile.device_kind = "a100";
  EXPECT_EQ(make_measured_model(profile, 1)->task_ns(deep), 1'736'000);
}

TEST(MeasuredModel, AProductWithSwigluThatWasMeasuredCostsThat) {
  const OpSpec forward = linear_swiglu_spec(8192, 14336, 4096);
  const auto model = model_of({{forward, {2'800'000, 0}}, {unfused(forward).product, {1, 0}}});
  EXPECT_EQ(model->task_cost(forward), (Cost{2'800'000, CostSource::kMeasured}));
  const auto analytic = make_analytic_model(parse_cluster("h200"));
  const OpSpec other = linear_swiglu_spec(4096, 14336, 4096);
  const Cost cost = model->task_cost(other);
  EXPECT_EQ(cost.source, CostSource::kExtrapolated);
  EXPECT_NEAR(static_cast<double>(cost.ns),
              2.8e6 * static_cast<double>(analytic->task_ns(other)) /
                  static_cast<double>(analytic->task_ns(forward)),
              1.0);
}

TEST(LoadCostModel, TakesProfilesAndClusters) {
  const TempFolder folder;
  write_test_file(folder / "p.json", print_profile(h200_profile({{add_spec(100), {2'000, 0}}})));
  const auto measured = load_cost_model(folder / "p.json", 12);
  EXPECT_EQ(measured->cluster().num_devices, 16);
  EXPECT_THAT(measured->description(),
              testing::AllOf(HasSubstr("h200x16, measured: 1 shapes on NVIDIA H200, 2026-01-31")));
  EXPECT_EQ(load_cost_model("b200x72", 64)->cluster().num_devices, 72);
}

TEST(LoadCostModel, SaysWhatIsWrong) {
  EXPECT_THAT(message_of<ConfigError>([] { load_cost_model("h100x8", 16); }),
              testing::AllOf(HasSubstr("h100x8 has 8 devices"), HasSubstr("parallel.ranks is 16"),
                             HasSubstr("h100x16")));
  EXPECT_THAT(message_of<ConfigError>([] { load_cost_model("h300", 1); }), HasSubstr("known"));
  EXPECT_THAT(message_of<DataError>([] { load_cost_model("no/such/profile.json", 1); }),
              HasSubstr("no/such/profile.json"));
  EXPECT_THAT(message_of<DataError>([] { load_cost_model("missing.json", 1); }),
              HasSubstr("missing.json"));
}

}  // namespace
}  // namespace braid
