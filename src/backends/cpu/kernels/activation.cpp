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

/// An activation function of each element, and its derivative.
struct Gelu {
  template <class W>
  static W value(W x) {
    const W twice_u = W(kTwoSqrtTwoOverPi) * (x + W(kCubic) * x * x * x);
    return x * vector_math::sigmoid(twice_u);
  }
  template <class W>
  static W slope(W x) {
    const W twice_u = W(kTwoSqrtTwoOverPi) * (x + W(kCubic) * x * x * x);
    const W s = vector_math::sigmoid(twice_u);
    return s + x * s * (W(1) - s) * W(kTwoSqrtTwoOverPi) * (W(1) + W(3 * kCubic) * x * x);
  }
};

struct Relu2 {
  template <class W>
  static W positive(W x) {
    return x < W(0) ? W(0) : x;  // written so that NaN is preserved
  }
  template <class W>
  static W value(W x) {
    return positive(x) * positive(x);
  }
  template <class W>
  static W slope(W x) {
    return W(2) * positive(x);
  }
};

template <class Function>
CpuKernel make_map(const OpSpec& spec) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [count](const KernelArgs& args) {
      const T* const x = args.data<const T>(0);
      T* const y = args.data<T>(1);
      run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          store(y, i, Function::template value<Wide<T>>(x[i]));
        }
      });
    }};
  });
}

template <class Function>
CpuKernel make_map_backward(const OpSpec& spec) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [count](const KernelArgs& args) {
      const T* const x = args.data<const T>(0);
      const T* const dy = args.data<const T>(1);
      T* const dx = args.data<T>(2);
      run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          store(dx, i, static_cast<Wide<T>>(dy[i]) * Function::template slope<Wide<T>>(x[i]));
        }
      });
    }};
  });
}

struct Silu {
  template <class W>
  static W value(W x) {
    return x * vector_math::sigmoid(x);
  }
};

/// Function(gate) * up of pairs; rows do not matter.
template <class Function>
CpuKernel make_gated(const OpSpec& spec) {
  const int64_t count = spec.operands[1].shape.num_elems();
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [count](const KernelArgs& args) {
      const T* const gate_up = args.data<const T>(0);
      T* const y = args.data<T>(1);
      run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          const Wide<T> gate = gate_up[2 * i];
          const Wide<T> up = gate_up[2 * i + 1];
          store(y, i, Function::template value<Wide<T>>(gate) * up);
        }
      });
    }};
  });
}

}  // namespace

CpuKernel make_swiglu(const OpSpec& spec, int /*num_workers*/) {
  return make_gated<Silu>(spec);
}

CpuKernel make_geglu(const OpSpec& spec, int /*num_workers*/) {
  return make_gated<Gelu>(spec);
}

CpuKernel make_swiglu_backward(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[1].shape.num_elems();
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [count](const KernelArgs& args) {
      const T* const gate_up = args.data<const T>(0);
      const T* const dy = args.data<const T>(1);
      T* const d_gate_up = args.data<T>(2);
      run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          const Wide<T> gate = gate_up[2 * i];
          const Wide<T> up = gate_up[2 * i + 1];
          const Wide<T> d = dy[i];
          const Wide<T> s = vector_math::sigmoid(gate);
          const Wide<T> silu = gate * s;
          store(d_gate_up, 2 * i, d * up * (s + silu * (Wide<T>(1) - s)));
          store(d_gate_up, 2 * i + 1, d * silu);
        }
      });
    }};
  });
}

CpuKernel make_geglu_backward(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[1].shape.num_elems();
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [count](const KernelArgs& args) {
      const T* const gate_up = args.data<const T>(0);
      const T* const dy = args.data<const T>(1);
      T* const d_gate_up = args.data<T>(2);
      run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          const Wide<T> gate = gate_up[2 * i];
          const Wide<T> up = gate_up[2 * i + 1];
          const Wide<T> d = dy[i];
          store(d_gate_up, 2 * i, d * up * Gelu::slope<Wide<T>>(gate));
          store(d_gate_up, 2 * i + 1, d * Gelu::value<Wide<T>>(gate));
        }
      });
    }};
  });
}

CpuKernel make_gelu(const OpSpec& spec, int /*num_workers*/) {
  return make_map<Gelu>(spec);
}

CpuKernel make_gelu_backward(const OpSpec& spec, int /*num_workers*/) {
  return make_map_backward<Gelu>(spec);
}

CpuKernel make_relu2(const OpSpec& spec, int /*num_workers*/) {
  return make_map<Relu2>(spec);
}

CpuKernel make_relu2_backward(const OpSpec& spec, int /*num_workers*/) {
  return make_map_backward<Relu2>(spec);
}

}  // namespace braid
