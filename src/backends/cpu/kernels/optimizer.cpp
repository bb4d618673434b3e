#include "ops/optimizer.h"

#include <bit>
#include <cmath>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/moments.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {
namespace {

/// Elements per partial sum; fixed, so that the order of summation depends only on the size.
constexpr int64_t kNormBlock = 32768;

template <class T>
double squared_norm_of(const T* x, int64_t begin, int64_t end) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = begin; i < end; ++i) {
    const double value = static_cast<Wide<T>>(x[i]);
    sum += value * value;
  }
  return sum;
}

template <class T>
CpuKernel squared_norm_kernel(int64_t count) {
  const int64_t num_blocks = (count + kNormBlock - 1) / kNormBlock;
  return {.run =
              [=](const KernelArgs& args) {
                const T* const x = args.data<const T>(0);
                auto* const sums = reinterpret_cast<double*>(args.scratch.data());
                run_pieces(args.workers, num_blocks, 1, [&](int, int64_t begin, int64_t end) {
                  for (int64_t block = begin; block < end; ++block) {
                    sums[block] = squared_norm_of(x, block * kNormBlock,
                                                  std::min(count, (block + 1) * kNormBlock));
                  }
                });
                double total = 0;
                for (int64_t block = 0; block < num_blocks; ++block) {
                  total += sums[block];
                }
                *args.data<double>(1) = total;
              },
          .scratch_bytes = align_scratch(static_cast<size_t>(num_blocks) * sizeof(double))};
}

double sum_of(const double* values, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    total += values[i];
  }
  return total;
}

/// The factors of one step of AdamW, for the loop over elements.
struct AdamwStep {
  float scale;
  float beta1;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float decay;        // lr * weight_decay
  float step_size;    // lr / c1
  float inv_sqrt_c2;  // 1 / sqrt(c2)
  float epsilon;
  uint32_t seed;  // of random rounding: the bits of the last scalar, if moments are bf16
};

AdamwStep adamw_step(const AdamwAttributes& attributes, float scale,
                     std::span<const float> scalars) {
  const double lr = attributes.group.rate * static_cast<double>(scalars[0]);
  return {.scale = scale,
          .beta1 = static_cast<float>(attributes.beta1),
          .beta2 = static_cast<float>(attributes.beta2),
          .one_minus_beta1 = static_cast<float>(1.0 - attributes.beta1),
          .one_minus_beta2 = static_cast<float>(1.0 - attributes.beta2),
          .decay = static_cast<float>(lr * attributes.weight_decay),
          .step_size = static_cast<float>(lr / static_cast<double>(scalars[1])),
          .inv_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(static_cast<double>(scalars[2]))),
          .epsilon = static_cast<float>(attributes.epsilon),
          .seed = std::bit_cast<uint32_t>(scalars.back())};
}

/// Random bits for the moments of element i; unused where they are fp32.
template <class Moment>
uint32_t rounding_bits(float grad, float weight, const Moment& exp_avg, const Moment& exp_avg_sq,
                       uint32_t seed) {
  if constexpr (std::is_same_v<Moment, BFloat16>) {
    return moment_rounding_bits(
        std::bit_cast<uint32_t>(grad), std::bit_cast<uint32_t>(weight),
        uint32_t{exp_avg.bits} | (static_cast<uint32_t>(exp_avg_sq.bits) << 16), seed);
  } else {
    return 0;
  }
}

/// grad, weight, exp_avg, exp_avg_sq [n]; ranges do not overlap.
template <class Grad, class Moment>
void adamw_range(const AdamwStep& step, const Grad* grads, float* weight, Moment* exp_avg,
                 Moment* exp_avg_sq, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float grad = grads[i];
    const float g = grad * step.scale;
    const float m = step.beta1 * exp_avg[i] + step.one_minus_beta1 * g;
    const float v = step.beta2 * exp_avg_sq[i] + step.one_minus_beta2 * g * g;
    const float decayed = weight[i] - step.decay * weight[i];
    const float denominator = std::sqrt(v) * step.inv_sqrt_c2 + step.epsilon;
    const uint32_t random = rounding_bits(grad, weight[i], exp_avg[i], exp_avg_sq[i], step.seed);
    store_moment(exp_avg[i], m, random);
    store_moment(exp_avg_sq[i], v, random >> 16);
    weight[i] = decayed - step.step_size * m / denominator;
  }
}

/// Grad, Moment: float or BFloat16.
template <class Grad, class Moment>
CpuKernel adamw_kernel(const OpSpec& spec) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const auto num_scalars = static_cast<size_t>(spec.operands[2].shape.num_elems());
  const auto attributes = attributes_of<AdamwAttributes>(spec);
  return {.run = [=](const KernelArgs& args) {
    const float scale = *args.data<const float>(1);
    const AdamwStep step = adamw_step(attributes, scale, {args.data<const float>(2), num_scalars});
    float* const weight = args.data<float>(3);
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += kUpdateBlock) {
        const int64_t stop = std::min(end, i + kUpdateBlock);
        if (scale != 0.0f) {
          adamw_range(step, args.data<const Grad>(0), weight, args.data<Moment>(4),
                      args.data<Moment>(5), i, stop);
        }
        if (attributes.has_param) {
          round_to_param(weight, args.data<BFloat16>(6), i, stop);
        }
      }
    });
  }};
}

}  // namespace

CpuKernel make_squared_norm(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_dtype(spec, 0, [&]<class T>() { return squared_norm_kernel<T>(count); });
}

CpuKernel make_sum(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return {.run = [=](const KernelArgs& args) {
    *args.data<double>(1) = sum_of(args.data<const double>(0), count);
  }};
}

CpuKernel make_clip_scale(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const double max_norm = attributes_of<ClipScaleAttributes>(spec).max_norm;
  return {.run = [=](const KernelArgs& args) {
    const double norm = std::sqrt(sum_of(args.data<const double>(0), count));
    const double scale = max_norm == 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6));
    *args.data<float>(1) = static_cast<float>(norm);
    *args.data<float>(2) = std::isfinite(norm) ? static_cast<float>(scale) : 0.0f;
  }};
}

CpuKernel make_adamw(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_gradient(spec, [&]<class Grad>() {
    return moments_dtype(spec) == DType::kBF16 ? adamw_kernel<Grad, BFloat16>(spec)
                                               : adamw_kernel<Grad, float>(spec);
  });
}

CpuKernel make_balance_update(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const auto attributes = attributes_of<BalanceUpdateAttributes>(spec);
  return dispatch_gradient(spec, [&]<class Grad>() -> CpuKernel {
    return {.run = [=, rate = static_cast<float>(attributes.rate)](const KernelArgs& args) {
      const Grad* const grads = args.data<const Grad>(0);
      float* const weight = args.data<float>(2);
      if (*args.data<const float>(1) != 0.0f) {
        for (int64_t i = 0; i < count; ++i) {
          const float grad = grads[i];
          weight[i] -= rate * static_cast<float>((grad > 0 ? 1 : 0) - (grad < 0 ? 1 : 0));
        }
      }
      if (attributes.has_param) {
        round_to_param(weight, args.data<BFloat16>(3), 0, count);
      }
    }};
  });
}

CpuKernel make_average_weights(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const auto step = static_cast<float>(1.0 - attributes_of<AverageWeightsAttributes>(spec).decay);
  return {.run = [=](const KernelArgs& args) {
    if (*args.data<const float>(1) == 0.0f) {
      return;
    }
    const float* const weight = args.data<const float>(0);
    float* const average = args.data<float>(2);
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        average[i] += step * (weight[i] - average[i]);
      }
    });
  }};
}

}  // namespace braid
