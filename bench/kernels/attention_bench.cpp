#include <cmath>

#include "kernel_bench.h"
#include "ops/attention.h"
#include "ops/attributes.h"
#include "ops/op.h"

namespace braid {
namespace {

// Arguments: head size D, sequence T; four heads, one worker. The block sizes of
// src/backends/cpu/kernels/attention.cpp were chosen with these. flop/s count useful arithmetic
// only: a query is charged for the keys that it sees.
void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgsProduct({{32, 64, 96, 128}, {256, 1024, 2048}})
      ->ArgNames({"D", "T"})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

constexpr int64_t kHeads = 4;

std::vector<Attribute> attributes_of_case(const benchmark::State& state) {
  const int64_t head_size = state.range(0);
  return to_attributes(
      AttentionAttributes{.heads = kHeads,
                          .kv_heads = kHeads,
                          .head_size = head_size,
                          .sequence = state.range(1),
                          .scale = 1.0 / std::sqrt(static_cast<double>(head_size))});
}

OperandSpec operand(DType dtype, Access access, Shape shape) {
  return {.dtype = dtype, .access = access, .shape = shape};
}

template <DType kDType>
void forward(benchmark::State& state) {
  const int64_t width = kHeads * state.range(0);
  const int64_t rows = state.range(1);
  const OpSpec spec{"attention",
                    attributes_of_case(state),
                    {operand(kDType, Access::kRead, {rows, 3 * width}),
                     operand(kDType, Access::kWrite, {rows, width}),
                     operand(DType::kF32, Access::kWrite, {1, kHeads, rows})}};
  measure(state, spec, 1, spec_cost(spec).flops);
}

template <DType kDType>
void backward(benchmark::State& state) {
  const int64_t width = kHeads * state.range(0);
  const int64_t rows = state.range(1);
  const OpSpec spec{"attention_backward",
                    attributes_of_case(state),
                    {operand(kDType, Access::kRead, {rows, 3 * width}),
                     operand(kDType, Access::kRead, {rows, width}),
                     operand(DType::kF32, Access::kRead, {1, kHeads, rows}),
                     operand(kDType, Access::kRead, {rows, width}),
                     operand(kDType, Access::kWrite, {rows, 3 * width})}};
  measure(state, spec, 1, spec_cost(spec).flops);
}

BENCHMARK(forward<DType::kF32>)->Name("attention/f32")->Apply(shapes);
BENCHMARK(backward<DType::kF32>)->Name("attention_backward/f32")->Apply(shapes);
BENCHMARK(forward<DType::kBF16>)->Name("attention/bf16")->Apply(shapes);
BENCHMARK(backward<DType::kBF16>)->Name("attention_backward/bf16")->Apply(shapes);

}  // namespace
}  // namespace braid
