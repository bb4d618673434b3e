#include "passes/tensor/ring_exchange.h"

#include <fmt/core.h>

#include <set>
#include <utility>
#include <vector>

#include "passes/analysis/job_spans.h"
#include "passes/pipeline_options.h"
#include "passes/tensor/split_products.h"
#include "passes/tensor/tensor_axes.h"
#include "passes/tensor/tensor_sites.h"

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

std::set<JobKey> jobs_of(const std::vector<JobPair>& pairs) {
  std::set<JobKey> jobs;
  for (const JobPair& pair : pairs) {
    jobs.insert({job_key(pair.first), job_key(pair.second)});
  }
  return jobs;
}

}  // namespace

PassResult ring_exchange(Program program, const RingExchangeOptions& options) {
  if (!any_split(options.sites)) {
    return {std::move(program), {false, 0, "no site has these methods"}};
  }
  const std::vector<DependentProduct> pairs = find_dependent_products(program);
  const std::set<JobKey> woven = jobs_of(options.pairs);
  const bool keeps_features = routes_tokens(program);
  std::vector<DependentProduct> chosen;
  for (DependentProduct pair : pairs) {
    pair.overlap = overlap_of(options.sites, product_site(program, program.tasks[pair.product]));
    if (keeps_features && pair.overlap.method == OverlapMethod::kChunked) {
      continue;
    }
    if (!woven.contains(job_key(program.tasks[pair.product].label)) &&
        can_split(program, pair, options.min_rows)) {
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

Pass ring_exchange_pass(const PipelineOptions& options) {
  return {.name = "ring_exchange",
          .summary =
              "Splits products and the tensor communication beside them into pieces, so that one "
              "piece is sent while another is computed.",
          .run = run_of(ring_exchange, options),
          .changes_rounding = true,
          .only_overlaps = true,
          .keys = {"overlap.tp_comm_overlap", "overlap.tp_comm_overlap_ag",
                   "overlap.tp_comm_overlap_rs", "overlap.tp_comm_overlap_rs_dgrad",
                   "overlap.tp_comm_overlap_sites", "overlap.tp_comm_overlap_min_rows"},
          .read_keys =
              [](const OverlapConfig& overlap, PipelineOptions& its) {
                its.of<RingExchangeOptions>() = {.sites = site_overlaps(overlap),
                                                 .min_rows = overlap.tp_comm_overlap_min_rows};
              },
          .is_wanted =
              [](const OverlapConfig& overlap) {
                return overlap.tp_comm_overlap && any_split(site_overlaps(overlap));
              },
          .axes = tensor_axes};
}

}  // namespace braid
