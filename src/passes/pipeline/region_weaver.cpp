#include "passes/pipeline/region_weaver.h"

#include "passes/pipeline/weave.h"

namespace braid {
namespace {

/// Without a model: how much better, in percent, a merge must be that does not strictly alternate.
constexpr int64_t kRoughMargin = 10;

}  // namespace

RegionWeaver::RegionWeaver(const Program& program, const CostModel* model)
    : dependencies_(build_dependencies(program)), prices_(program, model) {
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    order_.emplace_back(i);
  }
}

bool RegionWeaver::weave_region(const JobRegion& region) {
  std::vector<WeaveItem> items(region.end - region.begin);
  for (uint32_t i = 0; i < items.size(); ++i) {
    const TaskId task(size_t{region.begin + i});
    items[i] = {.ns = prices_.ns(task), .channel = prices_.channel(task), .predecessors = {}};
    for (const TaskId earlier : dependencies_.of(task)) {
      if (earlier.value >= region.begin) {
        items[i].predecessors.push_back(earlier.value - region.begin);
      }
    }
  }
  const Woven woven =
      weave(items, region.middle - region.begin, prices_.are_rough() ? kRoughMargin : 0);
  for (uint32_t i = 0; i < woven.order.size(); ++i) {
    order_[region.begin + i] = TaskId(size_t{region.begin + woven.order[i]});
  }
  return woven.is_woven();
}

}  // namespace braid
