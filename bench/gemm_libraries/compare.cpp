// Single-precision products of one BLAS library at the shapes of a GPT-2 of width 384 with 2048
// tokens per step, on one thread or split over two. Prints Gflop/s by the thread's own CPU time
// (best of 0.2 s), so that other load on the machine disturbs little.
//
//   g++ -std=c++20 -O2 -pthread bench/gemm_libraries/compare.cpp -ldl -o compare
//   ./compare openblas|blis|onednn THREADS
//
// Libraries: Debian's libopenblas0-pthread, libblis4-openmp, libdnnl2; not linked, so that none is
// needed to build.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

/// Row-major c [m,n] = op(a) op(b) + beta c.
struct Product {
  bool transpose_a, transpose_b;
  int m, n, k;
  const float* a;
  int lda;
  const float* b;
  int ldb;
  float beta;
  float* c;
  int ldc;
};
using Gemm = std::function<void(const Product&)>;

using CblasSgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*,
                            int, float, float*, int);
using DnnlSgemm = int (*)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t,
                          const float*, int64_t, float, float*, int64_t);

void* open_library(const char* name) {
  void* const library = dlopen(name, RTLD_NOW);
  return library != nullptr ? library : throw std::runtime_error(dlerror());
}

Gemm cblas(void* library) {
  const auto sgemm = reinterpret_cast<CblasSgemm>(dlsym(library, "cblas_sgemm"));
  return [sgemm](const Product& p) {
    constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
    sgemm(kRowMajor, p.transpose_a ? kTranspose : kNoTranspose,
          p.transpose_b ? kTranspose : kNoTranspose, p.m, p.n, p.k, 1.0f, p.a, p.lda, p.b, p.ldb,
          p.beta, p.c, p.ldc);
  };
}

Gemm open_gemm(const std::string& name) {
  setenv("OMP_NUM_THREADS", "1", 1);  // read by the OpenMP libraries when they load
  if (name == "openblas") {
    void* const library = open_library("libopenblas.so.0");
    reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"))(1);
    std::printf("OpenBLAS computes for %s\n",
                reinterpret_cast<char* (*)()>(dlsym(library, "openblas_get_corename"))());
    return cblas(library);
  }
  if (name == "blis") {
    return cblas(open_library("libblis.so.4"));
  }
  if (name == "onednn") {
    const auto sgemm =
        reinterpret_cast<DnnlSgemm>(dlsym(open_library("libdnnl.so.2"), "dnnl_sgemm"));
    return [sgemm](const Product& p) {
      sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f, p.a, p.lda,
            p.b, p.ldb, p.beta, p.c, p.ldc);
    };
  }
  throw std::runtime_error("unknown library " + name);
}

/// Values in [-1, 1).
void fill_random(std::vector<float>& matrix) {
  std::minstd_rand random(1);
  std::generate(matrix.begin(), matrix.end(),
                [&] { return static_cast<float>(random()) * 0x1p-30f - 1.0f; });
}

std::vector<float> random_matrix(size_t size) {
  std::vector<float> matrix(size);
  fill_random(matrix);
  return matrix;
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The slowest thread's CPU seconds of one product, its rows split over the threads.
double split_product(const Gemm& gemm, Product p, int num_threads) {
  std::vector<double> seconds(static_cast<size_t>(num_threads));
  const int rows = (p.m / num_threads + 15) / 16 * 16;
  const auto piece = [&](int thread) {
    const int begin = std::min(p.m, rows * thread);
    Product part = p;
    part.m = std::min(p.m, begin + rows) - begin;
    part.a += p.transpose_a ? begin : static_cast<ptrdiff_t>(begin) * p.lda;
    part.c += static_cast<ptrdiff_t>(begin) * p.ldc;
    const double start = cpu_seconds();
    gemm(part);
    seconds[static_cast<size_t>(thread)] = cpu_seconds() - start;
  };
  std::vector<std::thread> threads;
  for (int thread = 1; thread < num_threads; ++thread) {
    threads.emplace_back(piece, thread);
  }
  piece(0);
  for (std::thread& thread : threads) {
    thread.join();
  }
  return *std::max_element(seconds.begin(), seconds.end());
}

double gflops_per_s(const Gemm& gemm, const Product& p, int num_threads) {
  double best = 1e9;
  double spent = 0;
  split_product(gemm, p, num_threads);  // warm up
  while (spent < 0.2) {
    const double seconds = split_product(gemm, p, num_threads);
    best = std::min(best, seconds);
    spent += seconds;
  }
  return 2e-9 * p.m * p.n * p.k / best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: compare openblas|blis|onednn THREADS\n");
    return 2;
  }
  const Gemm gemm = open_gemm(argv[1]);
  const int num_threads = std::atoi(argv[2]);
  constexpr int kShapes[][3] = {{2048, 384, 1152}, {2048, 384, 384},  {2048, 384, 1536},
                                {2048, 1536, 384}, {2048, 384, 4096}, {2048, 384, 50304},
                                {512, 128, 384},   {1024, 256, 1024}, {1024, 512, 512}};
  std::printf("%6s %6s %6s %8s %8s %8s  Gflop/s\n", "N", "K", "M", "forward", "dgrad", "wgrad");
  for (const auto& [n, k, m] : kShapes) {
    auto x = random_matrix(static_cast<size_t>(n) * k);
    auto w = random_matrix(static_cast<size_t>(m) * k);
    auto y = random_matrix(static_cast<size_t>(n) * m);
    const Product forward{false, true, n, m, k, x.data(), k, w.data(), k, 0, y.data(), m};
    const Product dgrad{false, false, n, k, m, y.data(), m, w.data(), k, 0, x.data(), k};
    const Product wgrad{true, false, m, k, n, y.data(), m, x.data(), k, 1, w.data(), k};
    std::printf("%6d %6d %6d", n, k, m);
    for (const Product& p : {forward, dgrad, wgrad}) {
      fill_random(y);  // results fed back would grow without end
      std::printf(" %8.1f", gflops_per_s(gemm, p, num_threads));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}
