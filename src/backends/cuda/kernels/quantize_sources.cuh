#pragma once

#include <cstdint>

#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/elementwise_map.cuh"
#include "backends/cuda/kernels/main_weight.cuh"
#include "backends/cuda/kernels/norm.cuh"

// What a quantize kernel rounds: bf16 elements of x [rows, columns], as they lie in memory, or made
// from the inputs of an op and rounded as that op would store them, or from main weights and
// rounded as AdamW would. In chunks of eight elements; `at` is the first one's place in x. A source
// with a `Row` makes an element from the stored bf16 at its place, its row and its column.
// kTilesAtOnce: blocks of threads on a multiprocessor, as many as have registers, also for
// kLoadsInFlight chunks of inputs; measured, but for norms.
namespace braid::quantize_tile {

inline constexpr int kVector = 8;  // bf16 elements of a 16-byte chunk

/// x itself.
struct StoredSource {
  static constexpr bool kIsStored = true;
  static constexpr bool kIsBinary = false;
  static constexpr int kLoadsInFlight = 8;
  static constexpr int kTilesAtOnce = 6;
  using Inputs = DeviceVector<Bf16, kVector>;

  const Bf16* a = nullptr;

  bool is_aligned() const { return all_aligned(16, {a}); }

  template <bool kAligned>
  __device__ Inputs load(int64_t at, int64_t valid) const {
    return load_vector<kVector, kAligned>(a + at, valid);
  }
  __device__ DeviceVector<Bf16, kVector> result(const Inputs& inputs) const { return inputs; }
};

/// The bf16 weights of main weights.
struct MainWeightSource {
  static constexpr bool kIsStored = false;
  static constexpr bool kIsBinary = false;
  static constexpr int kLoadsInFlight = 2;  // as inputs of 32 bytes of a MapSource; not measured
  static constexpr int kTilesAtOnce = 5;
  using Inputs = DeviceVector<float, kVector>;

  const float* a = nullptr;

  bool is_aligned() const { return all_aligned(16, {a}); }

  template <bool kAligned>
  __device__ Inputs load(int64_t at, int64_t valid) const {
    return load_vector<kVector, kAligned>(a + at, valid);
  }
  __device__ DeviceVector<Bf16, kVector> result(const Inputs& inputs) const {
    return as_bf16(inputs);
  }
};

/// Op(a), or Op(a, b) if kBinary, as elementwise_map.cuh stores it. Out is Bf16, or a pair of Bf16.
template <bool kBinary, class Op, class In, class Out, class In2 = In>
struct MapSource {
  static constexpr bool kIsStored = false;
  static constexpr bool kIsBinary = kBinary;
  static constexpr int kElems = static_cast<int>(sizeof(Out) / sizeof(Bf16));  // of an Out
  static constexpr int kOuts = kVector / kElems;                               // of a chunk
  static constexpr int kInputBytes =
      kOuts * static_cast<int>(sizeof(In) + (kBinary ? sizeof(In2) : 0));
  static constexpr int kLoadsInFlight = kInputBytes > 16 ? 2 : 4;
  static constexpr int kTilesAtOnce = kInputBytes == 24 ? 6 : 5;
  struct Inputs {
    DeviceVector<In, kOuts> a;
    DeviceVector<In2, kOuts> b;
  };

  const In* a = nullptr;
  const In2* b = nullptr;

  bool is_aligned() const { return all_aligned(16, {a, b}); }

  template <bool kAligned>
  __device__ Inputs load(int64_t at, int64_t valid) const {
    Inputs inputs;
    inputs.a = load_vector<kOuts, kAligned>(a + at / kElems, valid / kElems);
    if constexpr (kBinary) {
      inputs.b = load_vector<kOuts, kAligned>(b + at / kElems, valid / kElems);
    }
    return inputs;
  }
  __device__ DeviceVector<Bf16, kVector> result(const Inputs& inputs) const {
    const auto outs = map_vector<kBinary, Op, In, Out, In2, kOuts>(Op{}, inputs.a, inputs.b);
    DeviceVector<Bf16, kVector> elems;
    memcpy(&elems, &outs, sizeof(elems));
    return elems;
  }
};

/// The norm of rows x, whose statistics are known.
template <bool kCentred>
struct NormSource {
  static constexpr bool kIsStored = false;
  static constexpr int kTilesAtOnce = kCentred ? 4 : 5;
  struct Row {
    float mean;
    float rstd;
  };
  struct Columns {
    DeviceVector<Bf16, kVector> w;
    DeviceVector<Bf16, kVector> b;
  };

  const Bf16* a = nullptr;
  const Bf16* w = nullptr;
  const Bf16* b = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  float offset = 0;

  bool is_aligned() const { return all_aligned(16, {a, w, b}); }

  __device__ Row row(int64_t row) const { return {kCentred ? mean[row] : 0.0f, rstd[row]}; }
  template <bool kAligned>
  __device__ Columns columns(int64_t column, int64_t valid) const {
    Columns columns;
    columns.w = load_vector<kVector, kAligned>(w + column, valid);
    if constexpr (kCentred) {
      columns.b = load_vector<kVector, kAligned>(b + column, valid);
    }
    return columns;
  }
  __device__ DeviceVector<Bf16, kVector> result(const DeviceVector<Bf16, kVector>& x,
                                                const Row& row, const Columns& columns) const {
    return normed<kCentred>(x, NormOfRow{row.mean, row.rstd, offset}, columns.w, columns.b);
  }
};

/// The first `valid` elements, and zeros: a function of zero need not be zero.
template <bool kAligned>
__device__ uint4 first_elems(DeviceVector<Bf16, kVector> elems, int64_t valid) {
  if constexpr (!kAligned) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      elems.elems[i] = i < valid ? elems.elems[i] : Bf16{};
    }
  }
  uint4 words;
  memcpy(&words, elems.elems, sizeof(words));
  return words;
}

}  // namespace braid::quantize_tile
