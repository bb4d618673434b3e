#include "verify/verify_layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/errors.h"
#include "config/validate.h"
#include "data/batch_loader.h"
#include "data/document_starts.h"
#include "model/families.h"
#include "ops/optimizer.h"
#include "plan/model_setup.h"
#include "plan/more_room.h"
#include "plan/run_spec.h"
#include "verify/layout_run.h"

namespace braid {
namespace {

/// The run's number of microbatches, or one that shows the same: two or three whole groups for the
/// warmup, steady state and cooldown of every schedule, and the rest of the run's last group. Odd
/// if the run's is odd, since pairs of microbatches need an even number.
int64_t few_microbatches(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t group = std::max(parallel.microbatch_group_size, parallel.pipeline);
  const int64_t all = num_microbatches(config);
  return std::min(all, (2 + all / group % 2) * group + all % group);
}

RunConfig one_rank(RunConfig config) {
  config.parallel = ParallelConfig();
  config.parallel.data = 1;
  config.memory = MemoryConfig();
  return config;
}

UnitValues fresh_weights(const RunPlan& plan, uint64_t seed) {
  UnitValues values;
  for (const ParameterUnit& unit : plan.layout.units) {
    std::vector<double>& target = values.emplace_back(static_cast<size_t>(unit.num_elems), 0.0);
    for (const size_t index : unit.slots) {
      const ParameterSlot& slot = plan.layout.slots[index];
      std::vector<float> initial(static_cast<size_t>(slot.end - slot.begin));
      initial_values(plan.layout.parameters[index], plan.run.model.vocabulary, seed, 0, initial);
      // Biases and B of adapters start as zeros and norms as ones: this perturbs them, so that
      // every element matters.
      std::mt19937_64 random(seed + index);
      std::normal_distribution<double> normal(0.0, 0.05);
      for (size_t i = 0; i < initial.size(); ++i) {
        const Parameter& parameter = plan.layout.parameters[index];
        const bool perturbed =
            parameter.shape.rank() == 1 || parameter.init == ParameterInit::kZeros;
        target[static_cast<size_t>(slot.begin) + i] =
            static_cast<float>(initial[i] + (perturbed ? normal(random) : 0.0));
      }
    }
  }
  return values;
}

/// About the log-probabilities of random labels of an untrained model, so that no pair is decided.
void add_random_reference(TokenBatch& batch, int64_t vocabulary, bool averages, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> noise(0.0, 3.0);
  for (int64_t i = 0; i < batch.num_sequences; ++i) {
    const auto labels =
        std::span(batch.labels)
            .subspan(static_cast<size_t>(i * batch.sequence), static_cast<size_t>(batch.sequence));
    const auto valid =
        static_cast<double>(std::max<int64_t>(count_labels(labels, batch.sequence, 0), 1));
    batch.reference.push_back(-valid * std::log(static_cast<double>(vocabulary)) + noise(random));
    batch.reference.push_back(averages ? 1 / valid : 1);
  }
}

TokenBatch random_batch(const RunSpec& run, uint64_t seed) {
  const RunConfig& config = run.config;
  const int64_t vocabulary = run.model.vocabulary;
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(vocabulary - 1));
  TokenBatch batch{.num_sequences = config.train.global_batch, .sequence = config.train.sequence};
  for (int64_t i = 0; i < batch.num_sequences * batch.sequence; ++i) {
    batch.tokens.push_back(token(random));
    batch.labels.push_back(i % 7 == 3 ? -1 : token(random));  // some labels are ignored
  }
  if (config.data.document_mask) {
    std::vector<int32_t> ends(batch.tokens.size());
    std::uniform_int_distribution<int32_t> number(0, 3);  // documents of 4 tokens on average
    std::ranges::generate(ends, [&] { return number(random); });
    batch.document_starts = document_starts(ends, batch.sequence, /*eod=*/0);
  }
  if (run.preference) {
    add_random_reference(batch, vocabulary, run.averages_answers(), seed + 1);
  }
  return batch;
}

double relative(double a, double b) {
  return std::abs(a - b) / std::max(std::abs(b), 1e-300);
}

/// By parameter; of gradients, those that there are. A NaN anywhere gives an infinite difference.
std::vector<TensorDifference> differences(const RunPlan& plan, StateBuffer kind,
                                          const UnitValues& actual, const UnitValues& expected) {
  std::vector<TensorDifference> result;
  for (size_t index = 0; index < plan.layout.parameters.size(); ++index) {
    if (kind == StateBuffer::kMainGrad && plan.layout.parameters[index].frozen) {
      continue;
    }
    const ParameterSlot& slot = plan.layout.slots[index];
    double largest = 0;
    double difference = 0;
    for (int64_t i = slot.begin; i < slot.end; ++i) {
      const double a = actual[slot.unit][static_cast<size_t>(i)];
      const double b = expected[slot.unit][static_cast<size_t>(i)];
      largest = std::max(largest, std::abs(b));
      const double element = std::abs(a - b);
      difference = std::isnan(element) ? std::numeric_limits<double>::infinity()
                                       : std::max(difference, element);
    }
    result.push_back({plan.layout.parameters[index].name,
                      difference == 0 ? 0 : difference / std::max(largest, 1e-300)});
  }
  return result;
}

double worst(const std::vector<TensorDifference>& tensors) {
  double largest = 0;
  for (const TensorDifference& tensor : tensors) {
    largest = std::max(largest, tensor.difference);
  }
  return largest;
}

void shrink_experts(ModelConfig& small, const ModelSpec& model, int64_t tensor_ranks) {
  constexpr int64_t kPerGroup = 4;
  constexpr int64_t kMostPerToken = 4;
  small.experts = kPerGroup * model.router.groups;
  small.experts_per_token = std::min({model.experts_per_token, kMostPerToken, *small.experts});
  small.expert_ffn = 8;
  small.shared_ffn = model.shared_ffn > 0 ? 4 * tensor_ranks : 0;
  small.shared_gate = model.shared_gate;
  small.router_normalize = model.router.normalize;
  small.router_scale = model.router.scale;
  small.router_bias = model.router.bias;
  small.router_logit_bias = model.router.logit_bias;
  small.router_groups = model.router.groups;
  small.router_kept_groups = model.router.kept_groups;
  small.router_scores = std::string(
      choice_name(model.router.sigmoid ? RouterScores::kSigmoid : RouterScores::kSoftmax));
}

/// Sizes that differ from each other.
void shrink_latents(ModelConfig& small, const ModelSpec& model) {
  small.q_lora_rank = model.q_lora_rank > 0 ? 10 : 0;
  small.kv_lora_rank = 6;
  small.qk_nope_head_dim = 3;
  small.qk_rope_head_dim = 2;
  small.v_head_dim = 4;
}

/// As many heads and groups as tensor ranks may share.
void shrink_states(ModelConfig& small, const ModelSpec& model) {
  small.mamba_num_heads = 2 * model.mamba_n_groups;
  small.mamba_head_dim = 3;
  small.ssm_state_size = 5;
  small.mamba_n_groups = model.mamba_n_groups;
  small.conv_kernel = model.conv_kernel;
  small.mamba_chunk_size = std::min<int64_t>(model.mamba_chunk_size, 8);
  small.mamba_dt_min = model.mamba_dt_min;
  small.mamba_dt_max = model.mamba_dt_max;
}

}  // namespace

RunConfig shrunken(const RunConfig& config) {
  RunConfig small = config;
  // The size of the vocabulary does not matter here: it is replaced.
  const ModelSpec model = resolve_model(config.model, config.train.sequence, 1);
  const ParallelConfig& parallel = config.parallel;
  small.model.preset.clear();
  small.model.family = std::string(family_name(model.style));
  small.model = with_layers(small.model, model.layers);
  small.model.heads = model.heads;
  small.model.kv_heads = model.kv_heads;
  small.model.head_size = model.head_size > 0 ? 4 : 0;
  small.model.width = 24;
  small.model.ffn = 4 * parallel.tensor;
  if (model.layers.has(kMlaBlock)) {
    shrink_latents(small.model, model);
  }
  if (model.layers.has(kMambaBlock)) {
    shrink_states(small.model, model);
  }
  if (model.layers.has(kMoeBlock)) {
    shrink_experts(small.model, model, parallel.tensor);
  }
  // Forced choices are by a token's place on its rank, which one rank numbers otherwise.
  small.moe.force_balance = false;
  small.moe.force_skew = 0;
  small.moe.replay.clear();
  small.moe.record.clear();
  small.model.vocabulary = 101;
  small.model.tied_embeddings = model.tied_embeddings;
  small.model.qkv_bias = model.qkv_bias;
  if (model.mtp_depth > 0) {
    small.model.mtp_depth = model.mtp_depth;
    small.model.mtp_loss_weight = model.mtp_loss_weight;
  }
  small.model.init_std = 0.1;
  // With pairs of answers, each half of a microbatch may need a pair.
  const bool pairs = config.preference != PreferenceConfig();
  small.train.microbatch = std::min<int64_t>(config.train.microbatch, pairs ? 4 : 2);
  // Tensor ranks split the rows that a context rank has of a sequence.
  small.train.sequence = 4 * parallel.context * parallel.tensor;
  while (small.train.sequence <= model.mtp_depth) {
    small.train.sequence *= 2;
  }
  if (model.layers.has(kSlidingBlock)) {
    small.model.sliding_window =
        std::max<int64_t>(2, model.sliding_window * small.train.sequence / config.train.sequence);
  }
  small.train.global_batch =
      few_microbatches(config) * small.train.microbatch * small.parallel.data;
  // Operations that are large enough to be split or moved in the run must qualify here, too.
  small.overlap.tp_comm_overlap_min_rows = 1;
  small.memory.offload_min_bytes = 1;
  small.model.max_positions.reset();
  small.model.rope_theta.reset();
  small.model = with_rope_scaling(small.model, model);
  return small;
}

double LayoutComparison::worst_gradient() const {
  return worst(gradients);
}

double LayoutComparison::worst_weight() const {
  return worst(weights);
}

double LayoutComparison::worst_loss() const {
  double largest = loss_f64;
  for (size_t i = 0; i < losses.size(); ++i) {
    largest = std::max(largest, relative(losses[i], one_rank_losses[i]));
  }
  return largest;
}

LayoutComparison compare_with_one_rank(const RunSpec& run, const VerifyOptions& options) {
  const RunConfig& config = run.config;
  const auto report = [&](double share) {
    if (options.progress) {
      options.progress(share);
    }
  };
  LayoutComparison comparison;
  const RunSpec ample = with_full_room(run);  // one rank never lacks room for rows of experts
  const RunSpec alone = resolve_run(one_rank(config), 0);
  const LayoutRunOptions run_options = layout_run_options(run, options.threads_per_rank);
  {
    const PlanOptions gradients{.dtype = DType::kF64, .update_weights = false};
    LayoutRun layout(plan_run(ample, gradients), run_options);
    LayoutRun reference(plan_run(alone, gradients), run_options);
    const UnitValues weights = fresh_weights(reference.plan(), options.seed);
    layout.set_weights(weights);
    reference.set_weights(weights);
    const TokenBatch batch = random_batch(reference.plan().run, options.seed);
    const double expected = reference.step(batch, {});
    comparison.loss_f64 = relative(layout.step(batch, {}), expected);
    comparison.gradients =
        differences(reference.plan(), StateBuffer::kMainGrad, layout.read(StateBuffer::kMainGrad),
                    reference.read(StateBuffer::kMainGrad));
  }
  report(1.0 / static_cast<double>(options.steps + 1));
  LayoutRun layout(plan_run(ample), run_options);
  LayoutRun reference(plan_run(alone), run_options);
  const UnitValues weights = fresh_weights(reference.plan(), options.seed);
  layout.set_weights(weights);
  reference.set_weights(weights);
  for (int64_t step = 1; step <= options.steps; ++step) {
    const TokenBatch batch =
        random_batch(reference.plan().run, options.seed + static_cast<uint64_t>(step));
    const auto scalars = adamw_scalars(config.optimizer.learning_rate, config.optimizer.beta1,
                                       config.optimizer.beta2, step);
    comparison.one_rank_losses.push_back(reference.step(batch, scalars));
    comparison.losses.push_back(layout.step(batch, scalars));
    comparison.grad_norm =
        std::max(comparison.grad_norm, relative(layout.grad_norm(), reference.grad_norm()));
    report(static_cast<double>(step + 1) / static_cast<double>(options.steps + 1));
  }
  comparison.weights =
      differences(reference.plan(), StateBuffer::kParam, layout.weights(), reference.weights());
  return comparison;
}

}  // namespace braid
