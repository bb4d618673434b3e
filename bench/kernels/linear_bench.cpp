#include "kernel_bench.h"
#include "ops/attributes.h"
#include "ops/linear.h"

namespace braid {
namespace {

// Arguments: rows N, inputs K, outputs M, workers. The first five are the matrix products of a
// GPT-2 of width 384 with 2048 tokens per step (50304: its head), the others those of smaller
// models.
void shapes(benchmark::internal::Benchmark* bench) {
  constexpr int64_t kShapes[][3] = {{2048, 384, 1152}, {2048, 384, 384},  {2048, 384, 1536},
                                    {2048, 1536, 384}, {2048, 384, 4096}, {2048, 384, 50304},
                                    {512, 128, 384},   {1024, 256, 1024}, {1024, 512, 512}};
  for (const auto& [rows, in, out] : kShapes) {
    for (const int64_t num_workers : {1, 2}) {
      bench->Args({rows, in, out, num_workers});
    }
  }
  bench->ArgNames({"N", "K", "M", "workers"})->UseRealTime()->Unit(benchmark::kMicrosecond);
}

double flops_of(const benchmark::State& state) {
  return 2.0 * static_cast<double>(state.range(0) * state.range(1) * state.range(2));
}

OperandSpec operand(DType dtype, Access access, Shape shape) {
  return {.dtype = dtype, .access = access, .shape = shape};
}

template <DType kDType>
void forward(benchmark::State& state) {
  const Shape x{state.range(0), state.range(1)};
  const Shape w{state.range(2), state.range(1)};
  const Shape y{state.range(0), state.range(2)};
  measure(state,
          {"linear",
           to_attributes(LinearAttributes{}),
           {operand(kDType, Access::kRead, x), operand(kDType, Access::kRead, w),
            operand(kDType, Access::kWrite, y)}},
          static_cast<int>(state.range(3)), flops_of(state));
}

template <DType kDType>
void dgrad(benchmark::State& state) {
  const Shape x{state.range(0), state.range(1)};
  const Shape w{state.range(2), state.range(1)};
  const Shape y{state.range(0), state.range(2)};
  measure(state,
          {"linear_dgrad",
           to_attributes(LinearDgradAttributes{}),
           {operand(kDType, Access::kRead, y), operand(kDType, Access::kRead, w),
            operand(kDType, Access::kWrite, x)}},
          static_cast<int>(state.range(3)), flops_of(state));
}

template <DType kDType>
void wgrad(benchmark::State& state) {
  const Shape x{state.range(0), state.range(1)};
  const Shape w{state.range(2), state.range(1)};
  const Shape y{state.range(0), state.range(2)};
  measure(state,
          {"linear_wgrad",
           to_attributes(LinearWgradAttributes{.accumulate = true}),
           {operand(kDType, Access::kRead, x), operand(kDType, Access::kRead, y),
            operand(DType::kF32, Access::kReadWrite, w)}},
          static_cast<int>(state.range(3)), flops_of(state));
}

BENCHMARK(forward<DType::kF32>)->Name("linear/f32")->Apply(shapes);
BENCHMARK(dgrad<DType::kF32>)->Name("linear_dgrad/f32")->Apply(shapes);
BENCHMARK(wgrad<DType::kF32>)->Name("linear_wgrad/f32")->Apply(shapes);
BENCHMARK(forward<DType::kBF16>)->Name("linear/bf16")->Apply(shapes);
BENCHMARK(dgrad<DType::kBF16>)->Name("linear_dgrad/bf16")->Apply(shapes);
BENCHMARK(wgrad<DType::kBF16>)->Name("linear_wgrad/bf16")->Apply(shapes);

}  // namespace
}  // namespace braid
