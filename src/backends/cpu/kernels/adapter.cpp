#include "ops/adapter.h"

#include <algorithm>
#include <array>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {

CpuKernel make_add_adapters(const OpSpec& spec, int /*num_workers*/) {
  const auto a = attributes_of<AddAdaptersAttributes>(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t width = spec.operands[0].shape[1];
  const size_t num_adapters = spec.operands.size() - 2;
  std::array<int64_t, kMostAdapters> sizes{};
  for (size_t i = 0; i < num_adapters; ++i) {
    sizes[i] = spec.operands[i + 1].shape[1];
  }
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const T* const base = args.data<const T>(0);
      T* const y = args.data<T>(num_adapters + 1);
      const auto scale = static_cast<Wide<T>>(a.scale);
      run_pieces(args.workers, rows, row_grain(width), [&](int, int64_t row, int64_t end) {
        for (; row < end; ++row) {
          std::copy_n(base + row * width, width, y + row * width);
          for (size_t i = 0; i < num_adapters; ++i) {
            const T* const z = args.data<const T>(i + 1) + row * sizes[i];
            T* const to = y + row * width + a.begin_of(i);
            for (int64_t c = 0; c < sizes[i]; ++c) {
              store(to, c * a.step,
                    static_cast<Wide<T>>(to[c * a.step]) + scale * static_cast<Wide<T>>(z[c]));
            }
          }
        }
      });
    }};
  });
}

CpuKernel make_adapter_grad(const OpSpec& spec, int /*num_workers*/) {
  const auto a = attributes_of<AdapterGradAttributes>(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t width = spec.operands[0].shape[1];
  const int64_t size = spec.operands[1].shape[1];
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const T* const dy = args.data<const T>(0);
      T* const dz = args.data<T>(1);
      const auto scale = static_cast<Wide<T>>(a.scale);
      run_pieces(args.workers, rows, row_grain(size), [&](int, int64_t row, int64_t end) {
        for (; row < end; ++row) {
          const T* const from = dy + row * width + a.begin;
          for (int64_t c = 0; c < size; ++c) {
            store(dz, row * size + c, scale * static_cast<Wide<T>>(from[c * a.step]));
          }
        }
      });
    }};
  });
}

}  // namespace braid
