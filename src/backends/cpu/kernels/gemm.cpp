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

/// The panels of a worker in the scratch of all; none for types that need none.
Panels panels_of(std::span<std::byte> scratch, int worker) {
  if (scratch.empty()) {
    return {};
  }
  float* const mine =
      reinterpret_cast<float*>(scratch.data()) + static_cast<size_t>(worker) * kPanelElems;
  return {mine, mine + kTileM * kPanelK, mine + (kTileM + kTileN) * kPanelK};
}

template <class In, class Out>
void check_scratch(const WorkerPool& workers, std::span<std::byte> scratch) {
  check(scratch.size() >= gemm_scratch_bytes<In, Out>(workers.num_workers()),
        "gemm: {} bytes of scratch are too few for {} workers", scratch.size(),
        workers.num_workers());
}

int64_t tiles_of(int64_t size, int64_t tile) {
  return (size + tile - 1) / tile;
}

template <class In, class Out>
int64_t count_tiles(const GemmArgs<In, Out>& args) {
  return tiles_of(args.m, kTileM) * tiles_of(args.n, kTileN);
}

/// Tile `index` of a problem: rows of tiles one after the other.
template <class In, class Out>
GemmArgs<In, Out> tile_of(const GemmArgs<In, Out>& args, int64_t index) {
  const int64_t tiles_n = tiles_of(args.n, kTileN);
  const int64_t m = index / tiles_n * kTileM;
  const int64_t n = index % tiles_n * kTileN;
  return columns_of(rows_of(args, m, std::min(args.m, m + kTileM)), n,
                    std::min(args.n, n + kTileN));
}

template <class Out>
void gemm_tiled(WorkerPool& workers, const GemmArgs<BFloat16, Out>& args,
                std::span<std::byte> scratch) {
  check_scratch<BFloat16, Out>(workers, scratch);
  run_pieces(workers, count_tiles(args), 1, [&](int worker, int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      gemm_tile(tile_of(args, tile), panels_of(scratch, worker));
    }
  });
}

/// A sum of no terms.
template <class In, class Out>
void add_nothing(const GemmArgs<In, Out>& tile) {
  for (int64_t r = 0; tile.beta == 0.0 && r < tile.m; ++r) {
    std::fill_n(tile.c + r * tile.ldc, tile.n, Out(0.0f));
  }
}

/// f32 and f64 need no panels.
template <class In, class Out>
void tile_of_group(const GemmArgs<In, Out>& tile, const Panels& panels) {
  if (tile.k == 0) {
    add_nothing(tile);
  } else if constexpr (std::is_same_v<In, BFloat16>) {
    gemm_tile(tile, panels);
  } else {
    gemm_on_this_thread(tile);
  }
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

template <class In, class Out>
void gemm_groups(WorkerPool& workers, int64_t count, const ProductOf<In, Out>& product_of,
                 std::span<std::byte> scratch) {
  check_scratch<In, Out>(workers, scratch);
  int64_t num_tiles = 0;
  for (int64_t group = 0; group < count; ++group) {
    num_tiles += count_tiles(product_of(group));
  }
  run_pieces(workers, num_tiles, 1, [&](int worker, int64_t begin, int64_t end) {
    const Panels panels = panels_of(scratch, worker);
    int64_t first = 0;  // tile of the group
    for (int64_t group = 0; group < count && first < end; ++group) {
      const GemmArgs<In, Out> args = product_of(group);
      const int64_t next = first + count_tiles(args);
      for (int64_t tile = std::max(begin, first); tile < std::min(end, next); ++tile) {
        tile_of_group(tile_of(args, tile - first), panels);
      }
      first = next;
    }
  });
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
template void gemm_groups<float>(WorkerPool&, int64_t, const ProductOf<float, float>&,
                                 std::span<std::byte>);
template void gemm_groups<double>(WorkerPool&, int64_t, const ProductOf<double, double>&,
                                  std::span<std::byte>);
template void gemm_groups<BFloat16>(WorkerPool&, int64_t, const ProductOf<BFloat16, BFloat16>&,
                                    std::span<std::byte>);
template void gemm_groups<BFloat16, float>(WorkerPool&, int64_t, const ProductOf<BFloat16, float>&,
                                           std::span<std::byte>);
template void gemm(WorkerPool&, const GemmArgs<float>&, std::span<std::byte>);
template void gemm(WorkerPool&, const GemmArgs<double>&, std::span<std::byte>);
template void gemm(WorkerPool&, const GemmArgs<BFloat16>&, std::span<std::byte>);
template void gemm(WorkerPool&, const GemmArgs<BFloat16, float>&, std::span<std::byte>);

}  // namespace braid
