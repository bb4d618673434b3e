#include "backends/cpu/kernels/gemm.h"

#include <gmock/gmock.h>

#include <numeric>

#include "support/kernel_harness.h"

namespace braid {
namespace {

struct Problem {
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  double alpha = 1.0;
  double beta = 0.0;
  int64_t padding = 0;  ///< elements between the rows of every matrix
};

struct Matrix {
  Matrix(DType dtype_, int64_t rows_, int64_t columns_, int64_t padding, uint64_t seed)
      : dtype(dtype_),
        rows(rows_),
        columns(columns_),
        ld(columns_ + padding),
        memory(static_cast<size_t>(rows_ * ld) * dtype_bytes(dtype_)) {
    TestRandom random(seed);
    memory.poison();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        store_double(dtype, address(r, c), random.uniform(-1, 1));
      }
    }
  }
  std::byte* address(int64_t r, int64_t c) {
    return memory.data() + static_cast<size_t>(r * ld + c) * dtype_bytes(dtype);
  }
  double at(int64_t r, int64_t c) { return load_as_double(dtype, address(r, c)); }
  /// Without padding; transposed if asked for.
  std::vector<double> dense(bool transpose) {
    std::vector<double> list(static_cast<size_t>(rows * columns));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        list[static_cast<size_t>(transpose ? c * rows + r : r * columns + c)] = at(r, c);
      }
    }
    return list;
  }

  DType dtype;
  int64_t rows;
  int64_t columns;
  int64_t ld;
  GuardedBuffer memory;
};

struct Matrices {
  Matrices(const Problem& p, DType in, DType out)
      : a(in, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.padding, 1),
        b(in, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.padding, 2),
        c(out, p.m, p.n, p.padding, 3) {}
  Matrix a;
  Matrix b;
  Matrix c;
};

std::vector<double> expected_product(const Problem& p, Matrices& m) {
  const auto a = m.a.dense(p.transpose_a);
  const auto b = m.b.dense(!p.transpose_b);  // as [n,k], so that both are read along rows
  std::vector<double> c = m.c.dense(false);
  for (int64_t i = 0; i < p.m * p.n; ++i) {
    const auto row = a.begin() + i / p.n * p.k;
    const double sum = std::inner_product(row, row + p.k, b.begin() + i % p.n * p.k, 0.0);
    double& value = c[static_cast<size_t>(i)];
    value = p.alpha * sum + (p.beta == 0 ? 0 : p.beta * value);
  }
  return c;
}

template <class In, class Out>
void run_gemm(const Problem& p, Matrices& m, int num_workers) {
  WorkerPool workers(num_workers);
  GuardedBuffer scratch(gemm_scratch_bytes<In, Out>(num_workers));
  scratch.poison();
  gemm(workers,
       GemmArgs<In, Out>{.transpose_a = p.transpose_a,
                         .transpose_b = p.transpose_b,
                         .m = p.m,
                         .n = p.n,
                         .k = p.k,
                         .a = reinterpret_cast<const In*>(m.a.memory.data()),
                         .lda = m.a.ld,
                         .b = reinterpret_cast<const In*>(m.b.memory.data()),
                         .ldb = m.b.ld,
                         .c = reinterpret_cast<Out*>(m.c.memory.data()),
                         .ldc = m.c.ld,
                         .alpha = p.alpha,
                         .beta = p.beta},
       scratch.bytes());
  EXPECT_TRUE(scratch.guards_intact());
}

template <class In, class Out>
void check_gemm(const Problem& p, int num_workers) {
  SCOPED_TRACE(fmt::format("{} {}x{}x{} ta {} tb {} beta {} padding {} workers {}",
                           dtype_name(dtype_of<In>()), p.m, p.n, p.k, p.transpose_a, p.transpose_b,
                           p.beta, p.padding, num_workers));
  Matrices m(p, dtype_of<In>(), dtype_of<Out>());
  const std::vector<double> expected = expected_product(p, m);
  if (p.beta == 0) {
    m.c.memory.poison();
  }
  run_gemm<In, Out>(p, m, num_workers);
  std::vector<double> actual;
  for (int64_t r = 0; r < p.m; ++r) {
    for (int64_t c = 0; c < p.n; ++c) {
      actual.push_back(m.c.at(r, c));
    }
    for (int64_t c = p.n; c < m.c.ld; ++c) {
      EXPECT_TRUE(std::isnan(m.c.at(r, c))) << "wrote between the rows";
    }
  }
  EXPECT_TRUE(m.c.memory.guards_intact());
  expect_close(actual, expected,
               sum_tolerance(dtype_of<Out>(), static_cast<double>(p.k) + 1, std::abs(p.alpha)));
}

template <class In, class Out>
void check_all(const Problem& sizes, int num_workers) {
  for (int variant = 0; variant < 8; ++variant) {
    Problem p = sizes;
    p.transpose_a = (variant & 1) != 0;
    p.transpose_b = (variant & 2) != 0;
    p.beta = (variant & 4) != 0 ? 0.75 : 0.0;
    p.alpha = (variant & 4) != 0 ? -1.5 : 1.0;
    p.padding = variant % 3;
    check_gemm<In, Out>(p, num_workers);
  }
}

template <class In, class Out>
void check_awkward_sizes() {
  check_all<In, Out>({.m = 1, .n = 1, .k = 1}, 1);
  check_all<In, Out>({.m = 1, .n = 37, .k = 5}, 2);
  check_all<In, Out>({.m = 53, .n = 1, .k = 11}, 3);
  check_all<In, Out>({.m = 31, .n = 17, .k = 67}, 2);
  check_all<In, Out>({.m = 157, .n = 101, .k = 64}, 3);
  check_all<In, Out>({.m = 97, .n = 211, .k = 129}, 2);
}

TEST(Gemm, EqualsTheNaiveProductInFloat) {
  check_awkward_sizes<float, float>();
}
TEST(Gemm, EqualsTheNaiveProductInDouble) {
  check_awkward_sizes<double, double>();
}
TEST(Gemm, EqualsTheNaiveProductInBfloat16) {
  check_awkward_sizes<BFloat16, BFloat16>();
}
TEST(Gemm, SumsBfloat16IntoFloat) {
  check_awkward_sizes<BFloat16, float>();
}

// More than one tile in each direction and more than one panel of k.
TEST(Gemm, Bfloat16CrossesTilesAndPanels) {
  check_gemm<BFloat16, float>({.transpose_b = true, .m = 259, .n = 515, .k = 517}, 2);
  check_gemm<BFloat16, BFloat16>(
      {.transpose_a = true, .m = 513, .n = 65, .k = 1030, .beta = 1.0, .padding = 3}, 3);
}

template <class In, class Out>
std::vector<std::byte> product_bytes(const Problem& p, int num_workers) {
  Matrices m(p, dtype_of<In>(), dtype_of<Out>());
  run_gemm<In, Out>(p, m, num_workers);
  const auto bytes = m.c.memory.bytes();
  return {bytes.begin(), bytes.end()};
}

TEST(Gemm, IsBitwiseRepeatable) {
  const Problem p{.transpose_b = true, .m = 512, .n = 192, .k = 384};
  for (const int num_workers : {1, 2, 3}) {
    const auto first = product_bytes<float, float>(p, num_workers);
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE((product_bytes<float, float>(p, num_workers)) == first);
    }
  }
}

TEST(Gemm, Bfloat16DoesNotDependOnTheNumberOfWorkers) {
  const Problem p{.transpose_b = true, .m = 700, .n = 600, .k = 130};
  const auto alone = product_bytes<BFloat16, float>(p, 1);
  EXPECT_TRUE((product_bytes<BFloat16, float>(p, 2)) == alone);
  EXPECT_TRUE((product_bytes<BFloat16, float>(p, 3)) == alone);
}

TEST(Gemm, NoRowsOrColumnsAreNoWork) {
  WorkerPool workers(2);
  gemm(workers, GemmArgs<float>{.m = 0, .n = 3, .k = 2, .lda = 2, .ldb = 3, .ldc = 3}, {});
  EXPECT_THROW(gemm(workers, GemmArgs<float>{.m = 1, .n = 3, .k = 0}, {}), InternalError);
}

TEST(Gemm, RefusesSizesBeyondTheLibrarysIntegers) {
  WorkerPool workers(1);
  const float one = 1;
  float c = 0;
  const GemmArgs<float> args{.m = 1,
                             .n = 1,
                             .k = 1,
                             .a = &one,
                             .lda = int64_t{1} << 31,
                             .b = &one,
                             .ldb = 1,
                             .c = &c,
                             .ldc = 1};
  EXPECT_THROW(gemm(workers, args, {}), InternalError);
}

TEST(Gemm, NamesTheLibraryAndItsKindOfCore) {
  EXPECT_THAT(blas_description(), ::testing::MatchesRegex("OpenBLAS [0-9.]+ [A-Za-z0-9]+"));
}

TEST(Gemm, KnowsABetterKindOfCoreThanAnOldOne) {
  EXPECT_EQ(better_blas_core("Prescott", true, true), "SkylakeX");
  EXPECT_EQ(better_blas_core("Nehalem", false, true), "Haswell");
  EXPECT_EQ(better_blas_core("Prescott", false, false), "");
  for (const char* const good : {"Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids"}) {
    EXPECT_EQ(better_blas_core(good, true, true), "") << good;
  }
}

}  // namespace
}  // namespace braid
