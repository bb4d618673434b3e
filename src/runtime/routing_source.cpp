#include "runtime/routing_source.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "plan/dirichlet.h"
#include "runtime/rank_routing.h"
#include "runtime/routing_file.h"

namespace braid {
namespace {

/// Token t of a sequence has the choice number t modulo this: enough for loads within a few
/// percent of the shares, and quickly drawn.
constexpr int64_t kDrawnTokens = 2048;
constexpr uint32_t kChoiceKey = 0x5C0FF;  // arbitrary

/// Independent variates with the distribution of -log(-log(u)), four at a time.
void add_gumbel(std::vector<double>& keys, uint32_t router, uint32_t token) {
  for (size_t e = 0; e < keys.size(); e += 4) {
    const auto words =
        philox4x32({static_cast<uint32_t>(e), token, router, 0}, {kChoiceKey, kChoiceKey});
    for (size_t i = 0; i < words.size() && e + i < keys.size(); ++i) {
      keys[e + i] -= std::log(-std::log((static_cast<double>(words[i]) + 0.5) * 0x1p-32));
    }
  }
}

/// Exchanges the run of experts that has the largest share with the favoured one.
void favour(std::vector<double>& shares, const FavouredExperts& favoured) {
  const auto size = static_cast<int64_t>(shares.size()) / favoured.runs;
  const auto begin_of = [&](int64_t run) { return shares.begin() + run * size; };
  const auto share_of = [&](int64_t run) {
    return std::accumulate(begin_of(run), begin_of(run) + size, 0.0);
  };
  int64_t busiest = 0;
  for (int64_t run = 1; run < favoured.runs; ++run) {
    busiest = share_of(run) > share_of(busiest) ? run : busiest;
  }
  if (busiest != favoured.index) {
    std::swap_ranges(begin_of(busiest), begin_of(busiest) + size, begin_of(favoured.index));
  }
}

/// Tokens draw experts without putting them back, by the shares of their layer: the largest sums of
/// log(share) and a Gumbel variate. Source: Kool et al., Stochastic beams and where to find them,
/// 2019.
class DrawnRouting : public RoutingSource {
 public:
  DrawnRouting(const ModelSpec& model, double concentration,
               const std::optional<FavouredExperts>& favoured)
      : per_token_(static_cast<size_t>(model.experts_per_token)) {
    const auto routers = static_cast<uint32_t>(router_layers(model).size());
    DirichletDraws draws(model.experts, concentration);
    for (uint32_t router = 0; router < routers; ++router) {
      std::vector<double> shares = draws.next();
      if (favoured) {
        favour(shares, *favoured);
      }
      add_router(router, std::move(shares));
    }
  }

  void read(int64_t /*step*/, int64_t router, const TokenRun& run,
            std::span<int32_t> experts) const override {
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t token = router * kDrawnTokens + (run.position + i) % kDrawnTokens;
      std::copy_n(drawn_.begin() + token * static_cast<int64_t>(per_token_), per_token_,
                  experts.begin() + i * static_cast<int64_t>(per_token_));
    }
  }

 private:
  void add_router(uint32_t router, std::vector<double> shares) {
    std::ranges::transform(shares, shares.begin(), [](double share) { return std::log(share); });
    std::vector<int32_t> experts(shares.size());
    for (uint32_t token = 0; token < kDrawnTokens; ++token) {
      std::vector<double> keys = shares;
      add_gumbel(keys, router, token);
      std::iota(experts.begin(), experts.end(), 0);
      std::partial_sort(experts.begin(), experts.begin() + static_cast<int64_t>(per_token_),
                        experts.end(), [&](int32_t a, int32_t b) {
                          return std::pair(-keys[static_cast<size_t>(a)], a) <
                                 std::pair(-keys[static_cast<size_t>(b)], b);
                        });
      drawn_.insert(drawn_.end(), experts.begin(),
                    experts.begin() + static_cast<int64_t>(per_token_));
    }
  }

  size_t per_token_;
  std::vector<int32_t> drawn_;  // [routers, kDrawnTokens, K]
};

}  // namespace

std::unique_ptr<RoutingSource> make_routing_source(const RunSpec& run,
                                                   const std::optional<FavouredExperts>& favoured) {
  const MoeConfig& moe = run.config.moe;
  if (!moe.replay.empty()) {
    return std::make_unique<RecordedRouting>(moe.replay, routing_shape(run));
  }
  if (moe.force_skew > 0) {
    return std::make_unique<DrawnRouting>(run.model, moe.force_skew, favoured);
  }
  return nullptr;
}

}  // namespace braid
