#include <atomic>
#include <cstdlib>
#include <new>

#include "ops/activation.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "support/kernel_harness.h"

namespace {

std::atomic<int64_t> num_allocations{0};  // by any thread of the test program

void* counted_malloc(size_t bytes) {
  ++num_allocations;
  if (void* const memory = std::malloc(bytes > 0 ? bytes : 1)) {
    return memory;
  }
  throw std::bad_alloc();
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
  for (const OperandSpec& operand : spec.operands) {
    buffers.emplace_back(static_cast<size_t>(operand.shape.num_elems()) *
                         dtype_bytes(operand.dtype));
    std::fill_n(buffers.back().data(), buffers.back().bytes().size(), std::byte{0});
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
      {"layernorm",
       to_attributes(NormAttributes{}),
       {in, row, row, out, write(w, {kRows}), write(w, {kRows})}},
      {"layernorm_backward",
       to_attributes(NormBackwardAttributes{}),
       {in, row, read(w, {kRows}), read(w, {kRows}), in, out, sums, sums}},
      {"gelu", {}, {in, out}},
      {"swiglu", {}, {read(dtype, {kRows, 2 * kWidth}), out}},
      {"add", {}, {in, in, out}},
      {"accumulate", {}, {in, read_write(w, {kRows, kWidth})}},
      {"embedding",
       to_attributes(EmbeddingAttributes{.sequence = 64}),
       {tokens, read(dtype, {99, kWidth}), out}},
      {"embedding_wgrad",
       to_attributes(EmbeddingWgradAttributes{}),
       {tokens, in, read_write(w, {99, kWidth})}},
      {"cross_entropy_partial", shard, {in, tokens, write(w, {kRows, 3})}},
      {"cross_entropy_merge",
       {},
       {read(w, {2 * kRows, 3}), tokens, read(w, {1}), write(w, {1}), write(w, {kRows})}},
      {"position_embedding_wgrad", position_wgrad, {in, read_write(w, {64, kWidth})}},
      {"squared_norm", {}, {read(dtype, {70000}), write(DType::kF64, {1})}},
  };
}

// A kernel that allocates would break the promise that a step's memory is known before it runs.
TEST(Kernels, AllocateNothingWhenRun) {
  for (const DType dtype : kFloatDtypes) {
    for (const OpSpec& spec : specs(dtype)) {
      EXPECT_EQ(allocations_of(spec), 0) << spec.op << " " << dtype_name(dtype);
    }
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
