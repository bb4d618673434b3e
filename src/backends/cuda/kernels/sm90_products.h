#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/kernel.h"

/// Products of bf16 matrices by quack-kernels' GEMM for Hopper with our own epilogues, of several
/// kinds, each with several tile sizes (scripts/sm90_kernels/products.py defines the kinds).
/// Bitwise repeatable: one multiprocessor adds up an element in the order of k, in fp32.
///
/// A kernel occupies its multiprocessors completely until it ends. For concurrent kernels (such as
/// NCCL's), those called "dynamic" assign tiles to the multiprocessors that are free. The others
/// divide the tiles in advance, so a multiprocessor that starts late delays the end.
namespace braid {

/// Names of this build's kernels of a kind; empty if scripts/build_sm90_kernels.sh was not run, and
/// on GPUs other than Hopper's.
std::vector<std::string> sm90_product_names(std::string_view kind);

/// Sizes as defined by the kind.
struct Sm90ProductSizes {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t groups = 1;  ///< which divide m or k; other kinds have one
};

/// Makes one of those kernels. Operands: dense row-major matrices and vectors, 16-byte aligned, as
/// defined by the kind; all rows of bf16 are whole vectors. Products of groups have i32 offsets
/// [groups + 1] among them.
CudaKernel make_sm90_product(std::string_view kind, std::string_view name,
                             const Sm90ProductSizes& sizes, CudaContext& context);

/// The columns of one of its tiles.
int sm90_product_columns(std::string_view kind, std::string_view name);

/// Distinguishes builds of those kernels.
std::string_view sm90_products_version();

}  // namespace braid
