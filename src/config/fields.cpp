#include "config/fields.h"

#include <fmt/core.h>

#include <array>

namespace braid {
namespace {

template <auto SectionMember, auto KeyMember>
ValueRef member(RunConfig& config) {
  return &(config.*SectionMember.*KeyMember);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Sizes beyond these are mistakes, and products of a few of them still fit 64 bits.
constexpr double kMaxSize = 1 << 24;
constexpr double kMaxRanks = 1 << 16;
constexpr double kMaxSteps = 1e12;

constexpr Limits kAny = {};
constexpr Limits kSize = {.minimum = 1, .maximum = kMaxSize};
constexpr Limits kSizeOrZero = {.minimum = 0, .maximum = kMaxSize};
constexpr Limits kRanks = {.minimum = 1, .maximum = kMaxRanks};
constexpr Limits kSteps = {.minimum = 1, .maximum = kMaxSteps};
constexpr Limits kStepsOrZero = {.minimum = 0, .maximum = kMaxSteps};
constexpr Limits kNotNegative = {.minimum = 0, .maximum = kInfinity};
constexpr Limits kBelowOne = {.minimum = 0, .maximum = 1, .excludes_maximum = true};

template <size_t N>
constexpr Limits one_of(const std::array<std::string_view, N>& names) {
  return {.allowed = names};
}

using Names2 = std::array<std::string_view, 2>;
using Names3 = std::array<std::string_view, 3>;
using Names4 = std::array<std::string_view, 4>;
constexpr Names2 kFamilies = {"llama", "gpt2"};
constexpr Names2 kDTypes = {"float32", "bfloat16"};
constexpr Names3 kRates = {"cosine", "wsd", "constant"};
constexpr Names3 kDecayShapes = {"linear", "cosine", "one_minus_sqrt"};
constexpr Names4 kSchedules = {"1f1b", "interleaved", "zb-h1", "zb-v"};
constexpr Names4 kShards = {"none", "optimizer", "gradients", "parameters"};
constexpr Names3 kModes = {"auto", "manual", "off"};
constexpr Names3 kProgress = {"auto", "on", "off"};
constexpr Names3 kDevices = {"auto", "cpu", "cuda"};

constexpr std::array kSections = {
    Section{"model", "What is trained; keys that are not given come from the preset."},
    Section{"train", "How much is trained, and in which pieces."},
    Section{"optimizer", "AdamW with decoupled weight decay, and its learning rate."},
    Section{"parallel", "How the work is laid out over ranks."},
    Section{"overlap", "How communication is hidden under compute."},
    Section{"data", "What the model reads."},
    Section{"eval", "Loss on held-out data during the run."},
    Section{"checkpoint", "What is kept on disk, and where a run continues."},
    Section{"logging", "What a run writes about itself."},
    Section{"runtime", "The machine that the run uses."},
};

// A macro, because nothing else gives a key the name of its member.
#define BRAID_KEY(section, key) \
#section, #key, member < &RunConfig::section, &decltype(RunConfig::section)::key>

// clang-format off
constexpr std::array kFields = {
    Field{BRAID_KEY(model, preset), kAny, "A published model by name, such as \"llama-1b\" or \"gpt2-124m\"; the other keys of this section override it."},
    Field{BRAID_KEY(model, family), one_of(kFamilies), "Kind of block: llama (RMSNorm, rotary positions, SwiGLU) or gpt2 (LayerNorm, learned positions, GELU, biases); llama unless given."},
    Field{BRAID_KEY(model, layers), {.minimum = 1, .maximum = 4096}, "Number of transformer blocks; needed without a preset."},
    Field{BRAID_KEY(model, width), kSize, "Features per token between blocks; needed without a preset."},
    Field{BRAID_KEY(model, heads), {.minimum = 1, .maximum = 4096}, "Attention heads; needed without a preset."},
    Field{BRAID_KEY(model, kv_heads), {.minimum = 0, .maximum = 4096}, "Key and value heads, each shared by heads / kv_heads query heads; 0 = heads."},
    Field{BRAID_KEY(model, head_size), {.minimum = 0, .maximum = 65536}, "Features per head; 0 = width / heads."},
    Field{BRAID_KEY(model, ffn), kSizeOrZero, "Hidden features of the feed-forward layer; 0 = the default of the family."},
    Field{BRAID_KEY(model, vocabulary), kSizeOrZero, "Rows of the embedding; 0 = as many as the tokenizer has."},
    Field{BRAID_KEY(model, max_positions), kSizeOrZero, "Learned positions of a gpt2 model; 0 = train.sequence."},
    Field{BRAID_KEY(model, tied_embeddings), kAny, "Whether the output layer shares the weights of the embedding."},
    Field{BRAID_KEY(model, qkv_bias), kAny, "Whether query, key and value projections have biases, as in Qwen2.5."},
    Field{BRAID_KEY(model, rope_theta), {.minimum = 1, .maximum = 1e12}, "Base of the rotary frequencies."},
    Field{BRAID_KEY(model, norm_epsilon), {.minimum = 0, .maximum = 1}, "Added to the variance in normalisation layers."},
    Field{BRAID_KEY(model, init_std), {.minimum = 0, .maximum = 10}, "Standard deviation of the initial weights."},

    Field{BRAID_KEY(train, sequence), kSize, "Tokens per sequence."},
    Field{BRAID_KEY(train, microbatch), {.minimum = 1, .maximum = 1 << 20}, "Sequences that one rank runs forward and backward at once."},
    Field{BRAID_KEY(train, global_batch), kSize, "Sequences per step over all ranks; a multiple of train.microbatch * data-parallel ranks, the factor being the number of microbatches whose gradients are accumulated."},
    Field{BRAID_KEY(train, steps), kSteps, "Optimizer updates of the whole run, those before a resume included."},
    Field{BRAID_KEY(train, seed), kNotNegative, "Seed of the initial weights and, unless data.seed is given, of the sample order."},
    Field{BRAID_KEY(train, dtype), one_of(kDTypes), "Type of activations and of the weights that the layers read; main weights, main gradients and optimizer state are float32."},

    Field{BRAID_KEY(optimizer, learning_rate), kNotNegative, "Highest learning rate, reached at the end of the warmup."},
    Field{BRAID_KEY(optimizer, min_learning_rate), kNotNegative, "Learning rate at the end of the decay; at most optimizer.learning_rate."},
    Field{BRAID_KEY(optimizer, schedule), one_of(kRates), "Learning rate after the warmup: cosine decay, wsd (warmup, stable, decay at the end) or constant."},
    Field{BRAID_KEY(optimizer, warmup_steps), kStepsOrZero, "Steps in which the learning rate rises linearly from 0."},
    Field{BRAID_KEY(optimizer, decay_steps), kStepsOrZero, "With wsd: length of the decay at the end of the run. With cosine: step at which the decay is complete, warmup included; 0 = train.steps."},
    Field{BRAID_KEY(optimizer, decay_shape), one_of(kDecayShapes), "Shape of the decay of wsd."},
    Field{BRAID_KEY(optimizer, beta1), kBelowOne, "Decay of the first moment."},
    Field{BRAID_KEY(optimizer, beta2), kBelowOne, "Decay of the second moment."},
    Field{BRAID_KEY(optimizer, epsilon), {.minimum = 0, .maximum = 1}, "Added to the root of the second moment."},
    Field{BRAID_KEY(optimizer, weight_decay), kNotNegative, "Decoupled weight decay; applied to matrices, not to norms and biases."},
    Field{BRAID_KEY(optimizer, clip_norm), kNotNegative, "Gradients are scaled down to this global norm; 0 = never."},

    Field{BRAID_KEY(parallel, ranks), kRanks, "Ranks started on this host; the product of data, tensor, pipeline and context."},
    Field{BRAID_KEY(parallel, data), {.minimum = 0, .maximum = kMaxRanks}, "Data-parallel ranks; 0 = ranks / (tensor * pipeline * context)."},
    Field{BRAID_KEY(parallel, tensor), kRanks, "Ranks that share each layer's matrices; this build runs 1 only."},
    Field{BRAID_KEY(parallel, pipeline), kRanks, "Ranks that hold consecutive layers; this build runs 1 only."},
    Field{BRAID_KEY(parallel, context), kRanks, "Ranks that share each sequence; this build runs 1 only."},
    Field{BRAID_KEY(parallel, expert), kRanks, "Ranks, out of the data-parallel ones, that share the experts; this build runs 1 only."},
    Field{BRAID_KEY(parallel, virtual_stages), {.minimum = 1, .maximum = 4096}, "Pieces of the layers per pipeline rank; this build runs 1 only."},
    Field{BRAID_KEY(parallel, schedule), one_of(kSchedules), "Order of forward and backward jobs of a pipeline; this build runs 1f1b only."},
    Field{BRAID_KEY(parallel, sequence_parallel), kAny, "Whether tensor-parallel ranks also share the work between matrices along the sequence; this build runs false only."},
    Field{BRAID_KEY(parallel, shard), one_of(kShards), "What data-parallel ranks hold in parts instead of copies; this build runs none only."},

    Field{BRAID_KEY(overlap, mode), one_of(kModes), "Who chooses the overlap: auto (braid), manual (the overlap_ keys below) or off (none)."},
    Field{BRAID_KEY(overlap, overlap_grad_reduce), kAny, "Reduce gradients while the backward pass is still running; read with mode = \"manual\" only."},
    Field{BRAID_KEY(overlap, disable_passes), kAny, "Passes to skip, by the names that `braid passes` lists."},

    Field{BRAID_KEY(data, train), kAny, "Tokens to train on: a .bin/.idx pair by its common prefix, or a text file; needed to train."},
    Field{BRAID_KEY(data, tokenizer), kAny, "A SentencePiece model file, or \"bytes\" for one token per byte."},
    Field{BRAID_KEY(data, split), kAny, "Shares of training, validation and test data, in the order of the file."},
    Field{BRAID_KEY(data, append_eod), kAny, "Whether an end-of-document token follows each document when a text file is tokenized."},
    Field{BRAID_KEY(data, seed), kNotNegative, "Seed of the sample order; 0 = train.seed."},

    Field{BRAID_KEY(eval, interval), kStepsOrZero, "Steps between evaluations; 0 = never."},
    Field{BRAID_KEY(eval, batches), {.minimum = 1, .maximum = kMaxSize}, "Batches of train.global_batch held-out sequences per evaluation."},

    Field{BRAID_KEY(checkpoint, folder), kAny, "Where checkpoints go; empty = the folder checkpoints in logging.run_folder."},
    Field{BRAID_KEY(checkpoint, interval), kStepsOrZero, "Steps between checkpoints; 0 = only one at the end of the run."},
    Field{BRAID_KEY(checkpoint, keep), kStepsOrZero, "Newest checkpoints that are kept; 0 = all."},
    Field{BRAID_KEY(checkpoint, resume), kAny, "\"auto\" continues from the newest checkpoint in checkpoint.folder if there is one, \"none\" starts anew, anything else is the path of a checkpoint."},

    Field{BRAID_KEY(logging, run_folder), kAny, "Where the run writes; empty = runs/ and the name of the run file."},
    Field{BRAID_KEY(logging, interval), kSteps, "Steps between log lines; the first step always has one."},
    Field{BRAID_KEY(logging, tensorboard), kAny, "Whether TensorBoard events are written next to metrics.jsonl."},
    Field{BRAID_KEY(logging, trace_steps), kSteps, "Steps, counted from 1, whose timeline goes to trace.json and report.html; steps that the run does not reach are passed over."},
    Field{BRAID_KEY(logging, progress), one_of(kProgress), "Progress bar; auto = if the output is a terminal."},

    Field{BRAID_KEY(runtime, device), one_of(kDevices), "Device that runs the step; auto = a GPU where there is one that can run this (this build: bfloat16, 1 rank), else the CPU."},
    Field{BRAID_KEY(runtime, threads), {.minimum = 0, .maximum = 4096}, "Compute threads per rank; 0 = all cores divided by the ranks on this host."},
    Field{BRAID_KEY(runtime, detect_nan), kAny, "Whether the run stops as soon as the loss or the gradient norm is not finite."},
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

}  // namespace braid
