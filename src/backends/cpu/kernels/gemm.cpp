#include "backends/cpu/kernels/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <array>
#include <climits>

#include "backends/cpu/kernels/support.h"
#include "base/dtype.h"
#include "base/errors.h"

namespace braid {
namespace {

/// OpenBLAS uses one thread per call, because we have our own workers. Set before main, since
/// changing it during a call of another thread is not safe.
[[maybe_unused]] const bool kOneThread = [] {
  openblas_set_num_threads(1);
  return true;
}();

int blas_int(int64_t value) {
  check(value >= 0 && value <= INT_MAX, "gemm: size {} does not fit OpenBLAS's 32-bit integers",
        value);
  return static_cast<int>(value);
}

template <class T, class Function>
void call_blas(Function function, const GemmArgs<T>& args) {
  function(CblasRowMajor, args.transpose_a ? CblasTrans : CblasNoTrans,
           args.transpose_b ? CblasTrans : CblasNoTrans, blas_int(args.m), blas_int(args.n),
           blas_int(args.k), static_cast<T>(args.alpha), args.a, blas_int(args.lda), args.b,
           blas_int(args.ldb), static_cast<T>(args.beta), args.c, blas_int(args.ldc));
}

/// Rows [begin, end) of the problem.
template <class In, class Out>
GemmArgs<In, Out> rows_of(GemmArgs<In, Out> args, int64_t begin, int64_t end) {
  args.m = end - begin;
  args.a += args.transpose_a ? begin : begin * args.lda;
  args.c += begin * args.ldc;
  return args;
}

/// Columns [begin, end) of the problem.
template <class In, class Out>
GemmArgs<In, Out> columns_of(GemmArgs<In, Out> args, int64_t begin, int64_t end) {
  args.n = end - begin;
  args.b += args.transpose_b ? begin * args.ldb : begin;
  args.c += begin;
  return args;
}

/// Rows or columns per piece: whole register tiles of every kernel of OpenBLAS, and at least 1
/// Mflop (about 5 us); handing a smaller piece to another thread does not pay.
int64_t split_grain(int64_t other, int64_t k) {
  constexpr int64_t kTile = 48;
  constexpr int64_t kMinFlops = 1 << 20;
  const int64_t lines = kMinFlops / std::max<int64_t>(1, 2 * other * k);
  return (lines / kTile + 1) * kTile;
}

template <class T>
void gemm_native(WorkerPool& workers, const GemmArgs<T>& args) {
  const bool by_rows = args.m >= args.n;
  const int64_t count = by_rows ? args.m : args.n;
  const int64_t grain = split_grain(by_rows ? args.n : args.m, args.k);
  run_pieces(workers, count, grain, [&](int, int64_t begin, int64_t end) {
    gemm_on_this_thread(by_rows ? rows_of(args, begin, end) : columns_of(args, begin, end));
  });
}

// bf16: c in tiles, each a sum over panels of k. The tiles do not depend on the number of workers,
// so neither does the result. A panel is converted once per 256 or 512 uses; 2 MiB per worker fit
// into its share of the last cache level.
constexpr int64_t kTileM = 256;
constexpr int64_t kTileN = 512;
constexpr int64_t kPanelK = 512;

struct Panels {
  float* a;
  float* b;
  float* c;
};
constexpr size_t kPanelElems = kTileM * kPanelK + kTileN * kPanelK + kTileM * kTileN;

void widen(const BFloat16* from, int64_t ld, int64_t rows, int64_t columns, float* to) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      to[r * columns + c] = from[r * ld + c];
    }
  }
}

template <class Out>
void store_tile(const GemmArgs<BFloat16, Out>& args, const float* tile) {
  const auto alpha = static_cast<float>(args.alpha);
  const auto beta = static_cast<float>(args.beta);
  for (int64_t r = 0; r < args.m; ++r) {
    Out* const to = args.c + r * args.ldc;
    const float* const from = tile + r * args.n;
    if (beta == 0.0f) {
      for (int64_t c = 0; c < args.n; ++c) {
        store(to, c, alpha * from[c]);
      }
    } else {
      for (int64_t c = 0; c < args.n; ++c) {
        store(to, c, alpha * from[c] + beta * static_cast<float>(to[c]));
      }
    }
  }
}

/// `tile` is a part of a problem, at most kTileM by kTileN.
template <class Out>
void gemm_tile(const GemmArgs<BFloat16, Out>& tile, const Panels& panels) {
  for (int64_t k = 0; k < tile.k; k += kPanelK) {
    const int64_t depth = std::min(kPanelK, tile.k - k);
    const BFloat16* const a = tile.a + (tile.transpose_a ? k * tile.lda : k);
    const BFloat16* const b = tile.b + (tile.transpose_b ? k : k * tile.ldb);
    const int64_t a_columns = tile.transpose_a ? tile.m : depth;
    const int64_t b_columns = tile.transpose_b ? depth : tile.n;
    widen(a, tile.lda, tile.transpose_a ? depth : tile.m, a_columns, panels.a);
    widen(b, tile.ldb, tile.transpose_b ? tile.n : depth, b_columns, panels.b);
    gemm_on_this_thread(GemmArgs<float>{.transpose_a = tile.transpose_a,
                                        .transpose_b = tile.transpose_b,
                                        .m = tile.m,
                                        .n = tile.n,
                                        .k = depth,
                                        .a = panels.a,
                                        .lda = a_columns,
                                        .b = panels.b,
                                        .ldb = b_columns,
                                        .c = panels.c,
                                        .ldc = tile.n,
                                        .beta = k == 0 ? 0.0 : 1.0});
  }
  store_tile(tile, panels.c);
}

template <class Out>
void gemm_tiled(WorkerPool& workers, const GemmArgs<BFloat16, Out>& args,
                std::span<std::byte> scratch) {
  check(scratch.size() >= gemm_scratch_bytes<BFloat16, Out>(workers.num_workers()),
        "gemm: {} bytes of scratch are too few for {} workers", scratch.size(),
        workers.num_workers());
  const int64_t tiles_n = (args.n + kTileN - 1) / kTileN;
  const int64_t tiles_m = (args.m + kTileM - 1) / kTileM;
  auto* const memory = reinterpret_cast<float*>(scratch.data());
  run_pieces(workers, tiles_m * tiles_n, 1, [&](int worker, int64_t begin, int64_t end) {
    float* const mine = memory + static_cast<size_t>(worker) * kPanelElems;
    const Panels panels{mine, mine + kTileM * kPanelK, mine + (kTileM + kTileN) * kPanelK};
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t m = tile / tiles_n * kTileM;
      const int64_t n = tile % tiles_n * kTileN;
      gemm_tile(columns_of(rows_of(args, m, std::min(args.m, m + kTileM)), n,
                           std::min(args.n, n + kTileN)),
                panels);
    }
  });
}

}  // namespace

template <class T>
void gemm_on_this_thread(const GemmArgs<T>& args) {
  if constexpr (std::is_same_v<T, float>) {
    call_blas(cblas_sgemm, args);
  } else {
    call_blas(cblas_dgemm, args);
  }
}

template <class In, class Out>
size_t gemm_scratch_bytes(int num_workers) {
  return std::is_same_v<In, BFloat16>
             ? static_cast<size_t>(num_workers) * kPanelElems * sizeof(float)
             : 0;
}

template <class In, class Out>
void gemm(WorkerPool& workers, const GemmArgs<In, Out>& args, std::span<std::byte> scratch) {
  check(args.k > 0, "gemm: the inner dimension must be at least 1, not {}", args.k);
  if (args.m == 0 || args.n == 0) {
    return;
  }
  if constexpr (std::is_same_v<In, BFloat16>) {
    gemm_tiled(workers, args, scratch);
  } else {
    gemm_native(workers, args);
  }
}

std::string blas_description() {
  const std::string words = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE ..."
  return words.substr(0, words.find(' ', words.find(' ') + 1)) + " " + openblas_get_corename();
}

std::string better_blas_core(std::string_view chosen, bool has_avx512, bool has_avx2) {
  constexpr std::array kWithoutAvx2 = {
      "Katmai",     "Coppermine", "Northwood", "Prescott",    "Banias",    "Core2",  "Penryn",
      "Dunnington", "Nehalem",    "Atom",      "Sandybridge", "Barcelona", "Bobcat", "Bulldozer"};
  const bool is_old = std::ranges::find(kWithoutAvx2, chosen) != kWithoutAvx2.end();
  return !is_old ? "" : has_avx512 ? "SkylakeX" : has_avx2 ? "Haswell" : "";
}

std::string better_blas_core() {
#if defined(__x86_64__)
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return better_blas_core(openblas_get_corename(), has_avx512, has_avx2);
#else
  return {};
#endif
}

template void gemm_on_this_thread(const GemmArgs<float>&);
template void gemm_on_this_thread(const GemmArgs<double>&);
template size_t gemm_scratch_bytes<float, float>(int);
template size_t gemm_scratch_bytes<double, double>(int);
template size_t gemm_scratch_bytes<BFloat16, BFloat16>(int);
template size_t gemm_scratch_bytes<BFloat16, float>(int);
template void gemm(WorkerPool&, const GemmArgs<float>&, std::span<std::byte>);
template void gemm(WorkerPool&, const GemmArgs<double>&, std::span<std::byte>);
template void gemm(WorkerPool&, const GemmArgs<BFloat16>&, std::span<std::byte>);
template void gemm(WorkerPool&, const GemmArgs<BFloat16, float>&, std::span<std::byte>);

}  // namespace braid
