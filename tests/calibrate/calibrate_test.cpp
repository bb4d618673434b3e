#include "calibrate/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "calibrate/calibration_specs.h"
#include "config/validate.h"
#include "ops/linear_swiglu.h"
#include "ops/op.h"
#include "plan/run_plan.h"
#include "sim/measured_model.h"
#include "sim/op_family.h"
#include "sim/predict.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

RunConfig tiny_config() {
  RunConfig config;
  config.model.layers = 2;
  config.model.width = 32;
  config.model.heads = 2;
  config.model.vocabulary = 64;
  config.train.sequence = 16;
  config.train.microbatch = 2;
  config.train.global_batch = 4;
  config.runtime.threads = 1;
  return resolved(config);
}

std::set<std::string> ops_of(const std::vector<OpSpec>& specs) {
  std::set<std::string> ops;
  for (const OpSpec& spec : specs) {
    ops.insert(spec.op);
  }
  return ops;
}

// Everything that a step of either family does on a device, on either device.
TEST(CalibrationGrid, CoversTheOpsOfAStep) {
  for (const auto& [size, dtype] : {std::pair<GridSize, DType>{GridSize::kGpu, DType::kBF16},
                                    {GridSize::kCpu, DType::kF32},
                                    {GridSize::kCpu, DType::kBF16}}) {
    const std::vector<OpSpec> specs = grid_specs(calibration_grid(size, dtype), dtype);
    EXPECT_THAT(ops_of(specs), testing::IsSupersetOf({"linear",
                                                      "linear_dgrad",
                                                      "linear_wgrad",
                                                      "attention",
                                                      "attention_backward",
                                                      "rmsnorm",
                                                      "add_rmsnorm",
                                                      "rmsnorm_backward",
                                                      "layernorm_backward",
                                                      "rope",
                                                      "swiglu",
                                                      "swiglu_backward",
                                                      "gelu",
                                                      "gelu_backward",
                                                      "embedding",
                                                      "embedding_wgrad",
                                                      "cross_entropy",
                                                      "cross_entropy_backward",
                                                      "adamw",
                                                      "squared_norm",
                                                      "copy"}));
    for (const OpSpec& spec : specs) {
      EXPECT_NO_THROW(check_spec(spec)) << describe_spec(spec);
    }
  }
}

TEST(CalibrationGrid, CoversTheProductsOfThePresets) {
  const std::vector<OpSpec> specs =
      grid_specs(calibration_grid(GridSize::kGpu, DType::kBF16), DType::kBF16);
  for (const int64_t size : {1024, 8192, 16384}) {
    EXPECT_TRUE(std::any_of(specs.begin(), specs.end(), [&](const OpSpec& spec) {
      return spec.op == "linear_dgrad" && gemm_shape(spec).rows == size;
    })) << size;
  }
  // The products of llama-8b at 8192 tokens are there as they are.
  EXPECT_TRUE(std::any_of(specs.begin(), specs.end(), [](const OpSpec& spec) {
    return spec.op == "linear" && gemm_shape(spec) == GemmShape{8192, 28672, 4096, DType::kBF16};
  }));
}

// Where GPUs run the step, products with SwiGLU are one task; both are timed together and apart.
TEST(CalibrationGrid, HasProductsWithSwigluTogetherAndApart) {
  const std::vector<OpSpec> specs =
      grid_specs(calibration_grid(GridSize::kGpu, DType::kBF16), DType::kBF16);
  for (const int64_t depth : {2048, 3584, 4096}) {
    for (const std::string_view op : {kLinearSwigluOp.name, kLinearDgradSwigluBackwardOp.name}) {
      const auto fused = std::find_if(specs.begin(), specs.end(), [&](const OpSpec& spec) {
        return spec.op == op && gemm_shape(spec).depth == depth;
      });
      ASSERT_NE(fused, specs.end()) << op << " of depth " << depth;
      const ProductAndActivation parts = unfused(*fused);
      EXPECT_THAT(specs, testing::Contains(parts.product)) << op;
      EXPECT_THAT(specs, testing::Contains(parts.activation)) << op;
    }
  }
}

// GPUs have other kernels for long sequences than for short ones, and others where query heads
// share keys.
TEST(CalibrationGrid, HasAttentionOfSeveralKinds) {
  const std::vector<OpSpec> specs =
      grid_specs(calibration_grid(GridSize::kGpu, DType::kBF16), DType::kBF16);
  for (const std::string_view op : {"attention", "attention_backward"}) {
    std::set<std::tuple<int64_t, int64_t, bool>> kinds;
    for (const OpSpec& spec : specs) {
      if (spec.op == op) {
        const AttentionShape shape = attention_shape(spec);
        kinds.emplace(shape.sequence, shape.head_size, shape.heads > shape.kv_heads);
      }
    }
    EXPECT_THAT(kinds,
                testing::IsSupersetOf({std::tuple(1024, 64, true), std::tuple(1024, 64, false),
                                       std::tuple(1024, 128, true), std::tuple(2048, 128, true),
                                       std::tuple(4096, 64, true), std::tuple(8192, 128, true),
                                       std::tuple(16384, 128, true)}))
        << op;
  }
}

TEST(DistinctSpecs, KeepsTheFirstOfThoseThatTimeAlike) {
  const OpSpec fill{"fill", {{"value", 1.0}}, {{DType::kF32, Access::kWrite, {4}}}};
  OpSpec other = fill;
  other.attributes[0].value = 2.0;
  EXPECT_EQ(distinct_specs({fill, other, fill}), std::vector{fill});
  other.operands[0].shape = {5};
  EXPECT_EQ(distinct_specs({fill, other}), (std::vector{fill, other}));
}

// Passes leave specs behind that no task has any more.
TEST(ProgramSpecs, AreThoseOfTasks) {
  RunPlan plan = plan_run(resolve_run(tiny_config(), 0));
  const std::vector<OpSpec> before = program_specs(plan);
  const OpSpec unused{"fill", {{"value", 1.0}}, {{DType::kF32, Access::kWrite, {12345}}}};
  plan.ranks.front().programs.front().specs.intern(unused);
  EXPECT_EQ(program_specs(plan), before);
}

TEST(ProgramSpecs, AreWhatADeviceTakesTimeFor) {
  RunConfig config = tiny_config();
  config.parallel.ranks = 2;
  config.train.global_batch = 8;
  for (const OpSpec& spec : program_specs(plan_run(resolve_run(resolved(config), 0)))) {
    EXPECT_NE(family_of(spec), OpFamily::kCommunication) << spec.op;
  }
}

// A quick calibration of a tiny run: every task of its step is then priced by a measurement, and
// the profile survives the way through its file.
TEST(Calibrate, MeasuresEveryTaskOfTheRunOnTheCpu) {
  std::vector<CalibrationProgress> steps;
  CalibrateOptions options{.threads = 1, .runs = {resolve_run(tiny_config(), 0)}, .quick = true};
  options.on_progress = [&](const CalibrationProgress& progress) { steps.push_back(progress); };
  const Profile profile = calibrate(options);

  EXPECT_EQ(profile.device_kind, "cpu");
  EXPECT_EQ(profile.origin.threads, 1);
  EXPECT_GT(profile.peak_flops_per_s.at(DType::kF32), 1e6);
  EXPECT_GT(profile.memory_bytes_per_s.value_or(0), 1e6);
  EXPECT_GT(profile.step_overhead_ns, 0);
  EXPECT_EQ(profile.to_device.size(), profile.to_host.size());
  EXPECT_EQ(default_profile_path(profile), "profiles/cpu.json");
  EXPECT_THAT(describe_profile(profile), HasSubstr("of matrix products"));
  EXPECT_EQ(parse_profile(print_profile(profile), "x"), profile);

  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.front().done, 0);
  EXPECT_EQ(steps.back().done, steps.back().total);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end(),
                             [](const auto& a, const auto& b) { return a.done < b.done; }));

  const RunPlan plan = plan_run(resolve_run(tiny_config(), 0));
  const auto model = make_measured_model(profile, 1);
  const SerialPrediction prediction =
      predict_serial(plan.ranks.front().programs[kTrainProgram], *model);
  EXPECT_EQ(prediction.source_ns[static_cast<size_t>(CostSource::kMeasured)],
            prediction.compute_ns());
}

TEST(Calibrate, MeasuresTheShapesOfSeveralRuns) {
  RunConfig other = tiny_config();
  other.train.sequence = 24;
  const Profile profile = calibrate({.threads = 1,
                                     .runs = {resolve_run(tiny_config(), 0), resolve_run(other, 0)},
                                     .quick = true,
                                     .only_runs = true});
  const auto model = make_measured_model(profile, 1);
  for (const RunConfig& config : {tiny_config(), other}) {
    for (const OpSpec& spec : program_specs(plan_run(resolve_run(config, 0)))) {
      EXPECT_EQ(model->task_cost(spec).source, CostSource::kMeasured) << describe_spec(spec);
    }
  }
}

TEST(Calibrate, OnlyRunsLeavesOutTheGridButForCopies) {
  const std::vector<OpSpec> specs = program_specs(plan_run(resolve_run(tiny_config(), 0)));
  const Profile profile = calibrate(
      {.threads = 1, .runs = {resolve_run(tiny_config(), 0)}, .quick = true, .only_runs = true});
  size_t copies = 0;
  for (const TaskPoint& point : profile.tasks) {
    const bool is_of_run =
        std::ranges::any_of(specs, [&](const OpSpec& spec) { return spec == point.spec; });
    copies += is_of_run ? 0 : 1;
    EXPECT_TRUE(is_of_run || point.spec.op == "copy") << describe_spec(point.spec);
  }
  EXPECT_EQ(profile.tasks.size(), specs.size() + copies);
  EXPECT_GT(copies, 0U);
  EXPECT_GT(profile.memory_bytes_per_s.value_or(0), 1e6);
}

TEST(Calibrate, AProfileOfSeveralGpusIsNamedAndDescribedByThem) {
  Profile profile{.device_kind = "h200",
                  .origin = {.device = "NVIDIA H200", .software = "s", .date = "2026-01-01"}};
  EXPECT_EQ(default_profile_path(profile), "profiles/h200.json");
  // 2 * 7 / 8 of 512 MiB in 2.66 ms.
  profile.communication = {
      {{CommKind::kAllReduce, CommAlgorithm::kRing, {8, 1, 8}, 512 << 20}, {2'660'000, 0}},
      {{CommKind::kAllGather, CommAlgorithm::kCopyEngineDirect, {8, 1, 8}, 512 << 20},
       {1'500'000, 0}},
      {{CommKind::kAllReduce, CommAlgorithm::kRing, {2, 1, 2}, 512 << 20}, {1'900'000, 0}}};
  profile.contention = Contention{};
  profile.contention->gemm_and_sm_comm.compute = 0.58;
  EXPECT_EQ(default_profile_path(profile), "profiles/h200x8.json");
  EXPECT_THAT(describe_profile(profile),
              testing::AllOf(HasSubstr("links    3 points; 512 MiB between 8 ranks, in GB/s: "
                                       "all_reduce 353, all_gather by copies 313\n"),
                             HasSubstr("products run at 0.58, sums at 1 of their rates")));
}

TEST(Calibrate, UnknownStandInIsRefused) {
  EXPECT_THAT(message_of<ConfigError>([] { calibrate({.stand_in = "h300"}); }),
              testing::AllOf(HasSubstr("--like \"h300\""), HasSubstr("cpu, gb200, h100")));
}

TEST(Calibrate, GpuWithoutAStandInIsRefused) {
  CalibrateOptions options;
  options.device.backend = &gpu_backend();
  options.device.gpu = DeviceInfo{.device = 0, .name = "NVIDIA X9", .memory_bytes = 1 << 30};
  EXPECT_THAT(message_of<ConfigError>([&] { calibrate(options); }),
              testing::AllOf(HasSubstr("NVIDIA X9"), HasSubstr("--like")));
}

}  // namespace
}  // namespace braid
