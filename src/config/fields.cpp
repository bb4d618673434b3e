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
/// A second of latency, a petabyte per second: what is beyond them is a slip of units.
constexpr Limits kLatencyUs = {.minimum = 0, .maximum = 1e6};
constexpr Limits kGbPerS = {.minimum = 0, .maximum = 1e6};
constexpr Limits kBelowOne = {.minimum = 0, .maximum = 1, .excludes_maximum = true};

template <size_t N>
constexpr Limits one_of(const std::array<std::string_view, N>& names) {
  return {.allowed = names};
}

using Names2 = std::array<std::string_view, 2>;
using Names3 = std::array<std::string_view, 3>;
using Names4 = std::array<std::string_view, 4>;
using Names5 = std::array<std::string_view, 5>;
using Names6 = std::array<std::string_view, 6>;
constexpr Names2 kFamilies = {"llama", "gpt2"};
constexpr Names2 kDTypes = {"float32", "bfloat16"};
constexpr Names3 kRates = {"cosine", "wsd", "constant"};
constexpr Names3 kDecayShapes = {"linear", "cosine", "one_minus_sqrt"};
constexpr Names6 kSchedules = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"};
constexpr Names4 kContextMethods = {"ring", "all_gather", "a2a", "a2a+ring"};
constexpr Names3 kBuckets = {"layer", "virtual_stage", "bytes"};
constexpr Names2 kGradDtypes = {"float32", "bfloat16"};
constexpr Names4 kShards = {"none", "optimizer", "gradients", "parameters"};
constexpr Names5 kRecompute = {"none", "norms", "attention", "full", "auto"};
constexpr Names3 kModes = {"auto", "manual", "off"};
constexpr Names5 kCommEngines = {"auto", "sm", "copy", "nccl_copy", "hidden"};
constexpr std::array<std::string_view, 4> kPairs = {"none", "forward_backward", "halves",
                                                    "forward_halves"};
constexpr Names3 kAutoOnOff = {"auto", "on", "off"};
constexpr Names3 kDevices = {"auto", "cpu", "cuda"};
constexpr Names3 kProcesses = {"auto", "one", "per_rank"};
constexpr Names3 kNanChecks = {"off", "loss", "tensors"};

constexpr std::array kSections = {
    Section{"model", "What is trained; keys that are not given come from the preset."},
    Section{"train", "How much is trained, and in which pieces."},
    Section{"optimizer", "AdamW with decoupled weight decay, and its learning rate."},
    Section{"parallel", "How the work is laid out over ranks."},
    Section{"memory", "What is kept from the forward for the backward, and where."},
    Section{"overlap", "How communication is hidden under compute."},
    Section{"data", "What the model reads."},
    Section{"eval", "Loss on held-out data during the run."},
    Section{"checkpoint", "What is kept on disk, and where a run continues."},
    Section{"logging", "What a run writes about itself."},
    Section{"runtime", "The machine that the run uses."},
    Section{"links",
            "Links that are emulated between CPU ranks, so that communication takes the time that "
            "it would take elsewhere, without using a core; docs/parallel.md says how."},
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
    Field{BRAID_KEY(optimizer, epsilon), {.minimum = 1e-30, .maximum = 1}, "Added to the root of the second moment."},
    Field{BRAID_KEY(optimizer, weight_decay), kNotNegative, "Decoupled weight decay; applied to matrices, not to norms and biases."},
    Field{BRAID_KEY(optimizer, clip_norm), kNotNegative, "Gradients are scaled down to this global norm; 0 = never."},

    Field{BRAID_KEY(parallel, ranks), kRanks, "Ranks of the run, on all of its hosts; the product of data, tensor, pipeline and context."},
    Field{BRAID_KEY(parallel, data), {.minimum = 0, .maximum = kMaxRanks}, "Data-parallel ranks; 0 = ranks / (tensor * pipeline * context)."},
    Field{BRAID_KEY(parallel, tensor), kRanks, "Ranks that share each layer's matrices; divides heads and ffn, and divides kv_heads or is a multiple of them."},
    Field{BRAID_KEY(parallel, pipeline), kRanks, "Ranks that hold consecutive layers."},
    Field{BRAID_KEY(parallel, context), kRanks, "Ranks that share each sequence; they must divide train.sequence, and twice as many unless heads are exchanged (docs/parallel.md)."},
    Field{BRAID_KEY(parallel, expert), kRanks, "Ranks, out of the data-parallel ones, that share the experts; this build runs 1 only."},
    Field{BRAID_KEY(parallel, sequence_parallel), kAny, "Whether tensor-parallel ranks also share the rows between matrices, so that norms and activations there take 1/tensor of the memory."},
    Field{BRAID_KEY(parallel, virtual_stages), {.minimum = 1, .maximum = 4096}, "Pieces of the layers per pipeline rank: 1 with gpipe, 1f1b and zb-h1, 2 with zb-v and dualpipe-v, 2 or more with interleaved."},
    Field{BRAID_KEY(parallel, schedule), one_of(kSchedules), "Order of forward and backward jobs of a pipeline; docs/pipeline.md has pictures."},
    Field{BRAID_KEY(parallel, microbatch_group_size), {.minimum = 0, .maximum = kMaxSize}, "With interleaved: microbatches that pass a virtual stage before the next one's turn; 0 = parallel.pipeline."},
    Field{BRAID_KEY(parallel, pipeline_layout), kAny, "Which layers each stage holds: balanced (by what layers and head cost), even, or a layout string of docs/pipeline.md: E embedding, t layer, L head, a bar between stages; empty = balanced, unless one of the next four keys is given."},
    Field{BRAID_KEY(parallel, first_stage_layers), {.minimum = 0, .maximum = kMaxSize}, "Layers of the first pipeline rank, the others sharing the rest evenly; 0 = as many as the others."},
    Field{BRAID_KEY(parallel, last_stage_layers), {.minimum = 0, .maximum = kMaxSize}, "The same for the last pipeline rank."},
    Field{BRAID_KEY(parallel, account_for_embedding), kAny, "Whether the embedding counts as a layer when layers are spread evenly."},
    Field{BRAID_KEY(parallel, account_for_loss), kAny, "Whether head and loss count as a layer when layers are spread evenly."},
    Field{BRAID_KEY(parallel, context_method), one_of(kContextMethods), "How attention sees the whole sequence: ring passes keys and values on, all_gather gathers them, a2a exchanges heads for sequence, a2a+ring does that among context_inner ranks and a ring over such groups."},
    Field{BRAID_KEY(parallel, context_inner), {.minimum = 0, .maximum = kMaxRanks}, "With a2a+ring: context ranks that exchange heads; 0 = the most that divide the key/value heads."},
    Field{BRAID_KEY(parallel, shard), one_of(kShards), "What data- and context-parallel ranks hold in parts instead of copies: main weights and optimizer state, also main gradients, also the weights (ZeRO stages 1 to 3)."},
    Field{BRAID_KEY(parallel, shard_replicas), kRanks, "Copies of the sharded state among these ranks (HSDP): shards are spread over data * context / shard_replicas of them."},
    Field{BRAID_KEY(parallel, bucket), one_of(kBuckets), "What is gathered and reduced at a time: a layer, all layers of a virtual stage, or layers until they have bucket_bytes."},
    Field{BRAID_KEY(parallel, bucket_bytes), {.minimum = 1, .maximum = 1e15}, "With bucket = \"bytes\": fp32 gradient bytes that complete a bucket."},
    Field{BRAID_KEY(parallel, grad_reduce_dtype), one_of(kGradDtypes), "Type in which gradients cross between data- and context-parallel ranks; each rank adds them up in float32 either way."},

    Field{BRAID_KEY(memory, recompute), one_of(kRecompute), "Activations that the backward makes again instead of keeping them: those of norms and activation functions, also attention's, or all of a layer but one; \"auto\" = what of that fits the memory and repeats least. The losses stay the same bit for bit (docs/passes.md)."},
    Field{BRAID_KEY(memory, recompute_layers), {.minimum = 0, .maximum = 4096}, "Do so in this many layers, the first of the model; 0 = in all."},
    Field{BRAID_KEY(memory, offload_layers), {.minimum = 0, .maximum = 4096}, "First layers of the model whose activations wait in host memory for the backward; 0 = none."},
    Field{BRAID_KEY(memory, offload_prefetch_layers), {.minimum = 0, .maximum = 4096}, "Layers ahead of their use at which they come back, and that their way out may take."},
    Field{BRAID_KEY(memory, offload_min_bytes), {.minimum = 1, .maximum = 1e15}, "Smaller activations stay on the device."},

    Field{BRAID_KEY(overlap, mode), one_of(kModes), "Who chooses the overlap: auto (braid), manual (the overlap_ keys below) or off (none)."},
    Field{BRAID_KEY(overlap, cost), kAny, "What tasks take, for mode = \"auto\", which then searches the keys below in the simulator for the fastest step that fits, and for what weighs one order against another, such as list_schedule: a cluster like \"h200x8\", \"device\" for the GPU that the run finds (`braid train`), times its ranks, or the path of a profile of `braid calibrate`; empty = no search, auto takes the defaults of all passes."},
    Field{BRAID_KEY(overlap, may_change_rounding), kAny, "Whether mode = \"auto\" may also choose what can change results by rounding, such as products in pieces (docs/passes.md)."},
    Field{BRAID_KEY(overlap, list_schedule), kAny, "Order the tasks of all ranks at once by what overlap.cost says that they take: weight gradients and the next jobs fill waits (docs/passes.md); kept only where the simulated step is faster. Beside mode = \"auto\" with overlap.cost, true stays and false leaves it to the search."},
    Field{BRAID_KEY(overlap, comm_engine), one_of(kCommEngines), "What moves the bytes of communication between GPUs of one host: sm = kernels of NCCL, which take multiprocessors from compute beside them; copy = copy engines, which take none, wherever they can; nccl_copy = the same as NCCL drives them (all_gather and all_to_all; NCCL 2.28, symmetric windows); auto = for each task what overlap.cost says costs the step less, and sm without it; hidden = copy for each collective for which a simulated step says that what it hides under gains by it, else sm; needs overlap.cost (docs/passes.md). Beside mode = \"auto\" with overlap.cost, auto leaves it to the search and others stay. On the CPU it makes no difference but for reductions that copy takes apart."},
    Field{BRAID_KEY(overlap, overlap_grad_reduce), kAny, "Reduce gradients while the backward pass is still running; read with mode = \"manual\" only."},
    Field{BRAID_KEY(overlap, overlap_grad_reduce_delayed_wgrad_layers), {.minimum = 0, .maximum = 4096}, "With overlap_grad_reduce: first layers whose weight gradients of the last microbatch wait until that of the embedding is there, and then hide its reduction; more than there are = all, 0 = none."},
    Field{BRAID_KEY(overlap, overlap_param_gather), kAny, "Gather weights while the units before are computed: sharded ones ahead of each use, updated ones in the next step, ahead of their first use; read, as the five keys below, with mode = \"manual\" only."},
    Field{BRAID_KEY(overlap, overlap_param_gather_with_optimizer_step), kAny, "With overlap_param_gather: gather what a step begins with while the optimizer updates the rest; for shard = \"optimizer\" and \"gradients\"."},
    Field{BRAID_KEY(overlap, align_param_gather), kAny, "With overlap_param_gather: start gathers of updated weights at the beginning of the step on all pipeline ranks; false: param_gather_prefetch_units ahead of their use."},
    Field{BRAID_KEY(overlap, param_gather_prefetch_units), {.minimum = 0, .maximum = 4096}, "With overlap_param_gather: units (buckets) ahead of its use at which a gather starts; one more than these is in memory."},
    Field{BRAID_KEY(overlap, param_gather_whole_units), {.minimum = 0, .maximum = 4096}, "With overlap_param_gather and shard = \"parameters\": first units (buckets) of a rank whose weights it keeps whole, and gathers while the optimizer updates the rest, so that a step does not begin by waiting for them; 2 are the embedding and a layer."},
    Field{BRAID_KEY(overlap, overlap_context_comm), kAny, "Send keys, values and their gradients to the next context rank while attention is computed; run the backward's exchanges of heads beside weight gradients."},
    Field{BRAID_KEY(overlap, pair_forward_backward), one_of(kPairs), "Weave neighbouring jobs, so that communication of tensor and context ranks of one runs under compute of the other: forward_backward (a forward and the backward of another microbatch; more activations are kept), halves (the two halves of a microbatch; without a pipeline; sums are rounded as with half the microbatch), forward_halves (those of a forward; the backward stays whole; without context ranks); read with mode = \"manual\" only."},
    Field{BRAID_KEY(overlap, overlap_p2p_comm), kAny, "Take messages between pipeline stages beside compute, a job ahead of the one that reads them; read, as the seven keys below, with mode = \"manual\" and a pipeline only."},
    Field{BRAID_KEY(overlap, overlap_p2p_comm_warmup_flush), kAny, "With overlap_p2p_comm: also before the first backward and after the last forward of a rank."},
    Field{BRAID_KEY(overlap, overlap_p2p_backward_on_comm_stream), kAny, "With overlap_p2p_comm: messages of the backward leave beside compute; false: compute waits until those to an earlier rank have left."},
    Field{BRAID_KEY(overlap, overlap_p2p_wgrad_delayed_layer_number), {.minimum = 0, .maximum = 4096}, "Layers at the end of each backward job whose attention weight gradients wait until the job's message leaves, which they then hide; more than there are = all, 0 = none."},
    Field{BRAID_KEY(overlap, overlap_p2p_with_transformer_layer_wgrad), kAny, "In these layers the feed-forward's weight gradients wait too."},
    Field{BRAID_KEY(overlap, defer_embedding_wgrad_compute), kAny, "Compute weight gradients of the output projection in the bubble behind the last backward of the last stage; keeps the logits' gradients of these microbatches."},
    Field{BRAID_KEY(overlap, wgrad_deferral_limit), {.minimum = 0, .maximum = kInfinity}, "With defer_embedding_wgrad_compute: of how many microbatches, the last of the step; 0 = of all."},
    Field{BRAID_KEY(overlap, fill_cooldown), kAny, "Behind a rank's last forward, send messages in front of weight gradients, and keep as many weight gradients for the end as take what the last message still has to pass."},
    Field{BRAID_KEY(overlap, tp_comm_overlap), kAny, "Run communication of tensor ranks beside matrix products, as the keys below say; read with mode = \"manual\" only. Splitting a product may change results by rounding (docs/passes.md)."},
    Field{BRAID_KEY(overlap, tp_comm_overlap_ag), kAny, "With tp_comm_overlap and sequence_parallel: all-gathers as a ring, each block multiplied while the next one arrives (qkv_fprop, fc1_fprop, logits_fprop, proj_dgrad, fc2_dgrad)."},
    Field{BRAID_KEY(overlap, tp_comm_overlap_rs), kAny, "With tp_comm_overlap and sequence_parallel: products in pieces, each reduce-scattered while the next one is computed (proj_fprop, fc2_fprop)."},
    Field{BRAID_KEY(overlap, tp_comm_overlap_rs_dgrad), kAny, "The same, as a ring, of qkv_dgrad, fc1_dgrad and logits_dgrad; instead of tp_comm_bulk_wgrad."},
    Field{BRAID_KEY(overlap, tp_comm_bulk_dgrad), kAny, "With tp_comm_overlap and sequence_parallel: gather the input of a weight gradient again under the product in front of it, where the backward gathers it (memory.recompute)."},
    Field{BRAID_KEY(overlap, tp_comm_bulk_wgrad), kAny, "With tp_comm_overlap: sum a dgrad's result over ranks under the weight gradient behind it."},
    Field{BRAID_KEY(overlap, tp_comm_overlap_sites), kAny, "Other choices for single products, as \"SITE=METHOD\": none, bulk, ring or chunked:SPLITS, for example \"fc2_fprop=ring\" (docs/passes.md lists the sites)."},
    Field{BRAID_KEY(overlap, tp_comm_overlap_min_rows), {.minimum = 1, .maximum = kMaxSize}, "Products stay whole whose pieces would have fewer rows or features than this."},
    Field{BRAID_KEY(overlap, split_ops), kAny, "Cut tasks of compute, where overlap.cost says that it pays, so that a part of them runs while others wait for communication of tensor ranks (needs tp_comm_overlap, whose min_rows pieces keep) or for exchanges of heads between context ranks (context_method = \"a2a\"; needs overlap_context_comm); is read with mode = \"manual\" only, and may change results by rounding."},
    Field{BRAID_KEY(overlap, disable_passes), kAny, "Passes to skip, by the names that `braid passes` lists."},

    Field{BRAID_KEY(data, train), kAny, "Tokens to train on: a .bin/.idx pair by its common prefix, or a text file; needed to train."},
    Field{BRAID_KEY(data, tokenizer), kAny, "A SentencePiece model file, \"bytes\" for one token per byte, or \"ids:N\" for a .bin/.idx pair of N token ids that another program made."},
    Field{BRAID_KEY(data, split), kAny, "Shares of training, validation and test data, in the order of the file."},
    Field{BRAID_KEY(data, append_eod), kAny, "Whether an end-of-document token follows each document when a text file is tokenized."},
    Field{BRAID_KEY(data, seed), kNotNegative, "Seed of the sample order; 0 = train.seed."},

    Field{BRAID_KEY(eval, interval), kStepsOrZero, "Steps between evaluations; 0 = never."},
    Field{BRAID_KEY(eval, batches), {.minimum = 1, .maximum = kMaxSize}, "Batches of train.global_batch held-out sequences per evaluation."},

    Field{BRAID_KEY(checkpoint, folder), kAny, "Where checkpoints go; empty = the folder checkpoints in logging.run_folder."},
    Field{BRAID_KEY(checkpoint, interval), kStepsOrZero, "Steps between checkpoints; 0 = only one at the end of the run."},
    Field{BRAID_KEY(checkpoint, at_end), kAny, "Whether the last step, and a stop before it, leave a checkpoint; false with interval = 0 writes none at all, for measurements of large models."},
    Field{BRAID_KEY(checkpoint, keep), kStepsOrZero, "Newest checkpoints that are kept; 0 = all."},
    Field{BRAID_KEY(checkpoint, resume), kAny, "\"auto\" continues from the newest checkpoint in checkpoint.folder if there is one, \"none\" starts anew, anything else is the path of a checkpoint."},

    Field{BRAID_KEY(logging, run_folder), kAny, "Where the run writes; empty = runs/ and the name of the run file."},
    Field{BRAID_KEY(logging, interval), kSteps, "Steps between log lines; the first step always has one."},
    Field{BRAID_KEY(logging, tensorboard), kAny, "Whether TensorBoard events are written next to metrics.jsonl."},
    Field{BRAID_KEY(logging, trace_steps), kSteps, "Steps, counted from 1, whose timeline goes to trace.json and report.html; steps that the run does not reach are passed over."},
    Field{BRAID_KEY(logging, progress), one_of(kAutoOnOff), "Progress bar; auto = if the output is a terminal."},

    Field{BRAID_KEY(runtime, device), one_of(kDevices), "Device that runs the step; auto = GPUs where they can run this (train.dtype = \"bfloat16\"; parallel.ranks at most what there are), else the CPU."},
    Field{BRAID_KEY(runtime, processes), one_of(kProcesses), "Processes of `braid train`: per_rank = one for each rank, which on one host it starts itself; one = all ranks in one process; auto = per_rank on several GPUs, and one on the CPU. Under torchrun, mpirun or srun it is per_rank, with the processes that those have started (docs/processes.md). The run is the same bit by bit."},
    Field{BRAID_KEY(runtime, ranks_per_gpu), kRanks, "Ranks that share a GPU, to run a layout of many ranks on few GPUs: for correctness and debugging, not for speed, since they take turns. Rank r of a host is on its GPU r / ranks_per_gpu, in a process of its own, and all communication is by copy engines (overlap.comm_engine = \"copy\"), because NCCL takes one rank per GPU. On the CPU it makes no difference."},
    Field{BRAID_KEY(runtime, threads), {.minimum = 0, .maximum = 4096}, "Compute threads per rank; 0 = all cores divided by the ranks on this host."},
    Field{BRAID_KEY(runtime, repeatable), kAny, "Whether two runs give the same bits, also on a GPU; false lets the backward of attention there add up gradients in any order, as PyTorch does, which is faster where cuDNN computes it (docs/numerics.md has figures)."},
    Field{BRAID_KEY(runtime, fuse_swiglu), one_of(kAutoOnOff), "Whether a matrix product and the SwiGLU beside it are one task, with a kernel of its own on GPUs (docs/passes.md); auto = on where GPUs run the step (train.dtype = \"bfloat16\", and runtime.device is not \"cpu\"), off on the CPU, which gains nothing by it and has the same bits either way."},
    Field{BRAID_KEY(runtime, nccl_windows), kAny, "On several GPUs of one host: register the memory of collectives with NCCL as symmetric windows, over which it has other kernels, whose sums may be rounded elsewhere; a line of `braid train` says of which groups it was not possible. overlap.comm_engine = \"nccl_copy\" registers what its tasks need in any case."},
    Field{BRAID_KEY(runtime, detect_nan), one_of(kNanChecks), "What happens when the loss or the gradient norm is not finite: off = the run goes on, without the update if the norm is not; loss = it stops and names the step; tensors = it stops after running the step once more, task by task, and also names microbatch, task, buffer and element of the first NaN or infinity. true and false, of older files, are loss and off.", FormerSwitch{"loss", "off"}},
    Field{BRAID_KEY(runtime, steps_in_flight), {.minimum = 1, .maximum = 2}, "Steps that are launched on GPUs before the first of them has ended: 2 = the next step is on the device when one ends, which then never waits for the host; 1 = one after the other, as on the CPU and with detect_nan = \"tensors\". The run is the same bit by bit; one that is stopped ends a step later."},
    Field{BRAID_KEY(runtime, timeout_s), {.minimum = 1, .maximum = 86400}, "Seconds that a rank waits for others in a collective or a message before the run ends and names the missing ones; must be longer than any pause that is normal, as of a rank that computes while others already wait."},

    Field{BRAID_KEY(links, data_latency_us), kLatencyUs, "Microseconds until what a rank has sent within a data-parallel group is there."},
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

}  // namespace braid
