#include "kernel_bench.h"
#include "ops/attributes.h"
#include "ops/rope.h"

namespace braid {
namespace {

/// Arguments: rows N, head size D; eight query heads, four key/value heads, one worker.
template <DType kDType>
void rotate(benchmark::State& state) {
  const RopeAttributes attributes{
      .heads = 8, .kv_heads = 4, .head_size = state.range(1), .sequence = 256};
  const Shape qkv{state.range(0), (8 + 2 * 4) * state.range(1)};
  measure(state,
          {"rope",
           to_attributes(attributes),
           {{.dtype = kDType, .access = Access::kRead, .shape = qkv},
            {.dtype = kDType, .access = Access::kWrite, .shape = qkv}}},
          1);
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->Args({2048, 64})
      ->Args({2048, 128})
      ->ArgNames({"N", "D"})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

BENCHMARK(rotate<DType::kF32>)->Name("rope/f32")->Apply(shapes);
BENCHMARK(rotate<DType::kBF16>)->Name("rope/bf16")->Apply(shapes);

}  // namespace
}  // namespace braid
