#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "ops/activation.h"
#include "ops/adapter.h"
#include "ops/cached_attention.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/grouped_linear.h"
#include "ops/head_norm.h"
#include "ops/integer_values.h"
#include "ops/linear.h"
#include "ops/magnitude.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/preference.h"
#include "ops/router.h"
#include "support/grouped_copies_cases.h"
#include "support/kernel_harness.h"
#include "support/sent_rows_cases.h"

namespace {

std::atomic<int64_t> num_allocations{0};  // by any thread of the test program

void* counted_malloc(size_t bytes) {
  ++num_allocations;
  if (void* const memory = std::malloc(bytes > 0 ? bytes : 1)) {
    return memory;
  }
  throw std::bad_alloc();
}

void* counted_malloc(size_t bytes, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(bytes > 0 ? bytes : 1);
}

}  // namespace

// Replaced for the whole test program. All forms, so that each pair of new and delete agrees; not
// inlined, since GCC would warn about a new that it sees freed by free.
[[gnu::noinline]] void* operator new(size_t bytes) {
  return counted_malloc(bytes);
}
[[gnu::noinline]] void* operator new[](size_t bytes) {
  return counted_malloc(bytes);
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t& tag) noexcept {
  return counted_malloc(bytes, tag);
}
[[gnu::noinline]] void* operator new[](size_t bytes, const std::nothrow_t& tag) noexcept {
  return counted_malloc(bytes, tag);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}

namespace braid {
namespace {

/// Allocations while a kernel runs with 2 workers, after a first run.
int64_t allocations_of(const OpSpec& spec) {
  check_spec(spec);
  const CpuKernel kernel = make_cpu_kernel(spec, 2);
  std::vector<GuardedBuffer> buffers;
  std::vector<std::byte*> operands;
  buffers.reserve(spec.operands.size());
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    const OperandSpec& operand = spec.operands[i];
    buffers.emplace_back(static_cast<size_t>(operand.shape.num_elems()) *
                         dtype_bytes(operand.dtype));
    std::fill_n(buffers.back().data(), buffers.back().bytes().size(), std::byte{0});
    if (operand.dtype == DType::kI32 && operand.access == Access::kRead) {
      std::memcpy(buffers.back().data(), valid_integers(spec, i).data(),
                  buffers.back().bytes().size());
    }
    operands.push_back(buffers.back().data());
  }
  GuardedBuffer scratch(kernel.scratch_bytes);
  WorkerPool workers(2);
  const KernelArgs args{.operands = operands, .scratch = scratch.bytes(), .workers = workers};
  kernel.run(args);
  const int64_t before = num_allocations.load();
  kernel.run(args);
  return num_allocations.load() - before;
}

constexpr int64_t kRows = 512;
constexpr int64_t kWidth = 128;

/// 8 of 128 experts, in groups.
std::vector<OpSpec> router_specs(DType dtype) {
  const DType w = wide(dtype);
  const RouterRule rule{.per_token = 8, .sigmoid = true, .groups = 16, .kept_groups = 4};
  const OperandSpec x = read(dtype, {kRows, kWidth});
  const OperandSpec logits = read(w, {kRows, 128});
  const OperandSpec bias = read(w, {128});
  const OperandSpec weight = read(dtype, {128, kWidth});
  const auto losses = to_attributes(RouterLossAttributes{.balance = 1, .z = 1});
  const auto heads = HeadNormBackwardAttributes{.heads = 2, .kv_heads = 1, .head_size = 32};
  return {
      {"router_linear", {}, {x, weight, write(w, logits.shape)}},
      {"router_linear_dgrad",
       to_attributes(RouterGradAttributes{}),
       {logits, weight, write(dtype, x.shape)}},
      {"router_linear_wgrad",
       to_attributes(RouterGradAttributes{}),
       {x, logits, write(w, {128, kWidth})}},
      {"router_linear",
       to_attributes(RouterLinearAttributes{.bias = {.has_logit_bias = true}}),
       {x, weight, bias, write(w, logits.shape)}},
      {"router_linear_wgrad",
       to_attributes(RouterWgradAttributes{.bias = {.has_logit_bias = true}}),
       {x, logits, write(w, {128, kWidth}), write(w, {128})}},
      {"route",
       to_attributes(RouteAttributes{.rule = rule, .has_bias = true}),
       {logits, bias, write(w, {kRows, 8}), write(DType::kI32, {kRows, 8})}},
      {"route_backward",
       to_attributes(rule),
       {logits, read(w, {kRows, 8}), read(DType::kI32, {kRows, 8}), read(w, {kRows, 8}),
        write(w, logits.shape)}},
      {"router_losses",
       losses,
       {logits, read(DType::kF32, bias.shape), read(w, {1}), write(w, {2})}},
      {"router_losses_backward",
       losses,
       {logits, read(DType::kF32, bias.shape), read(w, {1}), write(w, logits.shape)}},
      {"count_by_sequence",
       to_attributes(SequenceRows{.sequence = kRows}),
       {read(DType::kI32, {kRows, 8}), write(DType::kF32, {1, 128})}},
      {"head_norm",
       to_attributes(HeadNormAttributes{.heads = 2, .kv_heads = 1, .head_size = 32}),
       {x, read(dtype, {32}), read(dtype, {32}), write(dtype, x.shape), write(w, {kRows, 3})}},
      {"head_norm_backward",
       to_attributes(heads),
       {x, read(dtype, {32}), read(dtype, {32}), read(w, {kRows, 3}), x, write(dtype, x.shape),
        read_write(w, {32}), read_write(w, {32})}},
  };
}

std::vector<OpSpec> specs(DType dtype) {
  const DType w = wide(dtype);
  const OperandSpec in = read(dtype, {kRows, kWidth});
  const OperandSpec out = write(dtype, {kRows, kWidth});
  const OperandSpec square = read(dtype, {kWidth, kWidth});
  const OperandSpec row = read(dtype, {kWidth});
  const OperandSpec sums = read_write(w, {kWidth});
  const OperandSpec tokens = read(DType::kI32, {kRows});
  const auto position_wgrad = to_attributes(PositionEmbeddingWgradAttributes{.sequence = 64});
  const auto shard = to_attributes(
      CrossEntropyShardAttributes{.vocabulary = 2 * kWidth, .vocabulary_begin = kWidth});
  return {
      {"linear", to_attributes(LinearAttributes{.has_bias = true}), {in, square, row, out}},
      {"linear_dgrad", to_attributes(LinearDgradAttributes{}), {in, square, out}},
      {"linear_wgrad",
       to_attributes(LinearWgradAttributes{.has_bias = true}),
       {in, in, read_write(w, {kWidth, kWidth}), sums}},
      {"linear_swiglu",
       {},
       {in, read(dtype, {2 * kWidth, kWidth}), write(dtype, {kRows, 2 * kWidth}), out}},
      {"linear_dgrad_swiglu_backward",
       {},
       {in, square, read(dtype, {kRows, 2 * kWidth}), write(dtype, {kRows, 2 * kWidth})}},
      {"grouped_linear_swiglu",
       {},
       {in, read(dtype, {2 * 2 * kWidth, kWidth}), read(DType::kI32, {3}), read(w, {kRows}),
        write(dtype, {kRows, 2 * kWidth}), out}},
      {"grouped_linear_dgrad_swiglu_backward",
       {},
       {in, read(dtype, {2 * kWidth, kWidth}), read(DType::kI32, {3}),
        read(dtype, {kRows, 2 * kWidth}), read(w, {kRows}), write(dtype, {kRows, 2 * kWidth}),
        write(w, {kRows})}},
      {"layernorm",
       to_attributes(NormAttributes{}),
       {in, row, row, out, write(w, {kRows}), write(w, {kRows})}},
      {"layernorm_backward",
       to_attributes(NormBackwardAttributes{}),
       {in, row, read(w, {kRows}), read(w, {kRows}), in, out, sums, sums}},
      {"gelu", {}, {in, out}},
      {"swiglu", {}, {read(dtype, {kRows, 2 * kWidth}), out}},
      {"cached_attention",
       to_attributes(CachedAttentionAttributes{.heads = 2, .kv_heads = 1, .head_size = kWidth / 4}),
       {in, read(DType::kI32, {2}), read(DType::kI32, {2}),
        read_write(dtype, {2, kRows, kWidth / 4}), read_write(dtype, {2, kRows, kWidth / 4}),
        write(dtype, {kRows, kWidth / 2})}},
      {"add", {}, {in, in, out}},
      {"add_gated", {}, {in, in, read(w, {kRows, 1}), out}},
      {"add_gated_backward", {}, {in, read(w, {kRows, 1}), in, out, write(w, {kRows, 1})}},
      {"add_adapters", to_attributes(AddAdaptersAttributes{}), {in, in, out}},
      {"adapter_grad", to_attributes(AdapterGradAttributes{}), {in, out}},
      {"adapted_squares",
       to_attributes(AdaptedSquaresAttributes{}),
       {square, read(dtype, {3, kWidth}), read(dtype, {kWidth, 3}), write(w, {2, kWidth})}},
      {"apply_magnitudes",
       to_attributes(ApplyMagnitudesAttributes{}),
       {in, row, read(w, {2, kWidth}), out}},
      {"apply_magnitudes_backward",
       to_attributes(ApplyMagnitudesBackwardAttributes{}),
       {in, row, read(w, {2, kWidth}), in, out, sums}},
      {"accumulate", {}, {in, read_write(w, {kRows, kWidth})}},
      {"embedding",
       to_attributes(EmbeddingAttributes{.sequence = 64}),
       {tokens, read(dtype, {99, kWidth}), out}},
      {"embedding_wgrad",
       to_attributes(EmbeddingWgradAttributes{}),
       {tokens, in, read_write(w, {99, kWidth})}},
      {"sort_rows",
       {},
       {read(DType::kI32, {kRows, 2}), write(DType::kI32, {kRows, 2}),
        write(DType::kI32, {2 * kRows}), write(DType::kI32, {5}), write(DType::kF32, {4})}},
      {"gather_rows",
       {},
       {in, read(DType::kI32, {2 * kRows}), read(DType::kI32, {kRows, 2}),
        write(dtype, {2 * kRows, kWidth})}},
      {"routed_swiglu_backward",
       {},
       {read(dtype, {kRows, 2 * kWidth}), read(w, {kRows}), in, read(DType::kI32, {5}),
        write(dtype, {kRows, 2 * kWidth}), write(w, {kRows})}},
      {"grouped_linear", {}, {in, read(dtype, {2 * kWidth, kWidth}), read(DType::kI32, {3}), out}},
      {"grouped_linear_wgrad",
       to_attributes(GroupedWgradAttributes{}),
       {in, in, read(DType::kI32, {3}), read_write(w, {2 * kWidth, kWidth})}},
      {"cross_entropy_partial", shard, {in, tokens, write(w, {kRows, 3})}},
      {"cross_entropy_merge",
       {},
       {read(w, {2 * kRows, 3}), tokens, read(w, {1}), write(w, {1}), write(w, {kRows})}},
      {"sequence_losses",
       to_attributes(SequenceLossesAttributes{4}),
       {read(w, {2 * kRows, 3}), tokens, write(w, {4}), write(w, {kRows})}},
      {"preference_loss",
       to_attributes(PreferenceLossAttributes{}),
       {read(w, {4}), read(w, {4, 2}), write(w, {1}), write(w, {5}), write(w, {4})}},
      {"position_embedding_wgrad", position_wgrad, {in, read_write(w, {64, kWidth})}},
      {"squared_norm", {}, {read(dtype, {70000}), write(DType::kF64, {1})}},
  };
}

std::vector<OpSpec> fp8_expert_specs() {
  const Groups g{.counts = {200, 0, 90}, .in = 256, .out = 384, .unused_rows = 5};
  const KernelCase copies = quantize_grouped_case(DType::kBF16, g, {.watch = {true}});
  return {copies.spec(),
          transpose_grouped_case(copies, g, {.watch = {true}}).spec(),
          quantize_gathered_case(DType::kBF16, kSentRows[1], DType::kF8E4M3, 9, true).spec(),
          scaled_grouped_case(g, false, DType::kBF16).spec(),
          scaled_grouped_case(g, true, DType::kF32).spec(),
          scaled_grouped_wgrad_case(g, true).spec()};
}

// A kernel that allocates would break the promise that a step's memory is known before it runs.
TEST(Kernels, AllocateNothingWhenRun) {
  for (const DType dtype : kFloatDtypes) {
    for (const OpSpec& spec : specs(dtype)) {
      EXPECT_EQ(allocations_of(spec), 0) << spec.op << " " << dtype_name(dtype);
    }
    for (const OpSpec& spec : router_specs(dtype)) {
      EXPECT_EQ(allocations_of(spec), 0) << spec.op << " " << dtype_name(dtype);
    }
  }
  for (const OpSpec& spec : fp8_expert_specs()) {
    EXPECT_EQ(allocations_of(spec), 0) << spec.op;
  }
}

TEST(Kernels, TheCounterCounts) {
  const int64_t before = num_allocations.load();
  const auto* const volatile memory = new int(1);
  EXPECT_EQ(num_allocations.load() - before, 1);
  delete memory;
}

TEST(Kernels, RefuseUnknownOpsAndDtypes) {
  EXPECT_THROW(make_cpu_kernel({"no_such_op", {}, {}}, 1), InternalError);
  EXPECT_THROW(
      make_cpu_kernel({"gelu", {}, {read(DType::kF16, {2, 3}), write(DType::kF16, {2, 3})}}, 1),
      InternalError);
  EXPECT_THROW(make_cpu_kernel({"gelu", {}, {}}, 0), InternalError);
}

}  // namespace
}  // namespace braid
