#include "config/fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "config/choices.h"
#include "config/sm_budget.h"
#include "model/families.h"
#include "parallel/schedule.h"

namespace braid {
namespace {

template <auto SectionMember, auto KeyMember>
ValueRef member(RunConfig& config) {
  return &(config.*SectionMember.*KeyMember);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Larger sizes are mistakes; products of a few sizes within them still fit 64 bits.
constexpr double kMaxSize = 1 << 24;
constexpr double kMaxRanks = 1 << 20;
constexpr double kMaxSteps = 1e12;

constexpr Limits kAny = {};
constexpr Limits kSize = {.minimum = 1, .maximum = kMaxSize};
constexpr Limits kSizeOrZero = {.minimum = 0, .maximum = kMaxSize};
constexpr Limits kRanks = {.minimum = 1, .maximum = kMaxRanks};
constexpr Limits kSteps = {.minimum = 1, .maximum = kMaxSteps};
constexpr Limits kStepsOrZero = {.minimum = 0, .maximum = kMaxSteps};
constexpr Limits kNotNegative = {.minimum = 0, .maximum = kInfinity};
/// One second of latency, one petabyte per second. Larger values are mistakes in the unit.
constexpr Limits kLatencyUs = {.minimum = 0, .maximum = 1e6};
constexpr Limits kGbPerS = {.minimum = 0, .maximum = 1e6};
constexpr Limits kBelowOne = {.minimum = 0, .maximum = 1, .excludes_maximum = true};

template <size_t N>
constexpr Limits one_of(const std::array<std::string_view, N>& names) {
  return {.allowed = names};
}

constexpr auto kFamilies = [] {
  std::array<std::string_view, kModelFamilies.size()> names;
  std::ranges::transform(kModelFamilies, names.begin(), &ModelFamily::name);
  return names;
}();

constexpr std::array kSections = {
    Section{"model", "The model to train. Keys that are not given come from the preset."},
    Section{"train", "How much to train, and in which pieces."},
    Section{"optimizer", "What updates the weights, and its learning rate. docs/optimizers.md.",
            OnResume::kAllowed},
    Section{"parallel", "How the ranks share the work.", OnResume::kAllowed},
    Section{"moe", "How routers of experts are trained.", OnResume::kAllowed},
    Section{"lora",
            "Fine-tuning by low-rank adapters; all other weights stay as they are. "
            "docs/finetune.md."},
    Section{"preference",
            "Learning from pairs of answers (DPO): the preferred one becomes likelier than the "
            "rejected one. docs/preference.md."},
    Section{"memory", "Which activations to keep for the backward, and where.", OnResume::kAllowed},
    Section{"overlap", "How to hide communication under compute.", OnResume::kAllowed},
    Section{"data", "What the model reads."},
    Section{"eval", "Loss on held-out data during the run.", OnResume::kAllowed},
    Section{"checkpoint", "What the run saves, and where it resumes.", OnResume::kAllowed},
    Section{"logging", "What a run writes about itself.", OnResume::kAllowed},
    Section{"runtime", "How the run uses the machine.", OnResume::kAllowed},
    Section{"links",
            "Emulated links between CPU ranks: communication takes as long as on the links of "
            "another machine, without using a core. docs/parallel.md says how.",
            OnResume::kAllowed},
};

// A macro, because nothing else gives a key the name of its member.
#define BRAID_KEY(section, key) \
#section, #key, member < &RunConfig::section, &decltype(RunConfig::section)::key>

// clang-format off
constexpr std::array kFields = {
    Field{BRAID_KEY(model, preset), kAny, "A published model by name, such as \"llama-1b\" or \"gpt2-124m\". The other keys of this section override it."},
    Field{BRAID_KEY(model, family), one_of(kFamilies), "Kind of block: llama (RMSNorm, rotary positions, SwiGLU), qwen3 (llama with RMSNorms of query and key heads), phi3 (llama in other Hugging Face files), gemma3_text (qwen3 with gated GELU, norms also behind blocks, and the keys norm_offset, post_norms, scale_embedding and tied_embeddings), olmoe (qwen3 with norms over all heads of a token), mamba2 and nemotron_h (RMSNorm, no positions; nemotron_h: squared ReLU in place of SwiGLU) or gpt2 (LayerNorm, learned positions, GELU, biases). Without a preset, the default is llama."},
    Field{BRAID_KEY(model, layers), {.minimum = 1, .maximum = 4096}, "Number of transformer blocks. Required without a preset."},
    Field{BRAID_KEY(model, pattern), kAny, "Layers of different kinds, first to last: attention, sliding (attention in windows of model.sliding_window), mla (multi-head latent attention) or mamba (Mamba-2), mlp or moe (experts), or one of each as in attention+moe, blanks or commas between them. \"x*n\" repeats a layer, \"(...)*n\" a group. A text of M, *, - and E alone is a pattern as Nemotron-H has them: layers of mamba, attention, mlp or moe. Without it, all layers are attention+mlp. It also says the number of layers."},
    Field{BRAID_KEY(model, width), kSize, "Features per token between blocks. Required without a preset."},
    Field{BRAID_KEY(model, heads), {.minimum = 1, .maximum = 4096}, "Attention heads. Required without a preset, unless model.pattern has no attention."},
    Field{BRAID_KEY(model, kv_heads), {.minimum = 0, .maximum = 4096}, "Key and value heads, each shared by heads / kv_heads query heads; 0 = heads."},
    Field{BRAID_KEY(model, head_size), {.minimum = 0, .maximum = 65536}, "Features per head; 0 = width / heads."},
    Field{BRAID_KEY(model, sliding_window), kSizeOrZero, "Keys that a query sees, its own included, in layers with \"sliding\"; without such layers in model.pattern, in all with attention. 0 = all keys before it; also turns \"sliding\" into \"attention\"."},
    Field{BRAID_KEY(model, q_lora_rank), kSizeOrZero, "Features of the latent that queries are made of in layers with \"mla\"; 0 = they are made of the token itself."},
    Field{BRAID_KEY(model, kv_lora_rank), kSize, "Features of the latent that keys and values are made of in these layers."},
    Field{BRAID_KEY(model, qk_nope_head_dim), {.minimum = 1, .maximum = 65536}, "Features of a query or key head that have no position in these layers."},
    Field{BRAID_KEY(model, qk_rope_head_dim), {.minimum = 1, .maximum = 65536}, "Its rotated features; those of keys are the same for all heads."},
    Field{BRAID_KEY(model, v_head_dim), {.minimum = 1, .maximum = 65536}, "Features of a value head in these layers."},
    Field{BRAID_KEY(model, mamba_num_heads), {.minimum = 1, .maximum = 4096}, "Heads of the states of layers with \"mamba\" (Mamba-2)."},
    Field{BRAID_KEY(model, mamba_head_dim), {.minimum = 1, .maximum = 65536}, "Features of each."},
    Field{BRAID_KEY(model, ssm_state_size), {.minimum = 1, .maximum = 65536}, "Elements of a state per feature in these layers."},
    Field{BRAID_KEY(model, mamba_n_groups), {.minimum = 0, .maximum = 4096}, "Groups of heads with the same B and C and a norm of their own (n_groups); 0 = 1."},
    Field{BRAID_KEY(model, conv_kernel), {.minimum = 0, .maximum = 1024}, "Taps of the convolution in these layers; 0 = 4."},
    Field{BRAID_KEY(model, mamba_chunk_size), {.minimum = 0, .maximum = 65536}, "Tokens that these layers compute together (chunk_size); changes rounding only; 0 = 128."},
    Field{BRAID_KEY(model, mamba_dt_min), kNotNegative, "Least step of a state (time_step_limit)."},
    Field{BRAID_KEY(model, mamba_dt_max), kNotNegative, "Largest step of a state; 0 = no limit."},
    Field{BRAID_KEY(model, ffn), kSizeOrZero, "Hidden features of the feed-forward layer; 0 = the default of the family."},
    Field{BRAID_KEY(model, experts), {.minimum = 1, .maximum = 512}, "Experts of each layer with \"moe\" in model.pattern."},
    Field{BRAID_KEY(model, experts_per_token), {.minimum = 1, .maximum = 32}, "Experts that each token goes to."},
    Field{BRAID_KEY(model, expert_ffn), kSize, "Hidden features of each expert."},
    Field{BRAID_KEY(model, shared_ffn), kSizeOrZero, "Hidden features of the expert that works on all tokens; 0 = there is none."},
    Field{BRAID_KEY(model, shared_gate), kAny, "Whether the sigmoid of a product with the token scales the result of that expert, as in Qwen2-MoE."},
    Field{BRAID_KEY(model, router_scores), one_of(kChoiceNames<RouterScores>), "How a router scores the experts of a token: softmax over all of them, or a sigmoid each (DeepSeek-V3)."},
    Field{BRAID_KEY(model, router_normalize), kAny, "Whether the weights of a token's experts are divided by their sum."},
    Field{BRAID_KEY(model, router_scale), {.minimum = 0, .maximum = 1000}, "Factor of these weights (routed_scaling_factor)."},
    Field{BRAID_KEY(model, router_bias), kAny, "Whether a bias per expert takes part in the choice of experts, and not in the weights of their results (DeepSeek-V3)."},
    Field{BRAID_KEY(model, router_logit_bias), kAny, "Whether a bias per expert is added to a router's logits and trained with its weights (gpt-oss)."},
    Field{BRAID_KEY(model, router_groups), {.minimum = 1, .maximum = 512}, "Groups of experts, of which a token may use router_kept_groups."},
    Field{BRAID_KEY(model, router_kept_groups), {.minimum = 1, .maximum = 512}, "Groups whose experts a token may use."},
    Field{BRAID_KEY(model, vocabulary), kSizeOrZero, "Rows of the embedding; 0 = as many as the tokenizer has."},
    Field{BRAID_KEY(model, max_positions), kSizeOrZero, "Learned positions of a gpt2 model; 0 = train.sequence."},
    Field{BRAID_KEY(model, tied_embeddings), kAny, "Whether the output layer shares the weights of the embedding."},
    Field{BRAID_KEY(model, qkv_bias), kAny, "Whether query, key and value projections have biases, as in Qwen2.5."},
    Field{BRAID_KEY(model, norm_offset), {.minimum = 0, .maximum = 1}, "Added to the weights of all RMSNorms, which begin as 1 less it: 1 in gemma3_text, else 0."},
    Field{BRAID_KEY(model, post_norms), kAny, "Whether the result of each block has a norm before it is added to the residual stream, as in gemma3_text."},
    Field{BRAID_KEY(model, scale_embedding), kAny, "Whether embeddings are multiplied by sqrt(width), rounded to train.dtype, as in gemma3_text."},
    Field{BRAID_KEY(model, query_pre_attn_scalar), kSizeOrZero, "Scores of attention and sliding are divided by its square root; 0 = head_size."},
    Field{BRAID_KEY(model, mtp_depth), {.minimum = 0, .maximum = 64}, "Layers of multi-token prediction behind the model, in training only: layer k predicts the token k + 1 places later (docs/parallel.md); 0 = none."},
    Field{BRAID_KEY(model, mtp_loss_weight), {.minimum = 0, .maximum = 1000}, "Weight of the mean of their losses in the gradient; the logged loss is without it. 0.1 if not given.", {}, OnResume::kAllowed},
    Field{BRAID_KEY(model, rope_theta), {.minimum = 1, .maximum = 1e12}, "Base of the rotary frequencies."},
    Field{BRAID_KEY(model, rope_local_base_freq), {.minimum = 0, .maximum = 1e12}, "Base of the rotary frequencies of layers with \"sliding\", which rope_type then does not scale; 0 = they are those of the other layers."},
    Field{BRAID_KEY(model, partial_rotary_factor), {.minimum = 0, .maximum = 1}, "Part of each query and key head that is rotated, its first elements; the others have no position. 1 if not given."},
    Field{BRAID_KEY(model, rope_type), one_of(kChoiceNames<RopeType>), "How the rotary frequencies are scaled for sequences longer than those of a model's first training: default (not at all), linear, llama3, yarn or longrope. The keys rope_... below are those of rope_scaling in config.json, and each type has some of them."},
    Field{BRAID_KEY(model, rope_factor), {.minimum = 1, .maximum = 1e6}, "Divisor of low frequencies; with linear, of all; with longrope, how much longer sequences may be, which is only used for rope_attention_factor."},
    Field{BRAID_KEY(model, rope_original_max_position_embeddings), kSize, "With llama3, yarn and longrope: positions of the model before its context was extended."},
    Field{BRAID_KEY(model, rope_low_freq_factor), {.minimum = 1e-6, .maximum = 1e6}, "With llama3: frequencies with at most so many turns in these positions are divided by the factor."},
    Field{BRAID_KEY(model, rope_high_freq_factor), {.minimum = 1e-6, .maximum = 1e6}, "With llama3: those with at least so many turns are not changed."},
    Field{BRAID_KEY(model, rope_beta_fast), {.minimum = 1e-6, .maximum = 1e6}, "With yarn: frequencies with at least so many turns in these positions are not changed."},
    Field{BRAID_KEY(model, rope_beta_slow), {.minimum = 1e-6, .maximum = 1e6}, "With yarn: those with at most so many turns are divided by the factor."},
    Field{BRAID_KEY(model, rope_truncate), kAny, "With yarn: whether the pairs with these numbers of turns are rounded to whole pairs."},
    Field{BRAID_KEY(model, rope_mscale), {.minimum = 0, .maximum = 100}, "With yarn: weight of log(rope_factor) in the numerator of what rotated queries and keys are multiplied by; 0 = not given."},
    Field{BRAID_KEY(model, rope_mscale_all_dim), {.minimum = 0, .maximum = 100}, "With yarn: the same in the denominator, and in the scores of layers with \"mla\"; 0 = not given."},
    Field{BRAID_KEY(model, rope_attention_factor), {.minimum = 0, .maximum = 1e3}, "With yarn and longrope: what rotated queries and keys are multiplied by; 0 = it follows from the keys above."},
    Field{BRAID_KEY(model, rope_short_factor), kAny, "With longrope: divisors of the frequencies of all pairs, \"1, 1.5, 2\", for sequences of up to rope_original_max_position_embeddings tokens (train.sequence, or the context of generation)."},
    Field{BRAID_KEY(model, rope_long_factor), kAny, "With longrope: the same for longer sequences. Those of rope_short_factor if not given."},
    Field{BRAID_KEY(model, norm_epsilon), {.minimum = 0, .maximum = 1}, "Added to the variance in normalisation layers."},
    Field{BRAID_KEY(model, init_std), {.minimum = 0, .maximum = 10}, "Standard deviation of the initial weights.", {}, OnResume::kAllowed},

    Field{BRAID_KEY(train, sequence), kSize, "Tokens per sequence."},
    Field{BRAID_KEY(train, microbatch), {.minimum = 1, .maximum = 1 << 20}, "Sequences that one rank runs forward and backward at a time.", {}, OnResume::kAllowed},
    Field{BRAID_KEY(train, global_batch), kSize, "Sequences per step over all ranks. It must be a multiple of train.microbatch * data-parallel ranks; the quotient is the number of microbatches whose gradients are accumulated."},
    Field{BRAID_KEY(train, steps), kSteps, "Optimizer updates of the whole run, including those before a resume.", {}, OnResume::kAllowed},
    Field{BRAID_KEY(train, seed), kNotNegative, "Seed of the initial weights and, unless data.seed is given, of the sample order."},
    Field{BRAID_KEY(train, z_loss), {.minimum = 0, .maximum = 100}, "Coefficient of the mean squared log-sum-exp of the model's logits, over the labels that are not ignored: PaLM's z-loss (0.0001), which keeps logits from growing. The gradient includes it, the logged loss does not. 0 = none.", {}, OnResume::kAllowed},
    Field{BRAID_KEY(train, dtype), one_of(kChoiceNames<DType>), "Type of activations and of the weights that the layers read. Main weights, main gradients and optimizer state are always float32."},
    Field{BRAID_KEY(train, fp8), one_of(kChoiceNames<Fp8Choice>), "Recipe of the matrix products in layers: off = in train.dtype. tensor, block and mxfp8 round their factors to 8 bits; one scale serves a whole matrix, 1 x 128 elements (128 x 128 of a weight), or 1 x 32. The embedding, norms and attention itself stay in train.dtype, and the head does unless train.fp8_head. See docs/numerics.md.", {}, OnResume::kAllowed},
    Field{BRAID_KEY(train, fp8_filter), kAny, "Products that stay in train.dtype under train.fp8: names as in the table that `braid plan` prints, with * and ? for any characters, for example [\"layers.0.*\", \"*.attention.proj\"].", {}, OnResume::kAllowed},
    Field{BRAID_KEY(train, fp8_head), kAny, "With train.fp8: whether the three products of the head, which make the logits, are FP8 too. That is 12% of the work of llama-8b with 16 layers, and more in smaller models, but published recipes leave the head in bfloat16, because rounding there reaches the loss directly.", {}, OnResume::kAllowed},
    Field{BRAID_KEY(train, fp8_experts), kAny, "With train.fp8 = \"block\": whether the three products of each matrix of experts are FP8 too. Rows have scales for 1 x 128 elements, by columns for the rows of each expert apart. The router stays in train.dtype. Hopper multiplies the copies; other GPUs convert them to bfloat16, which saves no time. See docs/experts.md.", {}, OnResume::kAllowed},
    Field{BRAID_KEY(train, fp8_dispatch), kAny, "With train.fp8_experts, and ranks that have different experts: rows travel to experts as FP8 with a scale for each 128 elements, instead of in train.dtype: x in the forward, gradients of results in the backward. Results travel back in train.dtype. Forward and dgrad read the same bits as otherwise; columns for weight gradients are made of the rows that arrive. See docs/experts.md.", {}, OnResume::kAllowed},
    Field{BRAID_KEY(train, fp8_weight_blocks), one_of(kChoiceNames<WeightBlocks>), "With mxfp8: elements of a weight that share a scale. rows = 1 x 32 along the dimension over which a product sums. squares = 32 x 32, one scale for both directions, so that ranks with shards gather 8-bit weights (train.fp8_param_gather).", {}, OnResume::kAllowed},
    Field{BRAID_KEY(train, fp8_sums), one_of(kChoiceNames<Fp8SumsChoice>), "How the CPU sums products of FP8 factors: ideal = in float32. hopper = as cuBLASLt and the tensor cores of Hopper do, bit by bit, to rehearse their rounding; about a hundred times slower. It changes nothing on GPUs.", {}, OnResume::kAllowed},
    Field{BRAID_KEY(train, fp8_gather), kAny, "With sequence parallelism, and blocks or mxfp8: tensor ranks quantise their own tokens and gather these 8-bit copies, by rows for the product and by columns for the weight gradient, instead of values in train.dtype. The bits of the result are the same.", {}, OnResume::kAllowed},
    Field{BRAID_KEY(train, fp8_param_gather), kAny, "If ranks hold or update shards of weights (parallel.shard), with tensor, block, or mxfp8 with square blocks of weights (train.fp8_weight_blocks): they round their shards of the weights of FP8 products once per step, and gather these 8-bit copies instead of weights in train.dtype, which are not kept. The bits of the result are the same.", {}, OnResume::kAllowed},
    Field{BRAID_KEY(train, fp8_watch), kStepsOrZero, "Steps between records in metrics.jsonl of what FP8 copies lose: for each factor of each product, the largest magnitude, and the shares of elements that became zero and that were too large. 0 = never, and nothing counts them. It changes no bit of the training. See docs/numerics.md.", {}, OnResume::kAllowed},

    Field{BRAID_KEY(optimizer, name), one_of(kChoiceNames<OptimizerKind>), "What updates the weights. muon: Muon for the matrices of layers, AdamW for all else. Weight decay is decoupled with each. lion and sgd keep one moment, muon one of its matrices.", {}, OnResume::kRefused},
    Field{BRAID_KEY(optimizer, learning_rate), kNotNegative, "Highest learning rate, reached at the end of the warmup."},
    Field{BRAID_KEY(optimizer, min_learning_rate), kNotNegative, "Learning rate at the end of the decay; at most optimizer.learning_rate."},
    Field{BRAID_KEY(optimizer, schedule), one_of(kChoiceNames<RateSchedule>), "Learning rate after the warmup: cosine, linear or polynomial decay, inverse_sqrt (with the root of the step), wsd (warmup, stable, decay at the end) or constant."},
    Field{BRAID_KEY(optimizer, warmup_steps), kStepsOrZero, "Steps in which the learning rate rises linearly from 0; at most train.steps are used."},
    Field{BRAID_KEY(optimizer, decay_steps), kStepsOrZero, "With wsd: length of the decay at the end of the run; a longer one than fits after the warmup is shortened. With cosine, linear and polynomial: step at which the decay is complete, including the warmup; 0 = train.steps."},
    Field{BRAID_KEY(optimizer, decay_shape), one_of(kChoiceNames<DecayShape>), "Shape of the wsd decay."},
    Field{BRAID_KEY(optimizer, decay_power), {.minimum = 0.01, .maximum = 100}, "With polynomial: the power of the share of the decay that is left."},
    Field{BRAID_KEY(optimizer, beta1), kBelowOne, "Decay of the first moment. With lion: share of the moment in the direction of an update."},
    Field{BRAID_KEY(optimizer, beta2), kBelowOne, "Decay of the second moment. With lion: decay of its moment; 0.99 is usual."},
    Field{BRAID_KEY(optimizer, epsilon), {.minimum = 1e-30, .maximum = 1}, "Added to the root of the second moment."},
    Field{BRAID_KEY(optimizer, momentum), kBelowOne, "With sgd: decay of the sum of gradients; 0 = none, and no moment is kept."},
    Field{BRAID_KEY(optimizer, nesterov), kAny, "With sgd: whether an update looks one step of momentum ahead."},
    Field{BRAID_KEY(optimizer, muon_momentum), kBelowOne, "With muon: decay of the mean of gradients that is orthogonalised."},
    Field{BRAID_KEY(optimizer, muon_nesterov), kAny, "With muon: whether an update looks one step of momentum ahead."},
    Field{BRAID_KEY(optimizer, muon_steps), {.minimum = 1, .maximum = 20}, "With muon: steps of the Newton-Schulz iteration."},
    Field{BRAID_KEY(optimizer, muon_scale), one_of(kChoiceNames<MuonScale>), "With muon: factor of the update of a matrix. match_rms_adamw = 0.2 * sqrt(max(rows, columns)), by which learning rate and weight decay of AdamW fit. original = sqrt(max(1, rows / columns))."},
    Field{BRAID_KEY(optimizer, muon_dtype), one_of(kChoiceNames<DType>), "With muon: type of the Newton-Schulz iteration."},
    Field{BRAID_KEY(optimizer, weight_decay), kNotNegative, "Decoupled weight decay. It applies to matrices, not to norms and biases."},
    Field{BRAID_KEY(optimizer, no_decay), kAny, "Parameters without weight decay, besides norms and biases: names as in checkpoints, with * and ? for any characters, for example [\"embedding.*\"]."},
    Field{BRAID_KEY(optimizer, rates), kAny, "Factors of the learning rate of some parameters: \"pattern = factor\", with patterns as in optimizer.no_decay, for example [\"embedding.* = 0.1\"]. The first pattern that fits counts."},
    Field{BRAID_KEY(optimizer, clip_norm), kNotNegative, "Gradients are scaled down to this global norm; 0 = no clipping."},
    Field{BRAID_KEY(optimizer, moments_dtype), one_of(kChoiceNames<DType>), "Type in which moments are kept. bfloat16 takes 4 bytes per parameter less; updates are computed in float32, and the new moments are rounded up or down at random, so that small changes add up. See docs/numerics.md."},
    Field{BRAID_KEY(optimizer, main_grads_dtype), one_of(kChoiceNames<DType>), "Type in which gradients of weights are added up over microbatches, reduced and read by the optimizer. bfloat16 needs train.dtype = \"bfloat16\" and takes 2 bytes per parameter less; products and sums are computed in float32, and each addition to a gradient is rounded. See docs/numerics.md."},
    Field{BRAID_KEY(optimizer, ema), kBelowOne, "Decay of averages of the weights: after each update, average = ema * average + (1 - ema) * weight, in float32, 4 bytes per trained parameter more. Checkpoints have them, and `braid export` and `braid eval` take them with --ema. 0 = none. See docs/optimizers.md."},

    Field{BRAID_KEY(parallel, ranks), kRanks, "Ranks of the run on all hosts: the product of data, tensor, pipeline and context."},
    Field{BRAID_KEY(parallel, data), {.minimum = 0, .maximum = kMaxRanks}, "Data-parallel ranks; 0 = ranks / (tensor * pipeline * context)."},
    Field{BRAID_KEY(parallel, tensor), kRanks, "Ranks that share each layer's matrices. The number must divide heads and ffn, and must divide kv_heads or be a multiple of it."},
    Field{BRAID_KEY(parallel, pipeline), kRanks, "Ranks that hold consecutive layers."},
    Field{BRAID_KEY(parallel, context), kRanks, "Ranks that share each sequence. Twice this number must divide train.sequence; if context ranks exchange heads, this number must (docs/parallel.md)."},
    Field{BRAID_KEY(parallel, expert), kRanks, "Ranks that share the experts of a layer and exchange tokens (expert parallelism): neighbours among the tensor, context and data ranks of a stage."},
    Field{BRAID_KEY(parallel, expert_tensor), kRanks, "Ranks that split every expert, neighbours within the former."},
    Field{BRAID_KEY(parallel, sequence_parallel), kAny, "Whether tensor-parallel ranks also share the rows between matrices, so that norms and activations there take 1/tensor of the memory."},
    Field{BRAID_KEY(parallel, virtual_stages), {.minimum = 1, .maximum = 4096}, "Pieces of the layers per pipeline rank: 1 with gpipe, 1f1b and zb-h1, 2 with zb-v and dualpipe-v, 2 or more with interleaved."},
    Field{BRAID_KEY(parallel, schedule), one_of(kScheduleNames), "Order of the forward and backward jobs of a pipeline. docs/pipeline.md has pictures."},
    Field{BRAID_KEY(parallel, microbatch_group_size), {.minimum = 0, .maximum = kMaxSize}, "With interleaved: microbatches that pass a virtual stage before the next virtual stage's turn; 0 = parallel.pipeline."},
    Field{BRAID_KEY(parallel, pipeline_layout), kAny, "Which layers each stage holds: balanced (by the cost of layers and head), even, or a layout string of docs/pipeline.md (E embedding, t layer, L head, a bar between stages). Empty = balanced, unless one of the next four keys is given."},
    Field{BRAID_KEY(parallel, first_stage_layers), {.minimum = 0, .maximum = kMaxSize}, "Layers of the first pipeline rank; the others share the rest evenly. 0 = as many as the others."},
    Field{BRAID_KEY(parallel, last_stage_layers), {.minimum = 0, .maximum = kMaxSize}, "The same for the last pipeline rank."},
    Field{BRAID_KEY(parallel, account_for_embedding), kAny, "Whether the embedding counts as a layer when layers are spread evenly."},
    Field{BRAID_KEY(parallel, account_for_loss), kAny, "Whether head and loss count as a layer when layers are spread evenly."},
    Field{BRAID_KEY(parallel, context_method), one_of(kChoiceNames<ContextExchange>), "How attention sees the whole sequence: ring passes keys and values on, all_gather gathers them, a2a exchanges heads for sequence, a2a+ring exchanges heads among context_inner ranks and runs a ring over these groups."},
    Field{BRAID_KEY(parallel, context_inner), {.minimum = 0, .maximum = kMaxRanks}, "With a2a+ring: context ranks that exchange heads; 0 = the largest number that divides the key/value heads."},
    Field{BRAID_KEY(parallel, mamba_context), one_of(kChoiceNames<MambaContext>), "How context ranks share layers with states: heads exchanges heads for sequence, states passes the states in front of each rank's tokens (docs/hybrids.md)."},
    Field{BRAID_KEY(parallel, shard), one_of(kChoiceNames<ShardKind>), "What data- and context-parallel ranks hold in parts instead of copies: main weights and optimizer state (optimizer), main gradients too (gradients), and the weights too (parameters). These are ZeRO stages 1 to 3."},
    Field{BRAID_KEY(parallel, shard_replicas), kRanks, "Copies of the sharded state among these ranks (HSDP). The shards are spread over data * context / shard_replicas ranks."},
    Field{BRAID_KEY(parallel, shard_over_replicas), kAny, "With shard_replicas: ranks that hold the same shard share its main weights, optimizer state and update instead of holding copies of them. Gradients are reduce-scattered over these ranks and updated weights all-gathered, once per step, in place of an all-reduce of gradients."},
    Field{BRAID_KEY(parallel, bucket), one_of(kChoiceNames<BucketKind>), "What is gathered and reduced in one communication: a layer, all layers of a virtual stage, or layers until they have bucket_bytes."},
    Field{BRAID_KEY(parallel, bucket_bytes), {.minimum = 1, .maximum = 1e15}, "With bucket = \"bytes\": fp32 gradient bytes that complete a bucket."},
    Field{BRAID_KEY(parallel, grad_reduce_dtype), one_of(kChoiceNames<DType>), "Type in which data- and context-parallel ranks send gradients to each other. Each rank adds them up in float32 either way. With optimizer.main_grads_dtype = \"bfloat16\" it must be bfloat16."},

    Field{BRAID_KEY(moe, balance_loss), {.minimum = 0, .maximum = 100}, "Coefficient of the loss that rewards equal loads of experts, per layer: its value if loads are equal (Megatron-LM's aux_loss)."},
    Field{BRAID_KEY(moe, sequence_balance_loss), {.minimum = 0, .maximum = 100}, "Coefficient of the same loss inside each sequence, averaged over sequences: DeepSeek's sequence-wise loss (aux_loss_alpha with seq_aux; Megatron-LM's seq_aux_loss)."},
    Field{BRAID_KEY(moe, z_loss), {.minimum = 0, .maximum = 100}, "Coefficient of the mean squared log-sum-exp of a router's logits, which keeps them small."},
    Field{BRAID_KEY(moe, expert_capacity), {.minimum = 0, .maximum = 1e4}, "Rows that an expert takes of the tokens that a rank has of a microbatch, as a multiple of what it has with equal loads (tokens * experts_per_token / experts), rounded up; it drops the others, and adds 0 to their tokens (Megatron-LM's moe_expert_capacity_factor). 0 = no row is dropped. Tensor ranks with parallel.sequence_parallel and context ranks have fewer tokens, so they drop other rows."},
    Field{BRAID_KEY(moe, drop), one_of(kChoiceNames<DropChoice>), "With moe.expert_capacity: which rows an expert drops: those whose weights are the least (of equal ones, the last), or the last ones."},
    Field{BRAID_KEY(moe, capacity), {.minimum = 0, .maximum = 1e4}, "With parallel.expert: rows for which a rank has room in each layer, as a multiple of what it has with equal loads of the ranks; 0 = for all that can come."},
    Field{BRAID_KEY(moe, on_overflow), one_of(kChoiceNames<OverflowChoice>), "When more rows come to a rank than moe.capacity gives room for: run the step again with twice the room, which has the results of enough room; stop with an error; or drop those of the last experts and tokens, whose experts then add 0."},
    Field{BRAID_KEY(moe, exchange), one_of(kChoiceNames<ExchangeChoice>), "With parallel.expert: how rows go to the ranks with their experts. \"direct\": GPUs read them from each other's memory, exactly the rows that there are. \"blocks\": by NCCL, in a block of fixed size for each pair of ranks, which has 1 / ranks of the room of moe.capacity. \"hosts\": one copy of a token to each host, by NCCL, and from there directly to the host's ranks; results are rounded once per host. \"auto\": hosts if ranks of a group are GPUs of several hosts, an equal number of them on each; blocks if these are one on each, or with moe.expert_capacity; else direct."},
    Field{BRAID_KEY(moe, exchange_hosts), {.minimum = 0, .maximum = kMaxRanks}, "With moe.exchange = \"hosts\": the number of hosts of a group. It must divide parallel.expert. 0 = that of the machines, or of the cluster that is simulated."},
    Field{BRAID_KEY(moe, watch), kStepsOrZero, "Steps between records in metrics.jsonl of how equal the loads of experts are, and of the losses of routers, for each layer; the first and the last step have one, too. 0 = nothing is counted. Counting changes no bit of the training."},
    Field{BRAID_KEY(moe, watch_counts), kStepsOrZero, "Steps between those of these records that have the rows of each expert, too; the first and the last step have them. 0 = none. Without them the report has no picture of the loads."},
    Field{BRAID_KEY(moe, force_balance), kAny, "Routers choose experts in turn instead of by their scores, so that all have equal loads: to measure speed without the effect of unequal ones. Such a run learns nothing useful from its routers."},
    Field{BRAID_KEY(moe, force_skew), {.minimum = 0, .maximum = 1e6}, "Routers choose experts at random, by shares that are drawn for each layer from a Dirichlet distribution with this concentration (100: almost equal loads, 1: very unequal): to measure what unequal loads cost. All steps, microbatches and layouts have the same loads. 0 = they choose by their scores."},
    Field{BRAID_KEY(moe, replay), kAny, "A file of moe.record: routers choose the experts that it has for the same step, layer and token, with the weights that these have by today's scores. Any layout reads it. Behind its last step it begins again."},
    Field{BRAID_KEY(moe, record), kAny, "A new file for the experts that routers choose in the first moe.record_steps steps of the run, 2 bytes each."},
    Field{BRAID_KEY(moe, record_steps), {.minimum = 1, .maximum = 1e6}, "Steps that moe.record records."},
    Field{BRAID_KEY(moe, bias_update_rate), {.minimum = 0, .maximum = 1}, "With model.router_bias: by how much a step raises the bias of each expert that had fewer tokens than the mean of the global batch, and lowers that of each that had more; 0 = biases stay as they are."},

    Field{BRAID_KEY(lora, rank), {.minimum = 0, .maximum = 4096}, "Columns of B and rows of A, in y = x W^T + (alpha / rank) (x A^T) B^T. 0 = there are no adapters, and all weights are trained."},
    Field{BRAID_KEY(lora, alpha), {.minimum = 1e-6, .maximum = 1e6}, "The adapter's result is scaled by alpha / rank."},
    Field{BRAID_KEY(lora, dora), kAny, "Train the lengths of the matrices' rows apart from their directions, as DoRA does: row i of W + (alpha / rank) B A is scaled to a trained length, which begins as that of row i of W."},
    Field{BRAID_KEY(lora, targets), kAny, "Matrices that have adapters: q, k, v and proj of attention, gate, up and fc2 of an MLP (fc1 and fc2 without gates), with * and ? for any characters. [] = all of them."},
    Field{BRAID_KEY(lora, base), kAny, "The model to fine-tune: a Hugging Face folder, a run folder or a checkpoint. Section [model] must describe the same model; `braid import` prints it. \"initial\" = the fresh weights of train.seed, to try a setting out."},

    Field{BRAID_KEY(preference, loss), one_of(kChoiceNames<PreferenceChoice>), "Loss of a pair, of its margin z = beta * (log-probability ratio of the preferred answer to the model at the start - that of the rejected one): dpo = -log sigmoid(z), hinge = max(0, 1 - z), ipo = (z / beta - 1 / (2 beta))^2 with log-probabilities per token. none = the usual loss of tokens."},
    Field{BRAID_KEY(preference, beta), {.minimum = 1e-6, .maximum = 1e6}, "The smaller, the farther the model may go from where it started."},
    Field{BRAID_KEY(preference, label_smoothing), {.minimum = 0, .maximum = 0.5, .excludes_maximum = true}, "With dpo: the share of pairs that are taken to be the wrong way round (cDPO)."},
    Field{BRAID_KEY(preference, held_out), kAny, "Pairs for evaluations, made as those of data.train; empty = the validation part of data.split.", {}, OnResume::kAllowed},

    Field{BRAID_KEY(memory, recompute), one_of(kChoiceNames<RecomputeChoice>), "Activations that the backward recomputes instead of keeping: those of norms and activation functions (norms), those of attention and of Mamba layers too (attention), all of a layer but results of communication (compute), or all of a layer but one (full). \"auto\" chooses the policy that fits the memory and repeats the least work. The losses stay the same bit for bit (docs/passes.md)."},
    Field{BRAID_KEY(memory, recompute_layers), {.minimum = 0, .maximum = 4096}, "Recompute in this many layers, counted from the first; 0 = in all."},
    Field{BRAID_KEY(memory, offload_layers), {.minimum = 0, .maximum = 4096}, "First layers of the model whose activations move to host memory between forward and backward; 0 = none."},
    Field{BRAID_KEY(memory, offload_prefetch_layers), {.minimum = 0, .maximum = 4096}, "How many layers before their use activations start to return from the host. Moving them out may take as many layers."},
    Field{BRAID_KEY(memory, offload_min_bytes), {.minimum = 1, .maximum = 1e15}, "Smaller activations stay on the device."},
    Field{BRAID_KEY(memory, gather_budget), kAny, "With parallel.shard = \"parameters\": bytes that gathered weights may take at one time, such as \"2GiB\". Gathers start as early as this permits, and weights that still fit until their next use are not gathered again. \"auto\" = what the device has left (docs/memory.md). Empty = by units: overlap.param_gather_prefetch_units."},
    Field{BRAID_KEY(memory, grad_budget), kAny, "With parallel.shard = \"gradients\" or \"parameters\": bytes that whole gradients may take at one time, in which they are computed and wait for their reduction. Empty = those of two units (parallel.bucket)."},

    Field{BRAID_KEY(overlap, mode), one_of(kChoiceNames<OverlapMode>), "Who chooses the overlap: auto (braid), manual (the keys below) or off (none)."},
    Field{BRAID_KEY(overlap, cost), kAny, "Where task durations come from: a cluster such as \"h200x8\" or \"my.tomlx8\" (a device file, docs/hardware.md), \"device\" (the GPU that `braid train` finds, times the ranks), or the path of a profile made by `braid calibrate`. With it, mode = \"auto\" searches the keys below in the simulator for the fastest step that fits, and passes that compare orders, such as list_schedule, can do so. Empty = no search: mode = \"auto\" uses the default of every pass."},
    Field{BRAID_KEY(overlap, may_change_rounding), kAny, "Whether mode = \"auto\" may choose overlap that can change results by rounding, such as products in pieces (docs/passes.md)."},
    Field{BRAID_KEY(overlap, list_schedule), kAny, "Order the tasks of all ranks together by their durations (overlap.cost), so that weight gradients and the next jobs fill waits (docs/passes.md). The order is kept only if the simulated step is faster. With mode = \"auto\" and overlap.cost, true forces it and false leaves it to the search."},
    Field{BRAID_KEY(overlap, comm_engine), one_of(kChoiceNames<EngineChoice>), "What moves the bytes of communication between GPUs of one host. sm: kernels of NCCL, which take multiprocessors from compute. copy: copy engines wherever possible, which take none. nccl_copy: copy engines driven by NCCL (all_gather and all_to_all; NCCL 2.28, symmetric windows). auto: for each task, what costs the step less by overlap.cost; sm without it. hidden: copy for each collective where a simulated step gains by it, else sm; needs overlap.cost (docs/passes.md). With mode = \"auto\" and overlap.cost, auto leaves the choice to the search and other values stay. On the CPU, only reductions that copy takes apart differ."},
    Field{BRAID_KEY(overlap, overlap_grad_reduce), kAny, "Reduce gradients while the backward pass is still running. Read with mode = \"manual\" only."},
    Field{BRAID_KEY(overlap, overlap_grad_reduce_delayed_wgrad_layers), {.minimum = 0, .maximum = 4096}, "With overlap_grad_reduce: number of first layers whose weight gradients of the last microbatch wait for the embedding's, and then hide its reduction. More than there are = all, 0 = none."},
    Field{BRAID_KEY(overlap, overlap_param_gather), kAny, "Gather weights while earlier units are computed: sharded weights before each use, updated weights before their first use in the next step. This key and the six below are read with mode = \"manual\" only."},
    Field{BRAID_KEY(overlap, overlap_param_gather_with_optimizer_step), kAny, "With overlap_param_gather: gather the weights that a step needs first while the optimizer updates the rest; for shard = \"optimizer\" and \"gradients\"."},
    Field{BRAID_KEY(overlap, align_param_gather), kAny, "With overlap_param_gather: start gathers of updated weights at the beginning of the step on all pipeline ranks. If false, they start param_gather_prefetch_units before their use."},
    Field{BRAID_KEY(overlap, param_gather_prefetch_units), {.minimum = 0, .maximum = 4096}, "With overlap_param_gather: how many units (buckets) before its use a gather starts. Memory holds one more unit than this. memory.gather_budget counts bytes instead."},
    Field{BRAID_KEY(overlap, param_gather_fills_budget), kAny, "With memory.gather_budget: start gathers as early as it permits. If false, they start at most param_gather_prefetch_units before their use, and never above the budget."},
    Field{BRAID_KEY(overlap, param_gather_whole_units), {.minimum = 0, .maximum = 4096}, "With overlap_param_gather and shard = \"parameters\": number of first units (buckets) whose weights a rank keeps whole. It gathers them while the optimizer updates the rest, so that a step does not begin by waiting for them. 2 are the embedding and a layer."},
    Field{BRAID_KEY(overlap, overlap_context_comm), kAny, "Send keys, values and their gradients to the next context rank while attention is computed, and run the backward's exchanges of heads beside weight gradients."},
    Field{BRAID_KEY(overlap, overlap_moe_expert_parallel_comm), kAny, "Run the exchange of tokens between ranks with different experts beside compute that does not need it: weight gradients, the expert for all tokens, and with pair_forward_backward another job. Read with mode = \"manual\" only."},
    Field{BRAID_KEY(overlap, pair_forward_backward), one_of(kChoiceNames<PairKind>), "Weave neighbouring jobs, so that communication of tensor, context and expert ranks in one runs under compute of the other. forward_backward: a forward and the backward of another microbatch; keeps more activations. halves: the two halves of a microbatch; without a pipeline; sums are rounded as with half the microbatch. forward_halves: the two halves of a forward, with the backward whole; without context ranks. Read with mode = \"manual\" only."},
    Field{BRAID_KEY(overlap, overlap_p2p_comm), kAny, "Run messages between pipeline stages beside compute, one job before the job that reads them. This key and the seven below are read with mode = \"manual\" and a pipeline only."},
    Field{BRAID_KEY(overlap, overlap_p2p_comm_warmup_flush), kAny, "With overlap_p2p_comm: also before the first backward and after the last forward of a rank."},
    Field{BRAID_KEY(overlap, overlap_p2p_backward_on_comm_stream), kAny, "With overlap_p2p_comm: messages of the backward leave beside compute. If false, compute waits until messages to an earlier rank have left."},
    Field{BRAID_KEY(overlap, overlap_p2p_wgrad_delayed_layer_number), {.minimum = 0, .maximum = 4096}, "Number of layers at the end of each backward job whose attention weight gradients wait until the job's message leaves, and then hide it. More than there are = all, 0 = none."},
    Field{BRAID_KEY(overlap, overlap_p2p_with_transformer_layer_wgrad), kAny, "Whether the feed-forward's weight gradients of these layers wait too."},
    Field{BRAID_KEY(overlap, defer_embedding_wgrad_compute), kAny, "Compute weight gradients of the output projection in the bubble after the last stage's last backward. This keeps the logits' gradients of these microbatches."},
    Field{BRAID_KEY(overlap, wgrad_deferral_limit), {.minimum = 0, .maximum = kInfinity}, "With defer_embedding_wgrad_compute: number of microbatches, the last of the step, for which to do so; 0 = all."},
    Field{BRAID_KEY(overlap, fill_cooldown), kAny, "After a rank's last forward, send messages before computing weight gradients, and keep enough weight gradients for the end to fill the time in which the last message passes the other stages."},
    Field{BRAID_KEY(overlap, tp_comm_overlap), kAny, "Run communication of tensor ranks beside matrix products, as the keys below say. Read with mode = \"manual\" only. Splitting a product may change results by rounding (docs/passes.md)."},
    Field{BRAID_KEY(overlap, tp_comm_overlap_ag), kAny, "With tp_comm_overlap and sequence_parallel: run all-gathers as a ring and multiply each block while the next one arrives (qkv_fprop, fc1_fprop, logits_fprop, proj_dgrad, fc2_dgrad)."},
    Field{BRAID_KEY(overlap, tp_comm_overlap_rs), kAny, "With tp_comm_overlap and sequence_parallel: compute products in pieces and reduce-scatter each while the next one is computed (proj_fprop, fc2_fprop)."},
    Field{BRAID_KEY(overlap, tp_comm_overlap_rs_dgrad), kAny, "The same, as a ring, for qkv_dgrad, fc1_dgrad and logits_dgrad; instead of tp_comm_bulk_wgrad."},
    Field{BRAID_KEY(overlap, tp_comm_bulk_dgrad), kAny, "With tp_comm_overlap and sequence_parallel: where the backward gathers the input of a weight gradient again (memory.recompute), gather it under the product before."},
    Field{BRAID_KEY(overlap, tp_comm_bulk_wgrad), kAny, "With tp_comm_overlap: sum a dgrad's result over ranks under the weight gradient after it."},
    Field{BRAID_KEY(overlap, tp_comm_overlap_sites), kAny, "Other choices for single products, as \"SITE=METHOD\", for example \"fc2_fprop=ring\". METHOD is none, bulk, ring or chunked:SPLITS; docs/passes.md lists the sites."},
    Field{BRAID_KEY(overlap, tp_comm_overlap_min_rows), {.minimum = 1, .maximum = kMaxSize}, "Products stay whole if their pieces would have fewer rows or features than this."},
    Field{BRAID_KEY(overlap, split_ops), kAny, "Cut compute tasks where it pays by overlap.cost, so that a part runs while compute would wait for communication of tensor ranks (needs tp_comm_overlap; pieces keep its min_rows) or for exchanges of heads between context ranks (context_method = \"a2a\"; needs overlap_context_comm). Read with mode = \"manual\" only. May change results by rounding."},
    Field{BRAID_KEY(overlap, comm_sms), kAny, "Most multiprocessors of a GPU that communication of a kind of ranks takes, as \"KIND=NUMBER\", for example \"tensor=8\". Kinds: data, tensor, pipeline, context, expert, world. Without an entry NCCL chooses, and exchanges of rows between ranks with different experts take 16. Sums of NCCL may be rounded otherwise than with another number."},
    Field{BRAID_KEY(overlap, product_sm_margin), {.minimum = 0, .maximum = kMostSmMargin}, "Multiprocessors that matrix products leave free at all times, for communication beside them. Exchanges of tokens between ranks with different experts have 16 in any case, of the products that would keep them waiting."},
    Field{BRAID_KEY(overlap, disable_passes), kAny, "Passes to skip, by the names that `braid passes` lists."},

    Field{BRAID_KEY(data, train), kAny, "Tokens to train on: a .bin/.idx pair, named by its common prefix, or a text file. To train, give this key or blend.", {}, OnResume::kByContent},
    Field{BRAID_KEY(data, blend), kAny, "Several sources to train on instead, each as \"WEIGHT PATH\", for example [\"0.7 web_text_document\", \"0.3 code_text_document\"]. Samples come in Megatron-LM's order (docs/data.md); weights need not sum up to 1.", {}, OnResume::kByContent},
    Field{BRAID_KEY(data, valid), kAny, "Sources of validation data of their own, each as \"WEIGHT PATH\": those of train or blend are then for training alone, and all of them are read whole (Megatron-LM: --train-data-path, --valid-data-path). Empty = the validation part of split."},
    Field{BRAID_KEY(data, tokenizer), kAny, "A tokenizer.json of Hugging Face, a SentencePiece model or a folder with one of them, \"bytes\" for one token per byte, or \"ids:N\" for a .bin/.idx pair of N token ids that another program made.", {}, OnResume::kByContent},
    Field{BRAID_KEY(data, split), kAny, "Shares of training, validation and test data, in the order of the file; of a blend, in the order of each file."},
    Field{BRAID_KEY(data, append_eod), kAny, "Whether an end-of-document token follows each document when a text file is tokenized.", {}, OnResume::kByContent},
    Field{BRAID_KEY(data, seed), kNotNegative, "Seed of the sample order; 0 = train.seed."},
    Field{BRAID_KEY(data, packing), one_of(kChoiceNames<DocumentPacking>), "How documents fill sequences: concatenate = one after the other, cut wherever a sequence ends, as in Megatron-LM. best_fit = whole documents that together fill a sequence best; only those longer than a sequence are cut, and the last token of a document has no label. See docs/data.md."},
    Field{BRAID_KEY(data, document_mask), kAny, "Whether documents that share a sequence are separate: attention sees no token of another document, and positions start again at each (Megatron-LM: --reset-attention-mask --reset-position-ids). The tokenizer's end-of-document token ends one. See docs/data.md."},
    Field{BRAID_KEY(data, document_length), kSizeOrZero, "With document_mask: mean tokens of a document, for predicted times only; 0 = attention is priced as over whole sequences.", {}, OnResume::kAllowed},

    Field{BRAID_KEY(eval, interval), kStepsOrZero, "Steps between evaluations; 0 = never."},
    Field{BRAID_KEY(eval, batches), {.minimum = 1, .maximum = kMaxSize}, "Batches of train.global_batch held-out sequences per evaluation."},

    Field{BRAID_KEY(checkpoint, folder), kAny, "Where checkpoints go; empty = the folder checkpoints in logging.run_folder."},
    Field{BRAID_KEY(checkpoint, interval), kStepsOrZero, "Steps between checkpoints; 0 = only one at the end of the run."},
    Field{BRAID_KEY(checkpoint, at_end), kAny, "Whether the run writes a checkpoint at its last step and when it is stopped before. false with interval = 0 writes none at all, for measurements of large models."},
    Field{BRAID_KEY(checkpoint, keep), kStepsOrZero, "Number of newest checkpoints to keep; 0 = all. The newest one that a later step with a finite loss has confirmed also stays."},
    Field{BRAID_KEY(checkpoint, async), kAny, "Whether training goes on while a checkpoint is written: between two steps the state is only copied to host memory, up to 12 bytes per parameter over all ranks, which the memory check counts. The last checkpoint of a run is written without a copy. See docs/checkpoints.md."},
    Field{BRAID_KEY(checkpoint, resume), kAny, "\"auto\" continues from the newest checkpoint in checkpoint.folder if there is one, \"none\" starts from scratch, and anything else is the path of a checkpoint."},

    Field{BRAID_KEY(logging, run_folder), kAny, "Where the run writes; empty = runs/ and the name of the run file."},
    Field{BRAID_KEY(logging, interval), kSteps, "Steps between log lines; the first step always has one."},
    Field{BRAID_KEY(logging, tensorboard), kAny, "Whether TensorBoard events are written next to metrics.jsonl."},
    Field{BRAID_KEY(logging, trace_steps), kSteps, "Steps, counted from 1, whose timeline goes to trace.json and report.html. Steps that the run does not reach are ignored."},
    Field{BRAID_KEY(logging, format), one_of(kChoiceNames<LogFormat>), "What a run prints: short = three lines at the start, and lines of at most 80 columns; megatron = the configuration and the plan at the start, and Megatron-LM's log lines."},
    Field{BRAID_KEY(logging, prometheus), kAny, "File for the newest figures in Prometheus's text format, replaced at every log line; empty = none."},
    Field{BRAID_KEY(logging, progress), one_of(kChoiceNames<Switch>), "Progress bar; auto = on if the output is a terminal."},

    Field{BRAID_KEY(runtime, device), one_of(kChoiceNames<DeviceChoice>), "Device that runs the step. auto = GPUs if they can run it (train.dtype = \"bfloat16\", and parallel.ranks at most the number of GPUs), else the CPU."},
    Field{BRAID_KEY(runtime, processes), one_of(kChoiceNames<ProcessChoice>), "Processes of `braid train`. per_rank: one for each rank, which braid starts itself on one host. one: all ranks in one process. auto: per_rank on several GPUs, one on the CPU. Under torchrun, mpirun or srun it is per_rank, with the processes that they started (docs/processes.md). The result has the same bits either way."},
    Field{BRAID_KEY(runtime, ranks_per_gpu), kRanks, "Ranks that share a GPU, to run a layout of many ranks on few GPUs. This is for correctness and debugging, not for speed, since the ranks take turns. Rank r of a host uses its GPU r / ranks_per_gpu, in its own process, and all communication is by copy engines (overlap.comm_engine = \"copy\"), because NCCL takes one rank per GPU. On the CPU it makes no difference."},
    Field{BRAID_KEY(runtime, threads), {.minimum = 0, .maximum = 4096}, "Compute threads per rank; 0 = all cores divided by the ranks on this host."},
    Field{BRAID_KEY(runtime, repeatable), kAny, "Whether two runs give the same bits, also on a GPU. false lets the GPU's backward of attention add up gradients in any order, as PyTorch does, which is faster where cuDNN computes it (docs/numerics.md has figures)."},
    Field{BRAID_KEY(runtime, fuse_swiglu), one_of(kChoiceNames<Switch>), "Whether a matrix product and the SwiGLU beside it are one task, with its own kernel on GPUs (docs/passes.md), and with train.fp8 an activation function or a norm and the FP8 copies of its result. auto = on where GPUs run the step (train.dtype = \"bfloat16\", and runtime.device is not \"cpu\"), off on the CPU, which gains nothing by it and has the same bits either way."},
    Field{BRAID_KEY(runtime, nccl_windows), kAny, "On several GPUs of one host: register the memory of collectives with NCCL as symmetric windows. NCCL has other kernels for these, whose sums may be rounded differently. `braid train` prints a line for groups where that was not possible. overlap.comm_engine = \"nccl_copy\" registers what its tasks need in any case."},
    Field{BRAID_KEY(runtime, detect_nan), one_of(kChoiceNames<NanCheck>), "What happens when the loss or the gradient norm is not finite. off: the run continues, without the update if the norm is not finite. loss: the run stops and names the step. tensors: the run stops after it has repeated the step task by task, and also names microbatch, task, buffer and element of the first NaN or infinity. true and false, from older files, mean loss and off.", FormerSwitch{"loss", "off"}},
    Field{BRAID_KEY(runtime, check_replicas), {.minimum = 0}, "Steps between two comparisons of everything that several ranks hold copies of: weights, main weights, moments. They are also compared before a checkpoint is written, and at once if the loss or the gradient norm jumps (docs/checkpoints.md). If a copy differs, because memory or arithmetic of a device failed, the run names rank and tensor, and goes back (rerun_steps) or stops before it saves. 0: never."},
    Field{BRAID_KEY(runtime, rerun_steps), kStepsOrZero, "The most steps that the run goes back and runs again, which is bitwise, from its last checkpoint or else from its initial weights: if a copy differs (check_replicas), or if the loss jumps (rerun_spike) or is not finite. If the fault is gone then, the run prints that and goes on; if a copy differs again, it stops (docs/checkpoints.md). 0: never."},
    Field{BRAID_KEY(runtime, rerun_spike), kNotNegative, "How far the loss of a step must be above the mean of the last 32 steps to run again the steps since the last checkpoint, in standard deviations, of which each counts as at least 2% of the mean. Bits that differ show that a device failed. It needs repeatable = true. 0: only a loss or a gradient norm that is not finite."},
    Field{BRAID_KEY(runtime, steps_in_flight), {.minimum = 1, .maximum = 2}, "Steps that are launched on GPUs before the first of them has ended. 2: the next step is already on the device when one ends, so the device never waits for the host. 1: one step after the other, as on the CPU and with detect_nan = \"tensors\". The result has the same bits either way; a run that is stopped ends one step later with 2."},
    Field{BRAID_KEY(runtime, timeout_s), {.minimum = 1, .maximum = 86400}, "Seconds that a rank waits for others in a collective or a message, or for one call on a file, before the run ends and names the missing ranks or the file. It must be longer than any normal pause, such as that of a rank that computes while others already wait."},

    Field{BRAID_KEY(links, data_latency_us), kLatencyUs, "Microseconds until data sent within a data-parallel group arrives."},
    Field{BRAID_KEY(links, data_gb_per_s), kGbPerS, "Gigabytes (1e9 bytes) per second of a rank's link to its data-parallel group, in each direction; 0 = no limit, else at least 0.000001."},
    Field{BRAID_KEY(links, tensor_latency_us), kLatencyUs, "The same latency within tensor-parallel groups."},
    Field{BRAID_KEY(links, tensor_gb_per_s), kGbPerS, "The same rate within tensor-parallel groups."},
    Field{BRAID_KEY(links, pipeline_latency_us), kLatencyUs, "The same latency between pipeline stages."},
    Field{BRAID_KEY(links, pipeline_gb_per_s), kGbPerS, "The same rate between pipeline stages."},
    Field{BRAID_KEY(links, context_latency_us), kLatencyUs, "The same latency within context-parallel groups."},
    Field{BRAID_KEY(links, context_gb_per_s), kGbPerS, "The same rate within context-parallel groups."},
};
// clang-format on
#undef BRAID_KEY

}  // namespace

std::span<const Section> config_sections() {
  return kSections;
}

std::span<const Field> config_fields() {
  return kFields;
}

const Field* find_field(std::string_view section, std::string_view name) {
  for (const Field& field : kFields) {
    if (field.section == section && field.name == name) {
      return &field;
    }
  }
  return nullptr;
}

std::string full_name(const Field& field) {
  return fmt::format("{}.{}", field.section, field.name);
}

OnResume on_resume(const Field& field) {
  if (field.on_resume) {
    return *field.on_resume;
  }
  return std::ranges::find(kSections, field.section, &Section::name)->on_resume;
}

}  // namespace braid
