// Kernels that memory limits: what counts is bytes/s.
#include "kernel_bench.h"
#include "ops/activation.h"
#include "ops/attributes.h"
#include "ops/norm.h"
#include "ops/optimizer.h"

namespace braid {
namespace {

OperandSpec in(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kRead, .shape = shape};
}
OperandSpec out(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kWrite, .shape = shape};
}
OperandSpec in_out(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kReadWrite, .shape = shape};
}

constexpr DType kF32 = DType::kF32;

// 2048 rows as in the GPT-2 of width 384 (in cache), and 65536 rows (in memory).
void row_shapes(benchmark::internal::Benchmark* bench) {
  for (const int64_t rows : {2048, 65536}) {
    for (const int64_t num_workers : {1, 2}) {
      bench->Args({rows, 384, num_workers});
    }
  }
  bench->ArgNames({"N", "C", "workers"})->UseRealTime()->Unit(benchmark::kMicrosecond);
}

int num_workers_of(const benchmark::State& state) {
  return static_cast<int>(state.range(2));
}

template <DType kDType>
void add_rmsnorm(benchmark::State& state) {
  const Shape rows{state.range(0), state.range(1)};
  const Shape width{state.range(1)};
  measure(state,
          {"add_rmsnorm",
           to_attributes(NormAttributes{}),
           {in(kDType, rows), in(kDType, rows), in(kDType, width), out(kDType, rows),
            out(kDType, rows), out(kF32, {state.range(0)})}},
          num_workers_of(state));
}

template <DType kDType>
void add_layernorm(benchmark::State& state) {
  const Shape rows{state.range(0), state.range(1)};
  const Shape width{state.range(1)};
  const Shape statistics{state.range(0)};
  measure(state,
          {"add_layernorm",
           to_attributes(NormAttributes{}),
           {in(kDType, rows), in(kDType, rows), in(kDType, width), in(kDType, width),
            out(kDType, rows), out(kDType, rows), out(kF32, statistics), out(kF32, statistics)}},
          num_workers_of(state));
}

template <DType kDType>
void layernorm_backward(benchmark::State& state) {
  const Shape rows{state.range(0), state.range(1)};
  const Shape width{state.range(1)};
  const Shape statistics{state.range(0)};
  measure(state,
          {"layernorm_backward",
           to_attributes(NormBackwardAttributes{.has_d_sum = true}),
           {in(kDType, rows), in(kDType, width), in(kF32, statistics), in(kF32, statistics),
            in(kDType, rows), in(kDType, rows), out(kDType, rows), in_out(kF32, width),
            in_out(kF32, width)}},
          num_workers_of(state));
}

template <DType kDType>
void swiglu(benchmark::State& state) {
  const Shape rows{state.range(0), state.range(1)};
  const Shape twice{state.range(0), 2 * state.range(1)};
  measure(state, {"swiglu", {}, {in(kDType, twice), out(kDType, rows)}}, num_workers_of(state));
}

template <DType kDType>
void swiglu_backward(benchmark::State& state) {
  const Shape rows{state.range(0), state.range(1)};
  const Shape twice{state.range(0), 2 * state.range(1)};
  measure(state, {"swiglu_backward", {}, {in(kDType, twice), in(kDType, rows), out(kDType, twice)}},
          num_workers_of(state));
}

template <DType kDType>
void gelu(benchmark::State& state) {
  const Shape rows{state.range(0), state.range(1)};
  measure(state, {"gelu", {}, {in(kDType, rows), out(kDType, rows)}}, num_workers_of(state));
}

template <DType kDType>
void gelu_backward(benchmark::State& state) {
  const Shape rows{state.range(0), state.range(1)};
  measure(state, {"gelu_backward", {}, {in(kDType, rows), in(kDType, rows), out(kDType, rows)}},
          num_workers_of(state));
}

BENCHMARK(add_rmsnorm<DType::kF32>)->Name("add_rmsnorm/f32")->Apply(row_shapes);
BENCHMARK(add_layernorm<DType::kF32>)->Name("add_layernorm/f32")->Apply(row_shapes);
BENCHMARK(layernorm_backward<DType::kF32>)->Name("layernorm_backward/f32")->Apply(row_shapes);
BENCHMARK(swiglu<DType::kF32>)->Name("swiglu/f32")->Apply(row_shapes);
BENCHMARK(swiglu_backward<DType::kF32>)->Name("swiglu_backward/f32")->Apply(row_shapes);
BENCHMARK(gelu<DType::kF32>)->Name("gelu/f32")->Apply(row_shapes);
BENCHMARK(gelu_backward<DType::kF32>)->Name("gelu_backward/f32")->Apply(row_shapes);
BENCHMARK(add_rmsnorm<DType::kBF16>)->Name("add_rmsnorm/bf16")->Apply(row_shapes);
BENCHMARK(layernorm_backward<DType::kBF16>)->Name("layernorm_backward/bf16")->Apply(row_shapes);
BENCHMARK(swiglu<DType::kBF16>)->Name("swiglu/bf16")->Apply(row_shapes);

/// Arguments: elements, workers.
void flat_shapes(benchmark::internal::Benchmark* bench) {
  for (const int64_t elems : {1 << 17, 1 << 24}) {
    for (const int64_t num_workers : {1, 2}) {
      bench->Args({elems, num_workers});
    }
  }
  bench->ArgNames({"n", "workers"})->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void adamw(benchmark::State& state) {
  const Shape n{state.range(0)};
  measure(state,
          {"adamw",
           to_attributes(AdamwAttributes{}),
           {in(kF32, n), in(kF32, {1}), in(kF32, {3}), in_out(kF32, n), in_out(kF32, n),
            in_out(kF32, n)}},
          static_cast<int>(state.range(1)));
}

void squared_norm(benchmark::State& state) {
  measure(state, {"squared_norm", {}, {in(kF32, {state.range(0)}), out(DType::kF64, {1})}},
          static_cast<int>(state.range(1)));
}

void copy(benchmark::State& state) {
  measure(state, {"copy", {}, {in(kF32, {state.range(0)}), out(kF32, {state.range(0)})}},
          static_cast<int>(state.range(1)));
}

BENCHMARK(adamw)->Name("adamw/f32")->Apply(flat_shapes);
BENCHMARK(squared_norm)->Name("squared_norm/f32")->Apply(flat_shapes);
BENCHMARK(copy)->Name("copy/f32")->Apply(flat_shapes);

}  // namespace
}  // namespace braid
