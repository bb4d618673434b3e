#include "passes/tensor/ring_exchange.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "passes/tensor/split_products.h"

namespace braid {
namespace {

bool any_split(const SiteOverlaps& sites) {
  for (const auto& [name, site] : sites) {
    if (site.method == OverlapMethod::kRing || site.method == OverlapMethod::kChunked) {
      return true;
    }
  }
  return false;
}

}  // namespace

PassResult ring_exchange(Program program, const RingExchangeOptions& options) {
  if (!any_split(options.sites)) {
    return {std::move(program), {false, 0, "no site has these methods"}};
  }
  const std::vector<DependentProduct> pairs = find_dependent_products(program);
  std::vector<DependentProduct> chosen;
  for (DependentProduct pair : pairs) {
    pair.overlap = overlap_of(options.sites, product_site(program, program.tasks[pair.product]));
    if (can_split(program, pair, options.min_rows)) {
      chosen.push_back(pair);
    }
  }
  const auto num_split = static_cast<int64_t>(chosen.size());
  PassReport report{num_split > 0, num_split,
                    fmt::format("split {} of {} products beside the tensor communication that "
                                "they depend on",
                                num_split, pairs.size())};
  if (chosen.empty()) {
    return {std::move(program), std::move(report)};
  }
  move_tensor_communication(program, options.comm_priority);
  program = split_products(program, chosen);
  return {std::move(program), std::move(report)};
}

}  // namespace braid
