#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>

namespace braid {

class WorkerPool;

/// c = alpha * op(a) op(b) + beta * c with op(a) [m,k], op(b) [k,n], c [m,n], all row-major; op
/// transposes if requested. A leading dimension is the distance between stored rows, in elements.
/// With beta = 0 the old content of c (NaN, for example) is ignored. c overlaps neither a nor b.
template <class In, class Out = In>
struct GemmArgs {
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const In* a = nullptr;  // [m,k], or [k,m] if transpose_a
  int64_t lda = 0;
  const In* b = nullptr;  // [k,n], or [n,k] if transpose_b
  int64_t ldb = 0;
  Out* c = nullptr;  // [m,n]
  int64_t ldc = 0;
  double alpha = 1.0;
  double beta = 0.0;
};

/// The product of a group; not deduced from a lambda.
template <class In, class Out>
using ProductOf = std::type_identity_t<std::function<GemmArgs<In, Out>(int64_t group)>>;

/// Bytes of scratch that `gemm` of these types needs, for matrices of any size.
template <class In, class Out = In>
size_t gemm_scratch_bytes(int num_workers);

/// Splits c by rows or columns, whichever lets the workers share the larger input. The pieces
/// depend only on the sizes and the number of workers, so results are bitwise repeatable. bf16
/// inputs are converted to fp32 panels in `scratch` (64-byte aligned) and summed in fp32; a bf16
/// result is rounded once. Types: float, double, BFloat16, and BFloat16 with Out = float. Throws
/// InternalError if a size does not fit the library's 32-bit integers.
template <class In, class Out = In>
void gemm(WorkerPool& workers, const GemmArgs<In, Out>& args, std::span<std::byte> scratch);

/// The products of `count` groups that share the workers: product_of(g) is that of group g, which
/// may have no rows or no depth; without depth, c is 0 or, with beta = 1, stays. All are cut into
/// tiles of one size, so bits do not depend on the number of workers. beta is 0 or 1. Allocates
/// nothing if the function does not (std::cref). Scratch, types and errors as for `gemm`.
template <class In, class Out = In>
void gemm_groups(WorkerPool& workers, int64_t count, const ProductOf<In, Out>& product_of,
                 std::span<std::byte> scratch);

/// The same on the calling thread alone, for kernels that split their work themselves. T: float,
/// double.
template <class T>
void gemm_on_this_thread(const GemmArgs<T>& args);

/// Version of the BLAS library and the core type that it uses, for example "OpenBLAS 0.3.21
/// SkylakeX". The library chooses the type when it is loaded; the environment variable
/// OPENBLAS_CORETYPE overrides it, at up to half the speed if it names one without AVX-512.
std::string blas_description();

/// The core type of OpenBLAS for a processor with these instructions, if `chosen` uses fewer;
/// empty: `chosen` is good. OpenBLAS chooses "Prescott", whose kernels use SSE3, on processors that
/// are newer than itself.
std::string better_blas_core(std::string_view chosen, bool has_avx512, bool has_avx2);
/// The same for the library and the processor at hand.
std::string better_blas_core();

}  // namespace braid
