#include "config/validate_overlap.h"

#include <gtest/gtest.h>

#include <string>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

/// "manual" on a pipeline of two stages.
RunConfig manual() {
  RunConfig config;
  config.parallel.pipeline = 2;
  config.overlap.mode = "manual";
  return config;
}

std::string refusal(const RunConfig& config) {
  return message_of<ConfigError>([&] { validate_overlap(config); });
}

TEST(ValidateOverlap, AcceptsEveryKeyBesideTheOthers) {
  RunConfig config = manual();
  config.overlap.overlap_grad_reduce = true;
  config.overlap.overlap_grad_reduce_delayed_wgrad_layers = 2;
  config.overlap.overlap_p2p_comm = true;
  EXPECT_NO_THROW(validate_overlap(config));
  config.overlap.overlap_p2p_comm_warmup_flush = true;
  config.overlap.overlap_p2p_backward_on_comm_stream = true;
  config.overlap.overlap_p2p_wgrad_delayed_layer_number = 2;
  config.overlap.overlap_p2p_with_transformer_layer_wgrad = true;
  config.overlap.defer_embedding_wgrad_compute = true;
  config.overlap.wgrad_deferral_limit = 3;
  EXPECT_NO_THROW(validate_overlap(config));
  config.overlap.overlap_p2p_comm = false;
  config.overlap.overlap_p2p_comm_warmup_flush = false;
  config.overlap.overlap_p2p_backward_on_comm_stream = false;
  EXPECT_NO_THROW(validate_overlap(config));
}

TEST(ValidateOverlap, RefusesKeysThatTheModeDoesNotRead) {
  RunConfig config = manual();
  config.overlap.mode = "auto";
  config.overlap.overlap_p2p_comm = true;
  EXPECT_EQ(refusal(config),
            "overlap.overlap_p2p_comm = true: is read with mode = \"manual\" only; mode is "
            "\"auto\"; set overlap.mode = \"manual\" or remove the key");
  config.overlap = {.mode = "off", .overlap_p2p_wgrad_delayed_layer_number = 2};
  EXPECT_EQ(refusal(config),
            "overlap.overlap_p2p_wgrad_delayed_layer_number = 2: is read with mode = \"manual\" "
            "only; mode is \"off\"; set overlap.mode = \"manual\" or remove the key");
}

TEST(ValidateOverlap, RefusesToDelayWgradsForAReductionThatIsNotBesideThem) {
  RunConfig config = manual();
  config.overlap.overlap_grad_reduce_delayed_wgrad_layers = 2;
  EXPECT_EQ(refusal(config),
            "overlap.overlap_grad_reduce_delayed_wgrad_layers = 2: says what hides a reduction "
            "that runs beside the backward, but overlap_grad_reduce is false; set "
            "overlap.overlap_grad_reduce = true");
  config.overlap.overlap_grad_reduce = true;
  EXPECT_NO_THROW(validate_overlap(config));
  config.overlap.mode = "auto";
  config.overlap.overlap_grad_reduce = false;
  EXPECT_EQ(refusal(config),
            "overlap.overlap_grad_reduce_delayed_wgrad_layers = 2: is read with mode = \"manual\" "
            "only; mode is \"auto\"; set overlap.mode = \"manual\" or remove the key");
}

TEST(ValidateOverlap, RanksThatShareAGpuNeedCopiesAndProcesses) {
  const std::string begin = "runtime.ranks_per_gpu = 4: ranks that share a GPU ";
  const std::string copies =
      begin + "communicate by copy engines only (NCCL takes one rank per GPU), but ";
  RunConfig good;
  good.runtime.ranks_per_gpu = 4;
  good.overlap.comm_engine = "copy";
  EXPECT_NO_THROW(validate_overlap(good));
  RunConfig config = good;
  config.overlap.comm_engine = "auto";
  EXPECT_EQ(refusal(config),
            copies + "overlap.comm_engine is \"auto\"; set overlap.comm_engine = \"copy\"");
  config = good;
  config.overlap.cost = "h200x8";  // the search keeps what is given
  EXPECT_NO_THROW(validate_overlap(config));
  config.overlap.mode = "manual";
  EXPECT_NO_THROW(validate_overlap(config));
  config = good;
  config.overlap.disable_passes = {"late_moves", "comm_engine"};
  EXPECT_EQ(
      refusal(config),
      copies + "overlap.disable_passes turns off comm_engine, which chooses them; remove it there");
  config = good;
  config.runtime.nccl_windows = true;
  EXPECT_EQ(refusal(config),
            copies + "runtime.nccl_windows is true; set runtime.nccl_windows = false");
  config = good;
  config.runtime.processes = "one";
  EXPECT_EQ(
      refusal(config),
      begin + "are processes, but runtime.processes is \"one\"; set runtime.processes = \"auto\"");
  config.runtime.ranks_per_gpu = 1;
  EXPECT_NO_THROW(validate_overlap(config));
}

TEST(ValidateOverlap, RanksThatExchangeRowsHaveNoWindows) {
  const std::string why =
      "ranks that exchange rows of experts (parallel.expert = 4, parallel.expert_tensor = 1) map "
      "each other's memory, which NCCL's windows do not allow; ";
  RunConfig good;
  good.parallel.expert = 4;
  good.overlap.comm_engine = "copy";
  EXPECT_NO_THROW(validate_overlap(good));
  RunConfig config = good;
  config.runtime.nccl_windows = true;
  EXPECT_EQ(refusal(config), "runtime.nccl_windows = true: " + why +
                                 "set runtime.nccl_windows = false, or moe.exchange = \"blocks\"");
  config.moe.exchange = "blocks";
  EXPECT_NO_THROW(validate_overlap(config));
  config = good;
  config.overlap.comm_engine = "nccl_copy";
  EXPECT_EQ(refusal(config),
            "overlap.comm_engine = \"nccl_copy\": " + why +
                "set overlap.comm_engine = \"copy\", or moe.exchange = \"blocks\"");
  config.parallel.expert = 1;
  EXPECT_NO_THROW(validate_overlap(config));
}

TEST(ValidateOverlap, TakesPermissionsForAutoAlone) {
  RunConfig config;
  config.overlap.may_change_rounding = true;
  config.overlap.cost = "h200x8";
  EXPECT_NO_THROW(validate_overlap(config));
  for (const char* const mode : {"manual", "off"}) {
    config.overlap.mode = mode;
    EXPECT_EQ(
        refusal(config),
        fmt::format("overlap.may_change_rounding = true: says what mode = \"auto\" may choose, but "
                    "mode is \"{}\"; set overlap.mode = \"auto\" or remove the key",
                    mode));
  }
  config.overlap.may_change_rounding = false;  // costs are those of the machine, in any mode
  EXPECT_NO_THROW(validate_overlap(config));
}

TEST(ValidateOverlap, SplitsOnlyWhereCostsAndWaitsAre) {
  RunConfig config;
  config.parallel.tensor = 2;
  config.parallel.sequence_parallel = true;
  config.overlap.mode = "manual";
  config.overlap.tp_comm_overlap = true;
  config.overlap.split_ops = true;
  EXPECT_EQ(refusal(config),
            "overlap.split_ops = true: cuts tasks where costs say that it pays, but overlap.cost "
            "is empty; remove the key, or set overlap.cost to a cluster like \"h200x8\" or to a "
            "profile of `braid calibrate`");
  config.overlap.cost = "h200x8";
  EXPECT_NO_THROW(validate_overlap(config));
  config.parallel.context = 2;
  EXPECT_EQ(
      refusal(config),
      "overlap.split_ops = true: needs equal work on all ranks, but the ranks of parallel.context "
      "= 2 compute different parts; set parallel.context = 1 or remove the key");
  config.parallel.tensor = 1;
  config.parallel.context_method = "a2a";
  config.overlap.tp_comm_overlap = false;
  EXPECT_EQ(refusal(config),
            "overlap.split_ops = true: cuts tasks to run them beside exchanges of context ranks, "
            "but overlap.overlap_context_comm is false; set overlap.overlap_context_comm = true");
  config.overlap.overlap_context_comm = true;
  EXPECT_NO_THROW(validate_overlap(config));
  config.overlap.overlap_context_comm = false;
  config.parallel.tensor = 2;
  config.parallel.context = 1;
  EXPECT_EQ(
      refusal(config),
      "overlap.split_ops = true: fills waits for communication of tensor ranks that runs beside "
      "compute, but overlap.tp_comm_overlap is false; set overlap.tp_comm_overlap = true");
  config.parallel.tensor = 1;
  EXPECT_EQ(
      refusal(config),
      "overlap.split_ops = true: fills waits for communication of tensor ranks that runs beside "
      "compute, but parallel.tensor = 1; set parallel.tensor above 1 or remove the key");
  config.overlap.mode = "auto";
  EXPECT_EQ(refusal(config),
            "overlap.split_ops = true: is read with mode = \"manual\" only; mode is \"auto\"; set "
            "overlap.mode = \"manual\" or remove the key");
}

TEST(ValidateOverlap, RefusesKeysThatNeedAPipeline) {
  RunConfig config = manual();
  config.parallel.pipeline = 1;
  config.overlap.overlap_grad_reduce = true;
  EXPECT_NO_THROW(validate_overlap(config));
  config.overlap.overlap_p2p_wgrad_delayed_layer_number = 1;
  EXPECT_EQ(refusal(config),
            "overlap.overlap_p2p_wgrad_delayed_layer_number = 1: needs messages between pipeline "
            "stages, but parallel.pipeline = 1; set parallel.pipeline above 1 or remove the key");
}

TEST(ValidateOverlap, RefusesKeysThatExtendWhatIsOff) {
  RunConfig config = manual();
  config.overlap.overlap_p2p_comm_warmup_flush = true;
  EXPECT_EQ(refusal(config),
            "overlap.overlap_p2p_comm_warmup_flush = true: extends overlap_p2p_comm to warm-up and "
            "flush, but overlap_p2p_comm is false; set overlap.overlap_p2p_comm = true");
  config = manual();
  config.overlap.overlap_p2p_backward_on_comm_stream = true;
  EXPECT_EQ(refusal(config),
            "overlap.overlap_p2p_backward_on_comm_stream = true: chooses the stream of messages "
            "that overlap_p2p_comm moves off the compute stream, but overlap_p2p_comm is false; "
            "set overlap.overlap_p2p_comm = true");
  config = manual();
  config.overlap.overlap_p2p_with_transformer_layer_wgrad = true;
  EXPECT_EQ(refusal(config),
            "overlap.overlap_p2p_with_transformer_layer_wgrad = true: says which weight gradients "
            "of delayed layers wait, but no layer is delayed; set "
            "overlap.overlap_p2p_wgrad_delayed_layer_number = 1");
  config = manual();
  config.overlap.wgrad_deferral_limit = 4;
  EXPECT_EQ(refusal(config),
            "overlap.wgrad_deferral_limit = 4: limits defer_embedding_wgrad_compute, but that is "
            "false; set overlap.defer_embedding_wgrad_compute = true");
}

TEST(ValidateOverlap, PairsHideTensorAndContextCommunication) {
  RunConfig config;
  config.overlap = {.mode = "manual", .pair_forward_backward = "forward_backward"};
  EXPECT_EQ(refusal(config),
            "overlap.pair_forward_backward = \"forward_backward\": hides communication of tensor, "
            "context and expert ranks, but parallel.tensor = 1, parallel.context = 1 and "
            "parallel.expert = 1; set one of them above 1 or remove the key");
  config.parallel.context = 2;
  EXPECT_NO_THROW(validate_overlap(config));
  config.overlap.mode = "auto";
  EXPECT_EQ(refusal(config),
            "overlap.pair_forward_backward = \"forward_backward\": is read with mode = \"manual\" "
            "only; mode is \"auto\"; set overlap.mode = \"manual\" or remove the key");
}

TEST(ValidateOverlap, HalvesAreOfEvenMicrobatchesWithoutAPipeline) {
  RunConfig config = manual();
  config.parallel.tensor = 2;
  config.overlap.pair_forward_backward = "halves";
  config.train.microbatch = 4;
  EXPECT_EQ(refusal(config),
            "overlap.pair_forward_backward = \"halves\": is for runs without a pipeline, but "
            "parallel.pipeline = 2; set overlap.pair_forward_backward = \"forward_halves\"");
  config.parallel.pipeline = 1;
  EXPECT_NO_THROW(validate_overlap(config));
  config.moe.expert_capacity = 1.5;
  EXPECT_EQ(
      refusal(config),
      "overlap.pair_forward_backward = \"halves\": moe.expert_capacity = 1.5 would count half "
      "the tokens, so other rows would be dropped; set overlap.pair_forward_backward = "
      "\"forward_halves\"");
  config.moe.expert_capacity = 0;
  config.train.microbatch = 3;
  EXPECT_EQ(refusal(config),
            "overlap.pair_forward_backward = \"halves\": cuts a microbatch in two, but "
            "train.microbatch = 3 is odd; set train.microbatch = 2 or train.microbatch = 4");
  config.train.microbatch = 1;
  EXPECT_EQ(refusal(config),
            "overlap.pair_forward_backward = \"halves\": cuts a microbatch in two, but "
            "train.microbatch = 1 is odd; set train.microbatch = 2");
}

TEST(ValidateOverlap, HalvesOfForwardsAreWholeSequencesThatTensorRanksShare) {
  RunConfig config = manual();
  config.parallel.tensor = 2;
  config.overlap.pair_forward_backward = "forward_halves";
  config.train.microbatch = 2;
  config.train.sequence = 7;
  EXPECT_NO_THROW(validate_overlap(config));
  config.parallel.sequence_parallel = true;
  EXPECT_EQ(refusal(config),
            "overlap.pair_forward_backward = \"forward_halves\": with parallel.sequence_parallel = "
            "true, parallel.tensor = 2 must divide the 7 rows of half a microbatch "
            "(train.microbatch / 2 * train.sequence); set parallel.sequence_parallel = false");
  config.train.microbatch = 4;
  EXPECT_NO_THROW(validate_overlap(config));
  config.train.microbatch = 3;
  EXPECT_EQ(refusal(config),
            "overlap.pair_forward_backward = \"forward_halves\": cuts a microbatch in two, but "
            "train.microbatch = 3 is odd; set train.microbatch = 2 or train.microbatch = 4");
  config.train.microbatch = 4;
  config.parallel.context = 2;
  EXPECT_EQ(
      refusal(config),
      "overlap.pair_forward_backward = \"forward_halves\": is for runs without context ranks, but "
      "parallel.context = 2; set overlap.pair_forward_backward = \"forward_backward\"");
}

}  // namespace
}  // namespace braid
