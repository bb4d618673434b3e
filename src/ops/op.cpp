#include "ops/op.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/collectives.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/rope.h"

namespace braid {
namespace {

constexpr std::array kOps = {
    &kEmbeddingOp,    &kEmbeddingWgradOp, &kPositionEmbeddingWgradOp,
    &kLinearOp,       &kLinearDgradOp,    &kLinearWgradOp,
    &kRmsnormOp,      &kAddRmsnormOp,     &kRmsnormBackwardOp,
    &kLayernormOp,    &kAddLayernormOp,   &kLayernormBackwardOp,
    &kRopeOp,         &kAttentionOp,      &kAttentionBackwardOp,
    &kSwigluOp,       &kSwigluBackwardOp, &kGeluOp,
    &kGeluBackwardOp, &kCrossEntropyOp,   &kCrossEntropyBackwardOp,
    &kAddOp,          &kCastOp,           &kCopyOp,
    &kFillOp,         &kSquaredNormOp,    &kClipScaleOp,
    &kAdamwOp,        &kAllReduceOp,
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

}  // namespace braid
