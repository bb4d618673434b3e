#include "sim/linked_model.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

/// A core in hundredths: `core_demand` gives the share that communication uses, and two threads
/// share a core evenly.
constexpr Contention kSharedCores{.gemm_and_sm_comm = {.compute = 0.5},
                                  .memory_bound_and_sm_comm = {.compute = 0.5},
                                  .compute_and_copy_engine = {},
                                  .comm_sms = 100};

class LinkedModel final : public CostModel {
 public:
  LinkedModel(std::unique_ptr<CostModel> model, const LinkOptions& links)
      : model_(std::move(model)), links_(links) {
    check(model_ != nullptr, "links without a cost model");
  }

  Cost task_cost(const OpSpec& spec) const override { return model_->task_cost(spec); }
  /// Ranks of one process have one algorithm, which profiles call a ring.
  Cost comm_cost(const CommSpec& spec) const override {
    CommSpec ring = spec;
    ring.algorithm = CommAlgorithm::kRing;
    return model_->comm_cost(ring);
  }
  Cost host_copy_cost(HostCopy direction, int64_t bytes) const override {
    return model_->host_copy_cost(direction, bytes);
  }
  const Contention& contention() const override { return contention_; }
  const Cluster& cluster() const override { return model_->cluster(); }
  const LinkOptions* links() const override { return &links_; }
  int64_t launch_ns() const override { return model_->launch_ns(); }
  int64_t step_overhead_ns() const override { return model_->step_overhead_ns(); }
  std::string description() const override {
    const bool is_limited = std::any_of(links_.by_kind.begin(), links_.by_kind.end(),
                                        [](const LinkSpec& link) { return link.is_limited(); });
    return model_->description() + (is_limited ? ", emulated links" : "");
  }

 private:
  std::unique_ptr<CostModel> model_;
  LinkOptions links_;
  Contention contention_ = kSharedCores;
};

}  // namespace

std::unique_ptr<CostModel> make_linked_model(std::unique_ptr<CostModel> model,
                                             const LinkOptions& links) {
  return std::make_unique<LinkedModel>(std::move(model), links);
}

}  // namespace braid
