#include "backends/cuda/device_needs.h"

#include <algorithm>
#include <array>

#include "backends/copy_steps.h"
#include "backends/cuda/kernels/attention_calls.h"
#include "backends/cuda/kernels/cached_mamba2_scratch.h"
#include "backends/cuda/kernels/fused_kernels.h"
#include "backends/cuda/kernels/mamba2_scratch.h"
#include "backends/cuda/kernels/scaled_product.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "backends/stream_scratch.h"
#include "base/text.h"
#include "ops/attributes.h"
#include "ops/cached_mamba2.h"
#include "ops/collectives.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/expert_rows.h"
#include "ops/grouped_linear.h"
#include "ops/head_norm.h"
#include "ops/linear.h"
#include "ops/linear_swiglu.h"
#include "ops/magnitude.h"
#include "ops/mamba2.h"
#include "ops/mamba2_section.h"
#include "ops/norm.h"
#include "ops/op.h"
#include "ops/optimizer.h"
#include "ops/quantize.h"
#include "ops/router.h"
#include "ops/scaled_grouped_linear.h"
#include "ops/scaled_linear.h"

namespace braid {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
/// Kernels of libraries, which the driver loads at their first launch.
constexpr int64_t kCodeBytes = 160 * kMiB;
/// CUPTI allocates 3 buffers per context at once
/// (CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE) of at most 8 MiB, and more only if
/// thousands of kernels are waiting to be read.
constexpr int64_t kTracingBytes = 32 * kMiB;
/// An empty graph, streams and events, in pages of 2 MiB.
constexpr int64_t kGraphsBytes = 32 * kMiB;
/// Parameters and launch commands of a kernel's node, at most 4 KiB each; most tasks have one.
constexpr int64_t kGraphBytesPerTask = int64_t{8} << 10;
/// The same for a copy or a batch of memory operations.
constexpr int64_t kGraphBytesPerNode = int64_t{4} << 10;
/// Flags of communication by copy engines (peer_calls.cpp), for some hundred thousand calls.
constexpr int64_t kFlagBytes = 8 * kMiB;

/// See `communicator_bytes`.
constexpr int64_t kCommunicatorBytes = 320 * kMiB;
constexpr int64_t kConnectionBytes = 12 * kMiB;
constexpr int64_t kRingChannels = 24;
constexpr int64_t kRingPeers = 3;
constexpr int64_t kMessageChannels = 32;
constexpr int64_t kMostNearPeers = 7;
constexpr int64_t kNetworkPoolBytes = 512 * kMiB;

size_t product_bytes(const OpSpec& /*spec*/) {
  return kMaxGemmScratchBytes;
}

size_t wgrad_bytes(const OpSpec& spec) {
  if (!attributes_of<LinearWgradAttributes>(spec).has_bias) {
    return kMaxGemmScratchBytes;
  }
  const Shape& dy = spec.operands[1].shape;
  return std::max<size_t>(kMaxGemmScratchBytes, bias_grad_scratch_bytes(dy[0], dy[1]));
}

size_t magnitude_bytes(const OpSpec& spec) {
  const Shape& v = spec.operands[0].shape;
  return bias_grad_scratch_bytes(v[0], v[1]);
}

/// If two kernels compute it: the gradient between them, in addition to the product's scratch.
size_t dgrad_swiglu_backward_bytes(const OpSpec& spec) {
  if (has_fused_kernels(spec)) {
    return kMaxGemmScratchBytes;
  }
  const OperandSpec& dy = spec.operands[0];
  return kMaxGemmScratchBytes +
         product_in_scratch_bytes(dy.shape[0], spec.operands[1].shape[1], dtype_bytes(dy.dtype));
}

/// One kernel: parts of d_weights. Two: the gradient between them, as above.
size_t grouped_dgrad_swiglu_backward_bytes(const OpSpec& spec) {
  const OperandSpec& dy = spec.operands[0];
  const int64_t columns = spec.operands[1].shape[1];
  return kGroupedScratchBytes +
         (has_fused_kernels(spec)
              ? weight_grad_parts_bytes(dy.shape[0], columns)
              : product_in_scratch_bytes(dy.shape[0], columns, dtype_bytes(dy.dtype)));
}

template <size_t kNumSums>
size_t norm_backward_bytes(const OpSpec& spec) {
  constexpr int64_t kVectorBytes = 16;
  const OperandSpec& x = spec.operands[0];
  const auto elem_bytes = static_cast<int64_t>(dtype_bytes(x.dtype));
  const int64_t vectors = (x.shape[1] * elem_bytes + kVectorBytes - 1) / kVectorBytes;
  return kNumSums * NormBackwardGrid(x.shape[0], vectors).partial_bytes(x.shape[1]);
}

/// cub's sort needs keys and values a second time, and counters of 256 digits per tile of about a
/// thousand keys.
size_t embedding_wgrad_bytes(const OpSpec& spec) {
  constexpr size_t kCounterBytes = size_t{4} << 20;
  return 7 * sort_array_bytes(spec.operands[0].shape[0]) + kCounterBytes;
}

/// For communication by copy engines and exchanges of rows: a copy per member and the words around
/// it. NCCL's has words of every member at both ends of a call; these are copies, too.
int64_t count_copy_nodes(const Program& program) {
  int64_t nodes = 0;
  for (const Task& task : program.tasks) {
    const OpSpec& spec = program.spec(task);
    const bool has_nodes = needs_no_sm(spec) || accesses_peers(spec);
    const auto group = has_nodes ? group_of(program, spec) : std::nullopt;
    const int64_t per_member = is_by_nccl_copies(spec) ? 4 : 2;
    nodes +=
        group ? per_member * static_cast<int64_t>(program.groups[group->index()].ranks.size()) : 0;
  }
  return nodes;
}

bool has_all_to_all(std::span<const Program> programs, const CommunicatorKey& key) {
  return !communicator_keys(programs, [&](size_t program, TaskId task) {
            const Task& it = programs[program].tasks[task.index()];
            return communicates_as(programs[program].spec(it), CommOp::kAllToAll) &&
                   communicator_key(programs[program], it) == key;
          }).empty();
}

int64_t count_connections(const CommunicatorShape& shape) {
  if (shape.is_for_messages) {
    return kMessageChannels;
  }
  const int64_t others = shape.num_ranks - 1;
  const int64_t direct =
      shape.has_all_to_all ? kMessageChannels * std::min(others, kMostNearPeers) : 0;
  return std::max(kRingChannels * std::min(others, kRingPeers), direct);
}

size_t row_loss_bytes(const OpSpec& spec) {
  return row_losses_bytes(spec.operands[1].shape[0]);
}

size_t squared_norm_bytes(const OpSpec& spec) {
  return squared_norm_scratch_bytes(spec.operands[0].shape.num_elems());
}

size_t quantize_bytes(const OpSpec& spec) {
  const auto attributes = attributes_of<QuantizeAttributes>(spec);
  const Shape x = quantized_value(spec).shape;
  return QuantizeScratch(x[0], x[1], attributes.block, attributes.has_bias).bytes;
}

/// d_logits and bf16 weights are multiplied by parts; f32 ones as they are.
size_t router_dgrad_bytes(const OpSpec& spec) {
  const OperandSpec& w = spec.operands[1];
  const int64_t rows = spec.operands[0].shape[0];
  return kMaxGemmScratchBytes + (w.dtype == DType::kBF16
                                     ? RouterDgradScratch(rows, w.shape[0], w.shape[1]).product_at
                                     : 0);
}

size_t router_wgrad_bytes(const OpSpec& spec) {
  const OperandSpec& x = spec.operands[0];
  const Shape& d_logits = spec.operands[1].shape;
  return kMaxGemmScratchBytes +
         (x.dtype == DType::kBF16
              ? 2 * product_in_scratch_bytes(d_logits[0], d_logits[1], dtype_bytes(x.dtype))
              : 0);
}

size_t router_losses_bytes(const OpSpec& spec) {
  return router_losses_scratch_bytes(spec.operands[0].shape[0]);
}

template <Mamba2Use kUse>
size_t mamba2_bytes(const OpSpec& spec) {
  return Mamba2Scratch(spec, attributes_of<Mamba2Attributes>(spec), kUse).bytes;
}

size_t mamba2_section_bytes(const OpSpec& spec) {
  return Mamba2Scratch(spec, attributes_of<Mamba2SectionAttributes>(spec).core, Mamba2Use::kForward)
      .bytes;
}

size_t mamba2_backward_bytes(const OpSpec& spec) {
  return Mamba2Scratch(spec, attributes_of<Mamba2BackwardAttributes>(spec).core,
                       Mamba2Use::kBackward)
      .bytes;
}

size_t cached_mamba2_bytes(const OpSpec& spec) {
  return CachedMamba2Scratch(spec, attributes_of<Mamba2Attributes>(spec)).bytes;
}

size_t head_norm_backward_bytes(const OpSpec& spec) {
  const int64_t rows = spec.operands[0].shape[0];
  return head_norm_partial_bytes(rows, spec.operands[1].shape[0]) +
         head_norm_partial_bytes(rows, spec.operands[2].shape[0]);
}

template <class Attributes>
size_t scaled_product_bytes(const OpSpec& spec) {
  return kMaxGemmScratchBytes + WidenedFactors(spec, attributes_of<Attributes>(spec).block).bytes;
}

/// Pairs without an expert are sorted as those of one more.
size_t sort_bytes(const OpSpec& spec) {
  const bool is_limited = attributes_of<SortRowsAttributes>(spec).room.is_limited;
  return sort_rows_scratch_bytes(spec.operands[0].shape.num_elems(),
                                 spec.operands[4].shape[0] + (is_limited ? 1 : 0));
}

size_t grouped_bytes(const OpSpec& /*spec*/) {
  return kGroupedScratchBytes;
}

/// At most: kernels that write bf16 themselves need no fp32 result.
size_t grouped_wgrad_bytes(const OpSpec& spec) {
  const OperandSpec& dw = spec.operands.back();
  return kGroupedScratchBytes + (dw.dtype == DType::kBF16 ? wide_result_bytes(dw) : 0);
}

size_t scaled_grouped_wgrad_bytes(const OpSpec& spec) {
  const OperandSpec& dw = spec.operands.back();
  if (multiplies_grouped_fp8(spec)) {
    return dw.dtype == DType::kBF16 ? wide_result_bytes(dw) : 0;
  }
  const WidenedGroupedProduct widened(spec);
  return widened.bytes + grouped_wgrad_bytes(widened.product);
}

size_t scaled_grouped_bytes(const OpSpec& spec) {
  return multiplies_grouped_fp8(spec) ? 0
                                      : WidenedGroupedProduct(spec).bytes + kGroupedScratchBytes;
}

/// Scratch of the kernels of an op other than attention.
struct ScratchEntry {
  const OpDefinition* op;
  size_t (*bytes)(const OpSpec& spec);
};

constexpr std::array kScratch = {
    ScratchEntry{&kLinearOp, product_bytes},
    ScratchEntry{&kLinearDgradOp, product_bytes},
    ScratchEntry{&kLinearWgradOp, wgrad_bytes},
    ScratchEntry{&kLinearSwigluOp, product_bytes},
    ScratchEntry{&kLinearDgradSwigluBackwardOp, dgrad_swiglu_backward_bytes},
    ScratchEntry{&kSortRowsOp, sort_bytes},
    ScratchEntry{&kGroupedLinearOp, grouped_bytes},
    ScratchEntry{&kGroupedLinearDgradOp, grouped_bytes},
    ScratchEntry{&kGroupedLinearWgradOp, grouped_wgrad_bytes},
    ScratchEntry{&kGroupedLinearSwigluOp, grouped_bytes},
    ScratchEntry{&kGroupedLinearDgradSwigluBackwardOp, grouped_dgrad_swiglu_backward_bytes},
    ScratchEntry{&kRmsnormBackwardOp, norm_backward_bytes<1>},
    ScratchEntry{&kLayernormBackwardOp, norm_backward_bytes<2>},
    ScratchEntry{&kHeadNormBackwardOp, head_norm_backward_bytes},
    ScratchEntry{&kApplyMagnitudesBackwardOp, magnitude_bytes},
    ScratchEntry{&kMamba2Op, mamba2_bytes<Mamba2Use::kForward>},
    ScratchEntry{&kMamba2BackwardOp, mamba2_backward_bytes},
    ScratchEntry{&kMamba2SectionOp, mamba2_section_bytes},
    ScratchEntry{&kMamba2SectionBackwardOp, mamba2_backward_bytes},
    ScratchEntry{&kMamba2SectionStatesOp, mamba2_bytes<Mamba2Use::kStates>},
    ScratchEntry{&kMamba2SectionStateGradsOp, mamba2_bytes<Mamba2Use::kStateGrads>},
    ScratchEntry{&kCachedMamba2Op, cached_mamba2_bytes},
    ScratchEntry{&kRouterLinearOp, product_bytes},
    ScratchEntry{&kRouterLinearDgradOp, router_dgrad_bytes},
    ScratchEntry{&kRouterLinearWgradOp, router_wgrad_bytes},
    ScratchEntry{&kRouterLossesOp, router_losses_bytes},
    ScratchEntry{&kCrossEntropyOp, row_loss_bytes},
    ScratchEntry{&kCrossEntropyMergeOp, row_loss_bytes},
    ScratchEntry{&kEmbeddingWgradOp, embedding_wgrad_bytes},
    ScratchEntry{&kSquaredNormOp, squared_norm_bytes},
    ScratchEntry{&kMatrixSquaresOp, squared_norm_bytes},
    ScratchEntry{&kQuantizeOp, quantize_bytes},
    ScratchEntry{&kQuantizeWeightOp, quantize_bytes},
    ScratchEntry{&kScaledLinearOp, scaled_product_bytes<ScaledLinearAttributes>},
    ScratchEntry{&kScaledLinearDgradOp, scaled_product_bytes<ScaledLinearDgradAttributes>},
    ScratchEntry{&kScaledLinearWgradOp, scaled_product_bytes<ScaledLinearWgradAttributes>},
    ScratchEntry{&kScaledGroupedLinearOp, scaled_grouped_bytes},
    ScratchEntry{&kScaledGroupedLinearDgradOp, scaled_grouped_bytes},
    ScratchEntry{&kScaledGroupedLinearWgradOp, scaled_grouped_wgrad_bytes},
};

}  // namespace

size_t max_cuda_scratch_bytes(const OpSpec& spec, bool repeatable) {
  const OpDefinition* const op = find_known_op(spec.op);
  if (op != nullptr && op->family == OpFamily::kAttention) {
    return static_cast<size_t>(max_attention_scratch_bytes(spec, {.repeatable = repeatable}));
  }
  const auto* const entry = std::ranges::find(kScratch, op, &ScratchEntry::op);
  return entry == kScratch.end() ? 0 : entry->bytes(spec);
}

int64_t CudaNeeds::nccl_bytes() const {
  int64_t bytes = 0;
  for (const NcclNeed& need : nccl) {
    bytes += need.bytes;
  }
  return bytes;
}

int64_t communicator_bytes(const CommunicatorShape& shape) {
  const bool has_pool = shape.has_all_to_all && shape.num_ranks > kMostNearPeers + 1;
  return kCommunicatorBytes + count_connections(shape) * kConnectionBytes +
         (has_pool ? kNetworkPoolBytes : 0);
}

std::vector<NcclNeed> nccl_needs(std::span<const Program> programs) {
  std::vector<NcclNeed> needs;
  for (CommunicatorKey& key : communicator_keys(programs, [&](size_t program, TaskId task) {
         return !accesses_peers(programs[program].spec(programs[program].tasks[task.index()]));
       })) {
    const CommunicatorShape shape{.num_ranks = static_cast<int64_t>(key.ranks.size()),
                                  .is_for_messages = key.name.ends_with(kMessages),
                                  .has_all_to_all = has_all_to_all(programs, key)};
    needs.push_back({.key = std::move(key), .bytes = communicator_bytes(shape)});
  }
  return needs;
}

std::string describe_nccl_needs(std::span<const Program> programs) {
  constexpr size_t kMaxShownRanks = 8;
  const std::vector<NcclNeed> needs = nccl_needs(programs);
  int64_t sum_bytes = 0;
  std::vector<std::string> texts;
  for (const NcclNeed& need : needs) {
    sum_bytes += need.bytes;
    texts.push_back(
        fmt::format("{} {}",
                    need.key.ranks.size() <= kMaxShownRanks
                        ? describe_key(need.key)
                        : fmt::format("{} of {} ranks", need.key.name, need.key.ranks.size()),
                    format_bytes(need.bytes)));
  }
  return needs.empty()
             ? ""
             : fmt::format("nccl      about {} of {} communicator{}: {}\n", format_bytes(sum_bytes),
                           needs.size(), needs.size() == 1 ? "" : "s", join(texts, "; "));
}

CudaNeeds cuda_needs(std::span<const Program> programs, bool repeatable) {
  StreamScratch scratch;
  int64_t num_tasks = 0;
  int64_t num_copy_nodes = 0;
  for (const Program& program : programs) {
    count_scratch(
        program,
        [&](const OpSpec& spec, const Stream&) { return max_cuda_scratch_bytes(spec, repeatable); },
        scratch);
    num_tasks += static_cast<int64_t>(program.tasks.size());
    num_copy_nodes += count_copy_nodes(program);
  }
  return {.scratch_bytes = scratch.size_bytes(),
          .driver_bytes =
              kCodeBytes + kTracingBytes + 2 * kGraphsBytes + 2 * num_tasks * kGraphBytesPerTask +
              (num_copy_nodes > 0 ? kFlagBytes + 2 * num_copy_nodes * kGraphBytesPerNode : 0),
          .nccl = nccl_needs(programs)};
}

}  // namespace braid
