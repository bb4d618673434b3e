#include "ops/activation.h"

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "backends/cpu/kernels/vector_math.h"

namespace braid {
namespace {

// gelu with the tanh approximation is x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the same
// function as 0.5 x (1 + tanh(u)) without its cancellation for negative x.
constexpr double kTwoSqrtTwoOverPi = 1.5957691216057308;
constexpr double kCubic = 0.044715;

template <class W>
W gelu(W x) {
  const W twice_u = W(kTwoSqrtTwoOverPi) * (x + W(kCubic) * x * x * x);
  return x * vector_math::sigmoid(twice_u);
}

template <class W>
W gelu_slope(W x) {
  const W twice_u = W(kTwoSqrtTwoOverPi) * (x + W(kCubic) * x * x * x);
  const W s = vector_math::sigmoid(twice_u);
  return s + x * s * (W(1) - s) * W(kTwoSqrtTwoOverPi) * (W(1) + W(3 * kCubic) * x * x);
}

template <class T>
void swiglu_row(const T* gate_up, int64_t width, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const Wide<T> gate = gate_up[i];
    const Wide<T> up = gate_up[width + i];
    store(y, i, gate * vector_math::sigmoid(gate) * up);
  }
}

template <class T>
void swiglu_backward_row(const T* gate_up, const T* dy, int64_t width, T* d_gate_up) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const Wide<T> gate = gate_up[i];
    const Wide<T> up = gate_up[width + i];
    const Wide<T> d = dy[i];
    const Wide<T> s = vector_math::sigmoid(gate);
    const Wide<T> silu = gate * s;
    store(d_gate_up, i, d * up * (s + silu * (Wide<T>(1) - s)));
    store(d_gate_up, width + i, d * silu);
  }
}

}  // namespace

CpuKernel make_swiglu(const OpSpec& spec, int /*num_workers*/) {
  const int64_t rows = spec.operands[1].shape[0];
  const int64_t width = spec.operands[1].shape[1];
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [rows, width](const KernelArgs& args) {
      run_pieces(args.workers, rows, row_grain(width), [&](int, int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
          swiglu_row(args.data<const T>(0) + n * 2 * width, width, args.data<T>(1) + n * width);
        }
      });
    }};
  });
}

CpuKernel make_swiglu_backward(const OpSpec& spec, int /*num_workers*/) {
  const int64_t rows = spec.operands[1].shape[0];
  const int64_t width = spec.operands[1].shape[1];
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [rows, width](const KernelArgs& args) {
      run_pieces(args.workers, rows, row_grain(width), [&](int, int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
          swiglu_backward_row(args.data<const T>(0) + n * 2 * width,
                              args.data<const T>(1) + n * width, width,
                              args.data<T>(2) + n * 2 * width);
        }
      });
    }};
  });
}

CpuKernel make_gelu(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [count](const KernelArgs& args) {
      const T* const x = args.data<const T>(0);
      T* const y = args.data<T>(1);
      run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          store(y, i, gelu<Wide<T>>(x[i]));
        }
      });
    }};
  });
}

CpuKernel make_gelu_backward(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [count](const KernelArgs& args) {
      const T* const x = args.data<const T>(0);
      const T* const dy = args.data<const T>(1);
      T* const dx = args.data<T>(2);
      run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          store(dx, i, static_cast<Wide<T>>(dy[i]) * gelu_slope<Wide<T>>(x[i]));
        }
      });
    }};
  });
}

}  // namespace braid
