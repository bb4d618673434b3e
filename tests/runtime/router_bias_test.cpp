#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "backends/cpu/cpu_executor.h"
#include "backends/run_ranks.h"
#include "ops/optimizer.h"
#include "parallel/step_program.h"
#include "plan/run_plan.h"

namespace braid {
namespace {

constexpr int64_t kExperts = 4;

/// A model of one layer whose routers see no difference between tokens: all its weights are 0, and
/// a learning rate of 0 keeps them there. So all tokens choose the two experts with the largest
/// biases, and of equal ones the first.
class BlindRouter {
 public:
  BlindRouter(DType dtype, double rate)
      : layout_(make_parameter_layout(model_parameters(kModel))), dtype_(dtype) {
    const TrainProgramOptions options{.microbatch = 2,
                                      .sequence = 5,
                                      .num_microbatches = 2,
                                      .dtype = dtype,
                                      .optimizer = {.bias_update_rate = rate}};
    std::vector<Program> programs;
    programs.push_back(build_train_program(kModel, layout_, Mesh(MeshSizes{}), 0, options));
    RankPlan plan = plan_programs(std::move(programs));
    executor_ = std::make_unique<CpuExecutor>(
        std::move(plan.programs), std::move(plan.memory),
        CpuExecutorOptions{.num_workers = 2, .poison_step_arena = true});
    const std::vector<int32_t> tokens(20, 3);
    executor_->write("tokens", 0, std::as_bytes(std::span(tokens)));
    executor_->write("labels", 0, std::as_bytes(std::span(tokens)));
    const float scale = 0.05f;
    executor_->write("loss_scale", 0, std::as_bytes(std::span(&scale, 1)));
    const auto scalars = adamw_scalars(0.0, 0.9, 0.95, 1);
    executor_->write("optimizer_scalars", 0, std::as_bytes(std::span(scalars).first(3)));
  }

  /// The biases after one more step.
  std::vector<float> step() {
    executor_->run(0);
    std::vector<float> biases(kExperts);
    const ParameterSlot& slot = layout_.slot("layers.0.moe.router.bias");
    const ParameterUnit& unit = layout_.units[slot.unit];
    const std::string buffer =
        dtype_ == DType::kBF16 ? main_weight_buffer_name(unit) : param_buffer_name(unit);
    executor_->read(buffer, slot.begin * 4, std::as_writable_bytes(std::span(biases)));
    return biases;
  }

 private:
  static const ModelSpec kModel;
  ParameterLayout layout_;
  DType dtype_;
  std::unique_ptr<CpuExecutor> executor_;
};

const ModelSpec BlindRouter::kModel{.layers = LayerPattern::parse("moe"),
                                    .width = 8,
                                    .experts = kExperts,
                                    .experts_per_token = 2,
                                    .expert_ffn = 6,
                                    .router = {.sigmoid = true, .bias = true},
                                    .vocabulary = 17};

TEST(RouterBias, FollowsTheLoadOfExperts) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    BlindRouter model(dtype, 0.125);
    EXPECT_EQ(model.step(), (std::vector<float>{-0.125, -0.125, 0.125, 0.125}));
    EXPECT_EQ(model.step(), (std::vector<float>{0, 0, 0, 0}));
    EXPECT_EQ(model.step(), (std::vector<float>{-0.125, -0.125, 0.125, 0.125}));
  }
}

TEST(RouterBias, StaysWithARateOfZero) {
  EXPECT_EQ(BlindRouter(DType::kF32, 0.0).step(), (std::vector<float>{0, 0, 0, 0}));
}

}  // namespace
}  // namespace braid
