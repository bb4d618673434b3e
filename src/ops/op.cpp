#include "ops/op.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/errors.h"
#include "ops/activation.h"
#include "ops/adapter.h"
#include "ops/add_gated.h"
#include "ops/attention.h"
#include "ops/attention_step.h"
#include "ops/blocks.h"
#include "ops/cached_attention.h"
#include "ops/cached_mamba2.h"
#include "ops/collectives.h"
#include "ops/columns.h"
#include "ops/context_attention.h"
#include "ops/context_layout.h"
#include "ops/context_sections.h"
#include "ops/cross_entropy.h"
#include "ops/drop_rows.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/expert_exchange.h"
#include "ops/expert_rows.h"
#include "ops/grouped_linear.h"
#include "ops/head_norm.h"
#include "ops/host_slots.h"
#include "ops/linear.h"
#include "ops/linear_swiglu.h"
#include "ops/magnitude.h"
#include "ops/mamba2.h"
#include "ops/mamba2_section.h"
#include "ops/mla_qkv.h"
#include "ops/momentum.h"
#include "ops/muon.h"
#include "ops/norm.h"
#include "ops/offload.h"
#include "ops/optimizer.h"
#include "ops/preference.h"
#include "ops/quantize.h"
#include "ops/quantize_gathered.h"
#include "ops/quantize_grouped.h"
#include "ops/quantize_part.h"
#include "ops/rope.h"
#include "ops/router.h"
#include "ops/row_blocks.h"
#include "ops/scaled_grouped_linear.h"
#include "ops/scaled_linear.h"
#include "ops/transpose.h"
#include "ops/transpose_grouped.h"

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
    &kGroupedLinearSwigluOp,
    &kGroupedLinearDgradSwigluBackwardOp,
    &kGroupedLinearOp,
    &kGroupedLinearDgradOp,
    &kGroupedLinearWgradOp,
    &kQuantizeOp,
    &kQuantizeWeightOp,
    &kQuantizeGroupedOp,
    &kQuantizeGatheredOp,
    &kTransposeGroupedOp,
    &kPartMagnitudesOp,
    &kQuantizePartOp,
    &kScalesOfMagnitudesOp,
    &kTransposeOp,
    &kScaledLinearOp,
    &kScaledLinearDgradOp,
    &kScaledLinearWgradOp,
    &kScaledGroupedLinearOp,
    &kScaledGroupedLinearDgradOp,
    &kScaledGroupedLinearWgradOp,
    &kRmsnormOp,
    &kAddRmsnormOp,
    &kRmsnormBackwardOp,
    &kLayernormOp,
    &kAddLayernormOp,
    &kLayernormBackwardOp,
    &kHeadNormOp,
    &kHeadNormBackwardOp,
    &kRopeOp,
    &kMlaQkvOp,
    &kMlaQkvBackwardOp,
    &kTakeColumnsOp,
    &kPutColumnsOp,
    &kAttentionOp,
    &kAttentionBackwardOp,
    &kAttentionStepOp,
    &kAttentionStepBackwardOp,
    &kAttentionFinishOp,
    &kCachedAttentionOp,
    &kMamba2Op,
    &kMamba2BackwardOp,
    &kCachedMamba2Op,
    &kMamba2LastInputsOp,
    &kMamba2AddInputsOp,
    &kMamba2SectionStatesOp,
    &kMamba2SectionOp,
    &kMamba2SectionStateGradsOp,
    &kMamba2SectionBackwardOp,
    &kNeighbourSectionsOp,
    &kCarryStatesOp,
    &kPackKvOp,
    &kAssembleQkvOp,
    &kZigzagOrderOp,
    &kSplitHeadsOp,
    &kSwapBlocksOp,
    &kSwigluOp,
    &kSwigluBackwardOp,
    &kSortRowsOp,
    &kDropRowsOp,
    &kGatherRowsOp,
    &kPermuteElemsOp,
    &kSumRowsOp,
    &kRoutedSwigluOp,
    &kRoutedSwigluBackwardOp,
    &kRoutedRelu2Op,
    &kRoutedRelu2BackwardOp,
    &kGeluOp,
    &kGeluBackwardOp,
    &kGegluOp,
    &kGegluBackwardOp,
    &kRelu2Op,
    &kRelu2BackwardOp,
    &kRouterLinearOp,
    &kRouterLinearDgradOp,
    &kRouterLinearWgradOp,
    &kRouteOp,
    &kRouteBackwardOp,
    &kCountChoicesOp,
    &kCountBySequenceOp,
    &kRouterLossesOp,
    &kRouterLossesBackwardOp,
    &kCrossEntropyOp,
    &kCrossEntropyPartialOp,
    &kCrossEntropyMergeOp,
    &kCrossEntropyBackwardOp,
    &kSequenceLossesOp,
    &kPreferenceLossOp,
    &kAddOp,
    &kAddGatedOp,
    &kAddGatedBackwardOp,
    &kAddAdaptersOp,
    &kAdapterGradOp,
    &kAdaptedSquaresOp,
    &kApplyMagnitudesOp,
    &kApplyMagnitudesBackwardOp,
    &kAccumulateOp,
    &kCastOp,
    &kCopyOp,
    &kFillOp,
    &kScaleOp,
    &kSumBlocksOp,
    &kLargestOfBlocksOp,
    &kJoinColumnsOp,
    &kJoinBlocksOp,
    &kSquaredNormOp,
    &kMatrixSquaresOp,
    &kSumOp,
    &kClipScaleOp,
    &kAdamwOp,
    &kLionOp,
    &kSgdOp,
    &kMuonMeanOp,
    &kTakeMatrixOp,
    &kPutMatrixOp,
    &kNormalizeOp,
    &kWeightedSumOp,
    &kMuonUpdateOp,
    &kBalanceUpdateOp,
    &kAverageWeightsOp,
    &kAllReduceOp,
    &kAllReduceMaxOp,
    &kIdentityOp,
    &kAllGatherOp,
    &kReduceScatterOp,
    &kAllToAllOp,
    &kBroadcastOp,
    &kReduceOp,
    &kSendOp,
    &kRecvOp,
    &kRingShiftOp,
    &kDispatchRowsOp,
    &kCombineRowsOp,
    &kRowsToBlocksOp,
    &kBlocksToRowsOp,
    &kHostSlotsOp,
    &kOffloadOp,
    &kReloadOp,
    &kUndefineOp,
    &kAwaitOp,
};

/// Indices of ops by a hash of their names. Checked and built on first use.
class Registry {
 public:
  Registry() {
    validate_ops(kOps);
    for (const OpDefinition* const op : kOps) {
      size_t slot = slot_of(op->name);
      while (by_name_[slot].op != nullptr) {
        slot = next(slot);
      }
      by_name_[slot] = {op->name, op};
      by_role_[static_cast<size_t>(op->role)].push_back(op->name);
      if (op->communication) {
        by_comm_op_[static_cast<size_t>(op->communication->op)] = op;
      }
    }
  }

  const OpDefinition* find(std::string_view name) const {
    for (size_t slot = slot_of(name); by_name_[slot].op != nullptr; slot = next(slot)) {
      if (by_name_[slot].name == name) {
        return by_name_[slot].op;
      }
    }
    return nullptr;
  }

  const OpDefinition& find(CommOp op) const { return *by_comm_op_[static_cast<size_t>(op)]; }

  std::span<const std::string_view> names_with(OpRole role) const {
    return by_role_[static_cast<size_t>(role)];
  }

 private:
  static constexpr size_t kNumSlots = 512;
  static_assert(kOps.size() < kNumSlots / 2);

  /// Length and three characters distinguish most names.
  static size_t slot_of(std::string_view name) {
    if (name.empty()) {
      return 0;
    }
    const auto at = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(name[i])); };
    return (name.size() * 37 + at(0) * 5 + at(name.size() / 2) * 11 + at(name.size() - 1) * 3) %
           kNumSlots;
  }
  static size_t next(size_t slot) { return (slot + 1) % kNumSlots; }

  struct Slot {
    std::string_view name;
    const OpDefinition* op = nullptr;
  };

  std::array<Slot, kNumSlots> by_name_ = {};
  std::array<std::vector<std::string_view>, kNumOpRoles> by_role_;
  std::array<const OpDefinition*, kNumCommOps> by_comm_op_ = {};
};

const Registry& registry() {
  static const Registry kRegistry;
  return kRegistry;
}

}  // namespace

std::span<const OpDefinition* const> all_ops() {
  return kOps;
}

const OpDefinition& find_op(std::string_view name) {
  const OpDefinition* const op = registry().find(name);
  check(op != nullptr, "no op is called {}", name);
  return *op;
}

const OpDefinition* find_known_op(std::string_view name) {
  return registry().find(name);
}

const OpDefinition& find_op(CommOp op) {
  return registry().find(op);
}

std::string_view op_kind_name(OpKind kind) {
  constexpr std::array<std::string_view, 10> kNames = {
      "matrix products", "attention",          "state space", "norms",  "elementwise",
      "routing",         "embedding and loss", "optimizer",   "copies", "communication"};
  return kNames[static_cast<size_t>(kind)];
}

const Communication* communication_of(const OpSpec& spec) {
  const OpDefinition* const op = find_known_op(spec.op);
  return op == nullptr || !op->communication ? nullptr : &*op->communication;
}

ValueRule value_rule(const OpSpec& spec) {
  const OpDefinition* const op = find_known_op(spec.op);
  return op == nullptr ? ValueRule::kComputed : op->values;
}

std::optional<ProductPart> product_part(const OpSpec& spec) {
  const auto is = [&](OpRole role, OpRole scaled) {
    return has_role(spec, role) || has_role(spec, scaled);
  };
  if (is(OpRole::kProduct, OpRole::kScaledProduct)) {
    return ProductPart::kFprop;
  }
  if (is(OpRole::kProductDgrad, OpRole::kScaledProductDgrad)) {
    return ProductPart::kDgrad;
  }
  if (is(OpRole::kProductWgrad, OpRole::kScaledProductWgrad)) {
    return ProductPart::kWgrad;
  }
  return std::nullopt;
}

bool has_role(const OpSpec& spec, OpRole role) {
  return std::ranges::any_of(registry().names_with(role),
                             [&](std::string_view name) { return spec.op == name; });
}

bool communicates_as(const OpSpec& spec, CommOp op) {
  return spec.op == registry().find(op).name;
}

bool is_message(const OpSpec& spec) {
  return communicates_as(spec, CommOp::kSend) || communicates_as(spec, CommOp::kRecv);
}

bool is_product_or_attention(const OpSpec& spec) {
  const OpDefinition* const op = find_known_op(spec.op);
  return op != nullptr && (op->kind == OpKind::kProduct || op->kind == OpKind::kAttention);
}

void check_spec(const OpSpec& spec) {
  find_op(spec.op).check(spec);
}

OpCost spec_cost(const OpSpec& spec) {
  return find_op(spec.op).cost(spec);
}

double bytes_read_again(const OpSpec& spec) {
  const OpDefinition& op = find_op(spec.op);
  return op.bytes_read_again == nullptr ? 0 : op.bytes_read_again(spec);
}

bool has_tally(const OpSpec& spec) {
  const AttributeValue* const watch = spec.find_attribute(kTallyAttribute);
  return watch != nullptr && *watch == AttributeValue(true);
}

TallyKind tally_kind(const OpSpec& spec) {
  const TallyKind kind = find_op(spec.op).tally;
  check(has_tally(spec) && kind != TallyKind::kNone, "op {} counts nothing", spec.op);
  return kind;
}

OpSpec without_tally(OpSpec spec) {
  if (has_tally(spec)) {
    std::erase_if(spec.attributes, [](const Attribute& it) { return it.name == kTallyAttribute; });
    spec.operands.pop_back();
  }
  return spec;
}

std::optional<Replay> find_replay(const OpSpec& spec) {
  const OpDefinition& op = find_op(spec.op);
  if (op.replay_of != nullptr) {
    return op.replay_of(spec);
  }
  if (op.replay.op.empty()) {
    return std::nullopt;
  }
  Replay replay{.spec = {std::string(op.replay.op), spec.attributes, {}},
                .operands = {op.replay.operands.begin(), op.replay.operands.end()}};
  for (const size_t position : replay.operands) {
    replay.spec.operands.push_back(spec.operands[position]);
  }
  replay.spec.operands.front().access = Access::kRead;
  return replay;
}

OpSpec replay_spec(const OpSpec& spec) {
  std::optional<Replay> replay = find_replay(spec);
  check(replay.has_value(), "op {} has no replay rule", spec.op);
  return std::move(replay->spec);
}

}  // namespace braid
