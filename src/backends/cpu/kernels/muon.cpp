#include "ops/muon.h"

#include <bit>
#include <cmath>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/moments.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {
namespace {

/// Grad, Moment: float or BFloat16; T: of the update.
template <class Grad, class Moment, class T>
CpuKernel momentum_kernel(const OpSpec& spec) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const auto attributes = attributes_of<MuonMeanAttributes>(spec);
  const auto momentum = static_cast<float>(attributes.momentum);
  const auto rest = static_cast<float>(1.0 - attributes.momentum);
  return {.run = [=](const KernelArgs& args) {
    const Grad* const grads = args.data<const Grad>(0);
    const float scale = *args.data<const float>(1);
    const uint32_t seed = std::is_same_v<Moment, BFloat16>
                              ? std::bit_cast<uint32_t>(args.data<const float>(2)[3])
                              : 0;
    Moment* const exp_avg = args.data<Moment>(3);
    T* const update = args.data<T>(4);
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (scale == 0.0f) {
          store(update, i, 0.0f);
          continue;
        }
        const float grad = grads[i];
        const float g = grad * scale;
        const float mean = momentum * exp_avg[i] + rest * g;
        uint32_t random = 0;
        if constexpr (std::is_same_v<Moment, BFloat16>) {
          random = moment_rounding_bits(std::bit_cast<uint32_t>(grad), 0, uint32_t{exp_avg[i].bits},
                                        seed);
        }
        store_moment(exp_avg[i], mean, random);
        store(update, i, attributes.nesterov ? rest * g + momentum * mean : mean);
      }
    });
  }};
}

/// Calls copy(element of the matrix, element of flat) for all elements of a matrix.
template <class Copy>
void for_each_place(const KernelArgs& args, const MatrixSize& size,
                    const MatrixPlaceAttributes& place, const Copy& copy) {
  run_pieces(args.workers, size.rows, row_grain(size.columns),
             [&](int, int64_t begin, int64_t end) {
               for (int64_t row = begin; row < end; ++row) {
                 for (int64_t column = 0; column < size.columns; ++column) {
                   copy(place.transposed ? column * size.rows + row : row * size.columns + column,
                        row * place.pitch + column);
                 }
               }
             });
}

template <class T>
CpuKernel take_kernel(const OpSpec& spec) {
  return {.run = [size = matrix_size(spec),
                  place = attributes_of<MatrixPlaceAttributes>(spec)](const KernelArgs& args) {
    const T* const flat = args.data<const T>(0);
    T* const x = args.data<T>(1);
    for_each_place(args, size, place, [&](int64_t at, int64_t from) { x[at] = flat[from]; });
  }};
}

template <class T>
CpuKernel put_kernel(const OpSpec& spec) {
  return {.run = [size = matrix_size(spec),
                  attributes = attributes_of<PutMatrixAttributes>(spec)](const KernelArgs& args) {
    const auto factor = static_cast<float>(attributes.factor);
    const T* const x = args.data<const T>(0);
    T* const flat = args.data<T>(1);
    for_each_place(args, size, attributes.place,
                   [&](int64_t at, int64_t to) { store(flat, to, factor * x[at]); });
  }};
}

template <class T>
CpuKernel normalize_kernel(int64_t count) {
  return {.run = [=](const KernelArgs& args) {
    const auto norm = static_cast<float>(std::sqrt(*args.data<const double>(0)) + 1e-7);
    T* const x = args.data<T>(1);
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        store(x, i, static_cast<float>(x[i]) / norm);
      }
    });
  }};
}

template <class T>
CpuKernel weighted_sum_kernel(const OpSpec& spec) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const auto attributes = attributes_of<WeightedSumAttributes>(spec);
  const auto x_weight = static_cast<float>(attributes.x_weight);
  const auto y_weight = static_cast<float>(attributes.y_weight);
  return {.run = [=](const KernelArgs& args) {
    const T* const x = args.data<const T>(0);
    T* const y = args.data<T>(1);
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        store(y, i, x_weight * static_cast<float>(x[i]) + y_weight * static_cast<float>(y[i]));
      }
    });
  }};
}

template <class T>
CpuKernel update_kernel(const OpSpec& spec) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const auto attributes = attributes_of<MuonUpdateAttributes>(spec);
  return {.run = [=](const KernelArgs& args) {
    const T* const update = args.data<const T>(0);
    const bool moves = *args.data<const float>(1) != 0.0f;
    const double lr = attributes.group.rate * static_cast<double>(*args.data<const float>(2));
    const auto rate = static_cast<float>(lr);
    const auto decay = static_cast<float>(lr * attributes.weight_decay);
    float* const weight = args.data<float>(3);
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; moves && i < end; ++i) {
        const float decayed = weight[i] - decay * weight[i];
        weight[i] = decayed - rate * static_cast<float>(update[i]);
      }
      if (attributes.has_param) {
        round_to_param(weight, args.data<BFloat16>(4), begin, end);
      }
    });
  }};
}

/// make.template operator()<T>() for the dtype of an operand, f32 or bf16.
template <class Make>
CpuKernel for_dtype(const OpSpec& spec, size_t operand, const Make& make) {
  return spec.operands[operand].dtype == DType::kBF16 ? make.template operator()<BFloat16>()
                                                      : make.template operator()<float>();
}

}  // namespace

CpuKernel make_muon_mean(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_gradient(spec, [&]<class Grad>() {
    return for_dtype(spec, 4, [&]<class T>() {
      return moments_dtype(spec) == DType::kBF16 ? momentum_kernel<Grad, BFloat16, T>(spec)
                                                 : momentum_kernel<Grad, float, T>(spec);
    });
  });
}

CpuKernel make_take_matrix(const OpSpec& spec, int /*num_workers*/) {
  return for_dtype(spec, 0, [&]<class T>() { return take_kernel<T>(spec); });
}

CpuKernel make_put_matrix(const OpSpec& spec, int /*num_workers*/) {
  return for_dtype(spec, 0, [&]<class T>() { return put_kernel<T>(spec); });
}

CpuKernel make_normalize(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[1].shape.num_elems();
  return for_dtype(spec, 1, [&]<class T>() { return normalize_kernel<T>(count); });
}

CpuKernel make_weighted_sum(const OpSpec& spec, int /*num_workers*/) {
  return for_dtype(spec, 0, [&]<class T>() { return weighted_sum_kernel<T>(spec); });
}

CpuKernel make_muon_update(const OpSpec& spec, int /*num_workers*/) {
  return for_dtype(spec, 0, [&]<class T>() { return update_kernel<T>(spec); });
}

}  // namespace braid
