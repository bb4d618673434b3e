#include "ops/transpose.h"

#include <algorithm>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"

namespace braid {
namespace {

constexpr int64_t kTile = 64;  // a tile of x and of y stay in the first-level cache

void transpose_tile(const std::byte* x, std::byte* y, const Shape& shape, int64_t row,
                    int64_t column) {
  const int64_t row_end = std::min(shape[0], row + kTile);
  const int64_t column_end = std::min(shape[1], column + kTile);
  for (int64_t c = column; c < column_end; ++c) {
    for (int64_t r = row; r < row_end; ++r) {
      y[c * shape[0] + r] = x[r * shape[1] + c];
    }
  }
}

}  // namespace

CpuKernel make_transpose(const OpSpec& spec, int /*num_workers*/) {
  return {.run = [shape = spec.operands[0].shape](const KernelArgs& args) {
    const int64_t bands = (shape[0] + kTile - 1) / kTile;
    run_pieces(
        args.workers, bands, row_grain(kTile * shape[1]), [&](int, int64_t begin, int64_t end) {
          for (int64_t band = begin; band < end; ++band) {
            for (int64_t column = 0; column < shape[1]; column += kTile) {
              transpose_tile(args.operands[0], args.operands[1], shape, band * kTile, column);
            }
          }
        });
  }};
}

}  // namespace braid
