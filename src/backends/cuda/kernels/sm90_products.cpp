// Generated headers declare the objects' launchers; their error output is not used.
#include "backends/cuda/kernels/sm90_products.h"

#include <products.h>

#include <algorithm>
#include <array>
#include <limits>
#include <list>

#include "backends/cuda/architecture.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/sm90_kernel.h"
#include "base/errors.h"

namespace braid {
namespace {

constexpr size_t kAlignment = 16;
constexpr size_t kNextTileBytes = sizeof(int32_t);

/// Operands and sizes as defined by the kind; the next tile if multiprocessors request their tiles;
/// the number of clusters that run at a time.
using Launcher = int32_t (*)(void* const* operands, void* next_tile, int32_t m, int32_t n,
                             int32_t k, int32_t groups, int32_t clusters, cudaStream_t stream);

/// A generated object.
struct Product {
  std::string_view kind;
  std::string_view name;
  size_t num_operands;
  int tile_columns;
  int cluster_blocks;  ///< multiprocessors of a cluster
  bool is_dynamic;     ///< multiprocessors request their next tile
  Sm90Kernel::Call load_library;
  Sm90Kernel::Call prepare_device;
  Launcher launch;
};

const std::vector<Product>& products() {
  static const std::vector<Product> list = {
#include <products.inc>
  };
  return list;
}

/// Machine code of each product, loaded on first use.
Sm90Kernel& code_of(const Product& product) {
  static std::list<Sm90Kernel> kernels = [] {
    std::list<Sm90Kernel> list;
    for (const Product& each : products()) {
      list.emplace_back(each.load_library, each.prepare_device);
    }
    return list;
  }();
  return *std::next(kernels.begin(), &product - products().data());
}

const Product& product_of(std::string_view kind, std::string_view name) {
  const auto product = std::ranges::find_if(
      products(), [&](const Product& each) { return each.kind == kind && each.name == name; });
  check(product != products().end(), "no product {} {}", kind, name);
  return *product;
}

int32_t narrowed(int64_t size) {
  // Half the range: the widest matrix has two columns in memory per column of the product.
  check(size > 0 && size <= std::numeric_limits<int32_t>::max() / 2, "a product of size {}", size);
  return static_cast<int32_t>(size);
}

}  // namespace

std::vector<std::string> sm90_product_names(std::string_view kind) {
  std::vector<std::string> names;
  for (const Product& product : products()) {
    if (product.kind == kind && runs_hopper_kernels(gpu_capability())) {
      names.emplace_back(product.name);
    }
  }
  return names;
}

CudaKernel make_sm90_product(std::string_view kind, std::string_view name,
                             const Sm90ProductSizes& sizes, CudaContext& context) {
  const Product& product = product_of(kind, name);
  code_of(product).prepare(context.device());
  const auto launch = [&product, m = narrowed(sizes.m), n = narrowed(sizes.n),
                       k = narrowed(sizes.k), groups = narrowed(sizes.groups),
                       clusters = context.product_sms() /
                                  product.cluster_blocks](const CudaKernelArgs& args) {
    check(args.operands.size() == product.num_operands, "a product {} of {} operands instead of {}",
          product.kind, args.operands.size(), product.num_operands);
    const std::vector<void*> operands(args.operands.begin(), args.operands.end());
    for (void* const operand : operands) {
      check(all_aligned(kAlignment, {operand}),
            "an operand of a matrix product is not {}-byte aligned", kAlignment);
    }
    if (product.is_dynamic) {
      BRAID_CUDA_CHECK(cudaMemsetAsync(args.scratch, 0, kNextTileBytes, args.stream));
    }
    const int32_t status =
        product.launch(operands.data(), args.scratch, m, n, k, groups, clusters, args.stream);
    cuda_check(static_cast<cudaError_t>(status), "launch of a matrix product");
  };
  return {.launch = launch, .scratch_bytes = product.is_dynamic ? kNextTileBytes : 0};
}

int sm90_product_columns(std::string_view kind, std::string_view name) {
  return product_of(kind, name).tile_columns;
}

std::string_view sm90_products_version() {
  return BRAID_SM90_KERNELS_VERSION;
}

}  // namespace braid
