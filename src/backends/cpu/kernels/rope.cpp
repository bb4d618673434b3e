#include "ops/rope.h"

#include <algorithm>
#include <memory>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/rope_table.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {
namespace {

/// Rotates the pairs (i, i + pairs) of one head; copies the elements behind them.
template <class T>
void rotate(const T* in, const Wide<T>* cosine, const Wide<T>* sine, int64_t pairs,
            int64_t head_size, T* out) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    const Wide<T> x = in[i];
    const Wide<T> y = in[i + pairs];
    store(out, i, x * cosine[i] - y * sine[i]);
    store(out, i + pairs, y * cosine[i] + x * sine[i]);
  }
  std::copy(in + 2 * pairs, in + head_size, out + 2 * pairs);
}

template <class T>
void rope_rows(const RopeAttributes& attributes, const RopeTable<Wide<T>>& table, int64_t begin,
               int64_t end, const T* in, const int32_t* starts, T* out) {
  const int64_t head_size = attributes.head_size;
  const int64_t pairs = attributes.rotated() / 2;
  const int64_t rotated = attributes.heads + attributes.kv_heads;
  const int64_t width = (rotated + attributes.kv_heads) * head_size;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t angles =
        angle_row(attributes.positions, row % attributes.sequence, starts, row) * pairs;
    const T* const from = in + row * width;
    T* const to = out + row * width;
    for (int64_t head = 0; head < rotated; ++head) {
      rotate(from + head * head_size, table.cosine.data() + angles, table.sine.data() + angles,
             pairs, head_size, to + head * head_size);
    }
    std::copy(from + rotated * head_size, from + width, to + rotated * head_size);
  }
}

}  // namespace

CpuKernel make_rope(const OpSpec& spec, int) {
  const auto attributes = attributes_of<RopeAttributes>(spec);
  const Shape shape = spec.operands[0].shape;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    const bool documents = attributes.documents.documents;
    const auto table =
        std::make_shared<const RopeTable<Wide<T>>>(RopeAngles{.rotated = attributes.rotated(),
                                                              .sequence = attributes.sequence,
                                                              .theta = attributes.theta,
                                                              .inverse = attributes.inverse,
                                                              .positions = attributes.positions,
                                                              .scaling = attributes.scaling},
                                                   documents);
    return {.run = [attributes, shape, table, documents](const KernelArgs& args) {
      const auto* const starts = documents ? args.data<const int32_t>(1) : nullptr;
      T* const out = args.data<T>(documents ? 2 : 1);
      run_pieces(args.workers, shape[0], row_grain(shape[1]), [&](int, int64_t begin, int64_t end) {
        rope_rows(attributes, *table, begin, end, args.data<const T>(0), starts, out);
      });
    }};
  });
}

}  // namespace braid
