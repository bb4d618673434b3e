#include "ops/add_gated.h"

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "backends/cpu/kernels/vector_math.h"

namespace braid {
namespace {

template <class T>
void gated_row(const T* a, const T* x, Wide<T> gate, int64_t width, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    store(y, i, static_cast<Wide<T>>(a[i]) + gate * static_cast<Wide<T>>(x[i]));
  }
}

/// Returns the gradient of the gate.
template <class T>
Wide<T> gated_row_backward(const T* x, Wide<T> gate, const T* dy, int64_t width, T* dx) {
  using W = Wide<T>;
  W d_gate = 0;
#pragma omp simd reduction(+ : d_gate)
  for (int64_t i = 0; i < width; ++i) {
    const W d = dy[i];
    d_gate += d * static_cast<W>(x[i]);
    store(dx, i, gate * d);
  }
  return d_gate;
}

}  // namespace

CpuKernel make_add_gated(const OpSpec& spec, int /*num_workers*/) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t width = spec.operands[0].shape[1];
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const T* const a = args.data<const T>(0);
      const T* const x = args.data<const T>(1);
      const auto* const z = args.data<const Wide<T>>(2);
      T* const y = args.data<T>(3);
      run_pieces(args.workers, rows, row_grain(width), [&](int, int64_t r, int64_t end) {
        for (; r < end; ++r) {
          const int64_t at = r * width;
          gated_row(a + at, x + at, vector_math::sigmoid(z[r]), width, y + at);
        }
      });
    }};
  });
}

CpuKernel make_add_gated_backward(const OpSpec& spec, int /*num_workers*/) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t width = spec.operands[0].shape[1];
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    using W = Wide<T>;
    return {.run = [=](const KernelArgs& args) {
      const T* const x = args.data<const T>(0);
      const auto* const z = args.data<const W>(1);
      const T* const dy = args.data<const T>(2);
      T* const dx = args.data<T>(3);
      auto* const dz = args.data<W>(4);
      run_pieces(args.workers, rows, row_grain(width), [&](int, int64_t r, int64_t end) {
        for (; r < end; ++r) {
          const int64_t at = r * width;
          const W gate = vector_math::sigmoid(z[r]);
          dz[r] = gate * (W(1) - gate) * gated_row_backward(x + at, gate, dy + at, width, dx + at);
        }
      });
    }};
  });
}

}  // namespace braid
