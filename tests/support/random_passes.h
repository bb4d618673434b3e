#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "passes/context/split_exchange.h"
#include "passes/gradients/prefetch_parameters.h"
#include "passes/memory/offload.h"
#include "passes/memory/recompute.h"
#include "passes/pipeline.h"
#include "passes/pipeline/defer_head_wgrad.h"
#include "passes/pipeline/delay_wgrad.h"
#include "passes/pipeline/fill_cooldown.h"
#include "passes/pipeline/p2p_streams.h"
#include "passes/streams/comm_engine.h"
#include "passes/streams/limit_sms.h"
#include "passes/tensor/bulk_overlap.h"
#include "passes/tensor/ring_exchange.h"
#include "passes/tensor/split_ops.h"
#include "plan/recompute_policies.h"
#include "support/random_layout.h"

namespace braid {

/// Passes to run one after the other, the same on every rank.
struct PassSequence {
  std::vector<Pass> passes;

  std::string names() const {
    std::string text;
    for (const Pass& pass : passes) {
      text += (text.empty() ? "" : " ") + std::string(pass.name);
    }
    return text;
  }
};

/// Draws options of passes and sequences of them.
class RandomPasses {
 public:
  explicit RandomPasses(uint64_t seed) : random_(seed * 0xD1342543DE82EF95u + 7) {}

  /// What the run says of memory, and anything of overlap.
  PipelineOptions options(const MemoryConfig& memory) {
    PipelineOptions options;
    options.of<RecomputeOptions>() = {
        .policy = recompute_policy(choice<RecomputeChoice>(memory.recompute)),
        .num_layers = memory.recompute_layers};
    options.of<OffloadOptions>() = {.num_layers = memory.offload_layers,
                                    .prefetch_layers = memory.offload_prefetch_layers,
                                    .min_bytes = memory.offload_min_bytes};
    options.of<LimitSmsOptions>() = {.comm_sms = {{GroupKind::kTensor, 8}}, .product_margin = 3};
    options.of<RingExchangeOptions>() = {.sites = sites(), .min_rows = 1};
    options.of<BulkOverlapOptions>().sites =
        one_in(2) ? options.of<RingExchangeOptions>().sites : default_site_overlaps();
    options.of<DelayWgradOptions>() = {.num_layers = below(4), .whole_layers = one_in(2)};
    options.of<DeferHeadWgradOptions>() = {.enabled = !one_in(4), .limit = below(4)};
    options.of<FillCooldownOptions>().enabled = !one_in(4);
    options.of<P2pStreamsOptions>() = {.enabled = !one_in(8),
                                       .warmup_flush = one_in(2),
                                       .backward_on_comm_stream = one_in(2),
                                       .jobs_ahead = below(3)};
    options.of<PrefetchParametersOptions>() = {.units = below(4), .aligns = one_in(2)};
    options.of<SplitExchangeOptions>().enabled = false;
    options.of<SplitOpsOptions>() = {.enabled = true, .min_gain_ns = 1, .min_rows = 1};
    options.of<CommEngineOptions>().engine = one_in(2)   ? CommEngine::kCopy
                                             : one_in(2) ? CommEngine::kNcclCopy
                                                         : CommEngine::kSm;
    return options;
  }

  /// Some of the passes in the order of the list, and last the events. Without cut_exchanges, which
  /// is for programs as they are built.
  PassSequence some_in_order(const PipelineOptions& options) {
    PassSequence sequence;
    const bool all = one_in(4);
    for (const Pass& pass : rank_passes(default_pipeline(options))) {
      if (pass.name == "cut_exchanges") {
        continue;
      }
      if (pass.places_events || all || !one_in(3)) {
        sequence.passes.push_back(pass);
      }
    }
    return sequence;
  }

  /// Some of the passes in any order, with `insert_events` last, but defer_head_wgrad always before
  /// split_ops. split_ops, which uses costs of one rank, may move a weight gradient after the
  /// losses on some ranks only. defer_head_wgrad, which looks for the last gradient, would then
  /// move the reduction of a tied table on those ranks only.
  PassSequence some_in_any_order(const PipelineOptions& options) {
    PassSequence sequence = some_in_order(options);
    std::shuffle(sequence.passes.begin(), sequence.passes.end() - 1, random_);
    const auto split = find(sequence, "split_ops");
    const auto defer = find(sequence, "defer_head_wgrad");
    if (split < defer && defer != sequence.passes.end()) {
      std::iter_swap(split, defer);
    }
    return sequence;
  }

 private:
  static std::vector<Pass>::iterator find(PassSequence& sequence, std::string_view name) {
    return std::ranges::find(sequence.passes, name, &Pass::name);
  }
  int64_t below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  bool one_in(int64_t n) { return below(n) == 0; }

  /// Any method for each product: those that do not fit its communication do nothing.
  SiteOverlaps sites() {
    SiteOverlaps sites = default_site_overlaps();
    if (one_in(3)) {
      return sites;
    }
    for (auto& [name, overlap] : sites) {
      constexpr OverlapMethod kMethods[] = {OverlapMethod::kNone, OverlapMethod::kBulk,
                                            OverlapMethod::kRing, OverlapMethod::kChunked};
      overlap = {kMethods[below(4)], static_cast<int>(2 + below(3))};
    }
    return sites;
  }

  std::mt19937_64 random_;
};

}  // namespace braid
