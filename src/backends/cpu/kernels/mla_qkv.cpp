#include "ops/mla_qkv.h"

#include <algorithm>
#include <memory>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/rope_table.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {
namespace {

/// Cosines and sines of the position of one row.
template <class W>
struct RowAngles {
  const W* cosine;
  const W* sine;
};

/// Rotates the pairs (2i, 2i+1).
template <class T>
void rotate(const T* in, const RowAngles<Wide<T>>& angles, int64_t rotated, T* out) {
  for (int64_t i = 0; i < rotated / 2; ++i) {
    const Wide<T> x = in[2 * i];
    const Wide<T> y = in[2 * i + 1];
    store(out, 2 * i, x * angles.cosine[i] - y * angles.sine[i]);
    store(out, 2 * i + 1, y * angles.cosine[i] + x * angles.sine[i]);
  }
}

template <class T>
void fill_zeros(T* head, int64_t used, int64_t head_size) {
  std::fill(head + used, head + head_size, T{});
}

/// The parts of one row.
template <class T>
struct Parts {
  T* q;
  T* kv;
  T* k_rope;
};

template <class T>
void assemble_row(const MlaAttributes& a, const Parts<const T>& parts,
                  const RowAngles<Wide<T>>& angles, T* qkv) {
  const int64_t used = a.plain + a.rotated;
  T* const keys = qkv + a.heads * a.head_size;
  T* const values = keys + a.heads * a.head_size;
  for (int64_t head = 0; head < a.heads; ++head) {
    const T* const q = parts.q + head * used;
    const T* const kv = parts.kv + head * (a.plain + a.value);
    T* const query = qkv + head * a.head_size;
    T* const key = keys + head * a.head_size;
    T* const value = values + head * a.head_size;
    std::copy_n(q, a.plain, query);
    rotate(q + a.plain, angles, a.rotated, query + a.plain);
    fill_zeros(query, used, a.head_size);
    std::copy_n(kv, a.plain, key);
    rotate(parts.k_rope, angles, a.rotated, key + a.plain);
    fill_zeros(key, used, a.head_size);
    std::copy_n(kv + a.plain, a.value, value);
    fill_zeros(value, a.value, a.head_size);
  }
}

/// The sum over heads of the rotated part of keys, rotated back.
template <class T>
void sum_rotated(const MlaAttributes& a, const T* keys, const RowAngles<Wide<T>>& back, T* d_rope) {
  for (int64_t i = 0; i < a.rotated / 2; ++i) {
    Wide<T> x = 0;
    Wide<T> y = 0;
    for (int64_t head = 0; head < a.heads; ++head) {
      const T* const pair = keys + head * a.head_size + a.plain + 2 * i;
      x += static_cast<Wide<T>>(pair[0]);
      y += static_cast<Wide<T>>(pair[1]);
    }
    store(d_rope, 2 * i, x * back.cosine[i] - y * back.sine[i]);
    store(d_rope, 2 * i + 1, y * back.cosine[i] + x * back.sine[i]);
  }
}

template <class T>
void take_row_apart(const MlaAttributes& a, const T* d_qkv, const RowAngles<Wide<T>>& back,
                    const Parts<T>& parts) {
  const T* const keys = d_qkv + a.heads * a.head_size;
  const T* const values = keys + a.heads * a.head_size;
  for (int64_t head = 0; head < a.heads; ++head) {
    const T* const query = d_qkv + head * a.head_size;
    T* const d_q = parts.q + head * (a.plain + a.rotated);
    T* const d_kv = parts.kv + head * (a.plain + a.value);
    std::copy_n(query, a.plain, d_q);
    rotate(query + a.plain, back, a.rotated, d_q + a.plain);
    std::copy_n(keys + head * a.head_size, a.plain, d_kv);
    std::copy_n(values + head * a.head_size, a.value, d_kv + a.plain);
  }
  sum_rotated(a, keys, back, parts.k_rope);
}

/// The parts of a row, given those of the first.
template <class T>
Parts<T> parts_at(const MlaAttributes& a, const Parts<T>& first, int64_t row) {
  return {.q = first.q + row * a.heads * (a.plain + a.rotated),
          .kv = first.kv + row * a.heads * (a.plain + a.value),
          .k_rope = first.k_rope + row * a.rotated};
}

template <class W>
std::shared_ptr<const RopeTable<W>> table_of(const MlaAttributes& a, bool inverse) {
  return std::make_shared<const RopeTable<W>>(RopeAngles{.rotated = a.rotated,
                                                         .sequence = a.sequence,
                                                         .theta = a.theta,
                                                         .inverse = inverse,
                                                         .positions = a.positions,
                                                         .scaling = a.scaling},
                                              a.documents.documents);
}

template <class W>
RowAngles<W> angles_at(const RopeTable<W>& table, const MlaAttributes& a, const int32_t* starts,
                       int64_t row) {
  const int64_t at = angle_row(a.positions, row % a.sequence, starts, row) * (a.rotated / 2);
  return {table.cosine.data() + at, table.sine.data() + at};
}

}  // namespace

CpuKernel make_mla_qkv(const OpSpec& spec, int /*num_workers*/) {
  const auto a = attributes_of<MlaAttributes>(spec);
  const Shape shape = spec.operands.back().shape;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [a, shape, table = table_of<Wide<T>>(a, false)](const KernelArgs& args) {
      const Parts<const T> parts{args.data<const T>(0), args.data<const T>(1),
                                 args.data<const T>(2)};
      const auto* const starts = a.documents.documents ? args.data<const int32_t>(3) : nullptr;
      T* const qkv = args.data<T>(starts != nullptr ? 4 : 3);
      run_pieces(args.workers, shape[0], row_grain(shape[1]), [&](int, int64_t row, int64_t end) {
        for (; row < end; ++row) {
          assemble_row(a, parts_at(a, parts, row), angles_at(*table, a, starts, row),
                       qkv + row * shape[1]);
        }
      });
    }};
  });
}

CpuKernel make_mla_qkv_backward(const OpSpec& spec, int /*num_workers*/) {
  const auto a = attributes_of<MlaAttributes>(spec);
  const Shape shape = spec.operands[0].shape;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [a, shape, table = table_of<Wide<T>>(a, true)](const KernelArgs& args) {
      const T* const d_qkv = args.data<const T>(0);
      const auto* const starts = a.documents.documents ? args.data<const int32_t>(1) : nullptr;
      const size_t first = starts != nullptr ? 2 : 1;
      const Parts<T> parts{args.data<T>(first), args.data<T>(first + 1), args.data<T>(first + 2)};
      run_pieces(args.workers, shape[0], row_grain(shape[1]), [&](int, int64_t row, int64_t end) {
        for (; row < end; ++row) {
          take_row_apart(a, d_qkv + row * shape[1], angles_at(*table, a, starts, row),
                         parts_at(a, parts, row));
        }
      });
    }};
  });
}

}  // namespace braid
