// Replaces sm90_products.cpp if scripts/build_sm90_kernels.sh was not run.
#include "backends/cuda/kernels/sm90_products.h"
#include "base/errors.h"

namespace braid {

std::vector<std::string> sm90_product_names(std::string_view) {
  return {};
}

CudaKernel make_sm90_product(std::string_view kind, std::string_view name, const Sm90ProductSizes&,
                             CudaContext&) {
  throw_internal_error("this build has no product {} {} for Hopper", kind, name);
}

int sm90_product_columns(std::string_view kind, std::string_view name) {
  throw_internal_error("this build has no product {} {} for Hopper", kind, name);
}

std::string_view sm90_products_version() {
  return "none";
}

}  // namespace braid
