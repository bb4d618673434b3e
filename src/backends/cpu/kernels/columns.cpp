#include "ops/columns.h"

#include <algorithm>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {

CpuKernel make_take_columns(const OpSpec& spec, int /*num_workers*/) {
  const auto a = attributes_of<ColumnsAttributes>(spec);
  const int64_t all_runs = spec.operands[0].shape[0] * a.runs;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const T* const x = args.data<const T>(0);
      T* const y = args.data<T>(1);
      run_pieces(args.workers, all_runs, row_grain(a.size), [&](int, int64_t run, int64_t end) {
        for (; run < end; ++run) {
          std::copy_n(x + run * a.width + a.begin, a.size, y + run * a.size);
        }
      });
    }};
  });
}

CpuKernel make_put_columns(const OpSpec& spec, int /*num_workers*/) {
  const auto a = attributes_of<ColumnsAttributes>(spec);
  const int64_t all_runs = spec.operands[0].shape[0] * a.runs;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const T* const dy = args.data<const T>(0);
      T* const dx = args.data<T>(1);
      run_pieces(args.workers, all_runs, row_grain(a.width), [&](int, int64_t run, int64_t end) {
        for (; run < end; ++run) {
          T* const to = dx + run * a.width;
          std::fill(to, to + a.begin, T{});
          std::copy_n(dy + run * a.size, a.size, to + a.begin);
          std::fill(to + a.begin + a.size, to + a.width, T{});
        }
      });
    }};
  });
}

}  // namespace braid
