#include "ops/op.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/attention_step.h"
#include "ops/blocks.h"
#include "ops/collectives.h"
#include "ops/context_attention.h"
#include "ops/context_layout.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/linear_swiglu.h"
#include "ops/norm.h"
#include "ops/offload.h"
#include "ops/optimizer.h"
#include "ops/rope.h"

namespace braid {
namespace {

constexpr std::array kOps = {
    &kEmbeddingOp,
    &kEmbeddingWgradOp,
    &kPositionEmbeddingWgradOp,
    &kLinearOp,
    &kLinearDgradOp,
    &kLinearWgradOp,
    &kLinearSwigluOp,
    &kLinearDgradSwigluBackwardOp,
    &kRmsnormOp,
    &kAddRmsnormOp,
    &kRmsnormBackwardOp,
    &kLayernormOp,
    &kAddLayernormOp,
    &kLayernormBackwardOp,
    &kRopeOp,
    &kAttentionOp,
    &kAttentionBackwardOp,
    &kAttentionStepOp,
    &kAttentionStepBackwardOp,
    &kAttentionFinishOp,
    &kPackKvOp,
    &kAssembleQkvOp,
    &kZigzagOrderOp,
    &kSplitHeadsOp,
    &kSwapBlocksOp,
    &kSwigluOp,
    &kSwigluBackwardOp,
    &kGeluOp,
    &kGeluBackwardOp,
    &kCrossEntropyOp,
    &kCrossEntropyPartialOp,
    &kCrossEntropyMergeOp,
    &kCrossEntropyBackwardOp,
    &kAddOp,
    &kAccumulateOp,
    &kCastOp,
    &kCopyOp,
    &kFillOp,
    &kSumBlocksOp,
    &kJoinColumnsOp,
    &kSquaredNormOp,
    &kSumOp,
    &kClipScaleOp,
    &kAdamwOp,
    &kAllReduceOp,
    &kIdentityOp,
    &kAllGatherOp,
    &kReduceScatterOp,
    &kAllToAllOp,
    &kBroadcastOp,
    &kReduceOp,
    &kSendOp,
    &kRecvOp,
    &kRingShiftOp,
    &kOffloadOp,
    &kReloadOp,
    &kUndefineOp,
};

}  // namespace

std::span<const OpDefinition* const> all_ops() {
  return kOps;
}

const OpDefinition& find_op(std::string_view name) {
  const auto found = std::find_if(kOps.begin(), kOps.end(),
                                  [&](const OpDefinition* op) { return op->name == name; });
  check(found != kOps.end(), "no op is called {}", name);
  return **found;
}

void check_spec(const OpSpec& spec) {
  find_op(spec.op).check(spec);
}

OpCost spec_cost(const OpSpec& spec) {
  return find_op(spec.op).cost(spec);
}

OpSpec replay_spec(const OpSpec& spec) {
  const ReplayRule& rule = find_op(spec.op).replay;
  check(!rule.op.empty(), "op {} has no replay rule", spec.op);
  OpSpec replay{.op = std::string(rule.op), .attributes = spec.attributes, .operands = {}};
  for (const size_t position : rule.operands) {
    replay.operands.push_back(spec.operands[position]);
  }
  replay.operands.front().access = Access::kRead;
  return replay;
}

}  // namespace braid
