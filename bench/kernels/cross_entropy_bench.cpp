#include "kernel_bench.h"
#include "ops/attributes.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

// Arguments: rows N, vocabulary V; one worker.
void shapes(benchmark::internal::Benchmark* bench) {
  bench->Args({2048, 4096})
      ->Args({512, 50257})
      ->ArgNames({"N", "V"})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

OperandSpec operand(DType dtype, Access access, Shape shape) {
  return {.dtype = dtype, .access = access, .shape = shape};
}

template <DType kDType>
void forward(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int64_t vocabulary = state.range(1);
  measure(
      state,
      {"cross_entropy",
       to_attributes(CrossEntropyAttributes{.vocabulary = vocabulary}),
       {operand(kDType, Access::kRead, {rows, vocabulary}),
        operand(DType::kI32, Access::kRead, {rows}), operand(DType::kF32, Access::kRead, {1}),
        operand(DType::kF32, Access::kWrite, {1}), operand(DType::kF32, Access::kWrite, {rows})}},
      1);
}

template <DType kDType>
void backward(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int64_t vocabulary = state.range(1);
  measure(state,
          {"cross_entropy_backward",
           to_attributes(CrossEntropyShardAttributes{.vocabulary = vocabulary}),
           {operand(kDType, Access::kRead, {rows, vocabulary}),
            operand(DType::kI32, Access::kRead, {rows}), operand(DType::kF32, Access::kRead, {1}),
            operand(DType::kF32, Access::kRead, {rows}),
            operand(kDType, Access::kWrite, {rows, vocabulary})}},
          1);
}

BENCHMARK(forward<DType::kF32>)->Name("cross_entropy/f32")->Apply(shapes);
BENCHMARK(backward<DType::kF32>)->Name("cross_entropy_backward/f32")->Apply(shapes);
BENCHMARK(forward<DType::kBF16>)->Name("cross_entropy/bf16")->Apply(shapes);
BENCHMARK(backward<DType::kBF16>)->Name("cross_entropy_backward/bf16")->Apply(shapes);

}  // namespace
}  // namespace braid
