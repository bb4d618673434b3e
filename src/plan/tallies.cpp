#include "plan/tallies.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "ops/op.h"
#include "ops/quantize.h"
#include "ops/router.h"
#include "ops/tally.h"

namespace braid {
namespace {

using RangesByBegin = std::map<int64_t, TallyRange>;

std::vector<TallyRange> in_order(const RangesByBegin& ranges) {
  std::vector<TallyRange> list;
  for (const auto& [begin, range] : ranges) {
    list.push_back(range);
  }
  return list;
}

/// Calls visit(task, range) for the last operand of each task, if it lies in the buffer.
template <class Visit>
void visit_last_operands(const Program& program, std::string_view buffer, Visit&& visit) {
  const auto found = std::ranges::find(program.buffers, buffer, &Buffer::name);
  if (found == program.buffers.end()) {
    return;
  }
  const BufferId id(static_cast<size_t>(found - program.buffers.begin()));
  for (const Task& task : program.tasks) {
    const auto operands = program.operands_of(task);
    if (!operands.empty() && operands.back().buffer == id) {
      visit(task, operands.back());
    }
  }
}

}  // namespace

std::vector<TallyRange> tally_ranges(const Program& program) {
  RangesByBegin ranges;
  visit_last_operands(program, kTalliesBuffer, [&](const Task& task, const BufferRange& range) {
    const OpSpec& spec = program.spec(task);
    if (!has_tally(spec) || ranges.contains(range.begin)) {  // others make it zero
      return;
    }
    TallyPlace place{
        .kind = tally_kind(spec), .site = program.sites[task.label.site.index()], .factor = {}};
    if (place.kind == TallyKind::kFp8Losses) {
      place.factor = watched_factor(spec, task.label.phase);
    }
    ranges[range.begin] = {.place = place, .begin = range.begin, .end = range.end};
  });
  return in_order(ranges);
}

std::vector<TallyRange> router_loss_ranges(const Program& program) {
  RangesByBegin ranges;
  visit_last_operands(
      program, kRouterLossesBuffer, [&](const Task& task, const BufferRange& range) {
        ranges[range.begin] = {.place = {.site = program.sites[task.label.site.index()]},
                               .begin = range.begin,
                               .end = range.end};
      });
  return in_order(ranges);
}

}  // namespace braid
