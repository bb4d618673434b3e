// Losses, weights and optimizer state are the same bits with all overlap, with none and with each
// key of [overlap] alone, under every kind of layout.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "config/fields.h"
#include "config/load.h"
#include "support/engine_runs.h"
#include "support/overlap_settings.h"
#include "support/thinned.h"

namespace braid {
namespace {

/// Overrides of the base configuration below, separated by blanks; keys without a section are of
/// [parallel].
struct Layout {
  std::string overrides;
};

void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.overrides;
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> list;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) {
      list.push_back(text.substr(at, end - at));
    }
    at = end + 1;
  }
  return list;
}

RunConfig config_of(const Layout& layout, const OverlapSettings& overlap = {}) {
  std::vector<std::string> overrides = {"model.family=llama",
                                        "model.layers=4",
                                        "model.width=24",
                                        "model.heads=4",
                                        "model.kv_heads=2",
                                        "model.head_size=4",
                                        "model.ffn=24",
                                        "train.microbatch=1",
                                        "train.sequence=8",
                                        "train.global_batch=8",
                                        "eval.interval=0",
                                        "logging.run_folder=none",
                                        "optimizer.learning_rate=3e-3"};
  for (const std::string& word : words(layout.overrides)) {
    overrides.push_back(word.find('.') < word.find('=') ? word : "parallel." + word);
  }
  RunConfig config = parse_config("", "overlap", overrides);
  config.overlap = overlap_of(overlap);
  return config;
}

/// As many of the keys as the configuration can have, each with a chance of one in `one_in`.
OverlapSettings many_keys(const RunConfig& config, std::mt19937& random, unsigned one_in) {
  OverlapSettings settings = {"mode=manual"};
  for (const Field* const field : overlap_keys()) {
    const std::vector<std::string> values = other_values(*field);
    if (random() % one_in != 0) {
      continue;
    }
    OverlapSettings more = settings;
    more.push_back(fmt::format("{}={}", field->name, values[random() % values.size()]));
    if (is_possible(config, more)) {
      settings = std::move(more);
    }
  }
  return settings;
}

class OverlapParity : public testing::TestWithParam<Layout> {
 protected:
  static constexpr int64_t kSteps = 3;

  /// The same bits as without overlap; what products in pieces or of other microbatches round in
  /// another way, in f32, is far below this tolerance after three steps.
  static void expect_like(const Outcome& off, const OverlapSettings& settings) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(settings, " ")));
    const RunConfig config = config_of(GetParam(), settings);
    const Outcome outcome = run(config, kSteps);
    if (!may_round_otherwise(settings)) {
      expect_same_bits(outcome, off);
      return;
    }
    for (size_t step = 0; step < off.losses.size(); ++step) {
      EXPECT_NEAR(outcome.losses[step], off.losses[step], 0.02);
    }
  }
};

// Orders and streams differ, the kernels and the order of every sum do not. Later steps read
// weights that the one before has updated and, depending on the mode, not gathered yet.
TEST_P(OverlapParity, EverythingOnOffAndEachKeyAlone) {
  const Outcome off = run(config_of(GetParam(), {"mode=off"}), kSteps);
  expect_like(off, {"mode=auto"});
  const RunConfig config = config_of(GetParam());
  for (const OverlapSettings& settings : thinned(possible_settings(config), 7)) {
    expect_like(off, settings);
  }
  std::mt19937 random(static_cast<unsigned>(GetParam().overrides.size()));
  for (const unsigned one_in : {1u, 2u}) {
    expect_like(off, many_keys(config, random, one_in));
  }
}

/// Layouts in which ranks have different experts.
std::vector<Layout> expert_layouts() {
  std::vector<Layout> list;
  for (const char* const layout :
       {"ranks=2 expert=2",
        "ranks=4 expert=4",
        "ranks=4 expert=2 shard=optimizer",
        "ranks=4 expert=2 shard=gradients",
        "ranks=4 expert=2 shard=parameters",
        "ranks=2 expert_tensor=2",
        "ranks=4 expert=2 expert_tensor=2 train.dtype=bfloat16",
        "ranks=2 tensor=2 train.microbatch=2 sequence_parallel=true expert=2",
        "ranks=4 tensor=2 train.microbatch=2 sequence_parallel=true expert=4 shard=optimizer",
        "ranks=2 context=2 expert=2",
        "ranks=4 context=2 expert=4 shard=parameters",
        "ranks=2 context=2 expert=2 context_method=a2a",
        "ranks=4 pipeline=2 expert=2",
        "ranks=4 pipeline=2 expert=2 schedule=zb-h1",
        "ranks=4 pipeline=2 expert=2 virtual_stages=2 schedule=interleaved",
        "ranks=4 pipeline=2 expert=2 virtual_stages=2 schedule=dualpipe-v",
        "ranks=8 pipeline=2 tensor=2 train.microbatch=2 sequence_parallel=true expert=4",
        "ranks=4 expert=2 memory.recompute=norms",
        "ranks=4 expert=4 memory.recompute=full",
        "ranks=4 expert=4 moe.capacity=2 moe.on_overflow=drop",
        "ranks=4 expert=4 model.shared_ffn=12 train.dtype=bfloat16",
        "ranks=4 expert=4 train.microbatch=2 moe.expert_capacity=0.8",
        "ranks=4 tensor=2 train.microbatch=2 sequence_parallel=true expert=4 "
        "moe.expert_capacity=0.8",
        "ranks=4 pipeline=2 expert=2 moe.expert_capacity=1 moe.drop=position",
        "ranks=4 expert=4 moe.exchange=blocks",
        "ranks=4 expert=2 shard=parameters moe.exchange=blocks moe.capacity=1 "
        "moe.on_overflow=drop",
        "ranks=4 pipeline=2 expert=2 virtual_stages=2 schedule=interleaved moe.exchange=blocks",
        "ranks=4 expert=2 expert_tensor=2 train.dtype=bfloat16 moe.exchange=blocks",
        "ranks=4 expert=4 moe.exchange=hosts moe.exchange_hosts=2",
        "ranks=4 expert=4 shard=parameters moe.exchange=hosts moe.exchange_hosts=2 "
        "moe.capacity=1 moe.on_overflow=drop",
        "ranks=4 pipeline=2 expert=2 virtual_stages=2 schedule=interleaved moe.exchange=hosts "
        "moe.exchange_hosts=2",
        "ranks=4 expert=2 expert_tensor=2 train.dtype=bfloat16 memory.recompute=full "
        "moe.exchange=hosts moe.exchange_hosts=2"}) {
    list.push_back(
        {std::string("model.experts=4 model.experts_per_token=2 model.expert_ffn=8 ") + layout});
  }
  for (const char* const layout :
       {"ranks=4 pipeline=2 expert=2 schedule=zb-h1",
        "ranks=4 tensor=2 train.microbatch=2 sequence_parallel=true expert=2 shard=parameters "
        "train.dtype=bfloat16",
        "ranks=4 context=2 expert=4 shard=optimizer memory.recompute=full"}) {
    list.push_back({std::string("model.experts=4 model.experts_per_token=2 model.expert_ffn=8 "
                                "model.router_logit_bias=true moe.z_loss=0.001 ") +
                    layout});
  }
  for (const char* const layout :
       {"ranks=4 expert=2 shard=gradients", "ranks=4 pipeline=2 expert=2 schedule=zb-h1",
        "ranks=4 expert=2 shard=gradients model.router_logit_bias=true",
        "ranks=4 expert=2 shard=gradients train.fp8_dispatch=true",
        "ranks=4 pipeline=2 expert=2 schedule=zb-h1 train.fp8_dispatch=true",
        "ranks=4 tensor=2 train.microbatch=2 sequence_parallel=true expert=4 "
        "train.fp8_dispatch=true",
        "ranks=4 expert=4 moe.exchange=hosts moe.exchange_hosts=2 train.fp8_dispatch=true"}) {
    list.push_back({std::string("model.experts=4 model.experts_per_token=2 model.expert_ffn=128 "
                                "model.width=128 train.fp8=block train.fp8_experts=true ") +
                    layout});
  }
  return list;
}

std::vector<Layout> overlap_layouts() {
  return {
      {"ranks=4"},
      {"ranks=4 shard=optimizer"},
      {"ranks=4 shard=gradients optimizer.moments_dtype=bfloat16"},
      {"ranks=4 shard=parameters memory.gather_budget=32KiB"},
      {"ranks=4 shard=optimizer grad_reduce_dtype=bfloat16 train.dtype=bfloat16"},
      {"ranks=4 shard=gradients grad_reduce_dtype=bfloat16"},
      {"ranks=4 shard=gradients grad_reduce_dtype=bfloat16 optimizer.main_grads_dtype=bfloat16 "
       "train.dtype=bfloat16"},
      {"ranks=4 tensor=2 train.microbatch=2 sequence_parallel=true shard=parameters "
       "grad_reduce_dtype=bfloat16 optimizer.main_grads_dtype=bfloat16 train.dtype=bfloat16"},
      {"ranks=4 pipeline=2 schedule=zb-h1 grad_reduce_dtype=bfloat16 "
       "optimizer.main_grads_dtype=bfloat16 train.dtype=bfloat16 model.tied_embeddings=true"},
      {"ranks=4 grad_reduce_dtype=bfloat16"},
      {"ranks=4 shard=parameters shard_replicas=2 bucket=virtual_stage"},
      {"ranks=4 shard=optimizer shard_replicas=2 bucket=bytes bucket_bytes=9000"},
      {"ranks=4 shard=parameters memory.recompute=full model.tied_embeddings=true"},
      {"ranks=2 tensor=2"},
      {"ranks=2 tensor=2 train.microbatch=2 sequence_parallel=true"},
      {"ranks=4 tensor=2 sequence_parallel=true shard=gradients"},
      {"ranks=4 tensor=4 sequence_parallel=true memory.recompute=norms train.dtype=bfloat16"},
      {"ranks=4 tensor=2 shard=parameters model.qkv_bias=true"},
      {"ranks=2 pipeline=2 schedule=gpipe"},
      {"ranks=4 pipeline=2 shard=optimizer"},
      {"ranks=4 pipeline=2 shard=parameters"},
      {"ranks=4 pipeline=4 model.tied_embeddings=true"},
      {"ranks=3 pipeline=3 account_for_embedding=true account_for_loss=true train.dtype=bfloat16"},
      {"ranks=3 pipeline=3 train.global_batch=7 pipeline_layout=Et|tt|tL"},
      {"ranks=3 pipeline=3 virtual_stages=3 schedule=interleaved train.global_batch=9 "
       "pipeline_layout=Et|||t||t|||tL"},
      {"ranks=6 pipeline=3 virtual_stages=3 schedule=interleaved train.global_batch=18 "
       "pipeline_layout=Et|||t||t|||tL shard=optimizer"},
      {"ranks=2 pipeline=2 first_stage_layers=1 last_stage_layers=3 memory.recompute=attention"},
      {"ranks=4 pipeline=2 virtual_stages=2 schedule=interleaved shard=gradients"},
      {"ranks=2 pipeline=2 virtual_stages=2 schedule=interleaved pipeline_layout=Et|tt|t|L"},
      {"ranks=4 pipeline=2 schedule=zb-h1 shard=parameters"},
      {"ranks=2 pipeline=2 virtual_stages=2 schedule=zb-v"},
      {"ranks=2 pipeline=2 virtual_stages=2 schedule=dualpipe-v model.tied_embeddings=true"},
      {"ranks=4 pipeline=2 tensor=2 sequence_parallel=true memory.recompute=norms"},
      {"ranks=4 pipeline=2 context=2 virtual_stages=2 schedule=interleaved"},
      {"ranks=2 context=2"},
      {"ranks=4 context=4 shard=parameters"},
      {"ranks=2 context=2 context_method=all_gather"},
      {"ranks=2 context=2 context_method=a2a shard=optimizer"},
      {"ranks=4 context=4 context_method=a2a+ring train.dtype=bfloat16"},
      {"ranks=4 tensor=2 context=2 sequence_parallel=true shard=gradients"},
      {"ranks=4 model.family=gpt2 model.kv_heads=4 model.tied_embeddings=true shard=gradients"},
      {"ranks=2 memory.offload_layers=2 memory.offload_min_bytes=100"}};
}

INSTANTIATE_TEST_SUITE_P(Layouts, OverlapParity, testing::ValuesIn(thinned(overlap_layouts(), 13)));
/// Layers with states, attention, an MLP and experts alone, on stages of unequal numbers of them.
std::vector<Layout> hybrid_layouts() {
  const std::string plain = "M-*M ";
  const std::string experts =
      "ME*E model.experts=4 model.experts_per_token=2 model.expert_ffn=8 model.shared_ffn=12 "
      "model.router_scores=sigmoid model.router_bias=true ";
  std::vector<Layout> list;
  for (const std::string& layout :
       {plain + "ranks=8 pipeline=2 tensor=2 train.microbatch=2 sequence_parallel=true "
                "shard=parameters train.dtype=bfloat16",
        plain + "ranks=4 shard=gradients shard_replicas=2 train.global_batch=4",
        plain + "ranks=2 context=2 train.global_batch=4",
        plain + "ranks=2 context=2 context_method=a2a train.global_batch=2",
        plain + "ranks=4 context=2 mamba_context=states pipeline=2 train.sequence=12 "
                "train.dtype=bfloat16 train.global_batch=4",
        plain + "ranks=2 context=2 mamba_context=states context_method=a2a "
                "train.sequence=12 train.global_batch=2",
        plain + "ranks=2 pipeline=2 schedule=zb-h1 pipeline_layout=Et|tttL train.global_batch=4",
        experts + "ranks=2 expert=2 shard=parameters train.dtype=bfloat16 train.global_batch=4",
        experts + "ranks=4 pipeline=2 expert=2 model.mtp_depth=1 pipeline_layout=Ettt|tL "
                  "train.global_batch=4"}) {
    list.push_back(
        {"model.family=nemotron_h model.mamba_num_heads=4 model.mamba_head_dim=3 "
         "model.ssm_state_size=5 model.mamba_n_groups=2 model.mamba_chunk_size=3 "
         "model.pattern=" +
         layout});
  }
  return list;
}

/// Ranks with the same shard update parts of it, with one microbatch and several, both types of
/// reductions, and FP32 weights that are main weights elsewhere.
std::vector<Layout> replica_layouts() {
  std::vector<Layout> list;
  for (const char* const layout :
       {"ranks=4 shard=optimizer train.dtype=bfloat16",
        "ranks=4 shard=gradients grad_reduce_dtype=bfloat16 train.global_batch=8",
        "ranks=4 shard=parameters", "ranks=4 pipeline=2 shard=parameters train.dtype=bfloat16",
        "ranks=4 expert=2 shard=parameters model.experts=4 model.experts_per_token=2 "
        "model.expert_ffn=8 memory.gather_budget=64KiB",
        "ranks=4 shard=parameters model.family=nemotron_h model.mamba_num_heads=4 "
        "model.mamba_head_dim=3 model.ssm_state_size=5 model.mamba_n_groups=2 "
        "model.mamba_chunk_size=3 model.pattern=M-*M train.global_batch=4"}) {
    list.push_back({std::string(layout) + " shard_replicas=2 shard_over_replicas=true"});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(ShardOverReplicas, OverlapParity,
                         testing::ValuesIn(thinned(replica_layouts(), 4)));

/// The embedding is gathered again behind the head, on the last of two stages.
const Layout kMtpLayout = {
    "ranks=4 pipeline=2 shard=parameters model.layers=2 model.mtp_depth=1 train.global_batch=4"};

INSTANTIATE_TEST_SUITE_P(Mtp, OverlapParity, testing::Values(kMtpLayout));
INSTANTIATE_TEST_SUITE_P(Hybrids, OverlapParity, testing::ValuesIn(thinned(hybrid_layouts(), 4)));
INSTANTIATE_TEST_SUITE_P(Experts, OverlapParity, testing::ValuesIn(thinned(expert_layouts(), 11)));

// A key that is new must be switched somewhere.
TEST(OverlapKeys, EachIsSwitchedInSomeLayout) {
  std::vector<Layout> layouts = overlap_layouts();
  EXPECT_GE(layouts.size(), 30u);
  layouts.push_back(expert_layouts().front());
  for (const Field* const field : overlap_keys()) {
    for (const OverlapSettings& settings : settings_of(*field)) {
      EXPECT_TRUE(std::ranges::any_of(
          layouts, [&](const Layout& layout) { return is_possible(config_of(layout), settings); }))
          << fmt::format("{}", fmt::join(settings, " ")) << ": no layout takes it";
    }
  }
}

}  // namespace
}  // namespace braid
