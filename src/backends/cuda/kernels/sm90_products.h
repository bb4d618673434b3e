#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/kernel.h"

/// Products of bf16 matrices by quack-kernels' GEMM for Hopper with epilogues of ours, of several
/// kinds, each with several sizes of tiles (scripts/sm90_kernels/products.py says what the kinds
/// compute). Bitwise repeatable: one multiprocessor adds up an element in the order of k, in fp32.
///
/// A kernel occupies its multiprocessors whole until it ends. Where others run beside it (NCCL's),
/// those called "dynamic" leave the tiles to the multiprocessors that are free; the rest have them
/// divided up beforehand, so that a multiprocessor that comes late does its share alone.
namespace braid {

/// Names of the kernels that this build has of a kind, without any where
/// scripts/build_sm90_kernels.sh was not run.
std::vector<std::string> sm90_product_names(std::string_view kind);

/// As the kind has them.
struct Sm90ProductSizes {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

/// One of those kernels. Operands: three or four dense row-major matrices, 16-byte aligned, as the
/// kind has them; all rows of bf16 are whole vectors.
CudaKernel make_sm90_product(std::string_view kind, std::string_view name,
                             const Sm90ProductSizes& sizes, CudaContext& context);

/// What tells apart builds of those kernels.
std::string_view sm90_products_version();

}  // namespace braid
