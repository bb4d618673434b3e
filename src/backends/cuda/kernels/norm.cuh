#pragma once

#include <cstdint>

#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"

// The forward of norms, for the ops (norm.cu) and for FP8 copies of their results
// (quantize_norm.cu).
namespace braid {

/// Pointers are null if an op lacks the operand.
template <class T>
struct NormForwardArgs {
  const T* x = nullptr;            // [N,C]
  const T* residual = nullptr;     // [N,C]
  const T* w = nullptr;            // [C]
  const T* b = nullptr;            // [C]
  T* sum = nullptr;                // [N,C]
  T* y = nullptr;                  // [N,C]
  float* mean = nullptr;           // f32 [N]
  float* rstd = nullptr;           // f32 [N]
  uint32_t* magnitudes = nullptr;  // [kQuantizeMagnitudes], see launch_norm_statistics
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 0;
  float offset = 0;  // of w
};

/// One of the four ops of ops/norm.h; or what a quantize task has of it, which lacks y.
struct NormForm {
  bool centred = false;  ///< layernorm
  bool adds = false;
  bool stores_y = true;
};

/// Operands in the order in which ops/norm.h lists them.
template <class T>
NormForwardArgs<T> norm_operands(const NormForm& form, const CudaKernelArgs& args) {
  size_t next = 0;
  NormForwardArgs<T> o;
  o.x = args.data<const T>(next++);
  o.residual = form.adds ? args.data<const T>(next++) : nullptr;
  o.w = args.data<const T>(next++);
  o.b = form.centred ? args.data<const T>(next++) : nullptr;
  o.sum = form.adds ? args.data<T>(next++) : nullptr;
  o.y = form.stores_y ? args.data<T>(next++) : nullptr;
  o.mean = form.centred ? args.data<float>(next++) : nullptr;
  o.rstd = args.data<float>(next++);
  return o;
}

/// Throws InternalError for rows that the kernel cannot hold in registers.
template <class T>
void check_norm_width(const OpSpec& spec, int64_t width) {
  constexpr int64_t kMaxWidth = int64_t{4} * 1024 * kVectorElems<T>;
  check(width <= kMaxWidth, "op {}: rows of {} elements; its kernel holds up to {} in registers",
        spec.op, width, kMaxWidth);
}

/// All results but y. With `magnitudes`, which must be zero, the largest of them becomes that of
/// |y|, as bits of a float.
void launch_norm_statistics(bool centred, const NormForwardArgs<Bf16>& args, cudaStream_t stream);

/// What is the same for all elements of a row.
struct NormOfRow {
  float mean;
  float rstd;
  float offset;  ///< of w; rmsnorm only
};

/// Elements of y, with the same bits in every kernel.
template <bool kCentred, class T, int V>
__device__ DeviceVector<T, V> normed(const DeviceVector<T, V>& x, const NormOfRow& row,
                                     const DeviceVector<T, V>& w, const DeviceVector<T, V>& b) {
  DeviceVector<T, V> y;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float scaled = (widen(x.elems[i]) - row.mean) * row.rstd;
    y.elems[i] = narrow<T>(kCentred ? fmaf(scaled, widen(w.elems[i]), widen(b.elems[i]))
                                    : scaled * (widen(w.elems[i]) + row.offset));
  }
  return y;
}

}  // namespace braid
