#include "sim/cost_model.h"

#include <array>
#include <cmath>

#include "ops/attributes.h"
#include "ops/collectives.h"
#include "sim/analytic_model.h"
#include "sim/predict.h"
#include "sim/sim_specs.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

TEST(CommNames, ParseBack) {
  for (size_t i = 0; i < kNumCommKinds; ++i) {
    const auto kind = static_cast<CommKind>(i);
    EXPECT_EQ(parse_comm_kind(comm_kind_name(kind)), kind);
  }
  for (size_t i = 0; i < kNumCommAlgorithms; ++i) {
    const auto algorithm = static_cast<CommAlgorithm>(i);
    EXPECT_EQ(parse_comm_algorithm(comm_algorithm_name(algorithm)), algorithm);
  }
  EXPECT_EQ(parse_comm_kind("sum_scatter"), std::nullopt);
  EXPECT_EQ(parse_comm_algorithm(""), std::nullopt);
  for (size_t i = 0; i < kNumCostSources; ++i) {
    EXPECT_FALSE(cost_source_name(static_cast<CostSource>(i)).empty());
  }
}

TEST(CommKindOf, KnowsEveryCommunicationOp) {
  for (const OpDefinition* op : all_ops()) {
    const OpSpec spec{std::string(op->name), {}, {}};
    EXPECT_EQ(comm_kind_of(spec).has_value(), op->op_class == OpClass::kCommunication) << op->name;
  }
}

/// What an all-gather of 2 x 8 MiB costs among these ranks of a model.
ProgramComm gather_of(const CostModel& model, std::vector<int> ranks, bool by_copies) {
  constexpr int64_t kElems = int64_t{4} << 20;
  const OpSpec gather{
      .op = "all_gather",
      .attributes = to_attributes(CollectiveAttributes{.group = 0}),
      .operands = {{.dtype = DType::kBF16, .access = Access::kRead, .shape = Shape{kElems}},
                   {.dtype = DType::kBF16, .access = Access::kWrite, .shape = Shape{2 * kElems}}}};
  const Group group{.name = "data", .kind = GroupKind::kData, .ranks = ranks};
  if (by_copies) {  // whoever drives them
    EXPECT_EQ(comm_of(model, by_nccl_copies(gather), ranks.front(), group).spec,
              comm_of(model, by_copy_engine(gather), ranks.front(), group).spec);
  }
  return comm_of(model, by_copies ? by_copy_engine(gather) : gather, ranks.front(), group);
}

TEST(CommOf, CopyEnginesCarryWhatSaysSoInsideANode) {
  const auto model = make_analytic_model(parse_cluster("h200x16"));
  const ProgramComm copied = gather_of(*model, {0, 1}, true);
  EXPECT_EQ(copied.spec.algorithm, CommAlgorithm::kCopyEngineDirect);
  EXPECT_EQ(copied.cost.ns, model->comm_ns(copied.spec));
  EXPECT_FALSE(uses_copy_engine(gather_of(*model, {0, 1}, false).spec.algorithm));
  // Between nodes there are none.
  EXPECT_EQ(gather_of(*model, {0, 8}, true).spec, gather_of(*model, {0, 8}, false).spec);
}

TEST(RoundCost, StaysWithinItsLimits) {
  EXPECT_EQ(round_cost_ns(1.5), 2);
  EXPECT_EQ(round_cost_ns(-3), 0);
  EXPECT_EQ(round_cost_ns(1e40), kMaxCostNs);
  const auto model = make_analytic_model(parse_cluster("cpu"));
  EXPECT_EQ(model->task_ns(linear_spec(1 << 28, 1 << 28, 1 << 28)), kMaxCostNs);
}

/// A rank of sixteen: adds on `compute`, and all-reduces of the whole group and of a pair.
class TwoNodes : public testing::Test {
 protected:
  TwoNodes() {
    std::vector<int> all;
    for (int rank = 0; rank < 16; ++rank) {
      all.push_back(rank);
    }
    builder_.add_group({"world", GroupKind::kWorld, all});
    builder_.add_group({"pair", GroupKind::kTensor, {0, 1}});
    stream_ = builder_.add_stream({"compute", StreamKind::kCompute, 0});
  }

  BufferId buffer(const OperandSpec& operand) {
    return builder_.add_buffer({.name = fmt::format("b{}", builder_.program().buffers.size()),
                                .dtype = operand.dtype,
                                .shape = operand.shape});
  }
  void add(const OpSpec& spec) {
    std::vector<BufferRange> ranges;
    for (const OperandSpec& operand : spec.operands) {
      ranges.push_back(builder_.whole(buffer(operand)));
    }
    builder_.add_task(spec, ranges, stream_, {});
  }

  std::unique_ptr<CostModel> model_ = make_analytic_model(parse_cluster("h100x16"));
  ProgramBuilder builder_{"step", 0, 16};
  StreamId stream_;
};

TEST_F(TwoNodes, TasksCostWhatTheirGroupsPlaceSays) {
  add(add_spec(1000));
  add(all_reduce_spec(1 << 20, 0));
  add(all_reduce_spec(1 << 20, 1));
  const Program program = builder_.take();
  EXPECT_EQ(program_task_cost(*model_, program, TaskId(0)), model_->task_cost(add_spec(1000)));
  EXPECT_EQ(program_task_cost(*model_, program, TaskId(1)),
            cheapest_comm(*model_, CommKind::kAllReduce, {16, 2, 8}, 4 << 20));
  EXPECT_EQ(program_task_cost(*model_, program, TaskId(2)),
            cheapest_comm(*model_, CommKind::kAllReduce, {2, 1, 2}, 4 << 20));
}

TEST_F(TwoNodes, RankBeyondTheClusterIsOurError) {
  add(all_reduce_spec(64, 0));
  const Program program = builder_.take();
  const auto small = make_analytic_model(parse_cluster("h100x8"));
  EXPECT_THROW(program_task_cost(*small, program, TaskId(0)), InternalError);
}

TEST_F(TwoNodes, SerialPredictionAddsUp) {
  add(linear_spec(64, 64, 64));
  add(add_spec(1000));
  add(add_spec(1000));
  add(all_reduce_spec(1 << 20, 1));
  const Program program = builder_.take();
  const SerialPrediction prediction = predict_serial(program, *model_);
  // Most of the time is communication, so the clock is as high as it may be.
  const double most_clock = model_->cluster().device.most_clock;
  const int64_t gemm =
      std::llround(static_cast<double>(model_->task_ns(linear_spec(64, 64, 64))) / most_clock);
  const int64_t adds = 2 * model_->task_ns(add_spec(1000));
  const int64_t comm = cheapest_comm(*model_, CommKind::kAllReduce, {2, 1, 2}, 4 << 20).ns;
  const int64_t found = prediction.family_ns[static_cast<size_t>(OpFamily::kGemm)];
  EXPECT_NEAR(static_cast<double>(found), static_cast<double>(gemm),
              0.002 * static_cast<double>(gemm));
  EXPECT_EQ(prediction.family_ns[static_cast<size_t>(OpFamily::kMemoryBound)], adds);
  EXPECT_EQ(prediction.compute_ns(), found + adds);
  EXPECT_EQ(prediction.communication_ns(), comm);
  EXPECT_EQ(prediction.step_ns(), found + adds + comm + model_->step_overhead_ns());
  EXPECT_EQ(prediction.source_ns[static_cast<size_t>(CostSource::kAnalytic)], found + adds + comm);
}

TEST_F(TwoNodes, SumsOfEternitiesDoNotOverflow) {
  for (int i = 0; i < 20; ++i) {
    add(linear_spec(1 << 28, 1 << 28, 1 << 28));
  }
  const auto slow = make_analytic_model(parse_cluster("cpux16"));
  EXPECT_EQ(predict_serial(builder_.take(), *slow).compute_ns(), kMaxCostNs);
}

}  // namespace
}  // namespace braid
