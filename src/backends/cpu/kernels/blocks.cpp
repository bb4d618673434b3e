#include "ops/blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"

namespace braid {
namespace {

// The sums of a run of elements stay in the L1 cache during the loop over blocks.
constexpr int64_t kRunElems = 2048;

template <class T>
void sum_run(const KernelArgs& args, size_t num_blocks, int64_t begin, int64_t count) {
  std::array<Wide<T>, kRunElems> sums;
  for (size_t block = 0; block < num_blocks; ++block) {
    const T* const x = args.data<const T>(block) + begin;
    if (block == 0) {
      for (int64_t i = 0; i < count; ++i) {
        sums[static_cast<size_t>(i)] = static_cast<Wide<T>>(x[i]);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        sums[static_cast<size_t>(i)] += static_cast<Wide<T>>(x[i]);
      }
    }
  }
  T* const y = args.data<T>(num_blocks) + begin;
  for (int64_t i = 0; i < count; ++i) {
    store(y, i, sums[static_cast<size_t>(i)]);
  }
}

template <class T>
CpuKernel sum_blocks_kernel(int64_t count, size_t num_blocks) {
  return {.run = [count, num_blocks](const KernelArgs& args) {
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kRunElems) {
        sum_run<T>(args, num_blocks, at, std::min(kRunElems, end - at));
      }
    });
  }};
}

}  // namespace

CpuKernel make_sum_blocks(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const size_t num_blocks = spec.operands.size() - 1;
  return dispatch_dtype(spec, 0,
                        [&]<class T>() { return sum_blocks_kernel<T>(count, num_blocks); });
}

CpuKernel make_largest_of_blocks(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const size_t num_blocks = spec.operands.size() - 1;
  return {.run = [count, num_blocks](const KernelArgs& args) {
    int32_t* const y = args.data<int32_t>(num_blocks);
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
      std::copy(args.data<const int32_t>(0) + begin, args.data<const int32_t>(0) + end, y + begin);
      for (size_t block = 1; block < num_blocks; ++block) {
        const int32_t* const x = args.data<const int32_t>(block);
        for (int64_t i = begin; i < end; ++i) {
          y[i] = std::max(y[i], x[i]);
        }
      }
    });
  }};
}

CpuKernel make_join_columns(const OpSpec& spec, int /*num_workers*/) {
  const size_t elem_bytes = dtype_bytes(spec.operands[0].dtype);
  const int64_t rows = spec.operands[0].shape[0];
  std::vector<size_t> widths;  // in bytes; y is last
  for (const OperandSpec& operand : spec.operands) {
    widths.push_back(static_cast<size_t>(operand.shape[1]) * elem_bytes);
  }
  const int64_t grain = row_grain(spec.operands.back().shape[1]);
  return {.run = [rows, widths, grain](const KernelArgs& args) {
    run_pieces(args.workers, rows, grain, [&](int, int64_t begin, int64_t end) {
      for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
        std::byte* to = args.operands[widths.size() - 1] + row * widths.back();
        for (size_t block = 0; block + 1 < widths.size(); ++block) {
          std::memcpy(to, args.operands[block] + row * widths[block], widths[block]);
          to += widths[block];
        }
      }
    });
  }};
}

CpuKernel make_join_blocks(const OpSpec& spec, int /*num_workers*/) {
  const size_t width =
      static_cast<size_t>(spec.operands[0].shape[1]) * dtype_bytes(spec.operands[0].dtype);
  const auto rows = static_cast<size_t>(spec.operands[1].shape[0]);
  const size_t blocks = static_cast<size_t>(spec.operands[0].shape[0]) / rows;
  const int64_t grain = row_grain(spec.operands[1].shape[1]);
  return {.run = [=](const KernelArgs& args) {
    run_pieces(
        args.workers, static_cast<int64_t>(rows), grain, [&](int, int64_t begin, int64_t end) {
          for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
            for (size_t block = 0; block < blocks; ++block) {
              std::memcpy(args.operands[1] + (row * blocks + block) * width,
                          args.operands[0] + (block * rows + row) * width, width);
            }
          }
        });
  }};
}

}  // namespace braid
