#include "ops/context_sections.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"

// A thread per element of y. Neighbouring threads read neighbouring elements of the same sections,
// and these are a few rows, or a state per head: small beside the rows of a layer.
namespace braid {
namespace {

constexpr int kThreads = 256;

/// ContextSections, as they are gathered from all ranks; the sections of this rank are few.
struct GatheredSections {
  int64_t ranks;
  int64_t inner;
  int64_t sections;  // of a sequence on a rank
  int64_t sequences;
  int64_t own_places[2];

  GatheredSections(const ContextSections& context, int64_t own)
      : ranks(context.ranks),
        inner(context.inner),
        sections(context.sections),
        sequences(own / context.sections),
        own_places{context.place(context.index, 0),
                   context.place(context.index, context.sections - 1)} {}

  __device__ int64_t count() const { return ranks * sections; }
  /// Of the rank's section `own`, counted over the batch.
  __device__ int64_t place_of(int64_t own) const {
    return own % sections == 0 ? own_places[0] : own_places[1];
  }
  /// The block of the section at a place: the inverse of ContextSections::place.
  __device__ int64_t block(int64_t sequence, int64_t place) const {
    const int64_t outer = ranks / inner;
    if (outer == 1) {
      return block_of(place % ranks, sequence, place / ranks);
    }
    const int64_t per_chunk = sections * inner / 2;
    const int64_t chunk = place / per_chunk;
    const bool is_first = chunk < outer;
    const int64_t at = place % per_chunk + (is_first ? 0 : per_chunk);
    const int64_t first_rank = (is_first ? chunk : 2 * outer - 1 - chunk) * inner;
    return block_of(first_rank + at / sections, sequence, at % sections);
  }

 private:
  __device__ int64_t block_of(int64_t rank, int64_t sequence, int64_t section) const {
    return (rank * sequences + sequence) * sections + section;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    neighbours_kernel(GatheredSections gathered, int64_t elems, int64_t step, int64_t count,
                      const T* x, T* y) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count) {
    return;
  }
  const int64_t own = at / elems;
  const int64_t place = gathered.place_of(own) + step;
  const bool exists = place >= 0 && place < gathered.count();
  y[at] = exists ? x[gathered.block(own / gathered.sections, place) * elems + at % elems] : T{};
}

__global__ void __launch_bounds__(kThreads)
    carry_kernel(GatheredSections gathered, int64_t heads, int64_t elems, bool later, int64_t count,
                 const float* x, float* y) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count) {
    return;
  }
  const int64_t width = heads * elems;
  const int64_t own = at / width;
  const int64_t column = at % width;
  const int64_t place = gathered.place_of(own);
  const int64_t last = gathered.count() - 1;
  const int64_t steps = later ? last - place : place;
  float state = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const float* const row =
        x + gathered.block(own / gathered.sections, later ? last - step : step) * (width + heads);
    state = row[width + column / elems] * state + row[column];
  }
  y[at] = state;
}

}  // namespace

CudaKernel make_cuda_neighbour_sections(const OpSpec& spec, CudaContext& /*context*/) {
  const auto a = attributes_of<NeighbourSectionsAttributes>(spec);
  const Shape shape = spec.operands[1].shape;
  const GatheredSections gathered(a.context, shape[0] / a.rows);
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    return {.launch = [gathered, a, shape](const CudaKernelArgs& args) {
      const int64_t count = shape.num_elems();
      neighbours_kernel<T><<<grid_of(ceil_div(count, kThreads)), kThreads, 0, args.stream>>>(
          gathered, a.rows * shape[1], a.later ? 1 : -1, count, args.data<const T>(0),
          args.data<T>(1));
      BRAID_CUDA_CHECK(cudaGetLastError());
    }};
  });
}

CudaKernel make_cuda_carry_states(const OpSpec& spec, CudaContext& /*context*/) {
  const auto a = attributes_of<CarryStatesAttributes>(spec);
  const Shape shape = spec.operands[1].shape;
  check(spec.operands[0].dtype == DType::kF32, "op {}: no CUDA kernel for {}", spec.op,
        dtype_name(spec.operands[0].dtype));
  const GatheredSections gathered(a.context, shape[0]);
  return {.launch = [gathered, a, shape](const CudaKernelArgs& args) {
    const int64_t count = shape.num_elems();
    carry_kernel<<<grid_of(ceil_div(count, kThreads)), kThreads, 0, args.stream>>>(
        gathered, a.heads, shape[1] / a.heads, a.later, count, args.data<const float>(0),
        args.data<float>(1));
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace braid
