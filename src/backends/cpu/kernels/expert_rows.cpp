#include "ops/expert_rows.h"

#include <algorithm>
#include <limits>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "backends/cpu/kernels/vector_math.h"
#include "ops/attributes.h"
#include "ops/quantize.h"

namespace braid {
namespace {

/// `num_values`: num_experts, and one more if a pair may have none.
int32_t expert_of(const int32_t* experts, int64_t pair, int64_t num_values, int64_t num_experts,
                  int64_t per_token) {
  const int32_t expert = experts[pair];
  if (expert < 0 || expert >= num_values) [[unlikely]] {
    throw_device_error("expert {} of token {}, slot {} is outside of [0, {})", expert,
                       pair / per_token, pair % per_token, num_experts);
  }
  return expert;
}

void add_to_tally(const int32_t* offsets, int64_t num_experts, int64_t* tally) {
  for (int64_t e = 0; e < num_experts; ++e) {
    tally[e] += offsets[e + 1] - offsets[e];
  }
}

bool are_partial(const OpSpec& spec) {
  return attributes_of<MovedRowsAttributes>(spec).partial.are_partial();
}

constexpr int64_t kSumColumns = 256;  ///< sums of a row that are kept at a time

/// Where the rows that nobody computes begin: the last offset of an op that moves rows, if it has
/// offsets, behind its maps.
class EndOfRows {
 public:
  explicit EndOfRows(const OpSpec& spec)
      : num_rows_(num_rows(spec)), num_experts_(drops(spec) ? spec.operands[3].shape[0] - 1 : 0) {}

  int64_t of(const KernelArgs& args) const {
    return num_experts_ == 0 ? num_rows_ : args.data<const int32_t>(3)[num_experts_];
  }
  /// The operand y.
  size_t result() const { return num_experts_ == 0 ? 3 : 4; }

 private:
  static bool drops(const OpSpec& spec) {
    return attributes_of<MovedRowsAttributes>(spec).dropped.drops;
  }
  /// Those of partial maps are neither as many as pairs nor all of the first map.
  static int64_t num_rows(const OpSpec& spec) {
    const Shape& map = spec.operands[1].shape;
    return are_partial(spec) && map.rank() > 1 ? spec.operands[0].shape[0] : map.num_elems();
  }

  int64_t num_rows_;
  int64_t num_experts_;
};

/// The row that means that a pair lacks room; none without partial maps.
int64_t lacking_row(const OpSpec& spec, int64_t num_rows) {
  return are_partial(spec) ? num_rows + kLacksRoom : std::numeric_limits<int64_t>::max();
}

/// The rows of a token: of each of its pairs, or none from `end` on, and NaN for `lacking`.
struct TokenRows {
  const int32_t* row_of = nullptr;
  int64_t per_token = 1;
  int64_t end = 0;
  int64_t lacking = 0;
};

/// y = sum of the rows of x, over `width` columns, at most kSumColumns.
template <class T>
void sum_columns(const T* x, int64_t stride, const TokenRows& rows, int64_t width, T* y) {
  Wide<T> sums[kSumColumns] = {};
  for (int64_t j = 0; j < rows.per_token; ++j) {
    if (rows.row_of[j] >= rows.end) {
      if (rows.row_of[j] == rows.lacking) {
        std::fill_n(sums, width, std::numeric_limits<Wide<T>>::quiet_NaN());
      }
      continue;
    }
    const T* const row = x + rows.row_of[j] * stride;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      sums[c] += static_cast<Wide<T>>(row[c]);
    }
  }
  for (int64_t c = 0; c < width; ++c) {
    store(y, c, sums[c]);
  }
}

/// Rows of gate and up: silu(gate) * up.
template <class T>
struct SwigluRows {
  static constexpr int64_t kElems = 2;  ///< of x for each of y

  static void run(const T* x, Wide<T> weight, int64_t width, T* y) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const Wide<T> gate = x[2 * i];
      const Wide<T> up = x[2 * i + 1];
      store(y, i, weight * (gate * vector_math::sigmoid(gate) * up));
    }
  }

  /// Returns the gradient of the weight.
  static Wide<T> run_backward(const T* x, Wide<T> weight, const T* dy, int64_t width, T* dx) {
    using W = Wide<T>;
    W d_weight = 0;
#pragma omp simd reduction(+ : d_weight)
    for (int64_t i = 0; i < width; ++i) {
      const W gate = x[2 * i];
      const W up = x[2 * i + 1];
      const W d = dy[i];
      const W s = vector_math::sigmoid(gate);
      const W silu = gate * s;
      d_weight += d * silu * up;
      store(dx, 2 * i, weight * d * up * (s + silu * (W(1) - s)));
      store(dx, 2 * i + 1, weight * d * silu);
    }
    return d_weight;
  }
};

/// max(x, 0), written so that NaN is preserved.
template <class W>
W positive_part(W x) {
  return x < W(0) ? W(0) : x;
}

/// max(x, 0)^2.
template <class T>
struct Relu2Rows {
  static constexpr int64_t kElems = 1;

  static void run(const T* x, Wide<T> weight, int64_t width, T* y) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const Wide<T> positive = positive_part<Wide<T>>(x[i]);
      store(y, i, weight * (positive * positive));
    }
  }

  static Wide<T> run_backward(const T* x, Wide<T> weight, const T* dy, int64_t width, T* dx) {
    using W = Wide<T>;
    W d_weight = 0;
#pragma omp simd reduction(+ : d_weight)
    for (int64_t i = 0; i < width; ++i) {
      const W positive = positive_part<W>(x[i]);
      const W d = dy[i];
      d_weight += d * (positive * positive);
      store(dx, i, weight * d * (W(2) * positive));
    }
    return d_weight;
  }
};

template <template <class> class Rows>
CpuKernel make_routed(const OpSpec& spec) {
  const int64_t num_experts = spec.operands[2].shape[0] - 1;
  const int64_t width = spec.operands[3].shape[1];
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const T* const x = args.data<const T>(0);
      const auto* const weights = args.data<const Wide<T>>(1);
      const int64_t num_rows = args.data<const int32_t>(2)[num_experts];
      T* const y = args.data<T>(3);
      run_pieces(args.workers, num_rows, row_grain(width), [&](int, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          Rows<T>::run(x + r * Rows<T>::kElems * width, weights[r], width, y + r * width);
        }
      });
    }};
  });
}

template <template <class> class Rows>
CpuKernel make_routed_backward(const OpSpec& spec) {
  const int64_t width = spec.operands[2].shape[1];
  const int64_t num_experts = spec.operands[3].shape[0] - 1;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const T* const x = args.data<const T>(0);
      const auto* const weights = args.data<const Wide<T>>(1);
      const T* const dy = args.data<const T>(2);
      const int64_t num_rows = args.data<const int32_t>(3)[num_experts];
      T* const dx = args.data<T>(4);
      auto* const d_weights = args.data<Wide<T>>(5);
      run_pieces(args.workers, num_rows, row_grain(width), [&](int, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t row = r * Rows<T>::kElems * width;
          d_weights[r] =
              Rows<T>::run_backward(x + row, weights[r], dy + r * width, width, dx + row);
        }
      });
    }};
  });
}

}  // namespace

// Counts, then places the pairs in their order, with the offsets themselves as cursors: afterwards
// each is the end of its expert, which is the begin of the next. Pairs without an expert are not
// counted.
CpuKernel make_sort_rows(const OpSpec& spec, int /*num_workers*/) {
  const int64_t per_token = spec.operands[0].shape[1];
  const int64_t num_pairs = spec.operands[0].shape.num_elems();
  const int64_t num_rows = spec.operands[2].shape[0];
  const int64_t num_experts = spec.operands[4].shape[0];
  const SortRoom room = attributes_of<SortRowsAttributes>(spec).room;
  const int64_t num_values = num_experts + (room.is_limited ? 1 : 0);
  return {.run = [=, watch = has_tally(spec)](const KernelArgs& args) {
    const auto* const experts = args.data<const int32_t>(0);
    auto* const row_of = args.data<int32_t>(1);
    auto* const pair_of = args.data<int32_t>(2);
    auto* const offsets = args.data<int32_t>(3);
    auto* const counts = args.data<float>(4);
    std::fill_n(offsets, num_experts + 1, 0);
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
      const int32_t expert = expert_of(experts, pair, num_values, num_experts, per_token);
      if (expert < num_experts) {
        ++offsets[expert + 1];
      }
    }
    for (int64_t e = 0; e < num_experts; ++e) {
      counts[e] = static_cast<float>(offsets[e + 1]);
      offsets[e + 1] += offsets[e];
    }
    std::fill_n(pair_of, num_rows, static_cast<int32_t>(num_pairs));
    const auto no_row = static_cast<int32_t>(num_rows + kNoRow);
    const auto lacking = static_cast<int32_t>(num_rows + (room.drops ? kNoRow : kLacksRoom));
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
      if (experts[pair] == num_experts) {
        row_of[pair] = no_row;
        continue;
      }
      const int32_t row = offsets[experts[pair]]++;
      row_of[pair] = row < num_rows ? row : lacking;
      if (row < num_rows) {
        pair_of[row] = static_cast<int32_t>(pair);
      }
    }
    std::copy_backward(offsets, offsets + num_experts, offsets + num_experts + 1);
    offsets[0] = 0;
    for (int64_t e = 1; e <= num_experts; ++e) {
      offsets[e] = std::min(offsets[e], static_cast<int32_t>(num_rows));
    }
    if (watch) {
      add_to_tally(offsets, num_experts, args.data<int64_t>(5));
    }
  }};
}

/// Rows of any type, which are moved as they are.
template <class T>
CpuKernel gather_kernel(const OpSpec& spec) {
  const int64_t width = spec.operands[0].shape[1];
  const int64_t per_token = spec.operands[2].shape[1];
  const int64_t num_pairs = spec.operands[2].shape.num_elems();
  return {.run = [=, ends = EndOfRows(spec)](const KernelArgs& args) {
    const T* const x = args.data<const T>(0);
    const auto* const pair_of = args.data<const int32_t>(1);
    T* const y = args.data<T>(ends.result());
    run_pieces(args.workers, ends.of(args), row_grain(width), [&](int, int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        if (pair_of[r] < num_pairs) {
          std::copy_n(x + pair_of[r] / per_token * width, width, y + r * width);
        }
      }
    });
  }};
}

CpuKernel make_gather_rows(const OpSpec& spec, int /*num_workers*/) {
  return is_fp8(spec.operands[0].dtype)
             ? gather_kernel<uint8_t>(spec)
             : dispatch_dtype(spec, 0, [&]<class T>() { return gather_kernel<T>(spec); });
}

CpuKernel make_sum_rows(const OpSpec& spec, int /*num_workers*/) {
  const int64_t width = spec.operands[0].shape[1];
  const int64_t num_tokens = spec.operands[1].shape[0];
  const int64_t per_token = spec.operands[1].shape[1];
  const int64_t lacking = lacking_row(spec, spec.operands[0].shape[0]);
  return dispatch_dtype(spec, 0, [&, ends = EndOfRows(spec)]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const T* const x = args.data<const T>(0);
      const auto* const row_of = args.data<const int32_t>(1);
      T* const y = args.data<T>(ends.result());
      const int64_t end_of_rows = ends.of(args);
      const int64_t grain = row_grain(width * per_token);
      run_pieces(args.workers, num_tokens, grain, [&](int, int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const TokenRows rows{.row_of = row_of + t * per_token,
                               .per_token = per_token,
                               .end = end_of_rows,
                               .lacking = lacking};
          for (int64_t c = 0; c < width; c += kSumColumns) {
            sum_columns(x + c, width, rows, std::min(kSumColumns, width - c), y + t * width + c);
          }
        }
      });
    }};
  });
}

CpuKernel make_permute_elems(const OpSpec& spec, int /*num_workers*/) {
  const int64_t num_elems = spec.operands[1].shape.num_elems();
  const int64_t num_sources = spec.operands[0].shape.num_elems();
  const bool x_is_of_rows = spec.operands[0].shape.rank() == 1;
  const int64_t lacking = x_is_of_rows ? lacking_row(spec, num_sources) : -1;
  return dispatch_dtype(spec, 0, [&, ends = EndOfRows(spec)]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const T* const x = args.data<const T>(0);
      const auto* const order = args.data<const int32_t>(1);
      T* const y = args.data<T>(ends.result());
      const int64_t end_of_rows = ends.of(args);
      T of_lacking{};
      store(&of_lacking, 0, std::numeric_limits<Wide<T>>::quiet_NaN());
      run_pieces(args.workers, num_elems, row_grain(1), [&](int, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = x_is_of_rows ? order[i] : i;
          const bool is_computed = row < end_of_rows && order[i] < num_sources;
          y[i] = is_computed ? x[order[i]] : order[i] == lacking ? of_lacking : T{};
        }
      });
    }};
  });
}

CpuKernel make_routed_swiglu(const OpSpec& spec, int /*num_workers*/) {
  return make_routed<SwigluRows>(spec);
}

CpuKernel make_routed_swiglu_backward(const OpSpec& spec, int /*num_workers*/) {
  return make_routed_backward<SwigluRows>(spec);
}

CpuKernel make_routed_relu2(const OpSpec& spec, int /*num_workers*/) {
  return make_routed<Relu2Rows>(spec);
}

CpuKernel make_routed_relu2_backward(const OpSpec& spec, int /*num_workers*/) {
  return make_routed_backward<Relu2Rows>(spec);
}

}  // namespace braid
