#include "passes/pipeline/weave_prices.h"

#include <algorithm>

#include "ops/offload.h"
#include "ops/op.h"
#include "passes/analysis/rank_independent.h"
#include "passes/pipeline/weave.h"
#include "sim/cost_model.h"

namespace braid {
namespace {

constexpr int64_t kUnknown = -1;
/// Prices without a model. Tasks other than products, attention and communication cost almost
/// nothing, but keep their place.
constexpr int64_t kUnit = 1000;
constexpr int64_t kNextToNothing = 1;

/// True for communication that the order of compute should hide.
bool is_hidden(const Program& program, const OpSpec& spec) {
  const std::optional<GroupId> id = group_of(program, spec);
  if (!id) {
    return false;
  }
  const Group& group = program.groups[id->index()];
  return group.ranks.size() > 1 &&
         (group.kind == GroupKind::kTensor || group.kind == GroupKind::kContext ||
          group.kind == GroupKind::kExpert);
}

bool has_context_ranks(const Program& program) {
  return std::ranges::any_of(program.groups, [](const Group& group) {
    return group.kind == GroupKind::kContext && group.ranks.size() > 1;
  });
}

}  // namespace

WeavePrices::WeavePrices(const Program& program, const CostModel* model)
    : program_(program),
      model_(has_context_ranks(program) ? nullptr : model),
      by_spec_(program.specs.size(), kUnknown) {
  if (model_ != nullptr) {
    priced_ = at_first_ranks(program);
  }
}

int64_t WeavePrices::ns(TaskId task) {
  int64_t& ns = by_spec_[program_.tasks[task.index()].spec.index()];
  if (ns == kUnknown) {
    ns = price(task);
  }
  return ns;
}

uint8_t WeavePrices::channel(TaskId task) const {
  const Task& it = program_.tasks[task.index()];
  const OpSpec& spec = program_.spec(it);
  const std::optional<GroupId> group = group_of(program_, spec);
  return it.label.phase == Phase::kComm && group && !communicates_as(spec, CommOp::kRecv)
             ? static_cast<uint8_t>(program_.groups[group->index()].kind)
             : WeaveItem::kCompute;
}

int64_t WeavePrices::price(TaskId task) const {
  const OpSpec& spec = program_.spec(program_.tasks[task.index()]);
  const bool communicates = group_of(program_, spec).has_value();
  if (does_nothing(spec) || (communicates && !is_hidden(program_, spec))) {
    return 0;
  }
  if (model_ != nullptr) {
    return rank_independent_ns(*model_, priced_, task);
  }
  return communicates || is_product_or_attention(spec) ? kUnit : kNextToNothing;
}

}  // namespace braid
