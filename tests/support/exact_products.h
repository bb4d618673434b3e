#pragma once

#include <array>
#include <cstdint>

#include "backends/cpu/cpu_executor.h"
#include "backends/cpu/kernel.h"
#include "base/dtype.h"
#include "ops/attributes.h"
#include "ops/linear.h"
#include "ops/linear_swiglu.h"

namespace braid {

/// A matrix product whose element is a sum of `depth` products in ascending order, in double,
/// rounded once: the same bits whatever else is in the matrix. A BLAS library chooses its kernel by
/// the size of the whole product, so that a product in pieces may be rounded in another way.
class ExactProduct {
 public:
  struct Strides {
    int64_t row = 0, column = 0;
  };
  struct Sizes {
    int64_t rows = 0, columns = 0, depth = 0;
  };

  /// y[i][j] (+)= sum over k of a[i a.row + k a.column] b[j b.row + k b.column] (+ bias[j])
  template <class T, class Result>
  static void run(const Sizes& sizes, const T* a, const Strides& of_a, const T* b,
                  const Strides& of_b, const T* bias, bool accumulate, Result* y) {
    for (int64_t i = 0; i < sizes.rows; ++i) {
      for (int64_t j = 0; j < sizes.columns; ++j) {
        Result& element = y[i * sizes.columns + j];
        double sum = bias != nullptr ? static_cast<double>(static_cast<float>(bias[j])) : 0.0;
        for (int64_t k = 0; k < sizes.depth; ++k) {
          sum += static_cast<double>(static_cast<float>(a[i * of_a.row + k * of_a.column])) *
                 static_cast<double>(static_cast<float>(b[j * of_b.row + k * of_b.column]));
        }
        sum += accumulate ? static_cast<double>(static_cast<float>(element)) : 0.0;
        element = Result(static_cast<float>(sum));
      }
    }
  }
};

template <class T>
CpuKernel exact_linear(const OpSpec& spec) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t in = spec.operands[0].shape[1];
  const int64_t out = spec.operands[1].shape[0];
  const auto attributes = attributes_of<LinearAttributes>(spec);
  return {.run = [=](const KernelArgs& args) {
    const T* const bias =
        attributes.has_bias && attributes.adds_bias ? args.data<const T>(2) : nullptr;
    ExactProduct::run({rows, out, in}, args.data<const T>(0), {in, 1}, args.data<const T>(1),
                      {in, 1}, bias, false, args.data<T>(attributes.has_bias ? 3 : 2));
  }};
}

template <class T>
CpuKernel exact_linear_dgrad(const OpSpec& spec) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t out = spec.operands[1].shape[0];
  const int64_t in = spec.operands[1].shape[1];
  const bool accumulate = attributes_of<LinearDgradAttributes>(spec).accumulate;
  return {.run = [=](const KernelArgs& args) {
    ExactProduct::run<T, T>({rows, in, out}, args.data<const T>(0), {out, 1}, args.data<const T>(1),
                            {1, in}, nullptr, accumulate, args.data<T>(2));
  }};
}

template <class T>
CpuKernel exact_linear_wgrad(const OpSpec& spec) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t in = spec.operands[0].shape[1];
  const int64_t out = spec.operands[1].shape[1];
  const auto attributes = attributes_of<LinearWgradAttributes>(spec);
  return {.run = [=](const KernelArgs& args) {
    const T* const dy = args.data<const T>(1);
    ExactProduct::run<T, float>({out, in, rows}, dy, {1, out}, args.data<const T>(0), {1, in},
                                nullptr, attributes.accumulate, args.data<float>(2));
    for (int64_t j = 0; attributes.has_bias && j < out; ++j) {
      float& element = args.data<float>(3)[j];
      double sum = attributes.accumulate ? static_cast<double>(element) : 0.0;
      for (int64_t n = 0; n < rows; ++n) {
        sum += static_cast<double>(static_cast<float>(dy[n * out + j]));
      }
      element = static_cast<float>(sum);
    }
  }};
}

/// The product, and then the activation's own kernel; activations have no scratch.
template <class T>
CpuKernel exact_fused_product(const OpSpec& spec, int num_workers) {
  const ProductAndActivation parts = unfused(spec);
  const CpuKernel activation = make_cpu_kernel(parts.activation, num_workers);
  if (spec.op == kLinearSwigluOp.name) {
    return {.run = [product = exact_linear<T>(parts.product), activation](const KernelArgs& args) {
      product.run({args.operands.first(3), {}, args.workers});
      activation.run({args.operands.last(2), {}, args.workers});
    }};
  }
  const int64_t num_elems = parts.product.operands[2].shape.num_elems();
  return {.run =
              [product = exact_linear_dgrad<T>(parts.product), activation](const KernelArgs& args) {
                const auto& o = args.operands;
                std::byte* const d_h = args.scratch.data();
                product.run({std::array{o[0], o[1], d_h}, {}, args.workers});
                activation.run({std::array{o[2], d_h, o[3]}, {}, args.workers});
              },
          .scratch_bytes = static_cast<size_t>(num_elems) * sizeof(T)};
}

template <class T>
CpuKernel make_exact_product(const OpSpec& spec, int num_workers) {
  return is_fused_product(spec)      ? exact_fused_product<T>(spec, num_workers)
         : spec.op == "linear"       ? exact_linear<T>(spec)
         : spec.op == "linear_dgrad" ? exact_linear_dgrad<T>(spec)
         : spec.op == "linear_wgrad" ? exact_linear_wgrad<T>(spec)
                                     : make_cpu_kernel(spec, num_workers);
}

/// make_cpu_kernel's kernels, and for products those above. Operands f32 or bf16.
inline CpuKernel make_kernel_with_exact_products(const OpSpec& spec, int num_workers) {
  const bool is_product = spec.op.starts_with("linear");
  return is_product && spec.operands[0].dtype == DType::kBF16
             ? make_exact_product<BFloat16>(spec, num_workers)
             : make_exact_product<float>(spec, num_workers);
}

}  // namespace braid
