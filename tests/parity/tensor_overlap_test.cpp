// Tensor communication beside products, under every kind of layout. What starts early only changes
// no bit; products in pieces may be rounded in another way by the BLAS library, so that those
// layouts are held against one rank, like any other.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/model_spec.h"
#include "parity/layout_config.h"
#include "plan/run_spec.h"
#include "support/engine_runs.h"
#include "support/thinned.h"
#include "verify/verify_layout.h"

namespace braid {
namespace {

constexpr const char* kPieces = " overlap.tp_comm_overlap=true overlap.tp_comm_overlap_min_rows=1";
constexpr const char* kManual =
    " overlap.mode=manual overlap.tp_comm_overlap=true overlap.tp_comm_overlap_min_rows=1";
constexpr const char* kBulk = " overlap.tp_comm_overlap_ag=false overlap.tp_comm_overlap_rs=false";
/// All-reduces: products in three pieces of rows, and none under weight gradients.
constexpr const char* kRowPieces =
    " overlap.tp_comm_overlap_ag=false overlap.tp_comm_overlap_rs=false "
    "overlap.tp_comm_bulk_dgrad=false overlap.tp_comm_bulk_wgrad=false "
    "overlap.tp_comm_overlap_sites=[\"proj_fprop=chunked:3\",\"fc2_fprop=chunked:2\","
    "\"qkv_dgrad=chunked:4\",\"fc1_dgrad=chunked:5\",\"logits_dgrad=chunked:2\"]";
constexpr const char* kAllRings =
    " overlap.tp_comm_overlap_rs_dgrad=true overlap.tp_comm_bulk_wgrad=false "
    "overlap.tp_comm_overlap_sites=[\"proj_fprop=ring\",\"fc2_fprop=ring\"]";
/// The halves of forwards, whose microbatches are of two sequences.
constexpr const char* kForwardHalves =
    " overlap.mode=manual overlap.pair_forward_backward=forward_halves train.sequence=32";
/// Features in pieces that are not equal.
constexpr const char* kFeaturePieces =
    " overlap.tp_comm_overlap_sites=[\"proj_fprop=chunked:5\",\"fc2_fprop=chunked:7\"]";

class TensorBulk : public testing::TestWithParam<Layout> {};

TEST_P(TensorBulk, ChangesNoBit) {
  constexpr int64_t kSteps = 2;
  const auto with = [](const std::string& overlap) {
    Layout layout = GetParam();
    layout.overrides += overlap;
    return run(config_of(layout), kSteps);
  };
  const Outcome off = with(" overlap.mode=off");
  expect_same_bits(with(" overlap.mode=auto"), off);
  const bool scatters = GetParam().overrides.find("sequence_parallel=true") != std::string::npos;
  expect_same_bits(
      with(std::string(kManual) + kBulk + (scatters ? "" : " overlap.tp_comm_bulk_dgrad=false")),
      off);
}

std::vector<Layout> bulk_layouts() {
  std::vector<Layout> list;
  for (const char* const model : {kLlamaModel, kGpt2Model, kQwenModel}) {
    for (const char* const layout :
         {"ranks=2 tensor=2", "ranks=2 tensor=2 sequence_parallel=true memory.recompute=norms",
          "ranks=4 tensor=4 sequence_parallel=true memory.recompute=full",
          "ranks=4 tensor=2 pipeline=2 schedule=zb-h1 sequence_parallel=true "
          "memory.recompute=norms",
          "ranks=4 tensor=2 sequence_parallel=true shard=parameters memory.recompute=norms",
          "ranks=4 tensor=2 context=2 sequence_parallel=true"}) {
      list.push_back({model, layout});
    }
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Layouts, TensorBulk, testing::ValuesIn(thinned(bulk_layouts(), 9)));

class TensorPieces : public testing::TestWithParam<Layout> {};

// The tolerances of the grid of layouts (grid_test.cpp), for its reasons.
TEST_P(TensorPieces, EqualOneRank) {
  const LayoutComparison comparison =
      compare_with_one_rank(resolve_run(config_of(GetParam()), 0), {});
  EXPECT_LT(comparison.loss_f64, 1e-13);
  for (const TensorDifference& gradient : comparison.gradients) {
    EXPECT_LT(gradient.difference, 1e-11) << "gradient of " << gradient.name;
  }
  EXPECT_LT(comparison.worst_loss(), 2e-6);
}

std::vector<Layout> piece_layouts() {
  const std::string manual = kManual;
  const std::string sequence = "tensor=2 sequence_parallel=true" + manual;
  std::vector<Layout> list;
  for (const char* const model : {kLlamaModel, kGpt2Model, kQwenModel}) {
    for (const std::string& layout :
         {"ranks=2 " + sequence, "ranks=2 " + sequence + kAllRings + " memory.recompute=norms",
          "ranks=2 " + sequence + kFeaturePieces, "ranks=2 tensor=2" + manual + kRowPieces,
          "ranks=4 tensor=4 sequence_parallel=true memory.recompute=norms" + manual + kAllRings,
          "ranks=4 tensor=4 sequence_parallel=true memory.recompute=full" + manual,
          "ranks=4 pipeline=2 " + sequence + kAllRings,
          "ranks=4 pipeline=2 schedule=zb-h1 " + sequence,
          "ranks=4 shard=parameters " + sequence + kAllRings,
          "ranks=4 context=2 " + sequence + kAllRings}) {
      list.push_back({model, layout});
    }
    const std::string halves = std::string(kForwardHalves) + " tensor=2 ";
    for (const std::string& layout :
         {"ranks=2" + halves, "ranks=2 sequence_parallel=true" + halves,
          "ranks=2 sequence_parallel=true memory.recompute=norms overlap.tp_comm_overlap=true" +
              halves,
          "ranks=4 sequence_parallel=true memory.recompute=full shard=parameters "
          "overlap.overlap_param_gather=true overlap.overlap_grad_reduce=true" +
              halves,
          "ranks=4 pipeline=2 sequence_parallel=true overlap.overlap_p2p_comm=true" + halves,
          "ranks=4 pipeline=2 schedule=zb-h1 sequence_parallel=true memory.recompute=norms" +
              halves,
          "ranks=2 sequence_parallel=true memory.offload_layers=2 memory.offload_min_bytes=1" +
              halves,
          "ranks=2" + halves + kPieces + kRowPieces,
          "ranks=2 sequence_parallel=true" + halves + kPieces + kAllRings,
          "ranks=2 sequence_parallel=true" + halves + kPieces + kFeaturePieces,
          "ranks=4 sequence_parallel=true memory.recompute=norms" + halves +
              "tensor=4 train.sequence=64" + kPieces + kAllRings}) {
      list.push_back({model, layout});
    }
  }
  // The meaning of a step does not follow these (docs/passes.md).
  list.push_back({kMtpModel, "ranks=2 " + sequence});
  list.push_back({kMtpModel, "ranks=2 " + sequence + kFeaturePieces + " memory.recompute=norms"});
  const std::string stages =
      "ranks=4 pipeline=2 sequence_parallel=true" + std::string(kForwardHalves) + " tensor=2 ";
  list.push_back({kMtpModel, stages});
  const std::string one_stage =
      "ranks=2 sequence_parallel=true" + std::string(kForwardHalves) + " tensor=2 ";
  list.push_back({kMtpModel, one_stage});
  list.push_back({kMtpModel, one_stage + "memory.recompute=norms"});
  list.push_back({kMtpModel, stages + "memory.recompute=full shard=optimizer"});
  list.push_back({kLatentsModel, "ranks=2 " + sequence});
  list.push_back({kLatentsModel, "ranks=2 " + sequence + kFeaturePieces});
  list.push_back({kLatentsModel, one_stage + kPieces + kAllRings});
  list.push_back({kLatentsModel, stages});
  return list;
}

// Ranks of all stages have the same rows of a microbatch: none halves what another leaves whole.
INSTANTIATE_TEST_SUITE_P(
    StagesThatDiffer, TensorPieces,
    testing::Values(Layout{kExpertsModel,
                           "ranks=4 pipeline=2 tensor=2 sequence_parallel=true "
                           "model.pattern=attention+mlp*2,attention+moe*2 pipeline_layout=even" +
                               std::string(kForwardHalves)},
                    Layout{kExpertsModel,
                           "ranks=4 pipeline=2 tensor=2 sequence_parallel=true "
                           "model.pattern=attention+moe*2,attention+mlp*2 pipeline_layout=even" +
                               std::string(kForwardHalves)}));

INSTANTIATE_TEST_SUITE_P(Layouts, TensorPieces, testing::ValuesIn(thinned(piece_layouts(), 32)));

}  // namespace
}  // namespace braid
