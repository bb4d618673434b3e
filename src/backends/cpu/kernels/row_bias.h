#pragma once

#include "backends/cpu/kernels/support.h"

namespace braid {

/// y [rows, width]: every row is `bias`. A product is then added to it: a GEMM has to initialise
/// its result anyway.
template <class T>
void fill_rows(WorkerPool& workers, const T* bias, int64_t rows, int64_t width, T* y) {
  run_pieces(workers, rows, row_grain(width), [&](int, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      std::copy_n(bias, width, y + n * width);
    }
  });
}

}  // namespace braid
