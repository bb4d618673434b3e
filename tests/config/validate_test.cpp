#include "config/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "config/config_text.h"
#include "config/mistakes.h"
#include "config/reference.h"
#include "support/proposals.h"
#include "support/source_path.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Overrides lines_of(const std::string& lines) {
  Overrides overrides;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    overrides.push_back(lines.substr(begin, end - begin));
    begin = end + 1;
  }
  return overrides;
}

/// A valid configuration with these overrides, one per line.
RunConfig changed(const std::string& lines) {
  return parse_config(to_toml(valid_config()), "base", lines_of(lines));
}

/// What `validate` refuses of a valid configuration with these overrides.
std::vector<std::string> mistakes_in(const Overrides& overrides) {
  try {
    validate(parse_config(to_toml(valid_config()), "base", overrides));
    return {};
  } catch (const ConfigError& error) {
    return mistakes_of(error);
  }
}

class Accepts : public ::testing::TestWithParam<const char*> {};

TEST_P(Accepts, WithoutAWord) {
  EXPECT_EQ(config_error_of([&] { validate(changed(GetParam())); }), "no error");
}

INSTANTIATE_TEST_SUITE_P(
    All, Accepts,
    ::testing::Values(
        "", "parallel.ranks=2", "parallel.ranks=2\nparallel.data=2",
        "train.microbatch=4\ntrain.global_batch=12\nparallel.ranks=3",
        "model.family=gpt2\nmodel.max_positions=1024", "model.family=gpt2\nmodel.max_positions=0",
        "model.family=gpt2\nmodel.heads=64\nmodel.head_size=3",
        "model.width=63\nmodel.head_size=16", "model.kv_heads=2", "model.kv_heads=0",
        "model.preset=llama-1b\nmodel.max_positions=7",
        "optimizer.schedule=wsd\noptimizer.decay_steps=900\noptimizer.warmup_steps=100",
        "optimizer.schedule=wsd\noptimizer.decay_steps=1\noptimizer.decay_shape=cosine",
        "optimizer.schedule=wsd\noptimizer.decay_steps=950\noptimizer.warmup_steps=100",
        "optimizer.schedule=wsd\noptimizer.decay_steps=50\noptimizer.warmup_steps=1000",
        "optimizer.schedule=linear\noptimizer.decay_steps=500",
        "optimizer.schedule=polynomial\noptimizer.decay_power=1.5",
        "optimizer.schedule=inverse_sqrt\noptimizer.min_learning_rate=1e-5",
        "optimizer.name=sgd\noptimizer.momentum=0", "optimizer.name=sgd\noptimizer.nesterov=true",
        "optimizer.name=lion\noptimizer.beta2=0.99",
        "optimizer.main_grads_dtype=bfloat16\ntrain.dtype=bfloat16",
        "optimizer.main_grads_dtype=bfloat16\ntrain.dtype=bfloat16\nparallel.ranks=2\n"
        "parallel.grad_reduce_dtype=bfloat16",
        "optimizer.schedule=constant\noptimizer.warmup_steps=1000", "optimizer.warmup_steps=2000",
        "optimizer.warmup_steps=2000\noptimizer.decay_steps=1000",
        "optimizer.decay_steps=5000\noptimizer.warmup_steps=10", "optimizer.min_learning_rate=3e-4",
        "overlap.mode=manual\noverlap.overlap_grad_reduce=true",
        "preference.loss=dpo\ntrain.microbatch=2\ntrain.global_batch=4",
        "preference.loss=ipo\ntrain.microbatch=2\ntrain.global_batch=4\npreference.beta=0.5\n"
        "data.split=1,0,0\npreference.held_out=other",
        "data.split=1,0,0\neval.interval=0", "data.split= 0.9 , .1 , 0", "overlap.mode=off",
        "links.data_gb_per_s=450\nlinks.data_latency_us=2.5", "links.context_gb_per_s=1e-6"));

TEST(Validate, ReportsIndependentMistakesOfAllSections) {
  EXPECT_THAT(
      mistakes_in({"optimizer.momentum=0.5", "optimizer.muon_steps=3", "train.fp8_head=true",
                   "memory.offload_min_bytes=5", "train.global_batch=7", "train.microbatch=2",
                   "overlap.mode=auto", "overlap.overlap_grad_reduce=true",
                   "overlap.align_param_gather=true", "data.split=1,x",
                   "links.data_gb_per_s=1e-9"}),
      ElementsAre(StartsWith("train.global_batch = 7"), StartsWith("optimizer.momentum = 0.5"),
                  StartsWith("optimizer.muon_steps = 3"),
                  StartsWith("memory.offload_min_bytes = 5"),
                  StartsWith("overlap.overlap_grad_reduce = true"),
                  StartsWith("overlap.align_param_gather = true: is read with mode"),
                  StartsWith("train.fp8_head = true"), StartsWith("data.split = \"1,x\""),
                  StartsWith("links.data_gb_per_s = 1e-09")));
}

// Without a layout there are no data ranks, by which the batch could be divided.
TEST(Validate, LeavesOutWhatAMistakeDecides) {
  EXPECT_THAT(mistakes_in({"parallel.ranks=2", "parallel.tensor=4", "train.global_batch=7",
                           "train.microbatch=2", "parallel.shard_replicas=3"}),
              ElementsAre(StartsWith("parallel.ranks = 2")));
  RunConfig config = valid_config();
  config.train.microbatch = 0;
  config.parallel.tensor = 0;
  config.optimizer.momentum = 0.5;  // a rule between keys
  try {
    validate(config);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(mistakes_of(error), ElementsAre("train.microbatch = 0: must be at least 1",
                                                "parallel.tensor = 0: must be at least 1"));
  }
}

struct Broken {
  const char* overrides;
  const char* message;

  friend std::ostream& operator<<(std::ostream& stream, const Broken& broken) {
    return stream << broken.overrides;
  }
};

TEST(Validate, PairsNeedTheirOwnLayout) {
  EXPECT_THAT(
      mistakes_in({"preference.loss=hinge", "preference.label_smoothing=0.1", "train.microbatch=3",
                   "train.global_batch=6", "train.z_loss=0.1", "data.packing=best_fit",
                   "data.document_mask=true", "data.blend=[\"1 a\"]"}),
      ElementsAre(
          HasSubstr("data.blend has"),
          StartsWith("train.microbatch = 3: must be even with preference.loss = \"hinge\", because "
                     "the two answers of a pair share a microbatch; the nearest is 4"),
          StartsWith("data.blend: pairs"), StartsWith("data.packing = \"best_fit\""),
          StartsWith("data.document_mask = true"), StartsWith("train.z_loss = 0.1"),
          StartsWith("preference.label_smoothing = 0.1: is read with preference.loss = \"dpo\"")));
  EXPECT_THAT(mistakes_in({"preference.beta=0.2"}),
              ElementsAre(HasSubstr("are read with preference.loss only, which is \"none\"")));
  EXPECT_THAT(
      mistakes_in({"preference.loss=dpo", "train.microbatch=2", "train.global_batch=4",
                   "parallel.ranks=2", "parallel.tensor=2", "overlap.mode=manual",
                   "overlap.pair_forward_backward=halves"}),
      ElementsAre(StartsWith("train.microbatch = 2: must be even, and so must the halves")));
}

class Refuses : public ::testing::TestWithParam<Broken> {};

TEST_P(Refuses, WithOneLine) {
  const std::string message = config_error_of([&] { validate(changed(GetParam().overrides)); });
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

TEST_P(Refuses, WithAWayOut) {
  const auto refusal_of = [](const Overrides& overrides) {
    const std::vector<std::string> mistakes = mistakes_in(overrides);
    return mistakes.empty() ? "" : mistakes.front();
  };
  const Overrides overrides = lines_of(GetParam().overrides);
  for (const Proposal& proposal : proposals_of(refusal_of(overrides))) {
    const Overrides changed = applied(overrides, proposal);
    EXPECT_EQ(refusals_in_a_row(changed, refusal_of(changed), refusal_of), "")
        << fmt::format("{}", fmt::join(proposal, " and ")) << " was proposed by\n"
        << refusal_of(overrides);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Experts, Refuses,
    ::testing::Values(Broken{"parallel.ranks=6\nparallel.expert=4\ntrain.global_batch=12",
                             "parallel.expert = 4: must divide the 6 ranks of a stage (tensor * "
                             "context * data) over parallel.expert_tensor = 1, which are 6; set "
                             "parallel.expert = 3"},
                      Broken{"parallel.ranks=4\nparallel.expert_tensor=8\ntrain.global_batch=16",
                             "parallel.expert_tensor = 8: must divide the 4 ranks of a stage"},
                      Broken{"moe.capacity=1.5",
                             "moe.capacity = 1.5: one rank has room for all rows"},
                      Broken{"moe.capacity=1.5\nmoe.expert_capacity=1.25",
                             "moe.capacity = 1.5: with moe.expert_capacity = 1.25, ranks have room "
                             "for all rows that experts take; remove one of the keys"},
                      Broken{"moe.drop=position",
                             "moe.drop = \"position\": says which rows are dropped, but "
                             "moe.expert_capacity is 0, so none are"}));

INSTANTIATE_TEST_SUITE_P(
    ParallelKeys, Refuses,
    ::testing::Values(
        Broken{"parallel.microbatch_group_size=4",
               "parallel.microbatch_group_size = 4: is read with schedule = \"interleaved\" only; "
               "schedule is \"1f1b\""},
        Broken{"parallel.context_inner=2",
               "parallel.context_inner = 2: is read with context_method = \"a2a+ring\" only"},
        Broken{
            "parallel.ranks=8\nparallel.context=8\ntrain.sequence=1000",
            "train.sequence = 1000: must be a multiple of 2 * parallel.context = 16; the nearest "
            "are 992 and 1008"},
        Broken{"parallel.ranks=8\nparallel.context=8\nparallel.context_method=a2a\n"
               "train.sequence=1004",
               "train.sequence = 1004: must be a multiple of parallel.context = 8; the nearest are "
               "1000 and 1008"},
        Broken{"parallel.ranks=8\nparallel.context=8\nparallel.context_method=a2a+ring\n"
               "parallel.context_inner=3\ntrain.sequence=1024",
               "parallel.context_inner = 3: must divide parallel.context = 8; the nearest is 2"},
        Broken{"parallel.shard_replicas=2",
               "parallel.shard_replicas = 2: must divide data * context = 1 * 1 = 1; the nearest "
               "is 1"},
        Broken{"parallel.ranks=2\nparallel.shard_replicas=2",
               "parallel.shard_replicas = 2: shard = \"none\" makes no shards; set parallel.shard "
               "= \"optimizer\" or parallel.shard_replicas = 1"},
        Broken{"parallel.ranks=2\nparallel.shard_over_replicas=true",
               "parallel.shard_over_replicas = true: shard = \"none\" makes no shards; set "
               "parallel.shard = \"optimizer\" or parallel.shard_over_replicas = false"},
        Broken{"parallel.ranks=4\nparallel.shard=optimizer\nparallel.shard_replicas=3",
               "parallel.shard_replicas = 3: must divide data * context = 4 * 1 = 4; the nearest "
               "is 2"},
        Broken{"parallel.bucket_bytes=5",
               "parallel.bucket_bytes = 5: is read with bucket = \"bytes\" only; bucket is "
               "\"layer\""}));

INSTANTIATE_TEST_SUITE_P(
    MemoryKeys, Refuses,
    ::testing::Values(
        Broken{"memory.recompute_layers=2",
               "memory.recompute_layers = 2: is read with recompute = \"norms\", \"attention\" or "
               "\"full\" only; recompute is \"none\""},
        Broken{"memory.recompute=auto\nmemory.recompute_layers=2",
               "memory.recompute_layers = 2: recompute = \"auto\" chooses the layers; remove it"},
        Broken{"memory.offload_prefetch_layers=2",
               "memory.offload_prefetch_layers = 2: is read with offload_layers above 0 only"},
        Broken{"memory.offload_min_bytes=4096",
               "memory.offload_min_bytes = 4096: is read with offload_layers above 0 only"},
        Broken{"memory.gather_budget=2\nparallel.shard=parameters",
               "memory.gather_budget = \"2\": must be a size with its unit, such as \"2GiB\" or "
               "\"500MB\", \"auto\", or \"\"; set memory.gather_budget = \"2GiB\""},
        Broken{
            "memory.gather_budget=2GiB\nparallel.ranks=2\nparallel.shard=optimizer",
            "memory.gather_budget = \"2GiB\": limits weights that ranks gather for each use, but "
            "parallel.shard is \"optimizer\"; set parallel.shard = \"parameters\" or remove"},
        Broken{"memory.grad_budget=auto\nparallel.shard=gradients",
               "memory.grad_budget = \"auto\": must be a size with its unit"},
        Broken{
            "memory.grad_budget=1MB",
            "memory.grad_budget = \"1MB\": limits whole gradients that wait until ranks have "
            "reduced them, but parallel.shard is \"none\"; set parallel.shard = \"gradients\""}));

INSTANTIATE_TEST_SUITE_P(
    LayoutAndBatch, Refuses,
    ::testing::Values(
        Broken{
            "parallel.ranks=3\nparallel.data=2",
            "parallel.ranks = 3: must be data * tensor * pipeline * context = 2 * 1 * 1 * 1; set "
            "parallel.ranks = 2, or parallel.data = 0"},
        Broken{"parallel.ranks=3\nparallel.tensor=2",
               "parallel.ranks = 3: must be data * tensor * pipeline * context = 1 * 2 * 1 * 1; "
               "set parallel.ranks = 2"},
        Broken{"parallel.ranks=3",
               "train.global_batch = 8: must be a multiple of train.microbatch * data-parallel "
               "ranks = "
               "1 * 3 = 3; the nearest are 6 and 9"},
        Broken{"train.microbatch=16",
               "train.global_batch = 8: must be a multiple of train.microbatch "
               "* data-parallel ranks = 16 * 1 = 16; the nearest is 16"}));

INSTANTIATE_TEST_SUITE_P(
    Model, Refuses,
    ::testing::Values(
        Broken{"model.heads=6\nmodel.width=96\nmodel.kv_heads=4",
               "model.kv_heads = 4: must divide model.heads = 6; the nearest is 3"},
        Broken{"model.kv_heads=8",
               "model.kv_heads = 8: must divide model.heads = 4; the nearest is 4"},
        Broken{"model.width=66",
               "model.width = 66: must be a multiple of model.heads = 4; the nearest "
               "are 64 and 68, or set model.head_size"},
        Broken{"model.preset=llama-1b\nmodel.width=66", "model.width = 66: must be a multiple"},
        Broken{"model.head_size=15",
               "model.head_size = 15: must be even, because rotary positions rotate pairs; the "
               "nearest are 14 and 16"},
        Broken{"model.width=12", "model.head_size = 3: must be even"},
        Broken{"model.max_positions=64",
               "model.max_positions = 64: a llama model has no learned positions; remove the key"},
        Broken{"model.family=gpt2\nmodel.rope_theta=10000",
               "model.rope_theta = 10000: a gpt2 model has no rotary positions; remove the key"},
        Broken{"model.family=gpt2\nmodel.max_positions=512",
               "train.sequence = 1024: must be at most model.max_positions = 512; set "
               "train.sequence = "
               "512 or model.max_positions = 1024"}));

INSTANTIATE_TEST_SUITE_P(
    Optimizer, Refuses,
    ::testing::Values(
        Broken{"optimizer.min_learning_rate=0.1",
               "optimizer.min_learning_rate = 0.1: must be at most "
               "optimizer.learning_rate = 0.0003"},
        // Weights whose gradients have all been 0, such as those of tokens that are not in the
        // data, would be updated by 0 / 0.
        Broken{"optimizer.epsilon=0", "optimizer.epsilon = 0.0: must be at least"},
        Broken{"optimizer.schedule=wsd",
               "optimizer.decay_steps = 0: schedule = \"wsd\" needs the length "
               "of the decay; set optimizer.decay_steps = 100"},
        Broken{"optimizer.decay_steps=50\noptimizer.warmup_steps=100",
               "optimizer.decay_steps = 50: must be 0 or at least warmup_steps = 100"},
        Broken{"optimizer.schedule=constant\noptimizer.decay_steps=5",
               "optimizer.decay_steps = 5: schedule = \"constant\" does not decay"},
        Broken{"optimizer.schedule=constant\noptimizer.min_learning_rate=1e-5",
               "optimizer.min_learning_rate = 1e-05: schedule = \"constant\" does not decay"},
        Broken{"optimizer.schedule=inverse_sqrt\noptimizer.decay_steps=5",
               "optimizer.decay_steps = 5: schedule = \"inverse_sqrt\" decays with each step; set "
               "optimizer.decay_steps = 0"},
        Broken{
            "optimizer.decay_power=3",
            "optimizer.decay_power = 3: is read with optimizer.schedule = \"polynomial\" only; set "
            "optimizer.decay_power = 2"},
        Broken{"optimizer.nesterov=true",
               "optimizer.nesterov = true: is read with optimizer.name = \"sgd\" only; set "
               "optimizer.nesterov = false"},
        Broken{"optimizer.name=sgd\noptimizer.nesterov=true\noptimizer.momentum=0",
               "optimizer.nesterov = true: looks ahead by optimizer.momentum, which is 0"},
        Broken{"optimizer.name=lion\noptimizer.muon_steps=3",
               "optimizer.muon_steps = 3: is read with optimizer.name = \"muon\" only; set "
               "optimizer.muon_steps = 5"},
        Broken{
            "optimizer.main_grads_dtype=bfloat16",
            "optimizer.main_grads_dtype = \"bfloat16\": gradients would be narrower than weights "
            "and activations, and train.dtype is \"float32\"; set optimizer.main_grads_dtype = "
            "\"float32\", or train.dtype = \"bfloat16\""},
        Broken{"optimizer.main_grads_dtype=bfloat16\ntrain.dtype=bfloat16\nparallel.ranks=2\n"
               "train.global_batch=8",
               "optimizer.main_grads_dtype = \"bfloat16\" with parallel.grad_reduce_dtype = "
               "\"float32\": ranks send gradients in the type in which they keep them; set "
               "parallel.grad_reduce_dtype = \"bfloat16\""},
        Broken{"optimizer.decay_shape=cosine",
               "optimizer.decay_shape = \"cosine\": is read with "
               "schedule = \"wsd\" only; schedule is \"cosine\""}));

INSTANTIATE_TEST_SUITE_P(
    Rest, Refuses,
    ::testing::Values(
        Broken{"overlap.overlap_grad_reduce=true",
               "overlap.overlap_grad_reduce = true: is read with "
               "mode = \"manual\" only; mode is \"auto\""},
        Broken{"overlap.param_gather_prefetch_units=2",
               "overlap.param_gather_prefetch_units = 2: is read with mode = \"manual\" only"},
        Broken{"overlap.mode=manual\noverlap.overlap_param_gather=true",
               "overlap.overlap_param_gather = true: needs weights that ranks hold or update in "
               "parts, but parallel.shard is \"none\""},
        Broken{"overlap.mode=manual\noverlap.align_param_gather=true",
               "overlap.align_param_gather = true: applies to weights that every rank holds whole "
               "and updates in part, but parallel.shard is \"none\""},
        Broken{"overlap.mode=manual\nparallel.ranks=2\nparallel.shard=optimizer\n"
               "overlap.align_param_gather=true",
               "overlap.align_param_gather = true: says how overlap_param_gather gathers weights"},
        Broken{"overlap.mode=manual\nparallel.ranks=2\nparallel.shard=parameters\n"
               "overlap.overlap_param_gather=true\n"
               "overlap.overlap_param_gather_with_optimizer_step=true",
               "overlap.overlap_param_gather_with_optimizer_step = true: applies to weights that "
               "every rank holds whole"},
        Broken{"overlap.mode=manual\nparallel.ranks=2\nparallel.shard=parameters\n"
               "overlap.param_gather_whole_units=2",
               "overlap.param_gather_whole_units = 2: says how overlap_param_gather gathers "
               "weights"},
        Broken{"overlap.mode=manual\nparallel.ranks=2\nparallel.shard=gradients\n"
               "overlap.overlap_param_gather=true\noverlap.param_gather_whole_units=2",
               "overlap.param_gather_whole_units = 2: keeps weights whole that ranks hold in "
               "parts, but parallel.shard is \"gradients\""},
        Broken{"overlap.mode=manual\nparallel.ranks=2\nparallel.shard=parameters\n"
               "overlap.overlap_param_gather=true\noverlap.param_gather_fills_budget=false",
               "overlap.param_gather_fills_budget = false: says how gathers use "
               "memory.gather_budget, which is \"\"; set memory.gather_budget = \"auto\""},
        Broken{"overlap.mode=manual\noverlap.overlap_context_comm=true",
               "overlap.overlap_context_comm = true: needs ranks that share a sequence"},
        Broken{"overlap.disable_passes=a,,b",
               "overlap.disable_passes = [\"a\", \"\", \"b\"]: has an empty name"},
        Broken{"train.fp8_watch=10",
               "train.fp8_watch = 10: counts what FP8 copies lose, but train.fp8 is \"off\"; set "
               "train.fp8_watch = 0, or train.fp8 = \"block\""},
        Broken{"data.document_length=700",
               "data.document_length = 700: is read with data.document_mask only, which is false; "
               "set data.document_mask = true"},
        Broken{"train.fp8_head=true",
               "train.fp8_head = true: is read with train.fp8 only, which is \"off\"; set "
               "train.fp8 = \"block\""},
        Broken{"train.fp8=mxfp8\ntrain.fp8_experts=true",
               "train.fp8_experts = true: products of experts are FP8 with train.fp8 = \"block\" "
               "only, and train.fp8 is \"mxfp8\"; remove the key or set train.fp8 = \"block\""},
        Broken{"train.fp8=block\ntrain.fp8_dispatch=true",
               "train.fp8_dispatch = true: rows travel as FP8 for products of experts that are "
               "FP8, and train.fp8_experts is false; remove the key or set train.fp8_experts = "
               "true"},
        Broken{
            "train.fp8=block\ntrain.fp8_weight_blocks=squares",
            "train.fp8_weight_blocks = \"squares\": is read with train.fp8 = \"mxfp8\" only, and "
            "train.fp8 is \"block\"; remove the key or set train.fp8 = \"mxfp8\""},
        Broken{"train.fp8=block\ntrain.fp8_watch=-1", "train.fp8_watch = -1: must be"},
        Broken{"data.tokenizer=",
               "data.tokenizer = \"\": must be a tokenizer.json, a SentencePiece model"},
        Broken{"data.split=90,10", "data.split = \"90,10\": expected three numbers >= 0"},
        Broken{"data.split=100,0,0",
               "data.split = \"100,0,0\": eval.interval = 100 needs a validation "
               "share"},
        Broken{"logging.run_folder=", "logging.run_folder = \"\": must name a folder"},
        Broken{"checkpoint.resume=", "checkpoint.resume = \"\": must be \"auto\", \"none\""}));

INSTANTIATE_TEST_SUITE_P(
    Links, Refuses,
    ::testing::Values(
        Broken{"links.data_latency_us=-1", "links.data_latency_us = -1.0: must be at least 0"},
        Broken{"links.tensor_latency_us=2e6",
               "links.tensor_latency_us = 2000000.0: must be at most 1000000"},
        Broken{"links.pipeline_gb_per_s=-2", "links.pipeline_gb_per_s = -2.0: must be at least 0"},
        Broken{"links.context_gb_per_s=4.5e11",
               "links.context_gb_per_s = 450000000000.0: must be at most 1000000"},
        Broken{"links.data_gb_per_s=1e-7",
               "links.data_gb_per_s = 1e-07: must be 0 (no limit) or at least 0.000001, which is 1 "
               "kB/s; set links.data_gb_per_s = 0.000001"},
        Broken{"links.tensor_gb_per_s=1e-9", "links.tensor_gb_per_s = 1e-09: must be 0"},
        Broken{"links.pipeline_gb_per_s=1e-9", "links.pipeline_gb_per_s = 1e-09: must be 0"},
        Broken{"links.context_gb_per_s=1e-9", "links.context_gb_per_s = 1e-09: must be 0"}));

TEST(Validate, NamesMissingSizes) {
  for (const auto key : {&ModelConfig::layers, &ModelConfig::width, &ModelConfig::heads}) {
    RunConfig config = valid_config();
    config.model.*key = std::nullopt;
    EXPECT_THAT(config_error_of([&] { validate(config); }),
                HasSubstr("not given; set it, or choose a published model with model.preset"));
    config.model.preset = "llama-1b";
    EXPECT_EQ(config_error_of([&] { validate(config); }), "no error");
  }
}

TEST(Validate, LayersSayWhichSizesTheyNeed) {
  RunConfig config = valid_config();
  config.model.heads = std::nullopt;
  config.model.layers = std::nullopt;
  config.model.pattern = "mlp*2";
  EXPECT_EQ(config_error_of([&] { validate(config); }), "no error");
  config.model.pattern = "mlp attention";
  EXPECT_THAT(config_error_of([&] { validate(config); }), HasSubstr("model.heads: not given"));
}

TEST(Validate, ChecksEachKeyOfAConfigMadeInCode) {
  RunConfig config = valid_config();
  config.train.microbatch = 0;  // would divide by zero further down
  EXPECT_EQ(config_error_of([&] { validate(config); }), "train.microbatch = 0: must be at least 1");
  config = valid_config();
  config.optimizer.clip_norm = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(config_error_of([&] { validate(config); }), StartsWith("optimizer.clip_norm = nan"));
}

TEST(Validate, EveryExampleRuns) {
  int num_examples = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source_path("examples"))) {
    const bool is_device = entry.path().parent_path().filename() == "hardware";
    if (entry.path().extension() == ".toml" && !is_device) {
      EXPECT_EQ(config_error_of([&] { validate(load_config(entry.path())); }), "no error");
      ++num_examples;
    }
  }
  EXPECT_GE(num_examples, 2);
}

// The run has 1000 steps.
TEST(ShortenedSchedule, ADecayEndsWithTheRun) {
  const auto decay = [](const std::string& text) {
    const RunConfig config = changed("optimizer.schedule=wsd\n" + text);
    const RunConfig shortened = resolved(config);
    EXPECT_EQ(config_error_of([&] { validate(shortened); }), "no error");
    EXPECT_EQ(resolved(shortened), shortened);
    return std::pair(shortened.optimizer.decay_steps, shortened_schedule(config));
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(decay("optimizer.decay_steps=900\noptimizer.warmup_steps=100"),
            std::pair(int64_t{900}, Lines{}));
  EXPECT_EQ(decay("optimizer.decay_steps=5000\noptimizer.warmup_steps=100"),
            std::pair(int64_t{900}, Lines{"optimizer.decay_steps = 5000: the run has train.steps = "
                                          "1000, and decays in the 900 after its warmup"}));
  EXPECT_EQ(
      decay("optimizer.decay_steps=50\noptimizer.warmup_steps=2000"),
      std::pair(int64_t{1}, Lines{"optimizer.warmup_steps = 2000: the run has train.steps = "
                                  "1000, and warms up in 1000",
                                  "optimizer.decay_steps = 50: the run has train.steps = 1000, "
                                  "and decays in the 0 after its warmup"}));
}

TEST(Resolved, WritesOutWhatIsDerived) {
  const RunConfig config = resolved(changed("parallel.ranks=2\ntrain.seed=7"));
  EXPECT_EQ(config.parallel.data, 2);
  EXPECT_EQ(config.data.seed, 7);
  EXPECT_EQ(config.optimizer.decay_steps, 1000);
  EXPECT_EQ(config.checkpoint.folder, "runs/test/checkpoints");
  EXPECT_EQ(config_error_of([&] { validate(config); }), "no error");
  EXPECT_EQ(resolved(config), config);
}

TEST(Resolved, KeepsWhatIsGiven) {
  const RunConfig config = changed(
      "parallel.data=1\ndata.seed=3\noptimizer.decay_steps=20\ncheckpoint.folder=elsewhere\n"
      "runtime.fuse_swiglu=on");
  EXPECT_EQ(resolved(config), config);
  const RunConfig constant = resolved(changed("optimizer.schedule=constant"));
  EXPECT_EQ(constant.optimizer.decay_steps, 0);
}

// GPUs run bfloat16 only.
TEST(Resolved, FusesSwigluWhereGpusRunTheStep) {
  const auto choice = [](const std::string& text) {
    return resolved(changed(text)).runtime.fuse_swiglu;
  };
  EXPECT_EQ(choice("train.dtype=float32"), "off");
  EXPECT_EQ(choice("train.dtype=bfloat16"), "on");
  EXPECT_EQ(choice("train.dtype=bfloat16\noverlap.mode=off"), "on");
  EXPECT_EQ(choice("train.dtype=bfloat16\nruntime.device=cuda"), "on");
  EXPECT_EQ(choice("train.dtype=bfloat16\nruntime.device=cpu"), "off");
  EXPECT_EQ(choice("train.dtype=bfloat16\nruntime.fuse_swiglu=off"), "off");
  EXPECT_EQ(choice("train.dtype=float32\nruntime.fuse_swiglu=on"), "on");
}

TEST(NumMicrobatches, IsTheShareOfOneRank) {
  EXPECT_EQ(
      num_microbatches(changed("train.global_batch=24\ntrain.microbatch=4\nparallel.ranks=3")), 2);
}

TEST(ParseSplit, ScalesToOne) {
  const std::array<double, 3> shares = parse_split("80, 15,5");
  EXPECT_DOUBLE_EQ(shares[0], 0.8);
  EXPECT_DOUBLE_EQ(shares[1], 0.15);
  EXPECT_DOUBLE_EQ(shares[2], 0.05);
}

TEST(ParseSplit, RefusesEverythingElse) {
  for (const char* text : {"", "1", "1,2", "1,2,3,4", "a,b,c", "1,2,x", "1,2,3x", "0,1,1", "-1,1,1",
                           "1,-1,1", "nan,1,1", "inf,1,1", "1e308,1e308,1e308", "1,,1", "0,0,0"}) {
    EXPECT_THAT(config_error_of([&] { parse_split(text); }),
                EndsWith("the first above 0, such as \"969,30,1\""))
        << text;
  }
}

}  // namespace
}  // namespace braid
